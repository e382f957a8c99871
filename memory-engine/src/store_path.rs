//! Where a space's store file lies (ENG-100…107): valid ids, the two layouts, the doubled root of a server's
//! configured path, and the inverse used for listing. Existing data lives at these paths; nothing here may be
//! "tidied".

use std::io;
use std::path::{Path, PathBuf};

use memory_wire::SpaceId;
use memory_wire::scope_key::{decode_component, encode_component};

use crate::error::EngineError;

/// The one version mark of a store (ENG-112): the name of its directory.
const LAYOUT: &str = "engine-v3";

/// Where one engine's database is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreLocation {
    /// `:memory:`, for tests (ENG-100).
    Memory,
    /// A file. Its directory must exist before the first open (ENG-107); [`StoreRoot::locate`] sees to that.
    File(PathBuf),
}

/// How space ids become file names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreLayout {
    /// Directory mode (ENG-102): the file is named by the literal id.
    Directory,
    /// Single-file mode (ENG-103): the file is named by the percent-encoded id.
    SingleFile,
}

/// The directory that holds the store files of a deployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreRoot {
    directory: PathBuf,
    layout: StoreLayout,
}

/// A store file found by [`StoreRoot::list`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreFile {
    /// The space, or the stem of a cell database (ENG-106): callers filter by DID shape.
    pub space: SpaceId,
    /// The file.
    pub path: PathBuf,
    /// Size of the main file in bytes, without its WAL.
    pub size_bytes: u64,
    /// Last modification, Unix milliseconds.
    pub modified_ms: i64,
}

impl StoreRoot {
    /// The root of a deployment configured with `path`: the layout rule applied twice (ENG-104).
    ///
    /// # Errors
    /// [`EngineError::Io`] when the path is not valid Unicode.
    pub fn configured(path: impl AsRef<Path>) -> Result<StoreRoot, EngineError> {
        let (store_root, _) = realise(unicode(path.as_ref())?);
        let (directory, layout) = realise(&store_root);
        Ok(StoreRoot {
            directory: directory.into(),
            layout,
        })
    }

    /// The layout rule applied once to `root` (ENG-102, 103).
    ///
    /// # Errors
    /// [`EngineError::Io`] when the path is not valid Unicode.
    pub fn direct(root: impl AsRef<Path>) -> Result<StoreRoot, EngineError> {
        let (directory, layout) = realise(unicode(root.as_ref())?);
        Ok(StoreRoot {
            directory: directory.into(),
            layout,
        })
    }

    /// The directory that holds the files.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// How file names are made.
    pub fn layout(&self) -> StoreLayout {
        self.layout
    }

    /// The file of `space`. Touches nothing.
    ///
    /// # Errors
    /// [`EngineError::InvalidSpaceId`] (ENG-101).
    pub fn store_path(&self, space: &SpaceId) -> Result<PathBuf, EngineError> {
        let encoded = encoded_space_id(space)?;
        Ok(self.directory.join(match self.layout {
            StoreLayout::Directory => format!("{space}.sqlite"),
            StoreLayout::SingleFile => format!("{encoded}.sqlite"),
        }))
    }

    /// The location of `space`'s store, with its directory created (ENG-107).
    ///
    /// # Errors
    /// [`EngineError::InvalidSpaceId`], [`EngineError::Io`].
    pub fn locate(&self, space: &SpaceId) -> Result<StoreLocation, EngineError> {
        let path = self.store_path(space)?;
        std::fs::create_dir_all(&self.directory).map_err(|source| EngineError::Io {
            path: self.directory.clone(),
            source,
        })?;
        Ok(StoreLocation::File(path))
    }

    /// The space a file stem stands for (ENG-105); `None` when it cannot be one.
    pub fn space_of_stem(&self, stem: &str) -> Option<SpaceId> {
        match self.layout {
            StoreLayout::Directory => Some(SpaceId::from(stem)),
            StoreLayout::SingleFile => decode_component(stem).map(SpaceId::from),
        }
    }

    /// The store files of the directory, newest first, ties by name (ENG-105, 1501). A missing directory is empty; a file
    /// that vanishes meanwhile is skipped.
    ///
    /// # Errors
    /// [`EngineError::Io`] for any other failure.
    pub fn list(&self) -> Result<Vec<StoreFile>, EngineError> {
        let failed = |path: &Path, source| EngineError::Io {
            path: path.to_owned(),
            source,
        };
        let entries = match std::fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(&self.directory, error)),
        };
        let mut found = Vec::new();
        for entry in entries {
            let path = entry.map_err(|error| failed(&self.directory, error))?.path();
            let Some(space) = path
                .file_name()
                .and_then(|name| name.to_str())
                .and_then(|name| name.strip_suffix(".sqlite"))
                .and_then(|stem| self.space_of_stem(stem))
            else {
                continue;
            };
            let meta = match std::fs::metadata(&path) {
                Ok(meta) => meta,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(failed(&path, error)),
            };
            if !meta.is_file() {
                continue;
            }
            let modified = meta.modified().map_err(|error| failed(&path, error))?;
            let modified_ms = match modified.duration_since(std::time::UNIX_EPOCH) {
                Ok(since) => i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
                Err(before) => -i64::try_from(before.duration().as_millis()).unwrap_or(i64::MAX),
            };
            found.push(StoreFile {
                space,
                path,
                size_bytes: meta.len(),
                modified_ms,
            });
        }
        found.sort_by(|a, b| {
            b.modified_ms
                .cmp(&a.modified_ms)
                .then_with(|| a.space.cmp(&b.space))
        });
        Ok(found)
    }
}

