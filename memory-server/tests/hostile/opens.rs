//! Opening what is not one's own: replayed, expired, stolen, redirected and forged proofs (SRV-301…305, SRV-308,
//! SRV-317).

use memory_wire::auth::authorize;
use memory_wire::{Value, value};
use serde_json::Value as Json;

use crate::rig::{Open, Peer, Rig, error_series, judge, mallory, metric_label, stranger, victim};

/// Sends a bent open on a connection of its own and judges the answer and the counters.
struct Bench {
    rig: Rig,
    attackers: Vec<Peer>,
    failures: Vec<String>,
    attempts: usize,
}

impl Bench {
    async fn new() -> Bench {
        Bench {
            rig: Rig::start().await,
            attackers: Vec::new(),
            failures: Vec::new(),
            attempts: 0,
        }
    }

    /// One attempt: `bend` makes the open from the connection and an honest one for `session` in the shared space.
    async fn attempt(
        &mut self,
        label: &str,
        name: &str,
        message: &str,
        bend: impl FnOnce(&Rig, &Peer, Open) -> Open,
    ) {
        let mut peer = self.rig.peer(mallory()).await;
        let honest = peer.honest(&self.rig.shared, value!({ "sessionId": "m" }));
        let open = bend(&self.rig, &peer, honest);
        self.send(label, name, message, &mut peer, &open.frame()).await;
        self.attackers.push(peer);
    }

    async fn send(&mut self, label: &str, name: &str, message: &str, peer: &mut Peer, frame: &str) -> Json {
        let before = self.rig.counters().await;
        let answer = peer.ask(frame).await;
        let after = self.rig.counters().await;
        self.attempts += 1;
        self.failures.extend(judge(label, &answer, name, message).err());
        for series in [
            error_series(metric_label(name)),
            "memory_session_opens_total{outcome=\"refused\"}".to_owned(),
        ] {
            if after[&series] != before[&series] + 1 {
                self.failures.push(format!(
                    "{label}: {series} went from {} to {}",
                    before[&series], after[&series]
                ));
            }
        }
        answer
    }

    async fn finish(mut self) {
        let attackers: Vec<&Peer> = self.attackers.iter().collect();
        self.rig.unharmed(&attackers).await;
        println!("{} attempts, {} failed", self.attempts, self.failures.len());
        assert!(self.failures.is_empty(), "{}", self.failures.join("\n"));
    }
}

const AUTHORIZATION: &str = "AuthorizationError";
const PROTOCOL: &str = "ProtocolError";

