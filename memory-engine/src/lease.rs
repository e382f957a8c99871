//! The execution lease (ENG §7): which process may derive in a space. The row is judged by wall time; a
//! [`LeaseHolder`] also keeps a monotonic deadline, so that a suspended host finds its lease gone when it wakes. Lease
//! writes are plain table writes: no commit, no seq, nothing pushed.

use memory_wire::ids::{Did, SessionId, SpaceId};
use rusqlite::{OptionalExtension, params};
use smol_str::SmolStr;

use crate::column;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::reader::Reader;

/// How long an acquired or renewed lease lives (ENG-701), in milliseconds.
pub const LEASE_TTL_MS: i64 = 15_000;
/// How often its holder renews it, in milliseconds.
pub const LEASE_RENEW_MS: i64 = 5_000;

/// Who holds a lease: `<service identity>#<process uuid>` (ENG-701).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Holder(SmolStr);

impl Holder {
    /// The holder string of one process of a service.
    pub fn new(service: &Did, process: &str) -> Holder {
        Holder(smol_str::format_smolstr!("{service}#{process}"))
    }

    /// The stored text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Everything before the last `#`; the whole text if there is none.
    pub fn service(&self) -> Did {
        Did::from(
            self.0
                .rsplit_once('#')
                .map_or(self.as_str(), |(service, _)| service),
        )
    }

    /// The session id derived commits are filed under: the holder string itself (ENG-412).
    pub fn session_id(&self) -> SessionId {
        SessionId::new(self.0.clone())
    }
}

impl From<&str> for Holder {
    fn from(text: &str) -> Self {
        Holder(SmolStr::new(text))
    }
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Both clocks, read together by the caller (ENG-705).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clocks {
    /// Unix milliseconds.
    pub wall_ms: i64,
    /// Milliseconds of a clock that never steps and, on a suspended host, either stops or not.
    pub monotonic_ms: i64,
}

/// The lease table of one store (ENG-702). Implemented by [`Engine`] and, across threads, by
/// [`crate::actor::EngineHandle`].
pub trait LeaseTable {
    /// Takes the lease of `space` unless another holder's is live. Returns whether it is now `holder`'s.
    ///
    /// # Errors
    /// SQLite's.
    fn acquire(
        &mut self,
        space: &SpaceId,
        holder: &Holder,
        now_ms: i64,
        ttl_ms: i64,
    ) -> Result<bool, EngineError>;

    /// Extends a live lease of `holder`. An expired one cannot be renewed, only acquired again.
    ///
    /// # Errors
    /// SQLite's.
    fn renew(
        &mut self,
        space: &SpaceId,
        holder: &Holder,
        now_ms: i64,
        ttl_ms: i64,
    ) -> Result<bool, EngineError>;

    /// Gives up `holder`'s lease; another's is left alone.
    ///
    /// # Errors
    /// SQLite's.
    fn release(&mut self, space: &SpaceId, holder: &Holder) -> Result<(), EngineError>;

    /// Who holds a live lease of `space`.
    ///
    /// # Errors
    /// SQLite's.
    fn live_holder(&mut self, space: &SpaceId, now_ms: i64) -> Result<Option<Holder>, EngineError>;
}

impl Reader {
    /// When the live lease of `space` runs out, Unix milliseconds: whoever wants it next need not look earlier.
    ///
    /// # Errors
    /// SQLite's.
    pub fn lease_expiry(&self, space: &SpaceId, now_ms: i64) -> Result<Option<i64>, EngineError> {
        let mut statement = self
            .conn
            .prepare_cached("SELECT expires_at FROM execution_lease WHERE space = ?1 AND expires_at > ?2")?;
        Ok(statement
            .query_row(params![space.as_str(), now_ms], |row| row.get(0))
            .optional()?)
    }

    /// Who holds a live lease of `space`: the one question commit admission and explicit-instance reads ask.
    ///
    /// # Errors
    /// SQLite's.
    pub fn live_holder(&self, space: &SpaceId, now_ms: i64) -> Result<Option<Holder>, EngineError> {
        let mut statement = self
            .conn
            .prepare_cached("SELECT holder FROM execution_lease WHERE space = ?1 AND expires_at > ?2")?;
        statement
            .query_row(params![space.as_str(), now_ms], |row| {
                Ok(column::text(row, 0).map(Holder::from))
            })
            .optional()?
            .transpose()
    }
}

impl LeaseTable for Engine {
    fn acquire(
        &mut self,
        space: &SpaceId,
        holder: &Holder,
        now_ms: i64,
        ttl_ms: i64,
    ) -> Result<bool, EngineError> {
        self.transaction(|engine| {
            let written = engine.conn.execute(
                "INSERT INTO execution_lease (space, holder, expires_at) VALUES (?1, ?2, ?3) \
                 ON CONFLICT (space) DO UPDATE SET holder = excluded.holder, expires_at = excluded.expires_at \
                 WHERE execution_lease.holder = excluded.holder OR execution_lease.expires_at <= ?4",
                params![space.as_str(), holder.as_str(), now_ms.saturating_add(ttl_ms), now_ms],
            )?;
            Ok(written > 0)
        })
    }

    fn renew(
        &mut self,
        space: &SpaceId,
        holder: &Holder,
        now_ms: i64,
        ttl_ms: i64,
    ) -> Result<bool, EngineError> {
        self.transaction(|engine| {
            let written = engine.conn.execute(
                "UPDATE execution_lease SET expires_at = ?3 WHERE space = ?1 AND holder = ?2 AND expires_at > ?4",
                params![space.as_str(), holder.as_str(), now_ms.saturating_add(ttl_ms), now_ms],
            )?;
            Ok(written > 0)
        })
    }

