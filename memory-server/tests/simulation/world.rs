//! The space with everybody in it: what can happen, and what must be true at a rest.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use memory_engine::lease::{Clocks, Holder, LeaseHolder};
use memory_engine::{EngineHandle, ReadInstance};
use memory_server::{AclMode, AdmittedCommit, Clock, Server, ServingPlane};
use memory_wire::commit_meta::{CommitClass, WriteAnnotation};
use memory_wire::message::{ClientCommit, CommitParts, Operation};
use memory_wire::{BranchName, Did, EntityId, InstanceId, LocalSeq, Scope, ScopeIdentity, ScopeKey, SpaceId};
use serde_json::{Value as Json, json};

use crate::chance::Chance;
use crate::client::Client;
use crate::content::{DOCUMENTS, LINKED, document, linked, numbers, owner, value};
use crate::support::peer::{Name, Wire, commit, commit_of};
use crate::support::{Injected, ManualClock, SPACE, json as parsed};

const SERVICE: &str = "did:key:service";
const PEOPLE: &[&str] = &["did:key:ann", "did:key:bob", "did:key:cid"];
const SCOPES: &[&str] = &["space", "user", "session"];

/// Everything.
pub(crate) struct World {
    server: Arc<Server>,
    clock: Arc<ManualClock>,
    chance: Chance,
    /// The owner's first, the serving loop's second, then two of each person.
    clients: Vec<Client>,
    access: BTreeMap<&'static str, &'static str>,
    lease: LeaseHolder,
    /// Values written while nobody held the lease.
    unserved: BTreeSet<u64>,
    written: u64,
    waves: u64,
    watches: u64,
    /// The last things that happened, for a failure to tell.
    story: Vec<String>,
}

impl World {
    pub(crate) async fn new(seed: u64) -> World {
        let mut injected = Injected::new("did:key:z6Mk-audience", 1_760_000_000_000);
        let config = &mut injected.config;
        config.acl.mode = AclMode::Enforce;
        config.server_execution = true;
        let limits = &mut config.limits;
        limits.outbound_high_water = 900;
        limits.outbound_cap = 12_000;
        limits.deferred_keys = 3;
        limits.documents_in_turn = 2;
        limits.unconfirmed_deliveries = 4;
        limits.unconfirmed_instances = 12;
        let server = Server::new(injected.config).expect("inside a runtime");
        let mut chance = Chance::of(seed);
        let mut clients = vec![
            Client::new("owner", SPACE, Wire::InProcess, false),
            Client::new("serving", SERVICE, Wire::InProcess, true),
        ];
        for person in PEOPLE {
            for n in 1..=2 {
                let wire = if chance.percent(80) {
                    Wire::AsSocket
                } else {
                    Wire::InProcess
                };
                let name = person.trim_start_matches("did:key:");
                clients.push(Client::new(&format!("{name}{n}"), person, wire, false));
            }
        }
        let holder = Holder::new(&SERVICE.into(), "process");
        let mut world = World {
            server,
            clock: injected.clock,
            chance,
            clients,
            access: PEOPLE.iter().map(|person| (*person, "WRITE")).collect(),
            lease: LeaseHolder::new(SPACE.into(), holder, 15_000),
            unserved: BTreeSet::new(),
            written: 0,
            waves: 0,
            watches: 0,
            story: Vec::new(),
        };
        assert!(world.clients[0].connect(&world.server, 0).await);
        world.change_access().await;
        let owner = &mut world.clients[0];
        let local_seq = owner.take_local_seq();
        let ids: Vec<String> = (0..LINKED).map(document).collect();
        let documents: Vec<(&str, Json)> = ids
            .iter()
            .map(|id| (id.as_str(), value("everyone", 0, None)))
            .collect();
        let answer = owner.request(commit("owner", local_seq, &documents)).await;
        assert!(answer.expect("the owner is always there")["ok"].is_object());
        world.take_lease().await;
        assert!(world.clients[1].connect(&world.server, 0).await);
        world.watch(1).await;
        world
    }

    fn tell(&mut self, what: String) {
        if std::env::var_os("STORY").is_some() {
            eprintln!("{what}");
        }
        self.story.push(what);
    }

