//! The matcher against `regress`: the same matches, group by group, and an end within the steps a text may take.
//!
//! The oracle is `regress`'s second machine, which copies its state at every choice. The first, its default, has a fault
//! against ECMA-262: a loop entered anew within another forgets how often it had turned, and on `(?:(?:|c*){2}b|){1,2}?s|`
//! it never ends. Both share a second one: a reference by a name that several groups have ([`Outcome::NamesShared`]).

use regress::backends::{PikeVMExecutor, find};
use regress::{Flags, Regex};

use super::matcher::{Fuel, MAX_STEPS, Match, OutOfFuel, Program, STEPS_PER_BYTE};

/// A generator whose numbers are those of its seed (splitmix64).
struct Draw(u64);

impl Draw {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        usize::try_from((z ^ (z >> 31)) % n as u64).unwrap()
    }

    fn of<'a>(&mut self, options: &[&'a str]) -> &'a str {
        options[self.below(options.len())]
    }
}

const ATOMS: &[&str] = &[
    "a",
    "b",
    "a",
    "b",
    "c",
    "A",
    "k",
    "s",
    "é",
    "1",
    "_",
    " ",
    "\n",
    "😀",
    ".",
    ".",
    "\\d",
    "\\D",
    "\\w",
    "\\W",
    "\\s",
    "\\S",
    "\\u0061",
    "\\x62",
    "\\u{62}",
    "\\u{1F600}",
    "\\uD83D\\uDE00",
    "\\cJ",
    "\\n",
    "\\t",
    "\\0",
    "\\.",
    "\\/",
    "\\(",
    "\\p{L}",
    "\\P{L}",
    "\\p{Lu}",
    "\\p{Script=Greek}",
    "[ab]",
    "[^ab]",
    "[a-c]",
    "[^]",
    "[]",
    "[\\d_]",
    "[^\\s<>,]",
    "[\\b]",
    "[a\\]]",
    "[\\u{61}-\\u{63}]",
    "[\\x61]",
    "[\\w-]",
    "[^\\W]",
    "[K\u{17f}]",
    "[é-ü]",
    "[😀]",
    "[.^$]",
    "\u{212a}",
    "]",
    "{",
    "}",
    "\\c",
    "\\x",
    "\\u",
    "\\8",
    "\\07",
    "\\101",
    "\\k",
    "\\-",
    "[\\cA]",
    "[\\c]",
    "[(]",
    "[a&&b]",
    "[[ab]--a]",
    "[\\q{ab}]",
    "\\p{RGI_Emoji}",
    "\\uD83D",
    "\\a",
    "{1",
    "a{,2}",
    "ſ",
    "σ",
    "ς",
    "Σ",
    "[[a-c]&&[b-d]]",
    "[\\p{L}--[ab]]",
];
const EDGES: &[&str] = &["^", "$", "\\b", "\\B"];
const BACKS: &[&str] = &["\\1", "\\2", "\\3", "\\k<n>", "\\k<m>"];
const QUANTIFIERS: &[&str] = &[
    "*", "+", "?", "{0}", "{1}", "{2}", "{0,1}", "{1,2}", "{2,3}", "{0,}", "{1,}", "{2,}",
];
const OPENINGS: &[&str] = &[
    "(", "(", "(", "(?:", "(?:", "(?<n>", "(?<m>", "(?=", "(?!", "(?<=", "(?<!", "(?i:", "(?-i:", "(?s:",
    "(?m-s:",
];
const TEXT: &[&str] = &[
    "a", "a", "a", "b", "b", "c", "A", "B", "K", "k", "\u{212a}", "s", "\u{17f}", "é", "É", "1", "_", " ",
    "\n", "\r", "\u{2028}", "😀", "<", ".", "]", "{", "\\", "x", "u", "σ", "ς", "Σ", "\u{8}", "A", "(", "-",
    "\0", "\u{7}",
];

fn pattern(draw: &mut Draw, depth: usize, out: &mut String) {
    for n in 0..=draw
        .below(if depth == 0 { 2 } else { 3 })
        .saturating_sub(draw.below(2))
    {
        if n > 0 {
            out.push('|');
        }
        for _ in 0..draw.below(4) {
            match draw.below(12) {
                0 => out.push_str(draw.of(EDGES)),
                1 => out.push_str(draw.of(BACKS)),
                2..=6 if depth > 0 => {
                    out.push_str(draw.of(OPENINGS));
                    pattern(draw, depth - 1, out);
                    out.push(')');
                }
                _ => {
                    let plain = draw.below(3) > 0;
                    out.push_str(draw.of(if plain { &ATOMS[..16] } else { ATOMS }));
                }
            }
            if draw.below(5) < 2 {
                out.push_str(draw.of(QUANTIFIERS));
                out.push_str(draw.of(&["", "", "?"]));
            }
        }
    }
}

