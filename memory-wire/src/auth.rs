//! The signed session open (WIRE-801…808): what a client signs and the checks a server makes, in their order. The
//! checks come in two parts, because a connection knows the outstanding challenge and a verifier knows keys; and as
//! one function that does both. No clock: callers pass the time.
//!
//! The signature is Ed25519 over the value hash of the whole invocation as sent (WIRE-802). The checks, first failure first:
//!
//! | | who | refused when | again? |
//! | --- | --- | --- | --- |
//! | 1–2 | [`check_connection`] | the audience is absent or another server's | |
//! | 3–5 | | no challenge, a used one, an expired one | on a fresh connection |
//! | 6–7 | | the challenge is absent, or not this connection's | the latter |
//! | 8–9 | [`verify_invocation`] | no signature; issuer, command, space, protocol or descriptor do not fit the message | |
//! | 10–13 | | 1–7 again, as far as they concern the invocation | |
//! | 14–16 | | no `iat`, no `exp`, or `exp` more than two minutes ago | expired only |
//! | 17–18 | | the issuer is no `did:key`; the signature is wrong | |
//!
//! Of the descriptor `sessionId`, `sessionToken`, `actingAs` and `seenSeq` are compared with the message, wrong types counting
//! as absent (WIRE-803). `iat` is not compared with any clock (WIRE-804). Only a success uses the challenge up (WIRE-808), and
//! the issuer is the session's principal from then on (WIRE-805).

use std::sync::Arc;

use ed25519_dalek::Signature;

use crate::did::{DidProblem, parse_did_key};
use crate::equality::value_equal;
use crate::error::WireError;
use crate::hash::hash_value;
use crate::identity::Signer;
use crate::ids::{Did, MEMORY_PROTOCOL, SpaceId};
use crate::js_string::JsString;
use crate::value::{Object, Value};

/// The command a session open signs.
pub const SESSION_OPEN_COMMAND: &str = "session.open";

/// Seconds after `iat` at which a client lets its signature expire.
pub const VALIDITY_SECONDS: u64 = 300;

/// Seconds by which a signature may have expired already, for skewed clocks (WIRE-804).
pub const EXPIRY_GRACE_SECONDS: f64 = 120.0;

/// What a client asserts when it opens a session (WIRE-801).
#[derive(Clone, Debug)]
pub struct Invocation {
    /// The principal: whose key signs.
    pub issuer: Did,
    /// The space to be opened.
    pub space: SpaceId,
    /// The server spoken to.
    pub audience: Did,
    /// The challenge the server gave this connection.
    pub challenge: String,
    /// The session descriptor, the same value as in the message.
    pub descriptor: Value,
    /// Unix seconds.
    pub issued_at: u64,
    /// Unix seconds.
    pub expires_at: u64,
}

impl Invocation {
    /// The object that is hashed, signed and sent.
    pub fn to_value(&self) -> Value {
        let args: Object = [
            ("protocol", Value::from(MEMORY_PROTOCOL)),
            ("session", self.descriptor.clone()),
        ]
        .into_iter()
        .collect();
        Value::Object(
            [
                ("iss", Value::from(&self.issuer)),
                ("cmd", Value::from(SESSION_OPEN_COMMAND)),
                ("sub", Value::from(&self.space)),
                ("aud", Value::from(&self.audience)),
                ("args", Value::Object(args)),
                ("challenge", Value::from(self.challenge.as_str())),
                ("iat", Value::from(self.issued_at)),
                ("exp", Value::from(self.expires_at)),
            ]
            .into_iter()
            .collect(),
        )
    }
}

/// Signs a session open at `iat` unix seconds: the message's `invocation` and `authorization`.
pub fn sign_session_open(
    signer: &Signer,
    space: &SpaceId,
    audience: &Did,
    challenge: &str,
    descriptor: &Value,
    iat: u64,
) -> (Value, Value) {
    let invocation = Invocation {
        issuer: signer.did().clone(),
        space: space.clone(),
        audience: audience.clone(),
        challenge: challenge.to_owned(),
        descriptor: descriptor.clone(),
        issued_at: iat,
        expires_at: iat + VALIDITY_SECONDS,
    }
    .to_value();
    let authorization = authorize(signer, &invocation);
    (invocation, authorization)
}

