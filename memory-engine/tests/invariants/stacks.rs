//! Every pending stack of up to four layers (ENG §13): each layer's operation and fate, and where another session wrote in
//! between; then every choice of named layers over every basis. Judged by the few sentences of ENG-334…341, not by the
//! engine's queries.
//!
//! A seed is a stack. `cargo xtask long engine-stacks` goes through all of them.

use memory_engine::{Engine, EngineError, EngineOptions, Refusal};
use serde_json::json;

use crate::{by, commit, patch, set};

/// What a layer, or the other session, does to the document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Set,
    /// Writes where the read looks.
    Here,
    /// Writes beside it.
    Elsewhere,
    Delete,
}

const KINDS: [Kind; 4] = [Kind::Set, Kind::Here, Kind::Elsewhere, Kind::Delete];

/// What became of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Accepted,
    Refused,
    /// Never sent.
    Unknown,
    /// Accepted, and sent again.
    Replayed,
}

const FATES: [Fate; 4] = [Fate::Accepted, Fate::Refused, Fate::Unknown, Fate::Replayed];

#[derive(Debug)]
struct Stack {
    layers: Vec<(Kind, Fate)>,
    /// The other session writes after this many layers.
    foreign: Option<usize>,
}

/// Stacks of `layers` layers.
const fn stacks_of(layers: u32) -> u64 {
    (KINDS.len() * FATES.len()).pow(layers) as u64 * (layers as u64 + 2)
}

/// Stacks of up to four layers.
const STACKS: u64 = stacks_of(1) + stacks_of(2) + stacks_of(3) + stacks_of(4);

impl Stack {
    fn of_seed(mut seed: u64) -> Stack {
        let mut layers = 1;
        while seed >= stacks_of(layers) {
            seed -= stacks_of(layers);
            layers += 1;
        }
        let mut digit = |base: u64| {
            let digit = seed % base;
            seed /= base;
            digit as usize
        };
        let foreign = digit(u64::from(layers) + 2).checked_sub(1);
        let layers = (0..layers).map(|_| (KINDS[digit(4)], FATES[digit(4)])).collect();
        Stack { layers, foreign }
    }
}

/// A write that landed.
struct Landed {
    seq: u64,
    kind: Kind,
    /// The layer; `None` for the other session's.
    layer: Option<u64>,
}

#[derive(Debug, PartialEq, Eq)]
enum Judged {
    Accepted,
    Unresolved(u64),
    AheadOfLog,
    Stale(u64),
}

/// ENG-334: each named layer was accepted. ENG-335: nothing else wrote after the basis what was read. ENG-336: without a
/// basis, nothing wrote after the highest named layer. ENG-340, 341: a replacement is reported before a patch, the newest
/// of each.
fn judge(landed: &[Landed], named: &[u64], basis: Option<u64>, highest: u64) -> Judged {
    let seq_of = |layer: &u64| {
        landed
            .iter()
            .find(|write| write.layer == Some(*layer))
            .map(|write| write.seq)
    };
    if let Some(missing) = named.iter().find(|layer| seq_of(layer).is_none()) {
        return Judged::Unresolved(*missing);
    }
    let others: Vec<&Landed> = match basis {
        Some(basis) if basis > highest => return Judged::AheadOfLog,
        Some(basis) => landed
            .iter()
            .filter(|write| write.seq > basis && write.layer.is_none_or(|layer| !named.contains(&layer)))
            .collect(),
        None => {
            let top = named
                .iter()
                .max()
                .and_then(seq_of)
                .expect("every named layer landed");
            landed.iter().filter(|write| write.seq > top).collect()
        }
    };
    let newest = |kinds: &[Kind]| {
        let of_kinds = others.iter().filter(|write| kinds.contains(&write.kind));
        of_kinds.map(|write| write.seq).max()
    };
    match newest(&[Kind::Set, Kind::Delete]).or_else(|| newest(&[Kind::Here])) {
        Some(seq) => Judged::Stale(seq),
        None => Judged::Accepted,
    }
}

fn operation(id: &str, kind: Kind) -> serde_json::Value {
    match kind {
        Kind::Set => set(id, json!({ "a": 1, "b": 1 })),
        Kind::Here => patch(id, json!([{ "op": "add", "path": "/value/a", "value": 2 }])),
        Kind::Elsewhere => patch(id, json!([{ "op": "add", "path": "/value/b", "value": 2 }])),
        Kind::Delete => json!({ "op": "delete", "id": id }),
    }
}

