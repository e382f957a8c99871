//! Matching with fuel (ENG-1421): ECMA-262's backtracking, counted, so that no pattern holds the writer of a space. A tree
//! of [`super::syntax`] becomes a list of instructions; one stack holds what is to be tried next and what is to be undone.
//! Any writer can declare a pattern, so steps and memory have bounds, and depth is that of look-around in the source.

use std::cell::Cell;
use std::ops::Range;

use regress::{Flags, Regex};

use super::syntax::{Chars, Node, Syntax, Times, parse};

/// Steps a text may take beyond [`STEPS_PER_BYTE`]: an instruction, a character compared, or a register written. Some
/// hundred million are a second.
pub(super) const MAX_STEPS: u64 = 1_000_000;
/// Steps that come with each byte of a text, so that what is linear in it passes whatever its length.
pub(super) const STEPS_PER_BYTE: u64 = 16;
/// Steps that all the texts of one commit may take together.
const MAX_COMMIT_STEPS: u64 = 300 * MAX_STEPS;
/// Things the stack may hold, each of 24 bytes.
const MAX_STACK: usize = 4_000_000;
/// What asking `regress` whether two characters differ by case alone counts as.
const FOLD_STEPS: u64 = 100;
/// A register that holds nothing.
const UNSET: usize = usize::MAX;

/// Steps left for the texts of a commit.
#[derive(Clone, Debug)]
pub(super) struct Fuel(Cell<u64>);

impl Default for Fuel {
    fn default() -> Fuel {
        Fuel(Cell::new(MAX_COMMIT_STEPS))
    }
}

impl Fuel {
    /// Takes steps for something that is done once for all texts.
    pub(super) fn take(&self, steps: u64) -> Result<(), OutOfFuel> {
        self.0.set(self.0.get().checked_sub(steps).ok_or(OutOfFuel)?);
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn of(steps: u64) -> Fuel {
        Fuel(Cell::new(steps))
    }

    #[cfg(test)]
    pub(super) fn left(&self) -> u64 {
        self.0.get()
    }
}

/// The pattern takes too many steps on a text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct OutOfFuel;

#[derive(Clone, Debug)]
enum Step {
    One {
        set: usize,
        back: bool,
    },
    /// A greedily repeated set: nothing but a position is needed to undo a turn.
    Span {
        set: usize,
        times: Times,
        back: bool,
    },
    /// Goes on, and later to `second`.
    Split {
        second: usize,
    },
    Jump(usize),
    Open(usize),
    Close {
        group: usize,
        back: bool,
    },
    Enter(usize),
    /// Whether to begin a turn, which starts at the next instruction, or to leave for `exit`.
    Decide {
        turns: usize,
        times: Times,
        exit: usize,
    },
    Begin {
        turns: usize,
        groups: Range<usize>,
    },
    /// A turn is over: back to its `Decide`.
    Turn {
        turns: usize,
        min: usize,
        decide: usize,
    },
    /// Its body follows, up to a `Done`; then `next`.
    Look {
        negated: bool,
        next: usize,
    },
    Edge {
        end: bool,
        multiline: bool,
    },
    Boundary {
        word: usize,
        negated: bool,
    },
    Back {
        groups: Vec<usize>,
        fold: Option<Flags>,
        back: bool,
    },
    Done,
}

/// A pattern, ready to match.
#[derive(Clone, Debug)]
pub(super) struct Program {
    steps: Vec<Step>,
    sets: Vec<Chars>,
    pub(super) groups: usize,
    registers: usize,
}

/// The ranges of a match in bytes: the whole, then each group that took part.
pub(super) type Match = Vec<Option<Range<usize>>>;

/// The registers of a group: where it opened, and what it holds.
const OPENED: usize = 0;
const START: usize = 1;
const END: usize = 2;
const A_GROUP: usize = 3;

impl Program {
    /// # Errors
    /// What the source has that is not supported.
    pub(super) fn new(source: &str, flags: Flags) -> Result<Program, String> {
        let Syntax { root, sets, groups } = parse(source, flags)?;
        let mut program = Program {
            steps: Vec::new(),
            sets,
            groups,
            registers: groups * A_GROUP,
        };
        program.emit(&root, false);
        program.steps.push(Step::Done);
        Ok(program)
    }