/// The `authorization` of an invocation: a signature over its value hash (WIRE-802).
pub fn authorize(signer: &Signer, invocation: &Value) -> Value {
    let signature: Arc<[u8]> = Arc::from(&signer.sign(&hash_value(invocation))[..]);
    Value::Object([("signature", Value::Bytes(signature))].into_iter().collect())
}

/// A challenge as it was given to a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Challenge {
    /// 64 lower-case hex digits.
    pub value: String,
    /// Unix seconds.
    pub expires_at: i64,
}

/// Where a connection stands with its challenge. Only a success consumes it (WIRE-808), and only the result of a
/// successful open brings a new one.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum ChallengeState {
    /// None was ever given.
    #[default]
    Unavailable,
    /// Given and unused.
    Outstanding(Challenge),
    /// Used.
    Consumed,
}

/// The parts of a `session.open` message that authentication looks at, as they arrived.
#[derive(Clone, Copy, Debug)]
pub struct SessionOpenProof<'a> {
    /// `space`
    pub space: &'a str,
    /// `session`: the descriptor.
    pub session: &'a Value,
    /// `invocation`; `undefined` when absent.
    pub invocation: &'a Value,
    /// `authorization`; `undefined` when absent.
    pub authorization: &'a Value,
}

/// The whole of WIRE-801…807 in order: the connection's part, then the verifier's.
///
/// # Errors
/// The first failing check's error; the challenge is then *not* consumed (WIRE-808).
pub fn verify_session_open(
    proof: SessionOpenProof<'_>,
    audience: &Did,
    challenge: &ChallengeState,
    now: i64,
) -> Result<Did, WireError> {
    let challenge = check_connection(proof.invocation, audience, challenge, now)?;
    verify_invocation(proof, audience, challenge, now)
}

/// Checks 1–7 of WIRE §8.2, which need only the connection's state. Returns the challenge they were made with.
///
/// # Errors
/// `AuthorizationError` with the first failing check's text.
pub fn check_connection<'c>(
    invocation: &Value,
    audience: &Did,
    challenge: &'c ChallengeState,
    now: i64,
) -> Result<&'c Challenge, WireError> {
    check_audience(invocation, audience)?;
    let challenge = match challenge {
        ChallengeState::Unavailable => return Err(refusal("challenge unavailable").retriable()),
        ChallengeState::Consumed => return Err(refusal("challenge already used").retriable()),
        ChallengeState::Outstanding(challenge) => challenge,
    };
    check_unexpired(challenge, now)?;
    check_challenge(invocation, challenge)?;
    Ok(challenge)
}

/// Checks 8–18 of WIRE §8.2. Returns the principal of the session (WIRE-805).
///
/// # Errors
/// `AuthorizationError` with the first failing check's text, or `ProtocolError` for an unusable issuer.
pub fn verify_invocation(
    proof: SessionOpenProof<'_>,
    audience: &Did,
    challenge: &Challenge,
    now: i64,
) -> Result<Did, WireError> {
    let invocation = proof.invocation;
    let (Value::Object(_), Some(Value::Bytes(signature))) =
        (invocation, proof.authorization.member("signature"))
    else {
        return Err(refusal("requires authorization"));
    };
    let Some(issuer) = matching_issuer(&proof) else {
        return Err(refusal("authorization mismatch"));
    };
    check_audience(invocation, audience)?;
    check_challenge(invocation, challenge)?;
    check_unexpired(challenge, now)?;
    if finite(invocation.member("iat")).is_none() {
        return Err(refusal("requires iat"));
    }
    let expiry = finite(invocation.member("exp")).ok_or_else(|| refusal("requires exp"))?;
    if expiry < now as f64 - EXPIRY_GRACE_SECONDS {
        return Err(refusal("authorization expired").retriable());
    }
    let issuer = issuer.to_string_lossy();
    let invalid = || WireError::authorization("Invalid signature");
    let key = parse_did_key(&issuer).map_err(|error| match error.problem {
        // A text of the right form; it is the signature that cannot be right.
        DidProblem::NotAPoint => invalid(),
        _ => WireError::protocol(error.to_string()),
    })?;
    let signature = Signature::from_slice(signature).map_err(|_| invalid())?;
    key.verify_strict(&hash_value(invocation), &signature)
        .map_err(|_| invalid())?;
    Ok(Did::new(issuer.as_ref()))
}