/// Plays one stack and judges every read over it. Returns how many.
fn play(engine: &mut Engine, seed: u64) -> u64 {
    let stack = Stack::of_seed(seed);
    let (id, session) = (format!("of:{seed}"), format!("s{seed}"));
    let seq = |engine: &mut Engine, who: &str, local_seq: u64, parts: serde_json::Value| {
        by(engine, who, &commit(local_seq, parts)).map(|applied| (applied.seq.0, applied.replayed))
    };
    let first = json!({ "operations": [operation(&id, Kind::Set)] });
    let (base, _) = seq(engine, "other", 2 * seed + 1, first).unwrap();
    let mut landed = vec![Landed {
        seq: base,
        kind: Kind::Set,
        layer: None,
    }];
    for (below, layer) in (0..=stack.layers.len()).zip(1..) {
        if stack.foreign == Some(below) {
            let parts = json!({ "operations": [operation(&id, Kind::Here)] });
            let (seq, _) = seq(engine, "other", 2 * seed + 2, parts).unwrap();
            landed.push(Landed {
                seq,
                kind: Kind::Here,
                layer: None,
            });
        }
        let Some((kind, fate)) = stack.layers.get(below) else {
            break;
        };
        let mut parts = json!({ "operations": [operation(&id, *kind)] });
        match fate {
            Fate::Unknown => {}
            Fate::Refused => {
                parts["reads"] = json!({ "confirmed": [{ "id": id, "path": [], "seq": base - 1 }] });
                let refused = seq(engine, &session, layer, parts);
                assert!(
                    matches!(refused, Err(EngineError::StaleConfirmedRead { .. })),
                    "{stack:?}"
                );
            }
            Fate::Accepted | Fate::Replayed => {
                let (at, replayed) = seq(engine, &session, layer, parts.clone()).unwrap();
                assert!(!replayed);
                if *fate == Fate::Replayed {
                    assert_eq!(
                        seq(engine, &session, layer, parts).unwrap(),
                        (at, true),
                        "{stack:?}"
                    );
                }
                landed.push(Landed {
                    seq: at,
                    kind: *kind,
                    layer: Some(layer),
                });
            }
        }
    }
    let mut highest = engine.server_seq().unwrap().0;
    let mut local_seq = stack.layers.len() as u64;
    let mut judged = 0;
    for chosen in 1..1_u64 << stack.layers.len() {
        let named: Vec<u64> = (1..=stack.layers.len() as u64)
            .filter(|layer| chosen >> (layer - 1) & 1 == 1)
            .collect();
        // None, just before the document, at each write, at the log's end, beyond it.
        let mut bases = vec![None, Some(base - 1)];
        bases.extend(landed.iter().map(|write| Some(write.seq)));
        bases.extend([Some(highest), Some(highest + 1)]);
        for basis in bases {
            let want = judge(&landed, &named, basis, highest);
            let mut read = json!({ "id": id, "path": ["value", "a"], "localSeq": named });
            if let Some(basis) = basis {
                read["basisSeq"] = basis.into();
            }
            local_seq += 1;
            let parts = json!({ "reads": { "pending": [read] }, "operations": [set("of:result", json!(0))] });
            let got = match seq(engine, &session, local_seq, parts) {
                Ok((at, false)) => {
                    highest = at;
                    Judged::Accepted
                }
                Ok((_, true)) => panic!("a new commit was taken for an old one"),
                Err(EngineError::PendingDependency { local_seq }) => Judged::Unresolved(local_seq.0),
                Err(EngineError::StalePendingRead {
                    via, conflict_seq, ..
                }) => {
                    assert_eq!(
                        Some(&via.0),
                        named.last(),
                        "seed {seed}: named by the highest layer"
                    );
                    Judged::Stale(conflict_seq.0)
                }
                Err(EngineError::Refused(Refusal::BasisAheadOfLog { .. })) => Judged::AheadOfLog,
                Err(other) => panic!("seed {seed}: {other}"),
            };
            assert_eq!(got, want, "seed {seed}: {named:?} over {basis:?} of {stack:?}");
            judged += 1;
        }
    }
    judged
}

/// INV-3, INV-4: all stacks of one layer and a sample of the others; all of them in the long run.
#[test]
fn inv_3_and_4_every_pending_stack_of_up_to_four_layers_is_judged_as_the_rules_say() {
    let number = |name: &str| -> Option<u64> {
        let text = std::env::var(name).ok()?;
        Some(text.parse().expect("a decimal number"))
    };
    let from = number("LONG_FROM").unwrap_or(0);
    let seeds: Vec<u64> = match number("LONG_COUNT") {
        Some(count) => (from..(from + count).min(STACKS)).collect(),
        None => (0..stacks_of(1))
            .chain((stacks_of(1)..STACKS).step_by(3_989))
            .collect(),
    };
    let mut judged = 0;
    for some in seeds.chunks(400) {
        let mut engine = Engine::in_memory(EngineOptions::default()).unwrap();
        judged += some.iter().map(|seed| play(&mut engine, *seed)).sum::<u64>();
    }
    println!("{} of {STACKS} stacks, {judged} reads judged", seeds.len());
}
