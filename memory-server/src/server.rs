//! The server: what all rooms share, how it starts, lists its spaces and connections, and ends (SRV-4, SRV-1401).
//! Everything that has a rule of its own lives in the room of that rule.

use memory_engine::sync::atomic::{AtomicU64, Ordering};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::Router;
use memory_engine::query::Snapshot;
use memory_engine::sqlite_builtin::{CellDatabases, CellReaders, cell_file};
use memory_engine::sync::{Mutex, RwLock};
use memory_engine::{ActorOptions, Applied, EngineError, EngineHandle, EngineOptions, StoreLocation};
use memory_wire::commit_meta::CommitClass;
use memory_wire::error::SocketClose;
use memory_wire::hash::tagged_hash;
use memory_wire::link::Regime;
use memory_wire::message::{ClientCommit, Operation, ReadCeiling};
use memory_wire::{Did, LocalSeq, SessionId, SpaceId};
use rustc_hash::FxHashMap;
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::config::{ServerConfig, Stores};
use crate::connection::Connection;
use crate::error::ServerError;
use crate::outbound::Closing;
use crate::rates::{Metered, Payer, RateLimits, RateStats, TooFast};
use crate::serving_plane::{AdmittedCommit, DemandReason, Observer};
use crate::space::{PendingFrame, Space};
use crate::statistics::{AclStats, SessionEnd, Statistics, Timed, WorkStats};
use crate::tasks::{Tasks, sleep};

/// Large frames parsed at once: enough to keep a machine busy, few enough to fit in its memory.
const LARGE_PARSES: usize = 4;

/// Produces the `servingLoop` block of the statistics (SRV §11.2); installed by an executor host.
pub type ServingLoopReport = Arc<dyn Fn() -> serde_json::Value + Send + Sync>;

/// A memory server. Made by [`Server::new`]; mounted by [`Server::router`]; ended by [`Server::shut_down`].
pub struct Server {
    config: ServerConfig,
    tasks: Tasks,
    /// Itself, for work that outlives a call.
    me: Weak<Server>,
    spaces: RwLock<FxHashMap<SpaceId, Arc<Space>>>,
    connections: Mutex<BTreeMap<u64, Arc<Connection>>>,
    /// Sockets on which no session was opened yet, in the order of their coming.
    unopened: Mutex<BTreeMap<u64, Weak<Connection>>>,
    next_connection: AtomicU64,
    /// One counter for all commits the process makes itself: per-space counters once collided (SRV-908).
    next_local_seq: AtomicU64,
    own_session: SessionId,
    observer: RwLock<Option<Arc<dyn Observer>>>,
    serving_loop: RwLock<Option<ServingLoopReport>>,
    /// What is known of databases beside the stores; shared with waves (SRV-523).
    cells: Arc<CellDatabases>,
    cell_readers: CellReaders,
    statistics: Arc<Statistics>,
    started_at: i64,
    full_evaluations: Arc<Semaphore>,
    sqlite_reads: Arc<Semaphore>,
    large_parses: Arc<Semaphore>,
    /// A permit is a byte.
    uploads: Arc<Semaphore>,
    rates: RateLimits,
    draining: watch::Sender<bool>,
}

impl Server {
    /// Starts a server on the current tokio runtime.
    ///
    /// # Errors
    /// [`ServerError::NoRuntime`] outside a runtime.
    pub fn new(config: ServerConfig) -> Result<Arc<Server>, ServerError> {
        let tasks = Tasks::current()?;
        let own_session = SessionId::from(format!("server:{}", config.identifiers.uuid()));
        let statements = config.limits.statements();
        let server = Arc::new_cyclic(|me| Server {
            statistics: Arc::new(Statistics::new(&config.limits)),
            started_at: config.clock.wall_ms(),
            rates: RateLimits::new(&config.rates),
            full_evaluations: Arc::new(Semaphore::new(
                config
                    .limits
                    .concurrent_full_evaluations
                    .clamp(1, Semaphore::MAX_PERMITS),
            )),
            large_parses: Arc::new(Semaphore::new(LARGE_PARSES)),
            sqlite_reads: Arc::new(Semaphore::new(
                config
                    .limits
                    .concurrent_sqlite_reads
                    .clamp(1, Semaphore::MAX_PERMITS),
            )),
            uploads: Arc::new(Semaphore::new(
                config.limits.upload_bytes.clamp(1, Semaphore::MAX_PERMITS),
            )),
            config,
            tasks,
            me: me.clone(),
            spaces: RwLock::default(),
            connections: Mutex::default(),
            unopened: Mutex::default(),
            next_connection: AtomicU64::new(1),
            next_local_seq: AtomicU64::new(1),
            own_session,
            observer: RwLock::default(),
            serving_loop: RwLock::default(),
            draining: watch::Sender::new(false),
            cells: Arc::new(CellDatabases::bounded(statements)),
            cell_readers: CellReaders::bounded(statements),
        });
        server.tasks.spawn(sweep(
            Arc::downgrade(&server),
            server.config.limits.sweep_interval,
        ));
        Ok(server)
    }