    /// One thing happens.
    pub(crate) async fn step(&mut self) {
        let who = 2 + self.chance.below(self.clients.len() - 2);
        match self.chance.below(100) {
            0..30 => self.commit(who).await,
            30..45 => self.flush().await,
            45..58 => {
                let most = 1 + self.chance.below(6);
                self.clients[who].hear(most).await;
            }
            58..66 => self.watch(who).await,
            66..72 => {
                let lost = self.chance.below(5);
                self.tell(format!(
                    "{} loses its connection and {lost} frames",
                    self.clients[who].session
                ));
                self.clients[who].lose(lost).await;
            }
            72..84 => self.connect(who).await,
            84..87 => {
                self.tell(format!("{} acknowledges", self.clients[who].session));
                self.clients[who].acknowledge().await;
            }
            87..90 => {
                let person = *self.chance.pick(PEOPLE);
                match *self.chance.pick(&["WRITE", "READ", "none"]) {
                    "none" => drop(self.access.remove(person)),
                    capability => drop(self.access.insert(person, capability)),
                }
                self.change_access().await;
            }
            90..94 => self.derive().await,
            94..96 => self.lose_lease().await,
            96..98 => self.take_lease().await,
            _ => {
                let ms = *self.chance.pick(&[10, 5_000, 31_000]);
                self.tell(format!("{ms} ms pass"));
                self.clock.advance(ms);
                self.note_lease();
            }
        }
    }

    async fn connect(&mut self, who: usize) {
        let lost = self.chance.below(5);
        let take_over = self.clients[who].is_connected();
        if take_over && !self.chance.percent(40) {
            return;
        }
        let opened = self.clients[who].connect(&self.server, lost).await;
        self.tell(format!(
            "{} connects (take-over {take_over}): {opened}",
            self.clients[who].session
        ));
        if opened && self.clients[who].watches.is_empty() {
            self.watch(who).await;
        }
    }

    fn next_value(&mut self, owner: &str) -> (u64, Json) {
        self.written += 1;
        // A link resolves in the scope of the document it stands in.
        let links = owner == "everyone" && self.chance.percent(50);
        let next = links.then(|| document(self.chance.below(LINKED)));
        if !self.is_served() {
            self.unserved.insert(self.written);
        }
        (self.written, value(owner, self.written, next.as_deref()))
    }

    async fn commit(&mut self, who: usize) {
        let local_seq = self.clients[who].take_local_seq();
        let (session, principal) = (
            self.clients[who].session.clone(),
            self.clients[who].principal.clone(),
        );
        let mut operations = Vec::new();
        let mut ids = BTreeSet::new();
        for _ in 0..1 + self.chance.below(3) {
            let number = self.chance.below(DOCUMENTS);
            let id = document(number);
            if !ids.insert(id.clone()) {
                continue;
            }
            let scope = if self.chance.percent(60) {
                "space"
            } else {
                *self.chance.pick(SCOPES)
            };
            let (n, content) = self.next_value(&owner(scope, &principal, &session));
            let operation = match self.chance.below(10) {
                0..7 => json!({ "op": "set", "id": id, "scope": scope, "value": { "value": content } }),
                7..9 => json!({ "op": "patch", "id": id, "scope": scope, "patches": [
                    { "op": "replace", "path": "/value/list", "value": [n, n] },
                ] }),
                _ if scope == "space" && number < LINKED => continue,
                _ => json!({ "op": "delete", "id": id, "scope": scope }),
            };
            operations.push(operation);
        }
        if operations.is_empty() {
            return;
        }
        let mut body = commit_of(&session, local_seq, &json!(operations));
        if self.chance.percent(20) {
            // Read long ago: refused when somebody wrote since.
            let seq = self.clients[who].told().position / 2;
            body["commit"]["reads"]["confirmed"] =
                json!([{ "id": operations[0]["id"], "path": ["value"], "seq": seq }]);
        }
        self.tell(format!("{session} commits {local_seq}: {operations:?}"));
        self.clients[who].ask(body).await;
    }

