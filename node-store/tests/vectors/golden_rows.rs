//! Every row of the reference's store decodes, shows the fields the vectors name, and comes back byte for byte.

use std::collections::BTreeSet;

use node_store::family::describe;
use node_store::id::EntityId;
use node_store::key::{self, StateRow};
use node_store::op_store::{Op, Payload};
use node_store::value::{self, Codec, EntityIndex, Layout, NamespaceEntry, SignedOp, SignedOpKind};
use node_store::{Column, Family, LayerExt, ReadLayer, WriteLayer};
use serde_json::Value;

use super::support::vectors::{bytes, hex, lines, text};
use super::{expect, id, run, support};

/// The reference's names of families that the seed names otherwise.
fn family_name(key_type: &str) -> &str {
    match key_type {
        "NamespaceParticipation" => "NamespaceIdentity",
        "AbsorbBufferKey" => "AbsorbBuffer",
        other => other,
    }
}

/// Notes of the vector file that are no fields of the record.
fn is_note(field: &str) -> bool {
    field.ends_with("_tag")
        || matches!(
            field,
            "tag"
                | "prefix"
                | "decoded_as"
                | "key_id_derivation"
                | "legacy_layout"
                | "decodes_with"
                | "derivation"
                | "entity_id"
                | "id"
                | "use"
                | "kind_name"
                | "shape"
                | "record"
                | "leaf"
                | "entity"
                | "pending_application"
        )
}

/// Compares a described field with a vector's: numbers may stand as decimal text, enums as name or number.
fn same(found: &Value, expected: &Value) -> bool {
    match (found, expected) {
        (Value::String(found), _) if found == "[secret]" => expected.is_string(),
        (Value::Object(found), Value::Object(expected)) => expected
            .iter()
            .filter(|(field, _)| *field != "tag")
            .all(|(field, value)| found.get(field).is_some_and(|found| same(found, value))),
        (Value::Array(found), Value::Array(expected)) => {
            found.len() == expected.len() && found.iter().zip(expected).all(|(f, e)| same(f, e))
        }
        (Value::Number(found), Value::String(expected)) => found.to_string() == *expected,
        _ => found == expected,
    }
}

fn golden_row(line: &Value) -> Result<(), String> {
    let column = Column::from_name(text(&line["column"])).ok_or("unknown column")?;
    let (key, value) = (bytes(&line["key_hex"]), bytes(&line["value_hex"]));
    let family = Family::of(column, &key).ok_or("no family")?;
    expect("family", family.name, family_name(text(&line["key_type"])))?;
    let (rekey, revalue) = family.recode(&key, &value).map_err(|error| error.to_string())?;
    expect("key again", hex(&rekey), hex(&key))?;
    expect("value again", hex(&revalue), hex(&value))?;

    // Too few bytes and too many are errors, except where the bytes are the value.
    let verbatim = matches!(text(&line["codec"]), "Identity");
    if !verbatim {
        for length in 0..value.len() {
            let shorter = family.recode(&key, &value[..length]);
            if let Ok((_, again)) = shorter {
                let lenient = matches!(family.name, "GroupKeyEntry") && matches!(length, 40 | 48);
                let other_layout = family.name == "NamespaceIdentity" && length == 1;
                if !lenient && !other_layout {
                    return Err(format!(
                        "{length} of {} bytes decode, to {}",
                        value.len(),
                        hex(&again)
                    ));
                }
            }
        }
        let longer = family.recode(&key, &[value.as_slice(), &[0]].concat());
        if longer.is_ok() {
            return Err("a trailing byte is accepted".into());
        }
    }
    for wrong in [&key[..key.len() - 1], &[key.as_slice(), &[0]].concat()] {
        let as_family = family.recode(wrong, &value);
        if as_family.is_ok() && family.name != "SortedIndex" {
            return Err(format!("a key of {} bytes is accepted", wrong.len()));
        }
    }

    let described = describe(column, &key, &value).map_err(|error| error.to_string())?;
    let fields = &line["fields"];
    for (name, part) in fields["key"].as_object().ok_or("key fields")? {
        if is_note(name) || family.name == "Alias" && matches!(name.as_str(), "kind" | "scope") {
            continue;
        }
        if !described.key.get(name).is_some_and(|found| same(found, part)) {
            return Err(format!(
                "key field {name}: found {}, expected {part}",
                described.key
            ));
        }
    }
    if family.name == "Alias" {
        for part in ["kind", "scope"] {
            expect(part, &described.key["subject"][part], &fields["key"][part])?;
        }
    }
    if !verbatim {
        golden_fields(family.name, &described.value, &fields["value"])?;
    }
    let legacy = fields["value"].get("legacy_layout").is_some();
    let reference = matches!(family.name, "ContextDagDelta" | "NamespaceIdentity") || legacy;
    expect(
        "layout",
        described.layout,
        if reference {
            Layout::Reference
        } else {
            Layout::Seed
        },
    )?;
    golden_inside(family.name, line, &value)
}