    /// The production routes: socket, health, statistics, meta, blobs, dumps. Dumps answer only when the router is served
    /// with its peers' addresses (`into_make_service_with_connect_info::<SocketAddr>()`).
    pub fn router(self: &Arc<Server>) -> Router {
        crate::http::production(Arc::clone(self))
    }

    /// A socket on every path and nothing else, for embedded use and tests (SRV-109).
    pub fn standalone_router(self: &Arc<Server>) -> Router {
        crate::http::standalone(Arc::clone(self))
    }

    /// What the server was told at start.
    pub fn config(&self) -> &ServerConfig {
        &self.config
    }

    /// Access decisions that were not plain grants (SRV-1103).
    pub fn acl_stats(&self) -> AclStats {
        self.statistics.acl()
    }

    /// Work counters.
    pub fn work_stats(&self) -> WorkStats {
        self.statistics.work()
    }

    /// Requests that met a rate limit.
    pub fn rate_stats(&self) -> RateStats {
        self.statistics.rates()
    }

    /// Waits until `principal` may do one more of `what`, unless that would take too long. The process itself, which
    /// comes over loopback connections, may always.
    pub(crate) async fn pace(
        &self,
        connection: &Connection,
        what: Metered,
        principal: Option<&Did>,
    ) -> Result<(), TooFast> {
        if connection.outbound.is_loopback() {
            return Ok(());
        }
        let paced = self
            .rates
            .pace(
                what,
                &Payer::Principal(principal.cloned()),
                &self.statistics,
                || connection.hold_back(),
            )
            .await;
        connection.go_on();
        paced
    }

    /// Waits until somebody at this address may upload once more, unless that would take too long.
    pub(crate) async fn pace_upload(&self, peer: Option<IpAddr>) -> Result<(), TooFast> {
        let payer = Payer::address(peer);
        self.rates
            .pace(Metered::Upload, &payer, &self.statistics, || ())
            .await
    }

    /// Connections that are open, or ending.
    pub fn connection_count(&self) -> usize {
        self.connections.lock().len()
    }

    /// The connections in the order of their coming.
    pub(crate) fn connections(&self) -> Vec<Arc<Connection>> {
        self.connections.lock().values().cloned().collect()
    }

    /// Wall clock of the start, milliseconds.
    pub(crate) fn started_at(&self) -> i64 {
        self.started_at
    }

    /// The serving loop's block of the statistics, while a host reports one.
    pub(crate) fn serving_loop_block(&self) -> Option<serde_json::Value> {
        let report = self.serving_loop.read().clone()?;
        let mut block = report();
        block["push"] = json!(self.statistics.push());
        Some(block)
    }

    /// Sessions of all open spaces, attached or within their lifetime.
    pub fn session_count(&self) -> usize {
        self.open_spaces()
            .iter()
            .map(|space| space.registry.lock().len())
            .sum()
    }

    /// Installs what reports the serving loop in the statistics, or removes it.
    pub fn set_serving_loop_report(&self, report: Option<ServingLoopReport>) {
        *self.serving_loop.write() = report;
    }

    pub(crate) fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    pub(crate) fn cells(&self) -> &Arc<CellDatabases> {
        &self.cells
    }

    pub(crate) fn cell_readers(&self) -> &CellReaders {
        &self.cell_readers
    }

    pub(crate) fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    /// The server as its tasks share it; `None` while it is being dropped.
    pub(crate) fn shared(&self) -> Option<Arc<Server>> {
        self.me.upgrade()
    }