    fn release(&mut self, space: &SpaceId, holder: &Holder) -> Result<(), EngineError> {
        self.transaction(|engine| {
            engine.conn.execute(
                "DELETE FROM execution_lease WHERE space = ?1 AND holder = ?2",
                [space.as_str(), holder.as_str()],
            )?;
            Ok(())
        })
    }

    fn live_holder(&mut self, space: &SpaceId, now_ms: i64) -> Result<Option<Holder>, EngineError> {
        Reader::live_holder(self, space, now_ms)
    }
}

/// One uninterrupted possession of the lease (ENG-704). Work sealed under a tenure may commit only during it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Tenure(pub u64);

/// A process's hold on the lease of one space, and the only source of a [`crate::wave::WaveCommit`].
#[derive(Debug)]
pub struct LeaseHolder {
    space: SpaceId,
    holder: Holder,
    ttl_ms: i64,
    tenure: Tenure,
    /// Ends of the current possession on both clocks; `None` when not held.
    until: Option<Clocks>,
}

impl LeaseHolder {
    /// A handle that does not hold the lease yet.
    pub fn new(space: SpaceId, holder: Holder, ttl_ms: i64) -> LeaseHolder {
        LeaseHolder {
            space,
            holder,
            ttl_ms,
            tenure: Tenure::default(),
            until: None,
        }
    }

    /// The space.
    pub fn space(&self) -> &SpaceId {
        &self.space
    }

    /// The holder string.
    pub fn holder(&self) -> &Holder {
        &self.holder
    }

    /// The current or, when not held, the latest tenure; 0 before the first.
    pub fn tenure(&self) -> Tenure {
        self.tenure
    }

    /// Whether the lease is held: until its row expires or the monotonic deadline passes, whichever comes first.
    pub fn is_held(&self, now: Clocks) -> bool {
        self.until
            .is_some_and(|until| now.wall_ms < until.wall_ms && now.monotonic_ms < until.monotonic_ms)
    }

    /// Whether work sealed under `tenure` may still commit.
    pub fn is_current(&self, tenure: Tenure, now: Clocks) -> bool {
        self.tenure == tenure && self.is_held(now)
    }

    /// Takes the lease if it is free. Starts a new tenure; while held it is a no-op that answers `true`. Not for a member
    /// of a group: if the group is lost, this handle would believe what nobody else can see.
    ///
    /// # Errors
    /// SQLite's; the lease then counts as not held.
    pub fn acquire(&mut self, table: &mut dyn LeaseTable, now: Clocks) -> Result<bool, EngineError> {
        if self.is_held(now) {
            return Ok(true);
        }
        self.until = None;
        if !table.acquire(&self.space, &self.holder, now.wall_ms, self.ttl_ms)? {
            return Ok(false);
        }
        self.tenure = Tenure(self.tenure.0 + 1);
        self.until = Some(self.deadline(now));
        tracing::debug!(space = %self.space, tenure = self.tenure.0, "lease acquired");
        Ok(true)
    }

    /// Extends the lease. On `false` or an error the tenure has ended before this returns.
    ///
    /// # Errors
    /// SQLite's.
    pub fn renew(&mut self, table: &mut dyn LeaseTable, now: Clocks) -> Result<bool, EngineError> {
        let held = self.is_held(now);
        self.until = None;
        if held && table.renew(&self.space, &self.holder, now.wall_ms, self.ttl_ms)? {
            self.until = Some(self.deadline(now));
            return Ok(true);
        }
        tracing::info!(space = %self.space, tenure = self.tenure.0, "lease lost");
        Ok(false)
    }

    /// Gives the lease up. The tenure has ended before this returns, even on an error.
    ///
    /// # Errors
    /// SQLite's.
    pub fn release(&mut self, table: &mut dyn LeaseTable) -> Result<(), EngineError> {
        self.until = None;
        table.release(&self.space, &self.holder)
    }

    fn deadline(&self, now: Clocks) -> Clocks {
        Clocks {
            wall_ms: now.wall_ms.saturating_add(self.ttl_ms),
            monotonic_ms: now.monotonic_ms.saturating_add(self.ttl_ms),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::EngineOptions;

    fn at(ms: i64) -> Clocks {
        Clocks {
            wall_ms: ms,
            monotonic_ms: ms,
        }
    }

    #[test]
    fn eng_701_the_service_is_everything_before_the_last_hash() {
        assert_eq!(Holder::new(&"did:key:z#x".into(), "u").service(), "did:key:z#x");
        assert_eq!(Holder::from("plain").service(), "plain");
    }

    /// ENG-705: a host that slept finds its lease gone although the row still looks live to a clock that slept too.
    #[test]
    fn eng_705_held_ends_at_the_earlier_of_the_two_clocks() {
        let mut engine = Engine::in_memory(EngineOptions::default()).unwrap();
        let mut lease = LeaseHolder::new("did:key:zS".into(), Holder::from("a#1"), 100);
        assert!(lease.acquire(&mut engine, at(0)).unwrap());
        assert!(lease.is_current(Tenure(1), at(99)));
        assert!(!lease.is_held(at(100)));
        assert!(!lease.is_held(Clocks {
            wall_ms: 50,
            monotonic_ms: 100
        }));
        assert!(!lease.is_held(Clocks {
            wall_ms: 100,
            monotonic_ms: 50
        }));
        assert!(
            !lease
                .renew(
                    &mut engine,
                    Clocks {
                        wall_ms: 50,
                        monotonic_ms: 200
                    }
                )
                .unwrap()
        );
        assert!(!lease.is_held(at(60)), "a failed renewal ends the tenure");
        assert!(lease.acquire(&mut engine, at(60)).unwrap());
        assert_eq!(lease.tenure(), Tenure(2));
        assert!(!lease.is_current(Tenure(1), at(61)));
    }
}