fn refusal(what: &str) -> WireError {
    WireError::authorization(format!("memory session.open {what}"))
}

fn check_audience(invocation: &Value, audience: &Did) -> Result<(), WireError> {
    match invocation.member("aud") {
        Some(Value::String(aud)) if *aud == audience.as_str() => Ok(()),
        Some(Value::String(_)) => Err(refusal("audience mismatch")),
        _ => Err(refusal("requires audience")),
    }
}

fn check_challenge(invocation: &Value, challenge: &Challenge) -> Result<(), WireError> {
    match invocation.member("challenge") {
        Some(Value::String(value)) if *value == challenge.value.as_str() => Ok(()),
        Some(Value::String(_)) => Err(refusal("challenge mismatch").retriable()),
        _ => Err(refusal("requires challenge")),
    }
}

fn check_unexpired(challenge: &Challenge, now: i64) -> Result<(), WireError> {
    if challenge.expires_at <= now {
        Err(refusal("challenge expired").retriable())
    } else {
        Ok(())
    }
}

fn finite(value: Option<&Value>) -> Option<f64> {
    value.and_then(Value::as_f64).filter(|n| n.is_finite())
}

/// Check 9: the issuer, when the signed assertion is about this very message.
fn matching_issuer<'a>(proof: &SessionOpenProof<'a>) -> Option<&'a JsString> {
    let invocation = proof.invocation;
    let Some(Value::String(issuer)) = invocation.member("iss") else {
        return None;
    };
    let is = |value: Option<&Value>, text: &str| value.and_then(Value::as_str) == Some(text);
    let args = invocation.member("args")?;
    let signed = args
        .member("session")
        .filter(|session| session.as_object().is_some())?;
    let matches = is(invocation.member("cmd"), SESSION_OPEN_COMMAND)
        && is(invocation.member("sub"), proof.space)
        && is(args.member("protocol"), MEMORY_PROTOCOL)
        && same_descriptor(signed, proof.session);
    matches.then_some(issuer)
}

