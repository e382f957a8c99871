//! A program in several versions, and the migration between them.

use std::collections::BTreeMap;

use node_store::id::{ApplicationId, BlobId, Hash};
use node_store::program::{Bundle, ContextRows, Migration, MigrationError};

pub(crate) fn application() -> ApplicationId {
    ApplicationId::of_manifest(b"notes")
}

pub(crate) fn bundle(version: u32) -> Bundle<'static> {
    Bundle {
        application_id: application(),
        package: "org.example.notes".into(),
        version: format!("{version}.0.0"),
        source: "test".into(),
        signer_id: "did:key:signer".into(),
        metadata: vec![],
        state_version: version,
        code: Box::new(std::io::Cursor::new(format!("code {version}").into_bytes())),
        services: vec![],
    }
}

/// Moves rows one version on, and refuses rows of any other version: done twice, it would say so.
pub(crate) struct Step {
    calls: usize,
    refuse_call: Option<usize>,
    leads: bool,
}

impl Step {
    pub(crate) fn sound() -> Self {
        Step {
            calls: 0,
            refuse_call: None,
            leads: true,
        }
    }

    pub(crate) fn refusing(call: usize) -> Self {
        Step {
            refuse_call: Some(call),
            ..Step::sound()
        }
    }

    pub(crate) fn without_a_path() -> Self {
        Step {
            leads: false,
            ..Step::sound()
        }
    }
}

impl Migration for Step {
    fn leads(&self, _from: BlobId, _to: BlobId) -> bool {
        self.leads
    }

    fn compile(&mut self, _to: BlobId) -> Result<(), MigrationError> {
        Ok(())
    }

    fn migrate(
        &mut self,
        from: BlobId,
        to: BlobId,
        rows: &mut ContextRows<'_, '_>,
    ) -> Result<(), MigrationError> {
        self.calls += 1;
        let versions = code_versions();
        let (from, to) = (versions[&from], versions[&to]);
        for state_key in rows.state_keys()? {
            let value = rows.state(state_key)?.unwrap_or_default();
            if value.first() != Some(&(from as u8)) {
                return Err(MigrationError::Refused(format!(
                    "a row of version {value:?}, expected {from}"
                )));
            }
            rows.put_state(state_key, &[to as u8, value[1]])?;
        }
        rows.set_root_hash(Hash::new([to as u8; 32]))?;
        if self.refuse_call == Some(self.calls) {
            return Err(MigrationError::Refused("the data do not fit".into()));
        }
        Ok(())
    }
}

pub(crate) fn code_id(version: u32) -> BlobId {
    let chunk = BlobId::new(sha(format!("code {version}").as_bytes()));
    BlobId::new(sha(chunk.as_bytes()))
}

pub(crate) fn sha(bytes: &[u8]) -> [u8; 32] {
    use sha2::Digest;
    sha2::Sha256::digest(bytes).into()
}

pub(crate) fn code_versions() -> BTreeMap<BlobId, u32> {
    (1..=4).map(|version| (code_id(version), version)).collect()
}