#[tokio::test(flavor = "multi_thread")]
async fn srv_304_replayed_expired_and_redirected_opens() {
    let mut bench = Bench::new().await;
    // A frame that once was good, on another connection, and again on its own.
    let mut honest = bench.rig.peer(mallory()).await;
    let good = honest
        .honest(&bench.rig.shared, value!({ "sessionId": "m" }))
        .frame();
    assert!(honest.ask(&good).await["ok"].is_object());
    bench
        .send(
            "replayed on its connection",
            AUTHORIZATION,
            "challenge mismatch",
            &mut honest,
            &good,
        )
        .await;
    let mut other = bench.rig.peer(stranger()).await;
    bench
        .send(
            "replayed elsewhere",
            AUTHORIZATION,
            "challenge mismatch",
            &mut other,
            &good,
        )
        .await;
    bench.attackers.extend([honest, other]);

    bench
        .attempt(
            "signed long ago",
            AUTHORIZATION,
            "authorization expired",
            |rig, peer, open| {
                let now = rig.clock.seconds();
                let open = open.claim("iat", now - 1000).claim("exp", now - 121);
                open.signing(&peer.signer, "exp", now - 121)
            },
        )
        .await;
    bench
        .attempt("never expires", AUTHORIZATION, "requires exp", |_, peer, open| {
            open.signing(&peer.signer, "exp", Value::Number(f64::INFINITY))
        })
        .await;
    bench
        .attempt(
            "no time of issue",
            AUTHORIZATION,
            "requires iat",
            |_, peer, open| open.signing(&peer.signer, "iat", "now"),
        )
        .await;
    bench
        .attempt(
            "for another server",
            AUTHORIZATION,
            "audience mismatch",
            |_, peer, open| open.signing(&peer.signer, "aud", stranger().did().as_str()),
        )
        .await;
    bench
        .attempt(
            "for no server",
            AUTHORIZATION,
            "requires audience",
            |_, peer, open| open.signing(&peer.signer, "aud", Value::Null),
        )
        .await;
    bench
        .attempt(
            "for another space",
            AUTHORIZATION,
            "authorization mismatch",
            |rig, _, mut open| {
                open.space = rig.private.to_string();
                open
            },
        )
        .await;
    bench
        .attempt(
            "another command",
            AUTHORIZATION,
            "authorization mismatch",
            |_, peer, open| open.signing(&peer.signer, "cmd", "session.close"),
        )
        .await;
    bench
        .attempt(
            "another session than signed",
            AUTHORIZATION,
            "authorization mismatch",
            |_, _, mut open| {
                open.session = value!({ "sessionId": "vs" });
                open
            },
        )
        .await;
    bench
        .attempt(
            "a token that was not signed",
            AUTHORIZATION,
            "authorization mismatch",
            |rig, _, mut open| {
                let token = rig.victim.tokens["vs"].as_str();
                open.session = value!({ "sessionId": "m", "sessionToken": token });
                open
            },
        )
        .await;
    bench
        .attempt(
            "a ceiling that was signed is left out",
            AUTHORIZATION,
            "authorization mismatch",
            |_, peer, open| {
                let args = value!({
                    "protocol": "memory",
                    "session": { "sessionId": "m", "readCeiling": { "maxConfidentiality": ["public"] } }
                });
                open.signing(&peer.signer, "args", args)
            },
        )
        .await;
    // A challenge outlives its time.
    let mut late = bench.rig.peer(mallory()).await;
    bench.rig.clock.advance(301_000);
    let open = late
        .honest(&bench.rig.shared, value!({ "sessionId": "m" }))
        .frame();
    let answer = bench
        .send(
            "a stale challenge",
            AUTHORIZATION,
            "challenge expired",
            &mut late,
            &open,
        )
        .await;
    assert_eq!(answer["error"]["retriable"], true);
    bench.attackers.push(late);
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_308_stolen_challenges_sessions_and_tokens() {
    let mut bench = Bench::new().await;
    bench
        .attempt(
            "another connection's challenge",
            AUTHORIZATION,
            "challenge mismatch",
            |rig, peer, open| {
                let stolen = rig.victim.challenge.as_str();
                open.signing(&peer.signer, "challenge", stolen)
            },
        )
        .await;
    bench
        .attempt(
            "no challenge",
            AUTHORIZATION,
            "requires challenge",
            |_, peer, open| open.signing(&peer.signer, "challenge", Value::Null),
        )
        .await;
    bench
        .attempt(
            "another's session",
            AUTHORIZATION,
            "already bound",
            |rig, peer, _| peer.honest(&rig.shared, value!({ "sessionId": "vs" })),
        )
        .await;
    bench
        .attempt(
            "another's session with its token",
            AUTHORIZATION,
            "already bound",
            |rig, peer, _| {
                let token = rig.victim.tokens["vs"].as_str();
                peer.honest(&rig.shared, value!({ "sessionId": "vs", "sessionToken": token }))
            },
        )
        .await;
    // Once an open has passed verification its challenge is spent, whatever came of it (SRV-302).
    let mut peer = bench.rig.peer(stranger()).await;
    let denied = peer
        .honest(&bench.rig.private, value!({ "sessionId": "m" }))
        .frame();
    bench
        .send(
            "a space of others",
            AUTHORIZATION,
            "lacks READ",
            &mut peer,
            &denied,
        )
        .await;
    let retried = peer
        .honest(&bench.rig.shared, value!({ "sessionId": "m" }))
        .frame();
    bench
        .send(
            "a spent challenge",
            AUTHORIZATION,
            "already used",
            &mut peer,
            &retried,
        )
        .await;
    bench.attackers.push(peer);
    // One's own old token.
    let mut own = bench.rig.peer(mallory()).await;
    own.open(&bench.rig.shared, "mine").await.expect("a member");
    let open = own
        .honest(
            &bench.rig.shared,
            value!({ "sessionId": "mine", "sessionToken": "guessed" }),
        )
        .frame();
    bench
        .send(
            "a wrong token",
            "SessionRevokedError",
            "no longer valid",
            &mut own,
            &open,
        )
        .await;
    bench.attackers.push(own);
    bench
        .attempt(
            "acting as the owner",
            AUTHORIZATION,
            "not a delegating principal",
            |rig, peer, _| {
                peer.honest(
                    &rig.shared,
                    value!({ "sessionId": "m2", "actingAs": "space-owner" }),
                )
            },
        )
        .await;
    bench
        .attempt(
            "acting as the owner of a foreign space",
            AUTHORIZATION,
            "not a delegating",
            |rig, peer, _| {
                peer.honest(
                    &rig.private,
                    value!({ "sessionId": "m2", "actingAs": "space-owner" }),
                )
            },
        )
        .await;
    bench
        .attempt(
            "acting as anything",
            PROTOCOL,
            "unknown session.open actingAs",
            |rig, peer, _| peer.honest(&rig.shared, value!({ "sessionId": "m2", "actingAs": "root" })),
        )
        .await;
    bench.finish().await;
}

/// The group order of Ed25519, little-endian.
const ORDER: [u8; 32] = [
    0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde, 0x14, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
];

/// Points of small order, canonical and not: for them some signature holds for every message under lax verification.
const SMALL_ORDER: [&str; 11] = [
    "0100000000000000000000000000000000000000000000000000000000000000",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0000000000000000000000000000000000000000000000000000000000000080",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
    "0100000000000000000000000000000000000000000000000000000000000080",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
];

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex"))
        .collect()
}