struct Case {
    source: String,
    flags: String,
    text: String,
}

fn case(seed: u64) -> Case {
    let mut draw = Draw(seed);
    let mut source = String::new();
    let depth = draw.below(4);
    pattern(&mut draw, depth, &mut source);
    let flags = ["i", "m", "s", "u", "v"].into_iter().enumerate();
    let flags = flags
        .filter(|(n, _)| draw.below(if *n == 4 { 12 } else { 2 }) == 0)
        .map(|(_, flag)| flag)
        .collect();
    let alphabet = if draw.below(2) == 0 { &TEXT[..5] } else { TEXT };
    let text = (0..draw.below(9)).map(|_| draw.of(alphabet)).collect();
    Case { source, flags, text }
}

#[derive(PartialEq, Eq, Debug)]
enum Outcome {
    Agree,
    /// `regress` refuses the source.
    Invalid,
    /// Only we do.
    Unsupported,
    /// Another answer to a reference `\k<n>` to several groups: for `regress` it may match nothing whenever one of them took
    /// no part, for ECMA-262 it matches what the one holds that did.
    NamesShared,
    OutOfFuel,
}

fn judge(case: &Case) -> Result<Outcome, String> {
    let flags = Flags::from(case.flags.as_str());
    // Unoptimised: the optimiser is no part of the meaning.
    let unoptimised = Flags {
        no_opt: true,
        ..flags
    };
    let Ok(regress) = Regex::with_flags(&case.source, unoptimised) else {
        return Ok(Outcome::Invalid);
    };
    let program = match Program::new(&case.source, flags) {
        Ok(program) => program,
        Err(reason) if reason.starts_with("regex not supported: ") => return Ok(Outcome::Unsupported),
        Err(reason) => return Err(reason),
    };
    let ours: Result<Vec<Match>, OutOfFuel> = program.find_iter(&case.text, &Fuel::default()).collect();
    let Ok(ours) = ours else {
        return Ok(Outcome::OutOfFuel);
    };
    let theirs: Vec<Match> = find::<PikeVMExecutor<'_, '_>>(&regress, &case.text, 0)
        .map(|one| one.groups().collect())
        .collect();
    if ours == theirs {
        Ok(Outcome::Agree)
    } else if ["n", "m"]
        .iter()
        .filter(|name| case.source.contains(&format!("\\k<{name}>")))
        .any(|name| case.source.matches(&format!("(?<{name}>")).count() > 1)
    {
        Ok(Outcome::NamesShared)
    } else {
        Err(format!("ours {ours:?}\ntheirs {theirs:?}"))
    }
}

#[test]
fn eng_1421_matches_are_those_of_regress() {
    let env = |name: &str| std::env::var(name).ok().map(|n| n.parse::<u64>().unwrap());
    let from = env("LONG_FROM").unwrap_or(0);
    let mut seen = [0_u64; 5];
    let mut differ = Vec::new();
    for seed in from..from + env("LONG_COUNT").unwrap_or(30_000) {
        let case = case(seed);
        match judge(&case) {
            Ok(outcome) => seen[outcome as usize] += 1,
            Err(what) => {
                let Case { source, flags, text } = case;
                differ.push(format!("seed {seed}: {source:?} {flags} on {text:?}\n{what}"));
            }
        }
    }
    differ.truncate(20);
    assert!(differ.is_empty(), "{}", differ.join("\n"));
    assert!(
        seen[Outcome::Agree as usize] > seen.iter().sum::<u64>() / 2,
        "{seen:?}"
    );
    println!("agree, invalid, unsupported, names shared, out of fuel: {seen:?}");
}

/// Patterns that backtracking takes exponentially or polynomially long over, or that never end, each with a text.
fn hostile() -> Vec<(String, String)> {
    let a = |n: usize| "a".repeat(n);
    let case = |source: &str, text: String| (source.to_owned(), text);
    vec![
        case("^(a|aa)*$", a(60) + "!"),
        case("^(?:a|a)*?$", a(60) + "!"),
        (format!("{}b", "a*".repeat(200)), a(400)),
        (format!("(?<=b{})c", "a*".repeat(100)), a(400) + "c"),
        (format!("^{}$", "(?:||a)".repeat(70)), "b".to_owned()),
        case("(?:){4000000000}", String::new()),
        case("(?:(?:(?:(?:|a){9}){9}){9}){9}b", a(9)),
        case("(?:(?=(?:a|aa)*b)|a)*$", a(60)),
        case("^(?:(.)|(..))*\\1\\2!$", "é".repeat(60)),
        case("(?:(?:|c*){2}b|){1,2}?s|", "abaaa".repeat(30)),
        (format!("(?:{}|.)*b", "()".repeat(200)), "😀".repeat(20_000)),
    ]
}

