//! The signed session open (WIRE §8), case by case.

use memory_wire::auth::{
    Challenge, ChallengeState, Invocation, SessionOpenProof, authorize, check_connection, sign_session_open,
    verify_session_open,
};
use memory_wire::error::{ErrorName, WireError};
use memory_wire::hash::hash_value;
use memory_wire::identity::Signer;
use memory_wire::{Did, SpaceId, Value, value};

const NOW: i64 = 1_800_000_000;

struct Door {
    alice: Signer,
    space: SpaceId,
    audience: Did,
    challenge: ChallengeState,
}

fn door() -> Door {
    Door {
        alice: Signer::from_passphrase("alice"),
        space: "did:key:zSpace".into(),
        audience: Signer::from_passphrase("a server").did().clone(),
        challenge: ChallengeState::Outstanding(Challenge {
            value: "5a".repeat(32),
            expires_at: NOW + 300,
        }),
    }
}

impl Door {
    fn invocation(&self, descriptor: &Value, iat: u64, exp: u64) -> Value {
        Invocation {
            issuer: self.alice.did().clone(),
            space: self.space.clone(),
            audience: self.audience.clone(),
            challenge: "5a".repeat(32),
            descriptor: descriptor.clone(),
            issued_at: iat,
            expires_at: exp,
        }
        .to_value()
    }

    fn knock(&self, session: &Value, invocation: &Value, authorization: &Value) -> Result<Did, WireError> {
        let proof = SessionOpenProof {
            space: self.space.as_str(),
            session,
            invocation,
            authorization,
        };
        verify_session_open(proof, &self.audience, &self.challenge, NOW)
    }
}

#[test]
fn wire_801_the_fields_of_an_invocation() {
    let door = door();
    let (invocation, _) = sign_session_open(
        &door.alice,
        &door.space,
        &door.audience,
        "c",
        &value!({}),
        NOW as u64,
    );
    let member = |key: &str| invocation.member(key).cloned().unwrap();
    assert_eq!(member("cmd").as_str(), Some("session.open"));
    assert_eq!(member("exp").as_u64(), Some(NOW as u64 + 300));
    assert_eq!(
        invocation.at_path(&["args", "protocol"]).and_then(Value::as_str),
        Some("memory")
    );
    assert_eq!(invocation.as_object().unwrap().len(), 8);
}

#[test]
fn wire_802_the_whole_invocation_is_signed() {
    let door = door();
    let session = value!({ "sessionId": "s" });
    let invocation = door.invocation(&session, NOW as u64, NOW as u64 + 300);
    let signed = authorize(&door.alice, &invocation);
    assert!(door.knock(&session, &invocation, &signed).is_ok());
    // One more field, present-undefined included, is another preimage.
    for extra in [value!(1), Value::Undefined] {
        let mut object = invocation.as_object().unwrap().clone();
        object.insert("note", extra);
        let longer = Value::Object(object);
        assert_ne!(hash_value(&longer), hash_value(&invocation));
        assert_eq!(
            door.knock(&session, &longer, &signed).unwrap_err().message,
            "Invalid signature"
        );
        assert!(
            door.knock(&session, &longer, &authorize(&door.alice, &longer))
                .is_ok()
        );
    }
}

#[test]
fn wire_803_four_fields_of_the_descriptor_are_compared() {
    let door = door();
    let knock = |message: Value, signed: Value| {
        let invocation = door.invocation(&signed, NOW as u64, NOW as u64 + 300);
        door.knock(&message, &invocation, &authorize(&door.alice, &invocation))
            .map(|_| ())
            .map_err(|error| error.message)
    };
    let mismatch = || Err("memory session.open authorization mismatch".to_owned());
    for (key, one, other) in [
        ("sessionId", value!("a"), value!("b")),
        ("sessionToken", value!("a"), value!("b")),
        ("actingAs", value!("a"), value!("b")),
        ("seenSeq", value!(1), value!(2)),
    ] {
        let of = |value: Value| Value::Object([(key, value)].into_iter().collect());
        assert_eq!(knock(of(one.clone()), of(one.clone())), Ok(()), "{key}");
        assert_eq!(knock(of(one.clone()), of(other)), mismatch(), "{key}");
        assert_eq!(knock(of(one), value!({})), mismatch(), "{key}");
        assert_eq!(
            knock(of(value!([])), value!({})),
            Ok(()),
            "{key}: a wrong type is absent"
        );
    }
    assert_eq!(
        knock(value!({ "future": 1 }), value!({ "future": 2 })),
        Ok(()),
        "others are signed and not compared"
    );
}

