//! The lunch poll: options and counts are shared, "my vote" is per user, the half-typed option per session; the
//! tally, my standing and a preview of what I type are derived.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use memory_wire::{Scope, Value, value};
use runner::error::RunnerError;
use runner::pattern::{ArgView, GraphBuilder, Pattern, PatternGraph, PatternIdentity, RunCx, fields};

pub struct LunchPoll;

impl Pattern for LunchPoll {
    fn identity(&self) -> PatternIdentity {
        PatternIdentity::native("runner-tests", "lunch-poll", "1")
    }

    fn graph(&self) -> PatternGraph {
        let mut g = GraphBuilder::new(&self.identity(), value!({ "type": "object" }));
        let options = g.state("options", value!({ "type": "array", "default": [] }));
        let votes = g.state("votes", value!({ "type": "object", "default": {} }));
        let my_vote = g.scoped_state("myVote", Scope::User, value!({ "type": "string" }));
        let draft = g.scoped_state(
            "draft",
            Scope::Session,
            value!({ "type": "string", "default": "" }),
        );

        let tally = g.derive(
            "tally",
            fields([("options", (&options).into()), ("votes", (&votes).into())]),
            value!(true),
            tally,
        );
        let standing = g.derive(
            "standing",
            fields([("tally", (&tally).into()), ("myVote", (&my_vote).into())]),
            value!(true),
            standing,
        );
        let preview = g.derive(
            "preview",
            fields([("draft", (&draft).into())]),
            value!(true),
            preview,
        );

        let add_option = g.handler(
            "addOption",
            fields([("options", (&options).into()), ("draft", (&draft).into())]),
            value!({ "type": "object" }),
            add_option,
        );
        let vote = g.handler(
            "vote",
            fields([("votes", (&votes).into()), ("myVote", (&my_vote).into())]),
            value!({ "type": "object" }),
            vote,
        );
        let typing = g.handler(
            "type",
            fields([("draft", (&draft).into())]),
            value!({ "type": "object" }),
            |_, state, event| {
                state.cell("draft")?.set(Value::from(
                    event.member("text").and_then(Value::as_str).unwrap_or(""),
                ))
            },
        );
        g.result(
            value!({ "type": "object" }),
            fields([
                ("options", (&options).into()),
                ("tally", (&tally).into()),
                ("myVote", (&my_vote).into()),
                ("standing", (&standing).into()),
                ("draft", (&draft).into()),
                ("preview", (&preview).into()),
                ("addOption", (&add_option).into()),
                ("vote", (&vote).into()),
                ("type", (&typing).into()),
            ]),
        )
    }
}

fn count(votes: &Value, option: &Value) -> f64 {
    option
        .as_str()
        .and_then(|title| votes.member(title))
        .and_then(Value::as_f64)
        .unwrap_or(0.0)
}

fn tally(_: &RunCx, arg: &ArgView) -> Result<Value, RunnerError> {
    let votes = arg.value("votes")?;
    let lines = arg.items("options")?.into_iter().map(|option| {
        let n = count(&votes, &option);
        value!({ "option": option, "votes": n })
    });
    Ok(Value::from(lines.collect::<Vec<_>>()))
}

fn standing(_: &RunCx, arg: &ArgView) -> Result<Value, RunnerError> {
    let mine = arg.text("myVote")?;
    if mine.is_empty() {
        return Ok(Value::from("no vote"));
    }
    let of_mine = arg.items("tally")?.iter().find_map(|line| {
        (line.member("option").and_then(Value::as_str) == Some(mine.as_str()))
            .then(|| line.member("votes").and_then(Value::as_f64).unwrap_or(0.0))
    });
    Ok(Value::from(format!("{mine} has {}", of_mine.unwrap_or(0.0))))
}

fn preview(_: &RunCx, arg: &ArgView) -> Result<Value, RunnerError> {
    Ok(Value::from(arg.text("draft")?.to_uppercase()))
}

fn add_option(_: &RunCx, state: &ArgView, event: &Value) -> Result<(), RunnerError> {
    let title = event
        .member("title")
        .and_then(Value::as_str)
        .unwrap_or("")
        .trim()
        .to_owned();
    if title.is_empty() {
        return Err(RunnerError::Refused {
            reason: "an option needs a title".to_owned(),
        });
    }
    state.cell("options")?.push(vec![Value::from(title)])?;
    state.cell("draft")?.set(Value::from(""))
}

fn vote(_: &RunCx, state: &ArgView, event: &Value) -> Result<(), RunnerError> {
    let wanted = event
        .member("option")
        .and_then(Value::as_str)
        .unwrap_or("")
        .to_owned();
    let mine = state.cell("myVote")?;
    let before = mine.value()?;
    let votes = state.cell("votes")?;
    if let Some(before) = before.as_str().filter(|b| !b.is_empty()) {
        votes.key(before).increment(-1.0)?;
    }
    votes.key(&wanted).increment(1.0)?;
    mine.set(Value::from(wanted))
}