/// The percent-encoded form of a valid space id (ENG-101).
///
/// # Errors
/// [`EngineError::InvalidSpaceId`].
pub fn encoded_space_id(space: &SpaceId) -> Result<String, EngineError> {
    let text = space.as_str();
    if text.is_empty() || text == "." || text == ".." || text.contains(['\0', '/', '\\']) {
        return Err(EngineError::InvalidSpaceId(space.clone()));
    }
    Ok(encode_component(text))
}

/// The layout rule on the text of a path. A root that ends in `/` and has an extension loses its last characters by
/// count, slash included: that is where the two dots of a server's single-file directory come from (ENG-104).
fn realise(root: &str) -> (String, StoreLayout) {
    let name = root.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let extension = match name.rfind('.') {
        Some(dot) if dot > 0 => &name[dot..],
        Some(_) | None => "",
    };
    if extension.is_empty() {
        let slash = if root.ends_with('/') { "" } else { "/" };
        return (format!("{root}{slash}{LAYOUT}/"), StoreLayout::Directory);
    }
    let mut kept = root.len() - extension.len();
    while !root.is_char_boundary(kept) {
        kept -= 1;
    }
    (format!("{}.{LAYOUT}/", &root[..kept]), StoreLayout::SingleFile)
}

fn unicode(path: &Path) -> Result<&str, EngineError> {
    path.to_str().ok_or_else(|| EngineError::Io {
        path: path.to_owned(),
        source: io::Error::new(io::ErrorKind::InvalidInput, "a store path must be valid Unicode"),
    })
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::time::{Duration, SystemTime};

    use super::*;

    fn make(directory: &Path, name: &str, bytes: usize, modified_secs: u64) {
        let file = File::create(directory.join(name)).unwrap();
        file.set_len(bytes as u64).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(modified_secs))
            .unwrap();
    }

    fn listed(root: &StoreRoot) -> Vec<(String, u64, i64)> {
        let found = root.list().unwrap().into_iter();
        found
            .map(|store| (store.space.to_string(), store.size_bytes, store.modified_ms))
            .collect()
    }

    #[test]
    fn eng_1501_stores_are_listed_newest_first_and_nothing_else_is() {
        let dir = tempfile::tempdir().unwrap();
        let root = StoreRoot::direct(dir.path()).unwrap();
        assert_eq!(root.layout(), StoreLayout::Directory);
        assert!(root.list().unwrap().is_empty(), "there is no directory yet");
        fs::create_dir_all(root.directory()).unwrap();
        for (name, bytes, modified) in [
            ("did:key:zOld.sqlite", 10, 100),
            ("did:key:zNew.sqlite", 20, 300),
            ("did:key:zB.sqlite", 30, 200),
            ("did:key:zA.sqlite", 40, 200),
            // The stem is the id: it is not decoded.
            ("did%3Akey%3AzX.sqlite", 50, 50),
            ("cell-0badcafe1-0badcafe2.sqlite", 60, 40),
            ("did:key:zOld.sqlite-wal", 70, 400),
            ("did:key:zOld.sqlite-new-0", 70, 400),
            ("notes.txt", 80, 400),
        ] {
            make(root.directory(), name, bytes, modified);
        }
        fs::create_dir(root.directory().join("did:key:zDirectory.sqlite")).unwrap();
        std::os::unix::fs::symlink("nowhere", root.directory().join("did:key:zGone.sqlite")).unwrap();
        let want = [
            ("did:key:zNew", 20, 300_000),
            ("did:key:zA", 40, 200_000),
            ("did:key:zB", 30, 200_000),
            ("did:key:zOld", 10, 100_000),
            ("did%3Akey%3AzX", 50, 50_000),
            ("cell-0badcafe1-0badcafe2", 60, 40_000),
        ];
        assert_eq!(
            listed(&root),
            want.map(|(space, bytes, ms)| (space.to_owned(), bytes, ms))
        );
    }

    #[test]
    fn eng_107_the_directory_is_made_before_the_first_open() {
        let dir = tempfile::tempdir().unwrap();
        let root = StoreRoot::configured(dir.path().join("deep/data")).unwrap();
        let space = "did:key:zX".into();
        assert!(matches!(
            root.locate(&"a/b".into()),
            Err(EngineError::InvalidSpaceId(_))
        ));
        assert!(
            !root.directory().exists(),
            "nothing is made for an id that names no store"
        );
        let located = root.locate(&space).unwrap();
        assert_eq!(located, StoreLocation::File(root.store_path(&space).unwrap()));
        assert_eq!(root.directory(), dir.path().join("deep/data/engine-v3/engine-v3"));
        crate::Engine::open(located, crate::EngineOptions::default()).unwrap();
        assert_eq!(listed(&root).len(), 1);
    }

    #[test]
    fn eng_105_a_name_that_cannot_be_decoded_is_no_stores() {
        let dir = tempfile::tempdir().unwrap();
        let root = StoreRoot::direct(dir.path().join("space.sqlite")).unwrap();
        assert_eq!(root.layout(), StoreLayout::SingleFile);
        fs::create_dir_all(root.directory()).unwrap();
        for (name, modified) in [
            ("did%3Akey%3AzX.sqlite", 2),
            ("did%253Akey.sqlite", 1),
            ("did%zz.sqlite", 3),
        ] {
            make(root.directory(), name, 1, modified);
        }
        let want = [("did:key:zX", 1, 2_000), ("did%3Akey", 1, 1_000)];
        assert_eq!(
            listed(&root),
            want.map(|(space, bytes, ms)| (space.to_owned(), bytes, ms))
        );
    }
}