    /// Sets or extends a watch list.
    async fn watch(&mut self, who: usize) {
        let roots = if self.clients[who].serves {
            self.foreign_roots()
        } else {
            self.roots()
        };
        self.watches += 1;
        let id = format!("w{}", self.watches);
        let client = &mut self.clients[who];
        let replaces = client.watches.is_empty() || self.chance.percent(40);
        let what = format!(
            "{} watches {roots} ({})",
            client.session,
            if replaces { "anew" } else { "too" }
        );
        if replaces {
            client.watches = vec![(id, roots)];
            let list = client.watch_list();
            client.ask(list).await;
        } else {
            let more = client.watch_more(&id, &roots);
            client.watches.push((id, roots));
            client.ask(more).await;
        }
        self.tell(what);
    }

    fn roots(&mut self) -> Json {
        let roots: Vec<Json> = (0..1 + self.chance.below(3))
            .map(|_| {
                json!({
                    "id": document(self.chance.below(DOCUMENTS)), "scope": self.chance.pick(SCOPES),
                    "selector": { "path": [], "schema": self.chance.percent(50) },
                })
            })
            .collect();
        json!(roots)
    }

    /// Instances of everybody, named by their keys.
    fn foreign_roots(&mut self) -> Json {
        let roots: Vec<Json> = (0..4)
            .map(|n| {
                let person = Did::from(*self.chance.pick(PEOPLE));
                let scope = if n == 0 { Scope::Space } else { Scope::User };
                let key = ScopeKey::resolve(scope, &identity(&person, "any")).expect("a principal");
                json!({
                    "id": document(self.chance.below(DOCUMENTS)), "scope": scope.as_str(),
                    "entityScopeKey": key.as_str(), "selector": { "path": [], "schema": false },
                })
            })
            .collect();
        json!(roots)
    }

    async fn flush(&mut self) {
        self.tell("flush".to_owned());
        let before = self.clients[1].heard();
        if !self.is_served() {
            self.clients[1].hear(usize::MAX).await;
        }
        let from = self.clients[1].heard().max(before);
        self.server.flush(None).await.expect("flushes");
        if !self.is_served() {
            self.clients[1].hear(usize::MAX).await;
            for text in self.clients[1].texts_from(from.min(self.clients[1].heard())) {
                for n in numbers(text) {
                    let foreign = text.contains(&format!("«did:key:ann»{n}"))
                        || text.contains(&format!("«did:key:bob»{n}"))
                        || text.contains(&format!("«did:key:cid»{n}"));
                    assert!(
                        !(foreign && self.unserved.contains(&n)),
                        "no foreign row: told without a lease: {text}"
                    );
                }
            }
        }
    }

    /// The owner writes the list as it now is.
    async fn change_access(&mut self) {
        let mut list = json!({ SPACE: "OWNER", SERVICE: "READ" });
        for (person, capability) in &self.access {
            list[*person] = (*capability).into();
        }
        self.tell(format!("access is now {list}"));
        let owner = &mut self.clients[0];
        let local_seq = owner.take_local_seq();
        let answer = owner
            .request(commit("owner", local_seq, &[(&format!("of:{SPACE}"), list)]))
            .await;
        let answer = answer.expect("the owner is always there");
        assert!(answer["ok"].is_object(), "{answer}");
        // Who has lost access has lost the session at once, whether or not it has heard.
        for who in 2..self.clients.len() {
            let client = &mut self.clients[who];
            if !self.access.contains_key(client.principal.as_str()) {
                let session = client.session.as_str().into();
                let principal = Did::from(client.principal.as_str());
                assert!(
                    !self
                        .server
                        .has_live_session_for(&SPACE.into(), &principal, &session),
                    "nothing after revocation: {} is still there",
                    client.session
                );
            }
        }
    }

    fn now(&self) -> Clocks {
        Clocks {
            wall_ms: self.clock.wall_ms(),
            monotonic_ms: self.clock.wall_ms(),
        }
    }

    fn is_served(&self) -> bool {
        self.lease.is_held(self.now())
    }

    fn engine(&self) -> EngineHandle {
        self.server.engine(&SpaceId::from(SPACE)).expect("open")
    }

