//! The lunch poll as a Rust pattern: options and votes are shared, "my vote" is per user, the half-typed option per
//! session. Every change is an event that the server handles; the tally and the standing are derived.

use memory_wire::{Object, Scope, Value, value};
use runner::cell::Cell;
use runner::error::RunnerError;
use runner::pattern::{ArgView, GraphBuilder, Pattern, PatternGraph, PatternIdentity, RunCx, fields};

/// Longest title of an option, in characters.
const MAX_TITLE: usize = 80;

/// Most options of one poll.
const MAX_OPTIONS: usize = 50;

/// Names of the poll's documents and streams: the partial causes they derive from.
pub mod names {
    /// Titles, in the order they were added.
    pub const OPTIONS: &str = "options";
    /// `[{option, votes}]`, one entry an option that was ever voted for.
    pub const VOTES: &str = "votes";
    /// The title I voted for, or null.
    pub const MY_VOTE: &str = "myVote";
    /// The half-typed option.
    pub const DRAFT: &str = "draft";
    /// Derived: `[{option, votes}]` for every option, in the options' order.
    pub const TALLY: &str = "tally";
    /// Derived, per user: how my vote is doing.
    pub const STANDING: &str = "standing";
    /// Stream: `{title}`.
    pub const ADD_OPTION: &str = "addOption";
    /// Stream: `{option: title | null}`.
    pub const VOTE: &str = "vote";
    /// Stream: `{text}`.
    pub const TYPE: &str = "type";
}

/// The pattern.
#[derive(Clone, Copy, Debug, Default)]
pub struct LunchPoll;

impl Pattern for LunchPoll {
    fn identity(&self) -> PatternIdentity {
        PatternIdentity::native("space-server", "lunch-poll", "1")
    }

    fn graph(&self) -> PatternGraph {
        let text = || value!({ "type": "string" });
        let count = || value!({ "type": "object", "properties": { "option": { "type": "string" }, "votes": { "type": "number" } } });
        let counts = || value!({ "type": "array", "items": (count()) });
        let mut g = GraphBuilder::new(&self.identity(), value!({ "type": "object" }));

        let options = g.state(
            names::OPTIONS,
            value!({ "type": "array", "items": (text()), "default": [] }),
        );
        let votes = g.state(
            names::VOTES,
            value!({ "type": "array", "items": (count()), "default": [] }),
        );
        let my_vote = g.scoped_state(
            names::MY_VOTE,
            Scope::User,
            value!({ "type": ["string", "null"] }),
        );
        let draft = g.scoped_state(names::DRAFT, Scope::Session, text());

        let tally = g.derive(
            names::TALLY,
            fields([("options", (&options).into()), ("votes", (&votes).into())]),
            counts(),
            tally,
        );
        let standing = g.derive(
            names::STANDING,
            fields([("tally", (&tally).into()), ("myVote", (&my_vote).into())]),
            text(),
            standing,
        );

        let add_option = g.handler(
            names::ADD_OPTION,
            fields([("options", (&options).into()), ("draft", (&draft).into())]),
            value!({ "type": "object", "properties": { "title": { "type": "string" } }, "required": ["title"] }),
            add_option,
        );
        let vote = g.handler(
            names::VOTE,
            fields([
                ("options", (&options).into()),
                ("votes", (&votes).into()),
                ("myVote", (&my_vote).into()),
            ]),
            value!({ "type": "object", "properties": { "option": { "type": ["string", "null"] } } }),
            vote,
        );
        let typing = g.handler(
            names::TYPE,
            fields([("draft", (&draft).into())]),
            value!({ "type": "object", "properties": { "text": { "type": "string" } }, "required": ["text"] }),
            typing,
        );

        g.result(
            value!({ "type": "object" }),
            fields([
                (names::OPTIONS, (&options).into()),
                (names::TALLY, (&tally).into()),
                (names::MY_VOTE, (&my_vote).into()),
                (names::STANDING, (&standing).into()),
                (names::DRAFT, (&draft).into()),
                (names::ADD_OPTION, (&add_option).into()),
                (names::VOTE, (&vote).into()),
                (names::TYPE, (&typing).into()),
            ]),
        )
    }
}