    /// Within a look behind, parts are met last to first and characters are read leftwards. Recursion follows the nesting
    /// of groups, which `regress` bounds.
    fn emit(&mut self, node: &Node, back: bool) {
        match node {
            Node::One(set) => self.steps.push(Step::One { set: *set, back }),
            Node::Sequence(terms) if back => terms.iter().rev().for_each(|term| self.emit(term, back)),
            Node::Sequence(terms) => terms.iter().for_each(|term| self.emit(term, back)),
            Node::Alternatives(alternatives) => {
                let mut jumps = Vec::new();
                for (n, alternative) in alternatives.iter().enumerate() {
                    let split = self.steps.len();
                    let last = n + 1 == alternatives.len();
                    if !last {
                        self.steps.push(Step::Split { second: UNSET });
                    }
                    self.emit(alternative, back);
                    if !last {
                        jumps.push(self.steps.len());
                        self.steps.push(Step::Jump(UNSET));
                        self.steps[split] = Step::Split {
                            second: self.steps.len(),
                        };
                    }
                }
                let end = self.steps.len();
                jumps
                    .into_iter()
                    .for_each(|jump| self.steps[jump] = Step::Jump(end));
            }
            Node::Group(group, body) => {
                self.steps.push(Step::Open(*group));
                self.emit(body, back);
                self.steps.push(Step::Close { group: *group, back });
            }
            Node::Repeat { body, times, groups } => {
                let times = *times;
                if let Node::One(set) = **body
                    && times.greedy
                {
                    self.steps.push(Step::Span { set, times, back });
                    return;
                }
                // Two registers: the turns that are over, and where the present one began.
                let turns = self.registers;
                self.registers += 2;
                self.steps.push(Step::Enter(turns));
                let decide = self.steps.len();
                self.steps.push(Step::Done);
                self.steps.push(Step::Begin {
                    turns,
                    groups: groups.clone(),
                });
                self.emit(body, back);
                self.steps.push(Step::Turn {
                    turns,
                    min: times.min,
                    decide,
                });
                let exit = self.steps.len();
                self.steps[decide] = Step::Decide { turns, times, exit };
            }
            Node::Look {
                body,
                behind,
                negated,
            } => {
                let look = self.steps.len();
                self.steps.push(Step::Done);
                self.emit(body, *behind);
                self.steps.push(Step::Done);
                self.steps[look] = Step::Look {
                    negated: *negated,
                    next: self.steps.len(),
                };
            }
            Node::Edge { end, multiline } => self.steps.push(Step::Edge {
                end: *end,
                multiline: *multiline,
            }),
            Node::Boundary { word, negated } => {
                self.steps.push(Step::Boundary {
                    word: *word,
                    negated: *negated,
                });
            }
            Node::Back(groups, fold) => {
                self.steps.push(Step::Back {
                    groups: groups.clone(),
                    fold: *fold,
                    back,
                });
            }
        }
    }

    /// The matches in `text`, first to last; none begins before the last one's end, nor where an empty one ended.
    pub(super) fn find_iter<'p>(
        &'p self,
        text: &'p str,
        fuel: &'p Fuel,
    ) -> impl Iterator<Item = Result<Match, OutOfFuel>> + 'p {
        let granted = MAX_STEPS + (text.len() as u64 + 1) * STEPS_PER_BYTE;
        let before = fuel.0.get();
        let granted = granted.min(before);
        let mut run = Run {
            program: self,
            text,
            registers: vec![UNSET; self.registers],
            stack: Vec::new(),
            left: granted,
        };
        let mut from = Some(0);
        std::iter::from_fn(move || {
            let found = run.find(from?).transpose();
            fuel.0.set(before - (granted - run.left));
            from = match &found {
                Some(Ok(ranges)) => ranges[0].as_ref().and_then(|whole| match next(text, whole.end) {
                    after if whole.is_empty() => after.map(|(_, after)| after),
                    _ => Some(whole.end),
                }),
                Some(Err(OutOfFuel)) | None => None,
            };
            found
        })
    }
}

/// The next instruction, and where; `None` when there is no match this way.
type Stepped = Result<Option<(usize, usize)>, OutOfFuel>;

/// What is on the stack, tried or undone from its top.
enum Entry {
    Try {
        step: usize,
        at: usize,
    },
    /// A greedy span may give up characters down to `least`.
    Shorter {
        step: usize,
        least: usize,
        at: usize,
    },
    Undo {
        register: usize,
        was: usize,
    },
}

struct Run<'p> {
    program: &'p Program,
    text: &'p str,
    registers: Vec<usize>,
    stack: Vec<Entry>,
    left: u64,
}

/// The character after a position, and the position after it.
fn next(text: &str, at: usize) -> Option<(char, usize)> {
    let c = text.get(at..)?.chars().next()?;
    Some((c, at + c.len_utf8()))
}

fn previous(text: &str, at: usize) -> Option<(char, usize)> {
    let c = text.get(..at)?.chars().next_back()?;
    Some((c, at - c.len_utf8()))
}

