//! The demo's documents and streams as `/demo.json` names them, and the events a page would send.

use anyhow::{Context, Result};
use memory_wire::message::{CommitParts, EventAppendDecl, Operation, Root, Selector};
use memory_wire::patch::PatchOp;
use memory_wire::{EntityId, EventId, Object, Scope, SpaceId, Value, value, well_known};

use crate::process::SpaceServer;

/// Where the poll is.
#[derive(Clone, Debug)]
pub struct Poll {
    /// The space.
    pub space: SpaceId,
    /// The piece's root document.
    pub piece: EntityId,
    docs: serde_json::Value,
    streams: serde_json::Value,
}

/// One event on its way.
#[derive(Clone, Debug)]
pub struct Event {
    /// Its id.
    pub id: EventId,
    /// The sidecar it is appended to.
    pub sidecar: EntityId,
    /// The commit that appends it.
    pub commit: CommitParts,
}

impl Poll {
    /// Asks a demo server.
    pub fn of(server: &SpaceServer) -> Result<Poll> {
        let site = server.get_json("/demo.json")?;
        let text = |key: &str| site[key].as_str().with_context(|| format!("{key} of demo.json"));
        Ok(Poll {
            space: SpaceId::from(text("space")?),
            piece: EntityId::from(text("piece")?),
            docs: site["docs"].clone(),
            streams: site["streams"].clone(),
        })
    }

    /// A document by its name.
    pub fn doc(&self, name: &str) -> EntityId {
        EntityId::from(
            self.docs[name]
                .as_str()
                .unwrap_or_else(|| panic!("demo.json names no document {name}")),
        )
    }

    /// What the page watches: the piece, its documents with their scopes, the watermark.
    pub fn roots(&self) -> Vec<Root> {
        let root = |id: EntityId, scope: Scope| {
            Root::new(
                id,
                scope,
                Selector {
                    path: Vec::new(),
                    schema: Some(Value::Bool(true)),
                },
            )
        };
        vec![
            root(self.piece.clone(), Scope::Space),
            root(self.doc("options"), Scope::Space),
            root(self.doc("tally"), Scope::Space),
            root(self.doc("myVote"), Scope::User),
            root(self.doc("draft"), Scope::Session),
            root(EntityId::from(well_known::WATERMARK_DOCUMENT), Scope::Space),
        ]
    }

    /// An event of the stream `name`.
    pub fn event(&self, name: &str, payload: Value) -> Event {
        self.event_with_id(
            name,
            payload,
            EventId::from(format!("e-{}", uuid::Uuid::new_v4())),
        )
    }

    /// The same with a chosen id.
    pub fn event_with_id(&self, name: &str, payload: Value, id: EventId) -> Event {
        let entry = self.entry(name, payload, &id);
        self.append(name, id, entry)
    }

    /// The entry an honest client appends.
    pub fn entry(&self, name: &str, payload: Value, id: &EventId) -> Value {
        let (stream, path, scope) = self.stream(name);
        value!({
            "eventId": (id.as_str()),
            "stream": {
                "id": (stream.as_str()),
                "path": (path.iter().map(|s| Value::from(s.as_str())).collect::<Vec<_>>()),
                "scope": (scope.as_str())
            },
            "payload": (payload)
        })
    }

    /// A commit that appends `entry` to the stream `name`, declared as event `id`.
    pub fn append(&self, name: &str, id: EventId, entry: Value) -> Event {
        let sidecar = self.sidecar(name);
        let patch = PatchOp::append(vec!["value".into(), "entries".into()], vec![entry], false);
        let commit = CommitParts {
            operations: vec![Operation::Patch {
                id: sidecar.clone(),
                scope: Scope::Space,
                patches: vec![patch],
            }],
            event_appends: vec![EventAppendDecl {
                id: sidecar.clone(),
                scope: Scope::Space,
                event_id: id.clone(),
            }],
            ..CommitParts::default()
        };
        Event { id, sidecar, commit }
    }

    /// The sidecar document of the stream `name`.
    pub fn sidecar(&self, name: &str) -> EntityId {
        let (stream, path, scope) = self.stream(name);
        well_known::stream_sidecar_id(&stream, &path, scope)
    }

    fn stream(&self, name: &str) -> (EntityId, Vec<String>, Scope) {
        let stream = &self.streams[name];
        let id = stream["id"]
            .as_str()
            .unwrap_or_else(|| panic!("demo.json names no stream {name}"));
        let path = stream["path"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|s| s.as_str().map(String::from))
            .collect();
        let scope = stream["scope"]
            .as_str()
            .and_then(Scope::from_name)
            .unwrap_or_default();
        (EntityId::from(id), path, scope)
    }

    /// `addOption`.
    pub fn add_option(&self, title: &str) -> Event {
        self.event("addOption", value!({ "title": (title) }))
    }

    /// `vote`; `None` takes the vote back.
    pub fn vote(&self, option: Option<&str>) -> Event {
        let option = option.map_or(Value::Null, Value::from);
        self.event(
            "vote",
            Value::Object(Object::from_entries(vec![("option".into(), option)])),
        )
    }

    /// `type`.
    pub fn type_text(&self, text: &str) -> Event {
        self.event("type", value!({ "text": (text) }))
    }
}

/// The votes of `option` in a tally value.
pub fn votes_in(tally: Option<&Value>, option: &str) -> Option<f64> {
    tally?.as_array()?.elements().find_map(|(_, entry)| {
        (entry.member("option").and_then(Value::as_str) == Some(option))
            .then(|| entry.member("votes").and_then(Value::as_f64))
            .flatten()
    })
}
