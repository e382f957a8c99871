//! Keys, nonces, log and versions of a group, over any layer. Rule: NODE-13; facts: §4.6, §4.7, §5.

use crate::error::{Malformed, StoreError};
use crate::id::{ApplicationId, BlobId, GroupId, KeyId, PublicKey};
use crate::key;
use crate::layer::{LayerExt, ReadLayer, WriteLayer};
use crate::secret::Secret;
use crate::value::{
    Bytes, GovernanceHead, GroupKey, GroupMeta, NonceWindow, SignedOp, SignedOpKind, UpgradeRung,
};

/// Keeps an encryption key of a group. A key that is kept already only ever gets a higher epoch, and keeps its place in
/// the order of arrival.
pub fn store_group_key<L: WriteLayer>(
    layer: &mut L,
    group_id: GroupId,
    group_key: Secret,
    created_at: u64,
    epoch: u64,
) -> Result<KeyId, StoreError> {
    let key_id = KeyId::of_scope_key(group_key.expose());
    let row = key::GroupKeyEntry { group_id, key_id };
    let mut handle = layer.handle();
    let next = match handle.get(&row)? {
        Some(kept) if kept.key.epoch >= epoch => return Ok(key_id),
        Some(kept) => GroupKey {
            epoch,
            ..kept.key.clone()
        },
        None => {
            let mut highest = 0;
            for entry in handle.scan::<key::GroupKeyEntry>(&group_id)? {
                highest = highest.max(entry?.1.key.insertion_seq);
            }
            let insertion_seq = after("group key's order of arrival", highest)?;
            GroupKey {
                group_key,
                created_at,
                epoch,
                insertion_seq,
            }
        }
    };
    handle.put(&row, &next)?;
    Ok(key_id)
}

/// The next number. After the last one there is none: going on from the start would write over what is there.
fn after(what: &'static str, number: u64) -> Result<u64, StoreError> {
    number.checked_add(1).ok_or_else(|| StoreError::Malformed {
        what,
        cause: Malformed::new(format!("{number} is the last one")),
    })
}

/// The encryption key of a group in force.
pub fn current_group_key<L: ReadLayer>(layer: &L, group_id: GroupId) -> Result<Option<GroupKey>, StoreError> {
    let handle = layer.view();
    let mut current: Option<GroupKey> = None;
    for entry in handle.scan::<key::GroupKeyEntry>(&group_id)? {
        let key = entry?.1.key;
        if current
            .as_ref()
            .is_none_or(|best| key.precedence() > best.precedence())
        {
            current = Some(key);
        }
    }
    Ok(current)
}

/// Takes in a signer's nonce, once.
pub fn record_nonce<L: WriteLayer>(
    layer: &mut L,
    group_id: GroupId,
    signer: PublicKey,
    nonce: u64,
) -> Result<(), StoreError> {
    let row = key::GroupLocalGovNonceWindow { group_id, signer };
    let mut handle = layer.handle();
    let mut window = handle.get(&row)?.unwrap_or_default().normalised();
    window.record(nonce)?;
    handle.put(&row, &window)
}

/// A signer's applied nonces.
pub fn nonce_window<L: ReadLayer>(
    layer: &L,
    group_id: GroupId,
    signer: PublicKey,
) -> Result<NonceWindow, StoreError> {
    let row = key::GroupLocalGovNonceWindow { group_id, signer };
    Ok(layer.view().get(&row)?.unwrap_or_default().normalised())
}

/// Appends a verified operation to a group's log, and the log's end with it, in one batch. The position follows the
/// highest one *stored*: a head that lags behind must not make two operations share a place.
pub fn append_group_op<L: WriteLayer>(layer: &mut L, op: &SignedOp) -> Result<u64, StoreError> {
    if op.kind != SignedOpKind::Group {
        return Err(StoreError::CredentialSignature {
            what: "signed group op",
        });
    }
    op.verify()?;
    let malformed = |cause| StoreError::Malformed {
        what: "signed group op",
        cause,
    };
    let (group_id, content_hash) = (op.owner, op.content_hash().map_err(malformed)?);
    let handle = layer.view();
    let last = handle
        .scan_back::<key::GroupOpLog>(&group_id)?
        .next()
        .transpose()?;
    let sequence = after("group log's position", last.map_or(0, |(key, _)| key.sequence))?;
    let head = handle.get(&key::GroupOpHead { group_id })?;
    let mut dag_heads = head.map_or_else(Vec::new, |head| head.dag_heads);
    dag_heads.retain(|head| !op.parent_op_hashes.contains(head));
    dag_heads.push(content_hash);
    let mut batch = crate::batch::StoreBatch::over(layer);
    batch.put(
        &key::GroupOpLog { group_id, sequence },
        &Bytes(op.encode().map_err(malformed)?),
    )?;
    batch.put(
        &key::GroupOpHead { group_id },
        &GovernanceHead { sequence, dag_heads },
    )?;
    batch.commit()?;
    Ok(sequence)
}

/// A group's log in order.
pub fn group_log<L: ReadLayer>(layer: &L, group_id: GroupId) -> Result<Vec<(u64, SignedOp)>, StoreError> {
    let handle = layer.view();
    let mut log = Vec::new();
    for entry in handle.scan::<key::GroupOpLog>(&group_id)? {
        let (key, bytes) = entry?;
        log.push((key.sequence, SignedOp::decode(SignedOpKind::Group, &bytes)?));
    }
    Ok(log)
}

/// Says which code a group wants, and puts it on top of its ladder, in one batch.
pub fn want_code<L: WriteLayer>(
    layer: &mut L,
    group_id: GroupId,
    application_id: ApplicationId,
    app_key: BlobId,
) -> Result<(), StoreError> {
    let handle = layer.view();
    let unknown = || StoreError::Malformed {
        what: "group",
        cause: Malformed::new(format!("{group_id} has no settings row")),
    };
    let meta = handle.get(&key::GroupMeta { group_id })?.ok_or_else(unknown)?;
    let mut ladder = handle
        .get(&key::GroupUpgradeLadder { group_id })?
        .unwrap_or_default();
    let rung = UpgradeRung {
        app_key,
        application_id,
    };
    if ladder.rungs.last() != Some(&rung) {
        ladder.rungs.push(rung);
    }
    let mut batch = crate::batch::StoreBatch::over(layer);
    batch.put(
        &key::GroupMeta { group_id },
        &GroupMeta {
            app_key,
            target_application_id: application_id,
            ..meta
        },
    )?;
    batch.put(&key::GroupUpgradeLadder { group_id }, &ladder)?;
    batch.commit()
}