fn golden_fields(family: &str, found: &Value, expected: &Value) -> Result<(), String> {
    let Some(expected) = expected.as_object() else {
        return expect("unit value", found.is_null(), true);
    };
    let plain: Vec<(&String, &Value)> = expected.iter().filter(|(field, _)| !is_note(field)).collect();
    for (field, expected) in &plain {
        // Records of a single unnamed field are described by the field itself.
        let found = match (family, field.as_str()) {
            ("GroupSubgroupVis", "mode") => continue,
            ("GroupOpLog" | "AbsorbBuffer", _) => continue,
            ("NamespaceGovOp", field) if field != "skeleton_bytes" => continue,
            _ if found.is_object() => found.get(field.as_str()).unwrap_or(&Value::Null),
            _ => found,
        };
        if !same(found, expected) {
            return Err(format!("field {field}: found {found}, expected {expected}"));
        }
    }
    let known: BTreeSet<&str> = plain.iter().map(|(field, _)| field.as_str()).collect();
    let surplus = found
        .as_object()
        .into_iter()
        .flatten()
        .map(|(field, _)| field.as_str())
        .filter(|field| {
            let note = matches!(*field, "kind_name" | "layout" | "epoch" | "insertion_seq");
            !known.contains(field) && !note && !matches!(family, "AbsorbBuffer" | "GroupOpLog")
        });
    match surplus.collect::<Vec<_>>() {
        names if names.is_empty() => Ok(()),
        names => Err(format!("fields that the vector does not have: {names:?}")),
    }
}

