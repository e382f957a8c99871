//! What a host tells the server at start: identity, store, access mode, switches, bounds and the injected sources of
//! time, identifiers, authentication and faults (SRV §14). Read by all rooms; never changes while the server runs.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::sync::Arc;

use memory_engine::{Durability, StoreRoot};
use memory_wire::flags::Flags;
use memory_wire::{Did, SessionId, SpaceId};

use crate::authentication::{SessionAuthenticator, SignedSessionOpen};
use crate::clock::{Clock, SystemClock};
use crate::identifiers::{Identifiers, RandomIdentifiers};
use crate::limits::Limits;
use crate::log_counts::LogCounts;
use crate::rates::Rates;

/// How access decisions are applied (SRV-803).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AclMode {
    /// No list is looked at. The embedded default.
    #[default]
    Off,
    /// Shortfalls are counted and allowed; list shape and genesis are enforced.
    Observe,
    /// Shortfalls are refused. The default of a configured server.
    Enforce,
}

impl AclMode {
    /// The mode as configuration spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            AclMode::Off => "off",
            AclMode::Observe => "observe",
            AclMode::Enforce => "enforce",
        }
    }

    /// True in the modes that look at lists at all.
    pub fn is_active(self) -> bool {
        match self {
            AclMode::Off => false,
            AclMode::Observe | AclMode::Enforce => true,
        }
    }
}

/// A mode that is not `off`, `observe` or `enforce`: refuse to start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("MEMORY_ACL_MODE is {0:?}, expected off, observe or enforce")]
pub struct UnknownAclMode(pub String);

impl FromStr for AclMode {
    type Err = UnknownAclMode;

    fn from_str(text: &str) -> Result<AclMode, UnknownAclMode> {
        match text {
            "off" => Ok(AclMode::Off),
            "observe" => Ok(AclMode::Observe),
            "enforce" => Ok(AclMode::Enforce),
            other => Err(UnknownAclMode(other.to_owned())),
        }
    }
}

/// Who decides access, and for whom it is decided beforehand (SRV-320, SRV-803).
#[derive(Debug, Clone, Default)]
pub struct AclConfig {
    /// The mode.
    pub mode: AclMode,
    /// Principals with OWNER everywhere: `MEMORY_SERVICE_DIDS`, verbatim.
    pub service_principals: BTreeSet<Did>,
    /// Principals that may open sessions acting as a space's owner; see [`AclConfig::delegating`].
    pub delegating_principals: BTreeSet<Did>,
}

impl AclConfig {
    /// The delegating class of a server: its own DID iff server execution is on (SRV-320).
    pub fn delegating(process: &Did, server_execution: bool) -> BTreeSet<Did> {
        if server_execution {
            BTreeSet::from([process.clone()])
        } else {
            BTreeSet::new()
        }
    }
}

/// Where stores live.
#[derive(Debug, Clone)]
pub enum Stores {
    /// Files under a configured root (ENG-100…105).
    Files(StoreRoot),
    /// In memory, gone with the server: tests and embedded use.
    Memory,
}

/// When dirty spaces are flushed (SRV-435).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FlushTiming {
    /// [`Limits::refresh_delay`] after the first mark.
    #[default]
    Timed,
    /// Only when asked: tests drive [`crate::ServingPlane::flush`].
    Manual,
}

/// Labelled points at which a test may make something fail or watch it happen. The production value does nothing.
pub trait FaultPoints: Send + Sync + 'static {
    /// An effect frame is about to be queued for `session` on a connection. An error is treated as a failed send
    /// (SRV-433, SRV-434).
    fn before_effect(&self, space: &SpaceId, session: &SessionId) -> Result<(), SendRefused> {
        let _ = (space, session);
        Ok(())
    }
}

/// A fault point's order to fail a send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the frame could not be sent")]
pub struct SendRefused;

/// No faults.
#[derive(Debug, Default)]
pub struct NoFaults;

impl FaultPoints for NoFaults {}

/// Everything the server is told at start.
#[derive(Clone)]
pub struct ServerConfig {
    /// The server's DID: audience of every session open (SRV-303).
    pub audience: Did,
    /// Uuid of this process: the part of a lease holder after `#` (SRV-605).
    pub process_instance: String,
    /// Where stores live.
    pub stores: Stores,
    /// What an acknowledged commit survives (ENG-111).
    pub durability: Durability,
    /// Whether `EXPERIMENTAL_SERVER_EXECUTION` is on (SRV-204).
    pub server_execution: bool,
    /// Access control.
    pub acl: AclConfig,
    /// What `hello.ok` advertises; [`ServerConfig::built_flags`] unless a test narrows it.
    pub flags: Flags,
    /// When dirty spaces are flushed.
    pub flush: FlushTiming,
    /// Bounds and timings.
    pub limits: Limits,
    /// What one principal may ask per second; unbounded unless a host says otherwise.
    pub rates: Rates,
    /// Revision of the running program, for health and meta (SRV-120).
    pub git_sha: Option<String>,
    /// Whether the dump routes exist (SRV-123).
    pub dumps: bool,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Fresh identifiers.
    pub identifiers: Arc<dyn Identifiers>,
    /// Proof of who opens a session.
    pub authenticator: Arc<dyn SessionAuthenticator>,
    /// Fault points.
    pub faults: Arc<dyn FaultPoints>,
    /// What the host's subscriber has logged, if it counts.
    pub log_counts: Option<LogCounts>,
}

impl ServerConfig {
    /// A server with the given identity and stores and the defaults of §14, except that access control is off: a host
    /// sets the mode it was configured with.
    pub fn new(audience: Did, stores: Stores) -> ServerConfig {
        let identifiers = Arc::new(RandomIdentifiers);
        ServerConfig {
            audience,
            process_instance: identifiers.uuid(),
            stores,
            durability: Durability::default(),
            server_execution: false,
            acl: AclConfig::default(),
            flags: ServerConfig::built_flags(),
            flush: FlushTiming::default(),
            limits: Limits::default(),
            rates: Rates::UNBOUNDED,
            git_sha: None,
            dumps: false,
            clock: Arc::new(SystemClock::default()),
            identifiers,
            authenticator: Arc::new(SignedSessionOpen),
            faults: Arc::new(NoFaults),
            log_counts: None,
        }
    }
}

impl std::fmt::Debug for ServerConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerConfig")
            .field("audience", &self.audience)
            .field("stores", &self.stores)
            .field("durability", &self.durability)
            .field("server_execution", &self.server_execution)
            .field("acl", &self.acl)
            .field("flush", &self.flush)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn srv_803_an_unknown_mode_is_refused_by_name() {
        assert_eq!("enforce".parse(), Ok(AclMode::Enforce));
        let error = "on".parse::<AclMode>().expect_err("unknown");
        assert_eq!(
            error.to_string(),
            "MEMORY_ACL_MODE is \"on\", expected off, observe or enforce"
        );
    }

    #[test]
    fn srv_320_the_process_delegates_only_with_server_execution() {
        let process: Did = "did:key:zProcess".into();
        assert!(AclConfig::delegating(&process, false).is_empty());
        assert!(AclConfig::delegating(&process, true).contains(&process));
    }
}