/// Every option with its votes. Options nobody voted for have none.
fn tally(_: &RunCx, input: &ArgView) -> Result<Value, RunnerError> {
    let votes = input.items("votes")?;
    let entries: Vec<Value> = input
        .items("options")?
        .into_iter()
        .map(|option| {
            let count = votes_of(&votes, option.as_str().unwrap_or_default());
            Value::Object(Object::from_entries(vec![
                ("option".into(), option),
                ("votes".into(), Value::from(count)),
            ]))
        })
        .collect();
    Ok(Value::from(entries))
}

fn votes_of(votes: &[Value], title: &str) -> f64 {
    votes
        .iter()
        .find(|entry| entry.member("option").and_then(Value::as_str) == Some(title))
        .and_then(|entry| entry.member("votes").and_then(Value::as_f64))
        .unwrap_or_default()
}

/// One sentence about my vote; it reads a user's document, so there is one per user who looks.
fn standing(_: &RunCx, input: &ArgView) -> Result<Value, RunnerError> {
    let mine = input.text("myVote")?;
    if mine.is_empty() {
        return Ok(Value::from("You have not voted."));
    }
    let tally = input.items("tally")?;
    let my_votes = votes_of(&tally, &mine);
    let ahead = tally
        .iter()
        .filter(|entry| {
            entry
                .member("votes")
                .and_then(Value::as_f64)
                .is_some_and(|votes| votes > my_votes)
        })
        .count();
    Ok(Value::from(match ahead {
        0 => format!("{mine} is in front."),
        1 => format!("One option is ahead of {mine}."),
        n => format!("{n} options are ahead of {mine}."),
    }))
}

fn add_option(_: &RunCx, state: &ArgView, event: &Value) -> Result<(), RunnerError> {
    let title = event
        .member("title")
        .and_then(Value::as_str)
        .map(str::trim)
        .unwrap_or_default()
        .to_owned();
    if title.is_empty() {
        return Err(refused("An option needs a title."));
    }
    if title.chars().count() > MAX_TITLE {
        return Err(refused(&format!("A title has at most {MAX_TITLE} characters.")));
    }
    let options = state.items("options")?;
    if options.len() >= MAX_OPTIONS {
        return Err(refused(&format!("A poll has at most {MAX_OPTIONS} options.")));
    }
    if options.iter().any(|known| {
        known
            .as_str()
            .is_some_and(|known| known.to_lowercase() == title.to_lowercase())
    }) {
        return Err(refused(&format!(
            "\u{201c}{title}\u{201d} is on the list already."
        )));
    }
    state.cell("options")?.push(vec![Value::from(title)])?;
    state.cell("draft")?.set(Value::from(""))
}

fn vote(_: &RunCx, state: &ArgView, event: &Value) -> Result<(), RunnerError> {
    let wanted = event.member("option").and_then(Value::as_str).map(str::to_owned);
    let options = state.items("options")?;
    if let Some(title) = &wanted
        && !options.iter().any(|known| known.as_str() == Some(title))
    {
        return Err(refused(&format!("\u{201c}{title}\u{201d} is not on the list.")));
    }
    let mine = state.cell("myVote")?;
    let before = mine.value()?.as_str().map(str::to_owned);
    if before == wanted {
        return Ok(());
    }
    let votes = state.cell("votes")?;
    if let Some(title) = &before {
        count(&votes, title, -1.0)?;
    }
    if let Some(title) = &wanted {
        count(&votes, title, 1.0)?;
    }
    mine.set(wanted.map_or(Value::Null, Value::from))
}

/// Adds to the count of `title`, which gets an entry with its first vote.
fn count(votes: &Cell, title: &str, by: f64) -> Result<(), RunnerError> {
    let entries: Vec<Value> = match votes.value()? {
        Value::Array(array) => array.elements().map(|(_, entry)| entry.clone()).collect(),
        _ => Vec::new(),
    };
    match entries
        .iter()
        .position(|entry| entry.member("option").and_then(Value::as_str) == Some(title))
    {
        Some(at) => votes.key(at.to_string()).key("votes").increment(by),
        None if by > 0.0 => votes.push(vec![value!({ "option": (title), "votes": (by) })]),
        None => Ok(()),
    }
}

fn typing(_: &RunCx, state: &ArgView, event: &Value) -> Result<(), RunnerError> {
    let text: String = event
        .member("text")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .chars()
        .take(MAX_TITLE)
        .collect();
    state.cell("draft")?.set(Value::from(text))
}

/// A refusal in the words that the person who clicked will read.
fn refused(sentence: &str) -> RunnerError {
    RunnerError::Refused {
        reason: sentence.to_owned(),
    }
}