/// Records inside verbatim or nested values.
fn golden_inside(family: &str, line: &Value, value: &[u8]) -> Result<(), String> {
    let fields = &line["fields"];
    let shown = |error: node_store::StoreError| error.to_string();
    match family {
        "ContextState" => {
            let derived = match fields["key"]["derivation"].as_str() {
                Some("SHA-256(0x00 || entity_id)") => {
                    StateRow::Index.key(EntityId::new(id(&fields["key"], "entity_id")))
                }
                Some("SHA-256(0x01 || entity_id)") => {
                    StateRow::Entry.key(EntityId::new(id(&fields["key"], "entity_id")))
                }
                Some(_) => StateRow::SyncState.key(EntityId::new(id(&fields["key"], "id"))),
                None => return Ok(()),
            };
            expect(
                "state key",
                derived.to_string(),
                text(&fields["key"]["state_key"]).to_owned(),
            )?;
            if fields["value"]["decoded_as"] == "EntityIndex" {
                let index = EntityIndex::decode(value).map_err(|error| error.to_string())?;
                expect(
                    "entity index again",
                    index.encode().map_err(|error| error.to_string())?,
                    value.to_vec(),
                )?;
                let found = serde_json::to_value(&index).unwrap();
                for field in [
                    "id",
                    "parent_id",
                    "children",
                    "full_hash",
                    "own_hash",
                    "deleted_at",
                    "deleted_children",
                ] {
                    if !same(&found[field], &fields["value"][field]) {
                        return Err(format!("{field}: {}", found[field]));
                    }
                }
                if !same(&found["metadata"], &fields["value"]["metadata"]) {
                    return Err(format!("metadata: {}", found["metadata"]));
                }
            }
            Ok(())
        }
        "ContextDagDelta" => {
            let read = value::DagDeltaCodec::decode(value).map_err(|error| error.to_string())?;
            let value::ReadDagDelta::Reference(delta) = read else {
                return Err("not the reference's".into());
            };
            if delta.delta_id.to_string().starts_with("8e98") {
                let actions =
                    value::Action::decode_list(&delta.actions).map_err(|error| error.to_string())?;
                expect("actions", actions.len(), 3)?;
                let derived = value::delta_id(&delta.parents, &actions).map_err(|error| error.to_string())?;
                expect("delta id", derived, delta.delta_id)?;
                let position = delta.governance_position_blob.as_deref().unwrap_or_default();
                let position =
                    value::GovernancePosition::decode(position).map_err(|error| error.to_string())?;
                expect("governance heads", position.governance_dag_heads.len(), 2)?;
            }
            Ok(())
        }
        "GroupOpLog" => {
            let bytes: Vec<u8> = borsh::from_slice(value).map_err(|error| error.to_string())?;
            signed(
                SignedOp::decode(SignedOpKind::Group, &bytes).map_err(shown)?,
                &bytes,
                &fields["value"],
            )
        }
        "NamespaceGovOp" => {
            let row =
                value::Borsh::<value::NamespaceGovOp>::decode(value).map_err(|error| error.to_string())?;
            match NamespaceEntry::decode(&row).map_err(shown)? {
                NamespaceEntry::Signed(op) => {
                    signed(op, &row.skeleton_bytes[1..], &fields["value"])?;
                    let bare = value::NamespaceGovOp {
                        skeleton_bytes: row.skeleton_bytes[1..].into(),
                    };
                    NamespaceEntry::decode(&bare).map(drop).map_err(shown)
                }
                NamespaceEntry::Opaque {
                    delta_id,
                    parent_op_hashes,
                    group_id,
                    signer,
                } => {
                    let expected = &fields["value"];
                    expect(
                        "delta id",
                        delta_id.to_string(),
                        text(&expected["delta_id"]).to_owned(),
                    )?;
                    expect(
                        "group",
                        group_id.to_string(),
                        text(&expected["group_id"]).to_owned(),
                    )?;
                    expect("signer", signer.to_string(), text(&expected["signer"]).to_owned())?;
                    expect("parents", parent_op_hashes.len(), 1)
                }
            }
        }
        "GroupKeyEntry" => {
            let read = value::GroupKeyCodec::decode(value).map_err(|error| error.to_string())?;
            let expected = &fields["value"];
            expect(
                "key id",
                read.key.key_id().to_string(),
                text(&fields["key"]["key_id"]).to_owned(),
            )?;
            expect(
                "key",
                hex(read.key.group_key.expose()),
                text(&expected["group_key"]).to_owned(),
            )?;
            let absent = expected.get("decodes_with").unwrap_or(expected);
            expect(
                "epoch",
                read.key.epoch.to_string(),
                text(&absent["epoch"]).to_owned(),
            )?;
            expect(
                "order",
                read.key.insertion_seq.to_string(),
                text(&absent["insertion_seq"]).to_owned(),
            )
        }
        "AbsorbBuffer" => {
            let record = value::AbsorbCodec::decode(value).map_err(|error| error.to_string())?;
            let expected = &fields["value"];
            let found = serde_json::to_value(&record).unwrap();
            for (field, expected) in expected["record"].as_object().into_iter().flatten() {
                let found = match field.as_str() {
                    "governance_position" => serde_json::json!({ "heads": found[field] }),
                    _ => found[field].clone(),
                };
                let bare = expected
                    .get("governance_dag_heads")
                    .or(expected.get("heads"))
                    .unwrap_or(expected);
                if !same(&found, expected) && !same(&found["heads"], bare) {
                    return Err(format!("{field}: found {found}, expected {expected}"));
                }
            }
            let shape = match record.shape().map_err(|error| error.to_string())? {
                value::AbsorbShape::Delta => "delta",
                value::AbsorbShape::Leaf(_) => "leaf",
                value::AbsorbShape::Entity(_) => "entity",
            };
            if let Some(expected) = expected["shape"].as_str() {
                expect(
                    "shape",
                    shape,
                    expected.strip_suffix("-pending-application").unwrap_or(expected),
                )?;
            }
            Ok(())
        }
        "ScopeUnifiedOp" => {
            let op = Op::decode(value).map_err(shown)?;
            let expected = &fields["value"];
            expect("op again", op.encode().map_err(shown)?, value.to_vec())?;
            expect("id", op.id.to_string(), text(&expected["id"]).to_owned())?;
            expect(
                "verifies",
                op.verify().is_ok(),
                expected["verify"].as_bool().unwrap_or(false),
            )?;
            let own = op.content_id().map_err(shown)? == op.id;
            expect(
                "content address",
                own,
                expected["id_is_content_address"].as_bool().unwrap_or(false),
            )?;
            let payload = borsh::to_vec(&op.payload).map_err(|error| error.to_string())?;
            expect(
                "tag",
                u64::from(payload[0]),
                expected["payload_tag"].as_u64().unwrap_or(99),
            )?;
            if let Some(payload_hex) = expected["payload_hex"].as_str() {
                expect("payload", hex(&payload), payload_hex.to_owned())?;
            }
            let variant = format!("{:?}", op.payload);
            if !variant.starts_with(text(&expected["payload_variant"])) {
                return Err(format!("variant {variant}"));
            }
            if let Payload::DeviceLinked { genesis, chain, cert } = &op.payload {
                expect("account", genesis.account_id(), cert.account)?;
                // The certificate of this vector is of the first root key, whatever came after.
                cert.verify_chain(genesis, chain).map_err(shown)?;
                cert.verify_chain(genesis, &[]).map_err(shown)?;
            }
            for length in 0..value.len() {
                if Op::decode(&value[..length]).is_ok() {
                    return Err(format!("{length} bytes decode"));
                }
            }
            if Op::decode(&[value, &[0]].concat()).is_ok() {
                return Err("a trailing byte is accepted".into());
            }
            Ok(())
        }
        "Alias" => {
            let name = text(&fields["key"]["name"]);
            name.parse::<key::AliasName>().map(drop).map_err(shown)
        }
        _ => Ok(()),
    }
}