/// WIRE-803: four members are compared, one of a wrong type counts as absent, and the rest is signed only. A read
/// ceiling is compared by structure besides (SRV-304 row 9): one that was not signed, or was signed otherwise, would
/// change what the session may read.
fn same_descriptor(a: &Value, b: &Value) -> bool {
    fn text<'v>(descriptor: &'v Value, key: &str) -> Option<&'v JsString> {
        match descriptor.member(key) {
            Some(Value::String(text)) => Some(text),
            _ => None,
        }
    }
    let number = |descriptor: &Value| descriptor.member("seenSeq").and_then(Value::as_f64);
    ["sessionId", "sessionToken", "actingAs"]
        .iter()
        .all(|key| text(a, key) == text(b, key))
        && number(a) == number(b)
        && match (a.member("readCeiling"), b.member("readCeiling")) {
            (None, None) => true,
            (Some(signed), Some(sent)) => value_equal(signed, sent),
            (Some(_), None) | (None, Some(_)) => false,
        }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorName;
    use crate::value;

    const NOW: i64 = 1_800_000_000;

    fn audience() -> Did {
        Did::from("did:key:z6MkvdgR5HbDqVvPcxewMHdAMC6yoB3uUAVBioskPoRxqeq3")
    }

    fn outstanding() -> ChallengeState {
        ChallengeState::Outstanding(Challenge {
            value: "c0".repeat(32),
            expires_at: NOW + 300,
        })
    }

    fn open(invocation: &Value, authorization: &Value, state: &ChallengeState) -> Result<Did, WireError> {
        let session = value!({});
        let proof = SessionOpenProof {
            space: "did:key:space",
            session: &session,
            invocation,
            authorization,
        };
        verify_session_open(proof, &audience(), state, NOW)
    }

    fn signed(signer: &Signer) -> (Value, Value) {
        let space = SpaceId::from("did:key:space");
        sign_session_open(
            signer,
            &space,
            &audience(),
            &"c0".repeat(32),
            &value!({}),
            NOW as u64,
        )
    }

    #[test]
    fn wire_805_the_signer_becomes_the_principal() {
        let alice = Signer::from_passphrase("alice");
        let (invocation, authorization) = signed(&alice);
        assert_eq!(
            open(&invocation, &authorization, &outstanding()).as_ref(),
            Ok(alice.did())
        );
    }

    #[test]
    fn srv_304_a_read_ceiling_must_be_the_signed_one() {
        let alice = Signer::from_passphrase("alice");
        let bounded = |atom: &str| value!({ "readCeiling": { "maxConfidentiality": [atom] } });
        let judge = |signed: &Value, sent: &Value| {
            let space = SpaceId::from("did:key:space");
            let challenge = "c0".repeat(32);
            let (invocation, authorization) =
                sign_session_open(&alice, &space, &audience(), &challenge, signed, NOW as u64);
            let proof = SessionOpenProof {
                space: "did:key:space",
                session: sent,
                invocation: &invocation,
                authorization: &authorization,
            };
            verify_session_open(proof, &audience(), &outstanding(), NOW).is_ok()
        };
        assert!(judge(&bounded("public"), &bounded("public")));
        assert!(!judge(&bounded("public"), &bounded("secret")));
        assert!(
            !judge(&bounded("public"), &value!({})),
            "a dropped bound would widen reads"
        );
        assert!(!judge(&value!({}), &bounded("public")));
    }

    #[test]
    fn wire_801_connection_checks_come_first_and_in_order() {
        let (invocation, authorization) = signed(&Signer::from_passphrase("alice"));
        let text = |invocation: &Value, state: &ChallengeState| {
            open(invocation, &value!({}), state).map_err(|error| (error.message, error.retriable))
        };
        let refused = |what: &str, retriable| Err((format!("memory session.open {what}"), retriable));
        let expired = ChallengeState::Outstanding(Challenge {
            value: "c0".repeat(32),
            expires_at: NOW,
        });
        let other = ChallengeState::Outstanding(Challenge {
            value: "00".repeat(32),
            expires_at: NOW + 1,
        });
        let without = |key: &str| {
            let mut object = invocation.as_object().unwrap().clone();
            object.remove(key);
            Value::Object(object)
        };
        assert_eq!(
            text(&Value::Undefined, &ChallengeState::Unavailable),
            refused("requires audience", false)
        );
        assert_eq!(
            text(&value!({ "aud": "x" }), &ChallengeState::Unavailable),
            refused("audience mismatch", false)
        );
        assert_eq!(
            text(&invocation, &ChallengeState::Unavailable),
            refused("challenge unavailable", true)
        );
        assert_eq!(
            text(&invocation, &ChallengeState::Consumed),
            refused("challenge already used", true)
        );
        assert_eq!(
            text(&without("challenge"), &expired),
            refused("challenge expired", true)
        );
        assert_eq!(
            text(&without("challenge"), &other),
            refused("requires challenge", false)
        );
        assert_eq!(text(&invocation, &other), refused("challenge mismatch", true));
        assert_eq!(
            text(&invocation, &outstanding()),
            refused("requires authorization", false)
        );
        assert!(open(&invocation, &authorization, &outstanding()).is_ok());
    }

    #[test]
    fn wire_807_a_non_canonical_scalar_is_refused() {
        let (invocation, authorization) = signed(&Signer::from_passphrase("alice"));
        let Some(Value::Bytes(signature)) = authorization.member("signature") else {
            panic!()
        };
        // S + L, where L is the group order: the same signature to a lenient verifier.
        const ORDER: [u8; 32] = [
            0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde, 0x14,
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
        ];
        let mut shifted = signature.to_vec();
        let mut carry = 0;
        for (byte, order) in shifted[32..].iter_mut().zip(ORDER) {
            let sum = u16::from(*byte) + u16::from(order) + carry;
            *byte = sum as u8;
            carry = sum >> 8;
        }
        assert_eq!(carry, 0);
        let authorization = Value::Object(
            [("signature", Value::Bytes(shifted.into()))]
                .into_iter()
                .collect(),
        );
        let error = open(&invocation, &authorization, &outstanding()).unwrap_err();
        assert_eq!(
            (error.name, error.message.as_str()),
            (ErrorName::Authorization, "Invalid signature")
        );
    }
}