#[test]
fn wire_804_clocks_are_not_compared_beyond_the_expiry() {
    let door = door();
    let knock = |iat: u64, exp: u64| {
        let invocation = door.invocation(&value!({}), iat, exp);
        door.knock(&value!({}), &invocation, &authorize(&door.alice, &invocation))
            .map_err(|error| (error.message, error.retriable))
    };
    let now = NOW as u64;
    assert!(
        knock(now + 1_000_000, now + 2_000_000).is_ok(),
        "issued in the future, valid for weeks"
    );
    assert!(knock(0, now - 120).is_ok());
    assert_eq!(
        knock(0, now - 121).unwrap_err(),
        ("memory session.open authorization expired".to_owned(), true)
    );
}

#[test]
fn wire_805_the_issuer_becomes_the_principal() {
    let door = door();
    let invocation = door.invocation(&value!({}), NOW as u64, NOW as u64 + 300);
    assert_eq!(
        door.knock(&value!({}), &invocation, &authorize(&door.alice, &invocation))
            .unwrap(),
        *door.alice.did()
    );
    let bob = Signer::from_passphrase("bob");
    assert!(
        door.knock(&value!({}), &invocation, &authorize(&bob, &invocation))
            .is_err()
    );
}

#[test]
fn wire_807_a_signature_has_one_spelling() {
    let door = door();
    let invocation = door.invocation(&value!({}), NOW as u64, NOW as u64 + 300);
    let Some(Value::Bytes(signature)) = authorize(&door.alice, &invocation).member("signature").cloned()
    else {
        panic!()
    };
    // S + L is the same scalar and no canonical signature.
    const L: [u8; 32] = [
        0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde, 0x14, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
    ];
    let mut other = signature.to_vec();
    let mut carry = 0u16;
    for (byte, add) in other[32..].iter_mut().zip(L) {
        carry += u16::from(*byte) + u16::from(add);
        *byte = carry as u8;
        carry >>= 8;
    }
    let with = |bytes: Vec<u8>| {
        door.knock(
            &value!({}),
            &invocation,
            &value!({ "signature": (Value::Bytes(bytes.into())) }),
        )
        .map_err(|error| error.message)
    };
    assert!(with(signature.to_vec()).is_ok());
    assert_eq!(with(other), Err("Invalid signature".into()));
    assert_eq!(with(signature[..63].to_vec()), Err("Invalid signature".into()));
}

#[test]
fn wire_808_only_a_success_uses_a_challenge_up() {
    let mut door = door();
    let invocation = door.invocation(&value!({}), NOW as u64, NOW as u64 + 300);
    let refused = |state: &ChallengeState| {
        let error = check_connection(&invocation, &door.audience, state, NOW).unwrap_err();
        (
            error.name,
            error.message.replace("memory session.open ", ""),
            error.retriable,
        )
    };
    assert_eq!(
        refused(&ChallengeState::Unavailable),
        (ErrorName::Authorization, "challenge unavailable".into(), true)
    );
    assert_eq!(
        refused(&ChallengeState::Consumed),
        (ErrorName::Authorization, "challenge already used".into(), true)
    );
    let expired = ChallengeState::Outstanding(Challenge {
        value: "5a".repeat(32),
        expires_at: NOW,
    });
    assert_eq!(
        refused(&expired),
        (ErrorName::Authorization, "challenge expired".into(), true)
    );
    // Checking changes nothing by itself: whoever holds the state consumes it after a success.
    let bad = door.knock(&value!({}), &invocation, &value!({}));
    assert_eq!(
        bad.unwrap_err().message,
        "memory session.open requires authorization"
    );
    assert!(
        door.knock(&value!({}), &invocation, &authorize(&door.alice, &invocation))
            .is_ok()
    );
    door.challenge = ChallengeState::Consumed;
    assert!(
        door.knock(&value!({}), &invocation, &authorize(&door.alice, &invocation))
            .is_err()
    );
}
