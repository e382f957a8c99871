//! Who opens a session (SRV-301…305): the connection's challenge is checked, then the proof. Called by `session_open`
//! before anything of the space is touched, so that an unsigned request creates no file.

use memory_wire::auth::{Challenge, ChallengeState, SessionOpenProof, check_connection, verify_invocation};
use memory_wire::message::{OpenChallenge, SessionOpen};
use memory_wire::{Did, Value, WireError};

use crate::connection::Connection;
use crate::server::Server;

/// The verifier of session opens: rows 8–15 of SRV §3.2. The connection's own checks have passed.
pub trait SessionAuthenticator: Send + Sync + 'static {
    /// The principal that signed `open`, or `None` for an anonymous session (never by the production verifier).
    ///
    /// # Errors
    /// `AuthorizationError` with the first failing check's text, or `ProtocolError` for an unusable issuer.
    fn authenticate(
        &self,
        open: &SessionOpen,
        audience: &Did,
        challenge: &Challenge,
        now_seconds: i64,
    ) -> Result<Option<Did>, WireError>;
}

/// The production verifier: an Ed25519 signature over the invocation (WIRE §8).
#[derive(Debug, Default)]
pub struct SignedSessionOpen;

impl SessionAuthenticator for SignedSessionOpen {
    fn authenticate(
        &self,
        open: &SessionOpen,
        audience: &Did,
        challenge: &Challenge,
        now_seconds: i64,
    ) -> Result<Option<Did>, WireError> {
        let proof = SessionOpenProof {
            space: open.space.as_str(),
            session: &open.session.to_value(),
            invocation: open.invocation.as_ref().unwrap_or(&Value::Undefined),
            authorization: open.authorization.as_ref().unwrap_or(&Value::Undefined),
        };
        verify_invocation(proof, audience, challenge, now_seconds).map(Some)
    }
}

impl Server {
    /// All checks of an open in their order. Success consumes the connection's challenge (SRV-302): whatever fails
    /// later, the connection opens nothing more with it.
    pub(crate) fn authenticate(
        &self,
        connection: &Connection,
        open: &SessionOpen,
    ) -> Result<Option<Did>, WireError> {
        let config = self.config();
        let now = config.clock.wall_ms().div_euclid(1000);
        let mut slot = connection.challenge.lock();
        let invocation = open.invocation.as_ref().unwrap_or(&Value::Undefined);
        let challenge = check_connection(invocation, &config.audience, &slot, now)?;
        let principal = config
            .authenticator
            .authenticate(open, &config.audience, challenge, now)?;
        *slot = ChallengeState::Consumed;
        Ok(principal)
    }

    /// Issues the connection's next challenge.
    pub(crate) fn issue_challenge(&self, connection: &Connection) -> OpenChallenge {
        let config = self.config();
        let value = config.identifiers.challenge();
        let ttl = i64::try_from(config.limits.challenge_ttl.as_secs()).unwrap_or(i64::MAX);
        let expires_at = config.clock.wall_ms().div_euclid(1000).saturating_add(ttl);
        *connection.challenge.lock() = ChallengeState::Outstanding(Challenge {
            value: value.clone(),
            expires_at,
        });
        OpenChallenge {
            audience: config.audience.clone(),
            value,
            expires_at: expires_at.unsigned_abs(),
        }
    }
}
