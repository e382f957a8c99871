//! The first frames of a client, and what a server makes of them; no socket needed.

use memory_wire::auth::{Challenge, ChallengeState, SessionOpenProof, verify_session_open};
use memory_wire::codec::{decode, encode};
use memory_wire::flags::Flags;
use memory_wire::identity::Signer;
use memory_wire::ids::{LocalSeq, SessionId, SpaceId};
use memory_wire::message::{
    ClientCommit, ClientMessage, CommitParts, Hello, OpenChallenge, Operation, RequestHeader,
    SessionDescriptor, SessionOpen, Transact, parse_client_message,
};
use memory_wire::patch::{PatchOp, apply_patches};
use memory_wire::scope_key::{Scope, ScopeIdentity, ScopeKey};
use memory_wire::value;
use memory_wire::value::Value;

/// Unix seconds; the crate reads no clock.
const NOW: u64 = 1_800_000_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let alice = Signer::from_passphrase("alice");
    let space = SpaceId::from(Signer::of_named_space("demo").did().clone());
    let server = Signer::from_passphrase("a server").did().clone();

    let hello = ClientMessage::Hello(Hello::new(Flags {
        pending_read_stacks: true,
        ..Flags::default()
    }));
    println!("client says    {}", hello.encode()?);

    // The server's answer brought a challenge; the client signs it together with what it asks for.
    let challenge = Challenge {
        value: "5a".repeat(32),
        expires_at: NOW as i64 + 300,
    };
    let session = SessionDescriptor {
        session_id: Some(SessionId::from("s")),
        ..SessionDescriptor::default()
    };
    let given = OpenChallenge {
        audience: server.clone(),
        value: challenge.value.clone(),
        expires_at: NOW + 300,
    };
    let open = ClientMessage::SessionOpen(SessionOpen::signed("0", &alice, &space, session, &given, NOW));
    let frame = open.encode()?;
    println!("client opens   {frame}");

    // The server learns who it speaks to.
    let message = decode(&frame)?;
    let member = |key| message.member(key).cloned().unwrap_or(Value::Undefined);
    let proof = SessionOpenProof {
        space: space.as_str(),
        session: &member("session"),
        invocation: &member("invocation"),
        authorization: &member("authorization"),
    };
    let outstanding = ChallengeState::Outstanding(challenge);
    let principal = verify_session_open(proof, &server, &outstanding, NOW as i64 + 1)?;
    println!("server knows   {principal}");
    assert_eq!(&principal, alice.did());

    // One commit that counts something up, in alice's own instance of the document.
    let patch = PatchOp::increment(vec!["value".into(), "count".into()], 1.0, false);
    let operation = Operation::Patch {
        id: "of:counter".into(),
        scope: Scope::User,
        patches: vec![patch.clone()],
    };
    let commit = ClientCommit::build(
        LocalSeq(1),
        CommitParts {
            operations: vec![operation],
            ..CommitParts::default()
        },
    );
    let header = RequestHeader::new("1", &space, &SessionId::from("s"));
    let frame = ClientMessage::Transact(Transact::new(header, &commit)).encode()?;
    println!("client commits {frame}");

    // The server reads the frame, resolves which stored instance is meant, and applies the patch.
    let ClientMessage::Transact(request) = parse_client_message(&frame)? else {
        return Ok(());
    };
    let received = ClientCommit::from_value(&request.commit)?;
    let identity = ScopeIdentity::session(principal, request.header.session_id);
    let Some((id, scope)) = received.operations[0].target() else {
        return Ok(());
    };
    let key = ScopeKey::resolve(scope, &identity)?;
    let document = apply_patches(&decode(r#"fvj1:{"value":{"count":41}}"#)?, &[patch])?;
    println!("server stores  {} {} = {}", id, key.as_str(), encode(&document)?);
    assert_eq!(encode(&document)?, encode(&value!({ "value": { "count": 42 } }))?);
    Ok(())
}