fn equal_up_to_case(one: char, other: char, flags: Flags) -> bool {
    let one = Regex::with_flags(&format!("\\u{{{:x}}}", u32::from(one)), flags);
    one.is_ok_and(|one| one.find(other.encode_utf8(&mut [0; 4])).is_some())
}

fn ends_line(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\u{2028}' | '\u{2029}')
}

impl Run<'_> {
    fn find(&mut self, from: usize) -> Result<Option<Match>, OutOfFuel> {
        let mut start = Some(from);
        while let Some(at) = start {
            if let Some(end) = self.run(0, at)? {
                let group = |n: usize| {
                    let (start, end) = (
                        self.registers[n * A_GROUP + START],
                        self.registers[n * A_GROUP + END],
                    );
                    (start != UNSET).then_some(start..end)
                };
                let groups = (0..self.program.groups).map(group);
                let found = std::iter::once(Some(at..end)).chain(groups).collect();
                self.spend(self.registers.len() as u64)?;
                self.registers.fill(UNSET);
                self.stack.clear();
                return Ok(Some(found));
            }
            start = next(self.text, at).map(|(_, after)| after);
        }
        Ok(None)
    }

    fn spend(&mut self, steps: u64) -> Result<(), OutOfFuel> {
        let left = self.left.checked_sub(steps);
        self.left = left.unwrap_or_default();
        left.map(drop).ok_or(OutOfFuel)
    }

    fn push(&mut self, entry: Entry) -> Result<(), OutOfFuel> {
        if self.stack.len() >= MAX_STACK {
            return Err(OutOfFuel);
        }
        self.stack.push(entry);
        Ok(())
    }

    fn set(&mut self, register: usize, value: usize) -> Result<(), OutOfFuel> {
        let was = std::mem::replace(&mut self.registers[register], value);
        if was == value {
            return Ok(());
        }
        self.spend(1)?;
        self.push(Entry::Undo { register, was })
    }

    /// The next character in a direction when the set has it.
    fn one(&self, set: usize, at: usize, back: bool) -> Option<usize> {
        let (c, after) = if back {
            previous(self.text, at)
        } else {
            next(self.text, at)
        }?;
        self.program.sets[set].contain(c).then_some(after)
    }

    /// Where a match from `step` at `at` ends. What it wrote into registers stays when it matches; nothing else stays.
    /// Recursion follows the nesting of look-around in the source.
    fn run(&mut self, step: usize, at: usize) -> Result<Option<usize>, OutOfFuel> {
        let base = self.stack.len();
        let mut state = Some((step, at));
        loop {
            let Some((step, at)) = state else {
                state = match self.unwind(base)? {
                    None => return Ok(None),
                    resumed => resumed,
                };
                continue;
            };
            if matches!(self.program.steps[step], Step::Done) {
                // An assertion that holds is not tried again; only what it wrote may have to be undone.
                let mut kept = base;
                for n in base..self.stack.len() {
                    if matches!(self.stack[n], Entry::Undo { .. }) {
                        self.stack.swap(kept, n);
                        kept += 1;
                    }
                }
                self.stack.truncate(kept);
                return Ok(Some(at));
            }
            state = self.step(step, at)?;
        }
    }

    /// Undoes what was done since the last choice, and takes that choice. `None` when none is left above `base`.
    fn unwind(&mut self, base: usize) -> Stepped {
        while self.stack.len() > base {
            match self.stack.pop() {
                Some(Entry::Undo { register, was }) => self.registers[register] = was,
                Some(Entry::Try { step, at }) => return Ok(Some((step, at))),
                Some(Entry::Shorter { step, least, at }) => {
                    self.spend(1)?;
                    let back = matches!(self.program.steps[step], Step::Span { back: true, .. });
                    let shorter = if back {
                        next(self.text, at)
                    } else {
                        previous(self.text, at)
                    };
                    let Some((_, at)) = shorter else { continue };
                    if at != least {
                        self.push(Entry::Shorter { step, least, at })?;
                    }
                    return Ok(Some((step + 1, at)));
                }
                None => break,
            }
        }
        Ok(None)
    }

    /// One instruction.
    fn step(&mut self, step: usize, at: usize) -> Stepped {
        self.spend(1)?;
        let program = self.program;
        let on = |holds: bool| Ok(holds.then_some((step + 1, at)));
        match &program.steps[step] {
            Step::One { set, back } => Ok(self.one(*set, at, *back).map(|at| (step + 1, at))),
            Step::Span { set, times, back } => self.span(step, at, *set, *times, *back),
            Step::Split { second } => {
                self.push(Entry::Try { step: *second, at })?;
                on(true)
            }
            Step::Jump(target) => Ok(Some((*target, at))),
            Step::Open(group) => {
                self.set(group * A_GROUP + OPENED, at)?;
                on(true)
            }
            Step::Close { group, back } => {
                let opened = self.registers[group * A_GROUP + OPENED];
                let (start, end) = if *back { (at, opened) } else { (opened, at) };
                self.set(group * A_GROUP + START, start)?;
                self.set(group * A_GROUP + END, end)?;
                on(true)
            }
            Step::Enter(turns) => {
                self.set(*turns, 0)?;
                on(true)
            }
            Step::Decide { turns, times, exit } => {
                let over = self.registers[*turns];
                let (more, leave) = ((step + 1, at), (*exit, at));
                if over < times.min {
                    return Ok(Some(more));
                }
                if over >= times.max {
                    return Ok(Some(leave));
                }
                let (first, (step, at)) = if times.greedy {
                    (more, leave)
                } else {
                    (leave, more)
                };
                self.push(Entry::Try { step, at })?;
                Ok(Some(first))
            }
            Step::Begin { turns, groups } => {
                self.set(turns + 1, at)?;
                for group in groups.clone() {
                    self.set(group * A_GROUP + START, UNSET)?;
                    self.set(group * A_GROUP + END, UNSET)?;
                }
                on(true)
            }
            Step::Turn { turns, min, decide } => {
                let over = self.registers[*turns];
                // An empty turn that was not asked for ends nothing and never will.
                if over >= *min && self.registers[turns + 1] == at {
                    return Ok(None);
                }
                self.set(*turns, over.saturating_add(1))?;
                Ok(Some((*decide, at)))
            }
            Step::Look { negated, next } => {
                let base = self.stack.len();
                let holds = self.run(step + 1, at)?.is_some();
                if *negated && holds {
                    self.unwind(base)?;
                }
                Ok((holds != *negated).then_some((*next, at)))
            }
            Step::Edge { end, multiline } => {
                let beside = if *end {
                    next(self.text, at)
                } else {
                    previous(self.text, at)
                };
                on(beside.is_none_or(|(c, _)| *multiline && ends_line(c)))
            }
            Step::Boundary { word, negated } => {
                let (before, after) = (self.one(*word, at, true), self.one(*word, at, false));
                on((before.is_some() != after.is_some()) != *negated)
            }
            // `run` ends there.
            Step::Done => Ok(None),
            Step::Back { groups, fold, back } => {
                Ok(self.back(at, groups, *fold, *back)?.map(|at| (step + 1, at)))
            }
        }
    }

    fn span(&mut self, step: usize, from: usize, set: usize, times: Times, back: bool) -> Stepped {
        let (mut at, mut taken, mut least) = (from, 0, from);
        while taken < times.max {
            self.spend(1)?;
            let Some(after) = self.one(set, at, back) else {
                break;
            };
            (at, taken) = (after, taken + 1);
            if taken == times.min {
                least = at;
            }
        }
        if taken < times.min {
            return Ok(None);
        }
        if at != least {
            self.push(Entry::Shorter { step, least, at })?;
        }
        Ok(Some((step + 1, at)))
    }

    /// A reference to a group that did not take part matches nothing, everywhere.
    fn back(
        &mut self,
        at: usize,
        groups: &[usize],
        fold: Option<Flags>,
        back: bool,
    ) -> Result<Option<usize>, OutOfFuel> {
        let part = |group: &usize| self.registers[group * A_GROUP + START] != UNSET;
        let Some(group) = groups.iter().copied().find(part) else {
            return Ok(Some(at));
        };
        let (start, end) = (
            self.registers[group * A_GROUP + START],
            self.registers[group * A_GROUP + END],
        );
        let (mut here, mut there) = (at, if back { end } else { start });
        while there != if back { start } else { end } {
            self.spend(1)?;
            let pair = if back {
                (previous(self.text, there), previous(self.text, here))
            } else {
                (next(self.text, there), next(self.text, here))
            };
            let (Some((known, after)), Some((c, next))) = pair else {
                return Ok(None);
            };
            let equal = known == c
                || match fold {
                    None => false,
                    Some(_) if known.is_ascii() && c.is_ascii() => known.eq_ignore_ascii_case(&c),
                    Some(flags) => {
                        self.spend(FOLD_STEPS)?;
                        equal_up_to_case(known, c, flags)
                    }
                };
            if !equal {
                return Ok(None);
            }
            (here, there) = (next, after);
        }
        Ok(Some(here))
    }
}
