//! Keys, hashes and identifiers derived as the reference derives them.

use std::num::NonZeroU128;
use std::sync::Arc;

use node_store::backend::memory::MemoryBackend;
use node_store::clock::{HybridTimestamp, clock_seed};
use node_store::id::{AccountId, DeviceId, EntityId, Hash, KeyId, PublicKey, domain_hash};
use node_store::key::{KeyRange, StateRow, successor};
use node_store::op_store::{AccountGenesis, DeviceCertificate, RootHandoff, scope_root};
use node_store::value::{self, OpMask};
use node_store::{Column, Encrypted, MasterKey, ReadLayer, Store, WriteLayer};
use serde_json::Value;

use super::support::vectors::{bytes, hex, text};
use super::{expect, id, run};

fn derivation(line: &Value) -> Result<(), String> {
    let shown = |error: node_store::StoreError| error.to_string();
    let Some(kind) = line["kind"].as_str() else {
        return Err("no kind".into());
    };
    match kind {
        "key_id" => expect(
            "key id",
            KeyId::of_scope_key(&id(line, "scope_key")).to_string(),
            text(&line["key_id"]).to_owned(),
        ),
        "prefix_upper_bound" => {
            let prefix = bytes(&line["prefix"]);
            match successor(&prefix) {
                Some(end) => expect("end", hex(&end), text(&line["end"]).to_owned()),
                // The reference pads with 0xFF where no bound exists, and so loses the keys after its bound; we have
                // no bound there and lose none.
                None => {
                    let lost = [bytes(&line["end"]).as_slice(), &[0xff]].concat();
                    expect("all 0xff", prefix.iter().all(|byte| *byte == 0xff), true)?;
                    expect("kept", KeyRange::prefix(&prefix).contains(&lost), true)
                }
            }
        }
        "hybrid_timestamp" => {
            let time = text(&line["time_u64"]).parse().map_err(|_| "time")?;
            let id: NonZeroU128 = text(&line["id_u128"]).parse().map_err(|_| "id")?;
            let stamp = HybridTimestamp::new(time, id);
            expect(
                "bytes",
                hex(&borsh::to_vec(&stamp).unwrap()),
                text(&line["borsh"]).to_owned(),
            )?;
            expect(
                "again",
                borsh::from_slice(&bytes(&line["borsh"])).ok(),
                Some(stamp),
            )?;
            expect("text", stamp.to_string(), text(&line["display"]).to_owned())?;
            expect(
                "counter",
                u64::from(stamp.counter()),
                line["counter"].as_u64().unwrap_or(1 << 40),
            )?;
            expect(
                "seconds",
                stamp.seconds(),
                line["seconds"].as_u64().unwrap_or(1 << 40),
            )
        }
        "hybrid_timestamp_reject" => {
            let error = borsh::from_slice::<HybridTimestamp>(&bytes(&line["borsh"]))
                .err()
                .ok_or("accepted")?;
            expect("message", error.to_string(), text(&line["error"]).to_owned())
        }
        "state_key" => {
            let row = match text(&line["variant"]) {
                "Index" => StateRow::Index,
                "Entry" => StateRow::Entry,
                "SyncState" => StateRow::SyncState,
                other => return Err(other.to_owned()),
            };
            expect(
                "key",
                row.key(EntityId::new(id(line, "id"))).to_string(),
                text(&line["state_key"]).to_owned(),
            )
        }
        "domain_hash" => {
            let parts: Vec<Vec<u8>> = line["parts"]
                .as_array()
                .into_iter()
                .flatten()
                .map(bytes)
                .collect();
            let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            expect(
                "hash",
                hex(&domain_hash(text(&line["domain"]), &parts)),
                text(&line["hash"]).to_owned(),
            )
        }
        "account_id" => {
            let genesis = AccountGenesis::new(PublicKey::new(id(line, "root_pk")));
            expect(
                "genesis",
                hex(&borsh::to_vec(&genesis).unwrap()),
                text(&line["genesis_borsh"]).to_owned(),
            )?;
            let root = ed25519_dalek::SigningKey::from_bytes(&id(line, "root_seed"));
            expect(
                "root",
                hex(root.verifying_key().as_bytes()),
                text(&line["root_pk"]).to_owned(),
            )?;
            expect(
                "account",
                genesis.account_id().to_string(),
                text(&line["account_id"]).to_owned(),
            )
        }
        "device_id" => {
            let device = DeviceId::of_account(&AccountId::new(id(line, "account_id")), &id(line, "nonce"));
            expect("device", device.to_string(), text(&line["device_id"]).to_owned())?;
            expect(
                "seed",
                hex(&device.clock_seed()),
                text(&line["hlc_seed"]).to_owned(),
            )
        }
        "hlc_seed_from_device_id" => expect(
            "seed",
            hex(&clock_seed(&id(line, "device_id"))),
            text(&line["seed"]).to_owned(),
        ),
        "root_key_handoff" => {
            let handoff: RootHandoff =
                borsh::from_slice(&bytes(&line["borsh"])).map_err(|e| e.to_string())?;
            expect(
                "payload",
                hex(&handoff.payload()),
                text(&line["payload"]).to_owned(),
            )?;
            handoff.verify(&root_key(1)).map_err(shown)?;
            expect("by another key", handoff.verify(&root_key(2)).is_ok(), false)
        }
        "device_cert" => {
            let cert: DeviceCertificate =
                borsh::from_slice(&bytes(&line["borsh"])).map_err(|e| e.to_string())?;
            expect("payload", hex(&cert.payload()), text(&line["payload"]).to_owned())?;
            cert.verify(&root_key(1)).map_err(shown)?;
            expect("by another key", cert.verify(&root_key(2)).is_ok(), false)
        }
        "scope_root" => {
            let part = |field| Hash::new(id(line, field));
            let root = scope_root(&part("entities_root"), &part("acl_hash"), &part("groups_root"));
            expect("root", root.to_string(), text(&line["scope_root"]).to_owned())
        }
        "storage_type" => {
            let expected = bytes(&line["borsh"]);
            let read: value::StorageType = borsh::from_slice(&expected).map_err(|error| error.to_string())?;
            expect("again", borsh::to_vec(&read).unwrap(), expected)?;
            let name = format!("{read:?}");
            expect(
                "variant",
                name.split([' ', '{']).next().unwrap_or(""),
                text(&line["variant"]),
            )
        }
        "metadata" => {
            let expected = bytes(&line["borsh"]);
            let read: value::EntityMetadata =
                borsh::from_slice(&expected).map_err(|error| error.to_string())?;
            expect("again", borsh::to_vec(&read).unwrap(), expected)?;
            expect(
                "created",
                read.created_at.to_string(),
                text(&line["created_at"]).to_owned(),
            )?;
            expect(
                "updated",
                read.updated_at.to_string(),
                text(&line["updated_at"]).to_owned(),
            )
        }
        "op_mask" => {
            let byte = line["byte"].as_u64().unwrap_or(999) as u8;
            let accepted = line["accepted"].as_bool().unwrap_or(false);
            expect("accepted", OpMask::new(byte).is_ok(), accepted)?;
            expect("decoded", borsh::from_slice::<OpMask>(&[byte]).is_ok(), accepted)
        }
        "causal_delta_id" => {
            let actions =
                value::Action::decode_list(&bytes(&line["actions_borsh"])).map_err(|e| e.to_string())?;
            let mut parents: Vec<node_store::id::DeltaId> = line["parents"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|parent| node_store::id::DeltaId::from_hex(text(parent)).unwrap())
                .collect();
            let derive = |parents: &[_]| value::delta_id(parents, &actions).unwrap().to_string();
            expect("id", derive(&parents), text(&line["delta_id"]).to_owned())?;
            parents.reverse();
            expect(
                "swapped",
                derive(&parents),
                text(&line["swapped_parents_id"]).to_owned(),
            )
        }
        "at_rest_value" => {
            let (stored, plain) = (bytes(&line["stored"]), bytes(&line["plaintext"]));
            let disk = Arc::new(MemoryBackend::new());
            let master = MasterKey::new(bytes(&line["master_key"])).map_err(shown)?;
            let encrypted = Store::new(Encrypted::new(disk.clone(), master).map_err(shown)?);
            Store::new(disk)
                .put(Column::State, b"row", &stored)
                .map_err(shown)?;
            expect(
                "plain",
                encrypted.get(Column::State, b"row").map_err(shown)?,
                Some(plain),
            )?;
            expect(
                "version",
                u64::from(stored[0]),
                line["version"].as_u64().unwrap_or(999),
            )
        }
        "at_rest_master_key_len" => {
            let length = line["len"].as_u64().unwrap_or(0) as usize;
            let accepted = MasterKey::new(vec![0x42; length]).is_ok();
            expect("accepted", accepted, line["accepted"].as_bool().unwrap_or(false))
        }
        "at_rest_key_plain" => {
            let disk = Arc::new(MemoryBackend::new());
            let encrypted =
                Encrypted::new(disk.clone(), MasterKey::new(vec![0x42; 48]).unwrap()).map_err(shown)?;
            let overhead = line["overhead"].as_u64().unwrap_or(0) as usize;
            let plain = vec![7; line["raw_len"].as_u64().unwrap_or(0) as usize - overhead];
            Store::new(encrypted)
                .put(Column::State, &bytes(&line["key"]), &plain)
                .map_err(shown)?;
            let raw = Store::new(disk)
                .get(Column::State, &bytes(&line["key"]))
                .map_err(shown)?;
            expect(
                "raw length",
                raw.map(|raw| raw.len() as u64),
                line["raw_len"].as_u64(),
            )
        }
        "error" => {
            // The reference's iterators can be read before they are moved; ours have no row there to ask for.
            let store = Store::memory();
            let cursor = store.iter(Column::Meta).map_err(shown)?;
            expect("row before the first move", cursor.row().is_none(), true)
        }
        other => Err(format!("unknown kind {other}")),
    }
}

fn root_key(seed: u8) -> PublicKey {
    PublicKey::new(
        ed25519_dalek::SigningKey::from_bytes(&[seed; 32])
            .verifying_key()
            .to_bytes(),
    )
}

#[test]
fn every_golden_derivation_holds() {
    run("node-store-derivations.jsonl", 54, derivation);
}