/// `did:key` of raw key bytes under a multicodec prefix.
fn did_of(codec: &[u8], key: &[u8]) -> String {
    format!("did:key:z{}", bs58::encode([codec, key].concat()).into_string())
}

const ED25519: &[u8] = &[0xed, 0x01];

#[tokio::test(flavor = "multi_thread")]
async fn srv_304_forged_signatures_and_confused_keys() {
    let mut bench = Bench::new().await;
    bench
        .attempt(
            "another's name",
            AUTHORIZATION,
            "Invalid signature",
            |_, peer, open| open.signing(&peer.signer, "iss", victim().did().as_str()),
        )
        .await;
    bench
        .attempt(
            "a claim changed after signing",
            AUTHORIZATION,
            "Invalid signature",
            |rig, _, open| open.claim("exp", rig.clock.seconds() + 1_000_000),
        )
        .await;
    bench
        .attempt(
            "no issuer",
            AUTHORIZATION,
            "authorization mismatch",
            |_, peer, open| open.signing(&peer.signer, "iss", Value::Null),
        )
        .await;
    bench
        .attempt(
            "a malleated signature",
            AUTHORIZATION,
            "Invalid signature",
            |_, _, open| {
                let mut signature = open.signature();
                let mut carry = 0u16;
                for (at, digit) in ORDER.iter().enumerate() {
                    let sum = u16::from(signature[32 + at]) + u16::from(*digit) + carry;
                    signature[32 + at] = (sum & 0xff) as u8;
                    carry = sum >> 8;
                }
                assert_eq!(carry, 0, "S + L fits");
                open.with_signature(Value::Bytes(signature.into()))
            },
        )
        .await;
    for (label, cut) in [("empty", 0), ("half", 32), ("short", 63)] {
        bench
            .attempt(
                &format!("{label} signature"),
                AUTHORIZATION,
                "Invalid signature",
                |_, _, open| {
                    let signature = open.signature();
                    open.with_signature(Value::Bytes(signature[..cut].to_vec().into()))
                },
            )
            .await;
    }
    bench
        .attempt(
            "a longer signature",
            AUTHORIZATION,
            "Invalid signature",
            |_, _, open| {
                let mut signature = open.signature();
                signature.push(0);
                open.with_signature(Value::Bytes(signature.into()))
            },
        )
        .await;
    bench
        .attempt(
            "a signature as text",
            AUTHORIZATION,
            "requires authorization",
            |_, _, open| open.with_signature(Value::from("none")),
        )
        .await;
    bench
        .attempt(
            "algorithm none",
            AUTHORIZATION,
            "requires authorization",
            |_, _, mut open| {
                open.authorization = value!({ "alg": "none" });
                open
            },
        )
        .await;
    // Keys that are no Ed25519 keys, and names that are no keys.
    let raw = [7u8; 33];
    let wrong_kinds = [
        ("an X25519 key", did_of(&[0xec, 0x01], &raw[..32])),
        ("a secp256k1 key", did_of(&[0xe7, 0x01], &raw)),
        ("a P-256 key", did_of(&[0x80, 0x24], &raw)),
        ("an RSA key", did_of(&[0x85, 0x24], &raw)),
        ("a short key", did_of(ED25519, &raw[..31])),
        ("a long key", did_of(ED25519, &raw)),
        ("another method", "did:web:example.org".to_owned()),
        ("a fragment", format!("{}#key", mallory().did())),
        ("no name", String::new()),
    ];
    for (label, did) in wrong_kinds {
        bench
            .attempt(label, PROTOCOL, "", |_, peer, open| {
                open.signing(&peer.signer, "iss", did.as_str())
            })
            .await;
    }
    for point in SMALL_ORDER {
        let key = bytes(point);
        // R = the identity or the key itself, S = 0: holds for any message where the key's order is not looked at.
        for r in [bytes(SMALL_ORDER[0]), key.clone()] {
            let mut peer = bench.rig.peer(mallory()).await;
            let open = peer
                .honest(&bench.rig.shared, value!({ "sessionId": "m" }))
                .claim("iss", did_of(ED25519, &key).as_str())
                .with_signature(Value::Bytes([r, vec![0; 32]].concat().into()));
            // Some of these are no points at all and fail as a name, the others as a signature.
            let answer = peer.ask(&open.frame()).await;
            let name = answer["error"]["name"].as_str().unwrap_or_default().to_owned();
            bench.attempts += 1;
            if name != AUTHORIZATION && name != PROTOCOL {
                bench.failures.push(format!("small order {point}: {answer}"));
            }
            bench.attackers.push(peer);
        }
    }
    // A signature over something else by the victim's key is none over this.
    bench
        .attempt(
            "the victim's signature over another body",
            AUTHORIZATION,
            "Invalid signature",
            |_, _, open| {
                let mut open = open.claim("iss", victim().did().as_str());
                open.authorization = authorize(&victim(), &value!({ "cmd": "session.open" }));
                open
            },
        )
        .await;
    bench.finish().await;
}