    async fn take_lease(&mut self) {
        let regained = !self.is_served();
        let (now, mut table) = (self.now(), self.engine());
        assert!(
            self.lease.acquire(&mut table, now).expect("the store answers"),
            "nobody else wants it"
        );
        if regained {
            self.tell("the lease is taken".to_owned());
            self.unserved.clear();
            self.server.note_lease_reacquired(&SPACE.into(), &SERVICE.into());
            // What was kept from the serving session comes without anybody writing anything.
            self.flush().await;
            self.clients[1].hear(usize::MAX).await;
            if self.clients[1].is_connected() {
                let problem = self.compare(1).await;
                assert!(
                    problem.is_none(),
                    "after the lease was regained: {}",
                    problem.unwrap_or_default()
                );
            }
        }
    }

    async fn lose_lease(&mut self) {
        self.tell("the lease is given up".to_owned());
        let mut table = self.engine();
        self.lease.release(&mut table).expect("the store answers");
    }

    fn note_lease(&mut self) {
        if !self.is_served() {
            self.tell("the lease has run out".to_owned());
        }
    }

    /// The serving loop lands a wave in somebody's instance.
    async fn derive(&mut self) {
        if !self.is_served() {
            return;
        }
        let person = *self.chance.pick(PEOPLE);
        let scope = *self.chance.pick(&[Scope::Space, Scope::User]);
        let id = document(self.chance.below(DOCUMENTS));
        let (_, content) = self.next_value(&owner(scope.as_str(), person, ""));
        let key = ScopeKey::resolve(scope, &identity(&person.into(), "any")).expect("a principal");
        self.tell(format!("a wave writes {id} of {key}: {content}"));
        self.waves += 1;
        let text = format!("fvj1:{}", json!({ "value": content }));
        let parts = CommitParts {
            operations: vec![Operation::Set {
                id: EntityId::from(id),
                scope,
                value: memory_wire::codec::decode(&text).expect("plain content"),
            }],
            ..CommitParts::default()
        };
        let commit = ClientCommit::build(LocalSeq(self.waves), parts);
        let head = self
            .engine()
            .read(|reader| reader.server_seq())
            .wait()
            .expect("runs")
            .expect("readable");
        let mut wave = memory_engine::WaveCommit::new(&self.lease, commit, head);
        if scope != Scope::Space {
            wave.annotations = vec![WriteAnnotation {
                op: 0,
                scope_key: Some(key),
                acting_user: Some(person.into()),
                acting_session: None,
            }];
        }
        let (server, holder, now) = (
            Arc::clone(&self.server),
            self.lease.holder().clone(),
            self.clock.wall_ms(),
        );
        let (told, done) = tokio::sync::oneshot::channel();
        self.engine().write_then(
            move |engine| engine.apply_wave(&wave, now, None),
            move |_, landed| {
                let applied = landed.expect("durable").expect("admitted");
                server.note_executor_commit(AdmittedCommit {
                    space: SPACE.into(),
                    seq: applied.seq,
                    class: CommitClass::Derived,
                    session_id: holder.session_id(),
                    holder: Some(holder),
                    writes: applied
                        .revisions
                        .iter()
                        .map(|revision| InstanceId::new(revision.id.clone(), revision.scope_key.clone()))
                        .collect(),
                    event_appends: Vec::new(),
                    warm: false,
                });
                // The step waits for it.
                let _ = told.send(());
            },
        );
        done.await.expect("published");
    }

    /// Everybody who may is there, has sent what it had to send and heard what there is to hear; then what each holds is
    /// what the store has.
    pub(crate) async fn rest(&mut self) {
        self.tell("rest".to_owned());
        self.take_lease().await;
        for _ in 0..4 {
            for who in 0..self.clients.len() {
                self.arrive(who).await;
            }
            self.server.idle().await.expect("settles");
            for client in &mut self.clients {
                client.hear(usize::MAX).await;
            }
        }
        let story = self.story.join("\n  ");
        for who in 0..self.clients.len() {
            let problem = self.compare(who).await;
            if problem.is_some() && std::env::var_os("STORY").is_some() {
                for text in self.clients[who].texts_from(0) {
                    eprintln!("HEARD {text}");
                }
                eprintln!("WATCHES {:?}", self.clients[who].watches);
            }
            assert!(problem.is_none(), "{}\n  {story}", problem.unwrap_or_default());
        }
        self.story.clear();
    }

