//! The client commit (WIRE-731): what a transaction read, what it writes, and under which conditions. The typed
//! view stands beside the value as received, because replay compares the re-encoding of exactly that (WIRE-733,
//! WIRE-1002). It has no field for class, holder, scope key or attribution.

use super::field::{expected, list, named_branch, positive};
use super::operation::Operation;
use super::precondition::{EventAppendDecl, Precondition};
use super::reads::Reads;
use crate::error::WireError;
use crate::ids::{BranchName, LocalSeq};
use crate::value::{Object, Value};

/// A commit as a client sends it.
#[derive(Clone, Debug)]
pub struct ClientCommit {
    /// Exactly what was received (or built); its encoding is stored and compared on replay.
    pub value: Value,
    /// Unique per session, chosen by the client; positive.
    pub local_seq: LocalSeq,
    /// Branch; the default branch is `""`.
    pub branch: BranchName,
    /// What the transaction read.
    pub reads: Reads,
    /// What it writes.
    pub operations: Vec<Operation>,
    /// Under which conditions.
    pub preconditions: Vec<Precondition>,
    /// Which events it appends.
    pub event_appends: Vec<EventAppendDecl>,
}

/// The parts a writer builds a [`ClientCommit`] from.
#[derive(Clone, Debug, Default)]
pub struct CommitParts {
    /// Branch; the default branch is `""`.
    pub branch: BranchName,
    /// What the transaction read.
    pub reads: Reads,
    /// What it writes.
    pub operations: Vec<Operation>,
    /// Under which conditions.
    pub preconditions: Vec<Precondition>,
    /// Which events it appends.
    pub event_appends: Vec<EventAppendDecl>,
}

impl ClientCommit {
    /// Reads the `commit` of a transact request. Errors name the field; their names are those of SRV-116 and
    /// SRV-117.
    pub fn from_value(value: &Value) -> Result<ClientCommit, WireError> {
        if value.as_object().is_none() {
            return Err(WireError::protocol(expected("commit", "an object", Some(value))));
        }
        let operations = list("commit.operations", value.member("operations"), false)?;
        let operations = operations
            .iter()
            .enumerate()
            .map(|(index, operation)| Operation::from_value(index, operation))
            .collect::<Result<_, _>>()?;
        let local_seq = match value.member("localSeq") {
            // A missing one is the reference's typed answer; a wrong one passes there and is ours to refuse.
            None => {
                return Err(WireError::transaction(expected(
                    "commit.localSeq",
                    "a positive safe integer",
                    None,
                )));
            }
            some => LocalSeq(positive("commit.localSeq", some)?),
        };
        Ok(ClientCommit {
            local_seq,
            branch: named_branch("commit.branch", value.member("branch"))?.unwrap_or_default(),
            reads: Reads::from_value(value.member("reads"))?,
            operations,
            preconditions: list("commit.preconditions", value.member("preconditions"), true)?
                .iter()
                .enumerate()
                .map(|(index, precondition)| Precondition::from_value(index, precondition))
                .collect::<Result<_, _>>()?,
            event_appends: list("commit.eventAppends", value.member("eventAppends"), true)?
                .iter()
                .enumerate()
                .map(|(index, declaration)| EventAppendDecl::from_value(index, declaration))
                .collect::<Result<_, _>>()?,
            value: value.clone(),
        })
    }

    /// Builds a commit to send; `local_seq` has to be positive and above all that the session has sent (WIRE-731, 754).
    pub fn build(local_seq: LocalSeq, parts: CommitParts) -> ClientCommit {
        let CommitParts {
            branch,
            reads,
            operations,
            preconditions,
            event_appends,
        } = parts;
        let mut object = Object::new();
        object.insert("localSeq", local_seq);
        object.insert("reads", reads.to_value());
        object.insert(
            "operations",
            operations.iter().map(Operation::to_value).collect::<Vec<_>>(),
        );
        if !preconditions.is_empty() {
            object.insert(
                "preconditions",
                preconditions
                    .iter()
                    .map(Precondition::to_value)
                    .collect::<Vec<_>>(),
            );
        }
        if !branch.is_empty() {
            object.insert("branch", &branch);
        }
        if !event_appends.is_empty() {
            object.insert(
                "eventAppends",
                event_appends
                    .iter()
                    .map(EventAppendDecl::to_value)
                    .collect::<Vec<_>>(),
            );
        }
        ClientCommit {
            value: object.into(),
            local_seq,
            branch,
            reads,
            operations,
            preconditions,
            event_appends,
        }
    }
}
