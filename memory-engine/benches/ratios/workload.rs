//! The commits that are measured: a session edits documents of the size applications have, one patch and one read a
//! commit, now and then a whole document.

use memory_engine::{Applied, ApplyCommit, CommitTexts, Engine, EngineError};
use memory_wire::ids::{Did, LocalSeq, Seq, SessionId};
use memory_wire::message::{ClientCommit, CommitParts, ConfirmedRead, Operation, Reads};
use memory_wire::patch::PatchOp;
use memory_wire::value::Value;
use memory_wire::{Scope, value};

pub(crate) const NOW_MS: i64 = 1_800_000_000_000;

/// The id of the `n`-th document.
pub(crate) fn id(n: usize) -> String {
    format!("of:fid1:baedreih5l4vq7w3u2example{n:08}")
}

/// About half a kilobyte.
pub(crate) fn document(n: usize) -> Value {
    value!({ "value": {
        "title": (format!("Card {n}")), "text": (format!("What there is to say about card {n}, in a sentence or two. ").repeat(3)),
        "count": 0, "done": false, "tags": ["one", "two", "three"],
        "at": { "x": (n as f64), "y": 17.5, "w": 320, "h": 200 },
        "links": [{ "/": { "link@1": { "id": (id(n + 1)), "path": ["value"] } } }]
    } })
}

/// One client and what it has sent.
pub(crate) struct Client {
    session: SessionId,
    principal: Did,
    next: u64,
}

impl Client {
    pub(crate) fn new(n: usize) -> Client {
        Client {
            session: format!("6f9619ff-8b86-d011-b42d-00c04fc9{n:04x}").into(),
            principal: "did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK".into(),
            next: 1,
        }
    }

    fn build(&mut self, operation: Operation, reads: Reads) -> ClientCommit {
        let local_seq = LocalSeq(self.next);
        self.next += 1;
        ClientCommit::build(
            local_seq,
            CommitParts {
                operations: vec![operation],
                reads,
                ..CommitParts::default()
            },
        )
    }

    /// Writes the whole document `n`.
    pub(crate) fn set(&mut self, n: usize) -> ClientCommit {
        let (id, scope) = (id(n).into(), Scope::Space);
        self.build(
            Operation::Set {
                id,
                scope,
                value: document(n),
            },
            Reads::default(),
        )
    }

    /// Edits the document `n`, read as of `seen`.
    pub(crate) fn edit(&mut self, n: usize, seen: Seq) -> ClientCommit {
        let path = || vec!["value".into(), "count".into()];
        let patches = vec![PatchOp::replace(path(), Value::from(self.next as f64))];
        let mut reads = Reads::default();
        reads.confirmed.push(ConfirmedRead {
            id: id(n).into(),
            scope: Scope::Space,
            branch: None,
            path: path(),
            seq: seen,
            non_recursive: false,
        });
        self.build(
            Operation::Patch {
                id: id(n).into(),
                scope: Scope::Space,
                patches,
            },
            reads,
        )
    }

    /// As [`Client::apply`], with the texts worked out before.
    pub(crate) fn apply_prepared(
        &self,
        engine: &mut Engine,
        commit: &ClientCommit,
        texts: &CommitTexts,
    ) -> Result<Applied, EngineError> {
        engine.apply_commit(ApplyCommit {
            texts: Some(texts),
            ..ApplyCommit::authored(&self.session, Some(&self.principal), commit, NOW_MS)
        })
    }

    pub(crate) fn apply(&self, engine: &mut Engine, commit: &ClientCommit) -> Result<Applied, EngineError> {
        engine.apply_commit(ApplyCommit::authored(
            &self.session,
            Some(&self.principal),
            commit,
            NOW_MS,
        ))
    }
}