    async fn arrive(&mut self, who: usize) {
        self.clients[who].hear(usize::MAX).await;
        if self.clients[who].ended {
            self.clients[who].lose(0).await;
        }
        let may = who < 2 || self.access.contains_key(self.clients[who].principal.as_str());
        if !may {
            assert!(
                !self.clients[who].is_connected()
                    || self.clients[who].ended
                    || self.clients[who].told().token.is_none(),
                "nothing after revocation: {} was not told",
                self.clients[who].session
            );
            return;
        }
        if !self.clients[who].is_connected() {
            // The first attempt may find that the session has gone to nobody.
            for _ in 0..2 {
                if self.clients[who].connect(&self.server, 0).await {
                    break;
                }
            }
            assert!(
                self.clients[who].is_connected(),
                "{} may come in",
                self.clients[who].session
            );
        }
    }

    /// What is wrong with what a client holds.
    async fn compare(&mut self, who: usize) -> Option<String> {
        let client = &self.clients[who];
        if !client.is_connected() {
            return None;
        }
        let told = client.told();
        let name = &client.session;
        if let Some(last) = told.covered.last()
            && told.marker < *last
        {
            return Some(format!(
                "every accepted commit is covered by a marker: {name} has {} for {last}",
                told.marker
            ));
        }
        let expected = self.expected(client).await;
        for (instance, (seq, content)) in &expected {
            let held = told.holds(instance);
            let same = match (held, content) {
                (None, None) => true,
                (Some((_, held)), content) => held == content,
                (None, Some(_)) => false,
            };
            if !same {
                return Some(format!(
                    "nothing is lost: {name} holds {held:?} of {instance:?}, the store has {content:?} at {seq}"
                ));
            }
        }
        for (instance, (seq, content)) in &told.held {
            if content.is_some() && !expected.contains_key(instance) {
                return Some(format!(
                    "what is no longer reached is retracted: {name} still holds {instance:?} at {seq}"
                ));
            }
        }
        None
    }

    /// Every instance a client's watches reach, with what the store has of it.
    async fn expected(&self, client: &Client) -> BTreeMap<Name, (u64, Option<Json>)> {
        let who = identity(&client.principal.as_str().into(), &client.session);
        let mut expected = BTreeMap::new();
        let mut next: Vec<(String, ScopeKey, bool)> = Vec::new();
        for root in client
            .watches
            .iter()
            .flat_map(|(_, roots)| roots.as_array().into_iter().flatten())
        {
            let scope = root["scope"]
                .as_str()
                .and_then(Scope::from_name)
                .expect("a scope");
            let key = match root["entityScopeKey"].as_str() {
                Some(key) => ScopeKey::parse(key).expect("a key"),
                None => ScopeKey::resolve(scope, &who).expect("an identity"),
            };
            let id = root["id"].as_str().expect("an id").to_owned();
            next.push((id, key, root["selector"]["schema"] == true));
        }
        let mut walked = BTreeSet::new();
        while let Some((id, key, follow)) = next.pop() {
            if !walked.insert((id.clone(), key.as_str().to_owned(), follow)) {
                continue;
            }
            let (entity, named) = (EntityId::from(id.as_str()), key.clone());
            let state = self
                .engine()
                .read(move |reader| {
                    reader.read_state(&entity, ReadInstance::Named(&named), &BranchName::default(), None)
                })
                .wait()
                .expect("runs")
                .expect("readable");
            let (seq, content) = state.map_or((0, None), |state| {
                let content = state.document.map(|document| {
                    parsed(&memory_wire::codec::encode(&document).expect("stored"))["value"].clone()
                });
                (state.seq.0, content)
            });
            if follow && let Some(linked) = content.as_ref().and_then(linked) {
                next.push((linked.to_owned(), ScopeKey::space(), true));
            }
            let spelled = if client.serves {
                key.as_str().to_owned()
            } else {
                String::new()
            };
            expected.insert((key.scope().as_str().to_owned(), id, spelled), (seq, content));
        }
        expected
    }
}

fn identity(principal: &Did, session: &str) -> ScopeIdentity {
    ScopeIdentity {
        principal: Some(principal.clone()),
        session_id: Some(session.into()),
    }
}