    pub(crate) fn regime(&self) -> Regime {
        Regime::from_flag(self.config.flags.modern_cell_rep)
    }

    /// The class stated on a frame entry: never with server execution off, never for what was not written (SRV-610).
    pub(crate) fn cover_class(&self, snapshot: &Snapshot) -> Option<CommitClass> {
        snapshot
            .cover_class
            .filter(|_| self.config.server_execution && snapshot.seq.0 > 0)
    }

    pub(crate) fn own_session(&self) -> &SessionId {
        &self.own_session
    }

    pub(crate) fn next_local_seq(&self) -> LocalSeq {
        LocalSeq(self.next_local_seq.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn time(&self, what: Timed, took: Duration) {
        self.statistics
            .time(what, took.as_secs_f64() * 1000.0, self.config.clock.wall_ms());
    }

    pub(crate) fn note_frame_wait(&self, waited: Duration) {
        self.time(Timed::FrameQueue, waited);
    }

    pub(crate) fn note_frame_work(&self, took: Duration) {
        self.time(Timed::FrameHandle, took);
    }

    pub(crate) async fn full_evaluation_permit(&self) -> Option<OwnedSemaphorePermit> {
        // The semaphore is never closed; without a permit the evaluation would only be unbounded.
        Arc::clone(&self.full_evaluations).acquire_owned().await.ok()
    }

    /// A place among the SQLite reads that may run at once: each takes a thread for as long as it likes.
    pub(crate) async fn sqlite_read_permit(&self) -> Option<OwnedSemaphorePermit> {
        // Never closed, as above.
        Arc::clone(&self.sqlite_reads).acquire_owned().await.ok()
    }

    /// A place among the large frames that are parsed at once.
    pub(crate) async fn large_parse_permit(&self) -> Option<OwnedSemaphorePermit> {
        // Never closed, as above.
        Arc::clone(&self.large_parses).acquire_owned().await.ok()
    }

    /// Waits for room for `bytes` more of an upload that holds `place`. One alone may hold all there is, and be larger.
    pub(crate) async fn make_upload_room(&self, place: &mut Option<OwnedSemaphorePermit>, bytes: usize) {
        let held = place.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let wanted = bytes.min(self.config.limits.upload_bytes.saturating_sub(held));
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
        // Never closed, as above.
        let Ok(room) = Arc::clone(&self.uploads).acquire_many_owned(wanted).await else {
            return;
        };
        match place {
            Some(place) => place.merge(room),
            None => *place = Some(room),
        }
    }

    // ---- spaces

    /// The space, opened lazily: its store is touched by its first job (ENG-107).
    ///
    /// # Errors
    /// A name that cannot be a store's path (SRV-124).
    pub(crate) fn open_space(&self, id: &SpaceId) -> Result<Arc<Space>, ServerError> {
        if let Some(space) = self.spaces.read().get(id) {
            return Ok(Arc::clone(space));
        }
        let location = self.locate(id)?;
        let mut spaces = self.spaces.write();
        let space = spaces.entry(id.clone()).or_insert_with(|| {
            let limits = &self.config.limits;
            let engine = EngineOptions {
                durability: self.config.durability,
                serving: self.config.server_execution,
                ..EngineOptions::default()
            };
            let actor = ActorOptions {
                max_group: limits.commits_per_turn,
                foreign_poll: limits.foreign_commit_poll,
                ..ActorOptions::default()
            };
            Space::new(id.clone(), EngineHandle::new(location, engine, actor), limits)
        });
        Ok(Arc::clone(space))
    }

    fn locate(&self, id: &SpaceId) -> Result<StoreLocation, ServerError> {
        if cell_file::is_cell_file_name(&format!("{id}.sqlite")) {
            // Its store would be some space's SQLite database (ENG-106).
            return Err(EngineError::InvalidSpaceId(id.clone()).into());
        }
        match &self.config.stores {
            Stores::Memory => Ok(StoreLocation::Memory),
            Stores::Files(root) => Ok(root.locate(id)?),
        }
    }

    /// True when the space has a store, without creating one.
    pub(crate) fn space_exists(&self, id: &SpaceId) -> Result<bool, ServerError> {
        match &self.config.stores {
            Stores::Memory => Ok(self.spaces.read().contains_key(id)),
            Stores::Files(root) => Ok(root.store_path(id)?.exists()),
        }
    }

    pub(crate) fn open_spaces(&self) -> Vec<Arc<Space>> {
        let mut spaces: Vec<Arc<Space>> = self.spaces.read().values().cloned().collect();
        spaces.sort_by(|a, b| a.id().cmp(b.id()));
        spaces
    }

    /// The space if it is open.
    pub(crate) fn find_space(&self, id: &SpaceId) -> Option<Arc<Space>> {
        self.spaces.read().get(id).cloned()
    }

    pub(crate) fn pinned_spaces(&self) -> Vec<Arc<Space>> {
        let mut spaces = self.open_spaces();
        spaces.retain(|space| space.is_pinned());
        spaces
    }

    pub(crate) fn pending_frame(&self, space: &SpaceId) -> Option<PendingFrame> {
        self.find_space(space).map(|space| space.pending_frame())
    }

    /// Drops expired sessions, and spaces nobody needs (SRV-4, SRV-312).
    fn sweep(&self) {
        self.rates.sweep();
        let now = self.config.clock.monotonic_ms();
        for space in self.open_spaces() {
            let expired = {
                let mut registry = space.registry.lock();
                registry.expire(now);
                registry.give_back();
                registry.take_expired()
            };
            self.statistics.count_ends(SessionEnd::Expired, expired);
        }
        if let Stores::Memory = self.config.stores {
            // A store in memory is the only copy of its space.
            return;
        }
        // Whoever wants a space holds it before asking it anything, so one only the map holds is nobody's.
        self.spaces
            .write()
            .retain(|_, space| Arc::strong_count(space) > 1 || !space.is_idle());
    }

    // ---- connections

    /// A new connection over a socket, unless the server is ending.
    pub(crate) fn admit_connection(&self) -> Option<Arc<Connection>> {
        let connection = self.enlist(|id, order, server| {
            Connection::over_socket(id, order, &server.config.limits, Arc::clone(&server.statistics))
        })?;
        let evicted = {
            let mut unopened = self.unopened.lock();
            unopened.insert(connection.order, Arc::downgrade(&connection));
            if unopened.len() > self.config.limits.unopened_sockets {
                unopened.pop_first()
            } else {
                None
            }
        };
        if let Some(evicted) = evicted.and_then(|(_, waiting)| waiting.upgrade()) {
            evicted.outbound.close(Closing::Now(SocketClose::Unused));
        }
        Some(connection)
    }

    /// A session was opened on the connection: it is nobody's guest any more.
    pub(crate) fn note_opened(&self, connection: &Connection) {
        connection.welcome();
        self.unopened.lock().remove(&connection.order);
    }

    /// A new connection in process.
    pub(crate) fn admit_loopback(&self) -> Option<Arc<Connection>> {
        self.enlist(|id, order, server| Connection::in_process(id, order, Arc::clone(&server.statistics)))
    }

    fn enlist(&self, make: impl FnOnce(String, u64, &Server) -> Arc<Connection>) -> Option<Arc<Connection>> {
        if *self.draining.borrow() {
            return None;
        }
        let order = self.next_connection.fetch_add(1, Ordering::Relaxed);
        let connection = make(self.config.identifiers.uuid(), order, self);
        self.connections.lock().insert(order, Arc::clone(&connection));
        Some(connection)
    }

    /// A connection has ended: what it may not have delivered is taken back and its sessions are detached, each in its
    /// space's turn (SRV-113, SRV-312, SRV-314).
    pub(crate) fn retire_connection(&self, connection: &Arc<Connection>) {
        let frames = connection.outbound.strand();
        self.statistics
            .note_ended_connection(frames, connection.outbound.peak_bytes());
        let expires_at =
            self.config.clock.monotonic_ms().saturating_add(
                u64::try_from(self.config.limits.session_ttl.as_millis()).unwrap_or(u64::MAX),
            );
        let most = self.config.limits.detached_sessions;
        for (key, open) in connection.take_sessions() {
            let (space, ended) = (Arc::clone(&open.space), Arc::clone(connection));
            drop(open.space.engine().turn(move |_| {
                // Not before the turn: a resume over another connection may come first, and takes it back itself.
                let withdrawn = ended.outbound.withdraw(&key);
                let dropped = space.detach(&key.session, open.incarnation, expires_at, &withdrawn, most);
                ended.statistics.count_ends(SessionEnd::Crowded, dropped);
            }));
        }
        self.unopened.lock().remove(&connection.order);
        self.connections.lock().remove(&connection.order);
    }

    /// The connection reads again: sessions that were skipped get one frame computed from state (SRV-705).
    pub(crate) fn resume_fan_out(self: &Arc<Server>, connection: &Connection) {
        for space in connection.spaces() {
            space.mark(|_| ());
            self.schedule_flush(&space);
        }
    }

    /// True once the server is ending.
    pub(crate) fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }

    /// Resolves when the server is ending.
    pub(crate) async fn draining(&self) {
        let mut draining = self.draining.subscribe();
        // The sender lives as long as the server.
        let _ = draining.wait_for(|draining| *draining).await;
    }

    /// Ends the server (SRV-1401): no new connections, running requests are answered, queued frames are sent for at most
    /// the configured grace, sockets close 1001, stores are checkpointed and closed. Leases are the host's to release,
    /// before this.
    pub async fn shut_down(&self) {
        self.draining.send_replace(true);
        let deadline = tokio::time::Instant::now() + self.config.limits.shutdown_grace;
        while self.connection_count() > 0 && tokio::time::Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let left = self.connection_count();
        if left > 0 {
            tracing::warn!(left, "connections did not end within the shutdown grace");
        }
        for space in self.open_spaces() {
            space.engine().watch_foreign(None);
            if let Err(error) = space.engine().close().await {
                tracing::warn!(space = %space.id(), %error, "store was not checkpointed");
            }
        }
    }

    // ---- commits

    /// Counts content-addressed documents whose content is not what their id says (SRV-1105).
    pub(crate) fn count_cid_mismatches(&self, space: &SpaceId, commit: &ClientCommit, applied: &Applied) {
        if applied.replayed {
            return;
        }
        let elided = applied.elided_op_indexes.as_deref().unwrap_or_default();
        for (index, operation) in commit.operations.iter().enumerate() {
            if let Operation::Set { id, value, .. } = operation
                && let Some(hash) = id.as_str().strip_prefix("cid:")
                && !elided.contains(&index)
                && value
                    .member("value")
                    .is_none_or(|content| tagged_hash(content) != hash)
            {
                self.statistics.count_cid_mismatch(space, id.as_str());
            }
        }
    }

    // ---- observer

    pub(crate) fn install_observer(&self, observer: Option<Arc<dyn Observer>>) {
        *self.observer.write() = observer;
    }

    fn observe(&self, what: &'static str, notice: impl FnOnce(&dyn Observer)) {
        let Some(observer) = self.observer.read().clone() else {
            return;
        };
        // An observer's fault must not fail an admission.
        if std::panic::catch_unwind(AssertUnwindSafe(|| notice(&*observer))).is_err() {
            tracing::error!(what, "the observer panicked");
        }
    }

    pub(crate) fn notify_admitted(&self, notice: &AdmittedCommit) {
        if self.config.server_execution
            && notice.class == CommitClass::Authored
            && let Some(space) = self.find_space(&notice.space)
        {
            space.uncovered.note(notice.seq, self.config.clock.monotonic_ms());
        }
        self.observe("commit_admitted", |observer| observer.commit_admitted(notice));
    }

    pub(crate) fn notify_session_opened(&self, space: &SpaceId) {
        self.observe("session_opened", |observer| observer.session_opened(space));
    }

    pub(crate) fn notify_demand_changed(
        &self,
        space: &SpaceId,
        reason: DemandReason,
        principal: Option<&Did>,
    ) {
        self.observe("demand_changed", |observer| {
            observer.demand_changed(space, reason, principal)
        });
    }

    // ---- sessions

    /// The bound a session declared at its open.
    pub(crate) fn declared_ceiling(&self, space: &SpaceId, session: &SessionId) -> Option<ReadCeiling> {
        self.find_space(space)?
            .registry
            .lock()
            .by_id(session)?
            .read_ceiling
            .clone()
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// Runs for as long as the server lives.
async fn sweep(server: Weak<Server>, interval: Duration) {
    loop {
        sleep(interval).await;
        let Some(server) = server.upgrade() else { return };
        server.sweep();
    }
}