fn signed(op: SignedOp, bytes: &[u8], expected: &Value) -> Result<(), String> {
    expect(
        "op again",
        op.encode().map_err(|error| error.to_string())?,
        bytes.to_vec(),
    )?;
    let hash = op.content_hash().map_err(|error| error.to_string())?;
    expect(
        "content hash",
        hash.to_string(),
        text(&expected["content_hash"]).to_owned(),
    )?;
    expect("nonce", op.nonce.to_string(), text(&expected["nonce"]).to_owned())?;
    expect(
        "signer",
        op.signer.to_string(),
        text(&expected["signer"]).to_owned(),
    )?;
    expect(
        "version",
        u64::from(op.version),
        expected["version"].as_u64().unwrap_or(0),
    )?;
    op.verify().map_err(|error| error.to_string())?;
    let forged = SignedOp {
        nonce: op.nonce + 1,
        ..op
    };
    expect("a forged op verifies", forged.verify().is_ok(), false)
}
#[test]
fn node_11_node_12_every_golden_row_decodes_and_comes_back_byte_for_byte() {
    let mut families = BTreeSet::new();
    run("node-store.jsonl", 122, |line| {
        families.insert(family_name(text(&line["key_type"])).to_owned());
        golden_row(line)
    });
    let declared: BTreeSet<String> = Family::all()
        .iter()
        .map(|family| family.name.to_owned())
        .collect();
    assert_eq!(families, declared, "the vectors cover every family");
}

#[test]
fn node_14_unknown_payload_tags_are_refused() {
    let line = lines("node-store.jsonl")
        .into_iter()
        .find(|line| line["fields"]["value"]["payload_tag"] == 13);
    let value = bytes(&line.expect("the file has a Noop op")["value_hex"]);
    let op = Op::decode(&value).unwrap();
    let tag_at = value.len() - 64 - 32 - 1;
    assert_eq!(value[tag_at], 13);
    for tag in 19..=255 {
        let mut unknown = value.clone();
        unknown[tag_at] = tag;
        assert!(Op::decode(&unknown).is_err(), "tag {tag}");
    }
    assert_eq!(op.payload, Payload::Noop);
}
#[test]
fn golden_rows_written_and_read_back_through_every_backend_are_the_same_rows() {
    for (name, mut store) in support::stores() {
        let mut rows: Vec<(Column, Vec<u8>, Vec<u8>)> = lines("node-store.jsonl")
            .iter()
            .map(|line| {
                let column = Column::from_name(text(&line["column"])).unwrap();
                (column, bytes(&line["key_hex"]), bytes(&line["value_hex"]))
            })
            .collect();
        rows.sort();
        let mut staged = store.temporal();
        for (column, key, value) in &rows {
            staged.put(*column, key, value).unwrap();
        }
        staged.commit().unwrap();
        let mut found = Vec::new();
        for column in Column::ALL {
            let mut cursor = store.iter(*column).unwrap();
            while let Some(row) = cursor.next().unwrap() {
                found.push((*column, row.key.to_vec(), row.value.to_vec()));
            }
        }
        found.retain(|(column, key, _)| !support::is_key_version(*column, key));
        assert_eq!(found, rows, "{name}");

        // A log is read in the order of its numbers (NODE-13).
        let handle = store.view();
        let log: Vec<u64> = handle
            .scan::<key::GroupOpLog>(&[0xb1; 32].into())
            .unwrap()
            .map(|row| row.unwrap().0.sequence)
            .collect();
        assert!(log.is_sorted() && log.len() == 3, "{name}: {log:?}");
        assert_eq!(log[2], 256, "{name}");
    }
}