/// By count of steps, not by a clock.
#[test]
fn eng_1421_no_pattern_goes_beyond_the_steps_of_a_text() {
    let mut refused = 0;
    for (source, text) in hostile() {
        let program = Program::new(&source, Flags::from("i")).unwrap();
        let fuel = Fuel::of(100 * MAX_STEPS);
        let found: Result<Vec<Match>, OutOfFuel> = program.find_iter(&text, &fuel).collect();
        refused += usize::from(found.is_err());
        let spent = 100 * MAX_STEPS - fuel.left();
        let most = MAX_STEPS + (text.len() as u64 + 1) * STEPS_PER_BYTE;
        assert!(spent <= most, "{source}: {spent} steps");
        assert!(found.is_ok() || spent == most, "{source}: {spent} steps");
    }
    assert_eq!(refused, 10);
}

/// What is linear in a text passes whatever its length, without recursion and with a stack of a few entries.
#[test]
fn eng_1421_long_texts_pass() {
    let text = "someone@example.org, ".repeat(50_000);
    let fuel = Fuel::default();
    let program = Program::new("[^\\s<>,]+@[^\\s<>,]+", Flags::from("")).unwrap();
    assert_eq!(
        program.find_iter(&text, &fuel).filter(Result::is_ok).count(),
        50_000
    );
    let program = Program::new("^(?:.|\n)*$", Flags::from("")).unwrap();
    assert_eq!(program.find_iter(&text, &fuel).count(), 1);
    let program = Program::new("^[^]*(?<=(,) )$", Flags::from("")).unwrap();
    let found: Vec<_> = program.find_iter(&text, &fuel).collect();
    assert_eq!(
        found,
        [Ok(vec![
            Some(0..text.len()),
            Some(text.len() - 2..text.len() - 1)
        ])]
    );
}

/// The rows of a commit share their steps.
#[test]
fn eng_1421_the_rows_of_a_commit_share_steps() {
    let program = Program::new("^(?:a|aa)*$", Flags::from("")).unwrap();
    let text = "a".repeat(10) + "!";
    let ends_well = |fuel: &Fuel| program.find_iter(&text, fuel).all(|one| one.is_ok());
    let one_row = Fuel::of(MAX_STEPS);
    assert!(ends_well(&one_row));
    let spent = MAX_STEPS - one_row.left();
    assert!(spent > 0);
    let rows = Fuel::of(10 * spent + spent / 2);
    assert_eq!((0..100).take_while(|_| ends_well(&rows)).count(), 10);
    assert_eq!(rows.left(), 0);
    assert!(rows.take(1).is_err());
}

/// What is not supported is refused when it is declared, by name.
#[test]
fn eng_1421_what_is_not_supported_is_refused_loudly() {
    for (source, flags, part) in [
        ("[\\q{ab}]", "v", "a set of strings"),
        ("\\p{RGI_Emoji}", "v", "a set of strings"),
        ("\\uD83D\\u0061", "", "half of a surrogate pair"),
        ("\\u{+61}", "", "a signed escape"),
        ("(?<\\u0061>b)", "", "an escape in the group name"),
    ] {
        assert!(Regex::with_flags(source, flags).is_ok(), "{source}");
        let refused = Program::new(source, Flags::from(flags)).unwrap_err();
        assert!(
            refused.starts_with("regex not supported: ") && refused.contains(part),
            "{refused}"
        );
    }
    for source in ["[\\p{L}--[ab]]", "[[a-c]&&[b-d]]", "\\p{L}"] {
        assert!(Program::new(source, Flags::from("v")).is_ok(), "{source}");
    }
}

/// A name that several groups have refers to the one that took part.
#[test]
fn eng_1421_a_shared_name_refers_to_the_group_that_took_part() {
    let program = Program::new("^(?:(?<n>a)|(?<n>b))\\k<n>$", Flags::from("")).unwrap();
    let matches = |text: &str| program.find_iter(text, &Fuel::default()).count();
    assert_eq!(["aa", "bb", "ab", "b"].map(matches), [1, 1, 0, 0]);
}

/// As deep as a source can nest, on a test's own small stack.
#[test]
fn eng_1421_depth_is_that_of_the_source() {
    for (open, count) in [
        ("(", 255),
        ("(?:", 128),
        ("(?=", 128),
        ("(?<=", 102),
        ("(?!", 128),
        ("(?i:", 102),
    ] {
        let source = format!("{}{}", open.repeat(count), ")".repeat(count));
        assert!(
            source.len() <= 512 && Regex::with_flags(&source, "").is_ok(),
            "{open}"
        );
        let program = Program::new(&source, Flags::from("")).unwrap();
        let found: Result<Vec<Match>, OutOfFuel> =
            program.find_iter(&"a".repeat(100), &Fuel::default()).collect();
        assert!(found.is_ok_and(|found| found.len() == 101), "{open}");
    }
}
