//! A directory whose storage can be made to fail, and which remembers in what order things were written and synced, so
//! that a test can ask what would be left had the power gone at any moment ([`Record::after`]).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::vfs;

/// Storage of one directory. Clones share it; watching ends with the last one.
#[derive(Clone)]
pub struct Disk(Arc<Shared>);

struct Shared {
    directory: PathBuf,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    events: Vec<Event>,
    recording: bool,
    fault: Option<Fault>,
    done: Counts,
    refused: u64,
}

/// How often each thing was asked of the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Writes.
    pub writes: u64,
    /// Syncs.
    pub syncs: u64,
    /// Reads.
    pub reads: u64,
}

/// What stops working, from which occasion on (counted from the moment the fault is set, the first being 0) until it is
/// mended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No room: no write succeeds.
    Full {
        /// The first write that fails.
        from: u64,
    },
    /// No room: writes that lengthen a file fail, others succeed, as on a real file system.
    NoGrowth {
        /// The first write that may fail.
        from: u64,
    },
    /// Writes fail.
    Write {
        /// The first that fails.
        from: u64,
    },
    /// Syncs fail.
    Sync {
        /// The first that fails.
        from: u64,
    },
    /// Reads fail.
    Read {
        /// The first that fails.
        from: u64,
    },
}

/// What the disk answers instead of doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    Full,
    Read,
    Write,
    Sync,
    #[expect(
        dead_code,
        reason = "the list of answers is whole; no fault refuses these yet"
    )]
    Truncate,
    #[expect(
        dead_code,
        reason = "the list of answers is whole; no fault refuses these yet"
    )]
    Delete,
    #[expect(
        dead_code,
        reason = "the list of answers is whole; no fault refuses these yet"
    )]
    Open,
}

#[derive(Clone, Debug)]
enum Event {
    /// A file that was there already.
    Found {
        file: String,
        content: Vec<u8>,
    },
    Written {
        file: String,
        offset: u64,
        bytes: Vec<u8>,
    },
    Truncated {
        file: String,
        size: u64,
    },
    Synced {
        file: String,
    },
    Deleted {
        file: String,
    },
    Mark(u64),
}

static WATCHED: Mutex<Vec<(PathBuf, std::sync::Weak<Shared>)>> = Mutex::new(Vec::new());

/// The disk a path lies on and its name there.
pub(crate) fn watching(path: &Path) -> Option<(Disk, String)> {
    let directory = path.parent()?;
    let name = path.file_name()?.to_str()?.to_owned();
    let watched = WATCHED.lock();
    let (_, shared) = watched.iter().find(|(known, _)| known == directory)?;
    Some((Disk(shared.upgrade()?), name))
}

impl Drop for Shared {
    fn drop(&mut self) {
        WATCHED.lock().retain(|(known, _)| *known != self.directory);
    }
}

impl Disk {
    /// Watches what SQLite does in `directory` from now on.
    pub fn watch(directory: &Path) -> Disk {
        vfs::install();
        let directory = directory.canonicalize().expect("the directory exists");
        let shared = Arc::new(Shared {
            directory: directory.clone(),
            state: Mutex::default(),
        });
        WATCHED.lock().push((directory, Arc::downgrade(&shared)));
        Disk(shared)
    }

    /// Starts remembering what happens.
    pub fn record(&self) {
        self.0.state.lock().recording = true;
    }

    /// What happened since recording began.
    pub fn recorded(&self) -> Record {
        Record(self.0.state.lock().events.clone())
    }

    /// Notes in the record that something outside happened now: a commit was acknowledged.
    pub fn mark(&self, mark: u64) {
        self.0.state.lock().note(|| Event::Mark(mark));
    }

    /// From now on this fails. Counting starts anew.
    pub fn break_it(&self, fault: Fault) {
        let mut state = self.0.state.lock();
        state.fault = Some(fault);
        state.done = Counts::default();
        state.refused = 0;
    }

    /// Everything works again.
    pub fn mend(&self) {
        self.0.state.lock().fault = None;
    }

    /// What was asked since the last fault was set (or ever).
    pub fn counts(&self) -> Counts {
        self.0.state.lock().done
    }

    /// How often the current or last fault made something fail.
    pub fn refused(&self) -> u64 {
        self.0.state.lock().refused
    }

    pub(crate) fn opening(&self, _file: &str) -> Result<(), Refused> {
        Ok(())
    }

    pub(crate) fn opened(&self, file: &str) {
        let mut state = self.0.state.lock();
        if !state.recording || state.knows(file) {
            return;
        }
        // What was put there without SQLite: a finished draft under its final name. No connection of this process has
        // the file open yet, so closing our descriptor takes no lock away.
        let content = std::fs::read(self.0.directory.join(file)).unwrap_or_default();
        if !content.is_empty() {
            state.events.push(Event::Found {
                file: file.to_owned(),
                content,
            });
        }
    }

    pub(crate) fn reading(&self, _file: &str) -> Result<(), Refused> {
        let mut state = self.0.state.lock();
        state.done.reads += 1;
        match state.fault {
            Some(Fault::Read { from }) if state.done.reads > from => state.refuse(Refused::Read),
            _ => Ok(()),
        }
    }

    pub(crate) fn writing(&self, file: &str, offset: u64, length: usize) -> Result<(), Refused> {
        let mut state = self.0.state.lock();
        state.done.writes += 1;
        let nth = state.done.writes;
        match state.fault {
            Some(Fault::Full { from }) if nth > from => state.refuse(Refused::Full),
            Some(Fault::Write { from }) if nth > from => state.refuse(Refused::Write),
            Some(Fault::NoGrowth { from }) if nth > from => {
                let path = self.0.directory.join(file);
                let now = std::fs::metadata(path).map_or(0, |found| found.len());
                match offset + length as u64 > now {
                    true => state.refuse(Refused::Full),
                    false => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// The index of a log is a file, too, and has to grow to `length`.
    pub(crate) fn indexing(&self, file: &str, length: i64) -> Result<(), Refused> {
        let mut state = self.0.state.lock();
        match state.fault {
            Some(Fault::Full { from } | Fault::NoGrowth { from }) if state.done.writes >= from => {
                let path = self.0.directory.join(format!("{file}-shm"));
                let now = std::fs::metadata(path).map_or(0, |found| found.len());
                match i128::from(now) < i128::from(length) {
                    true => state.refuse(Refused::Full),
                    false => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn written(&self, file: &str, offset: u64, bytes: &[u8]) {
        self.0.state.lock().note(|| Event::Written {
            file: file.to_owned(),
            offset,
            bytes: bytes.to_owned(),
        });
    }

    pub(crate) fn truncating(&self, _file: &str) -> Result<(), Refused> {
        Ok(())
    }

    pub(crate) fn truncated(&self, file: &str, size: u64) {
        self.0.state.lock().note(|| Event::Truncated {
            file: file.to_owned(),
            size,
        });
    }

    pub(crate) fn syncing(&self, _file: &str) -> Result<(), Refused> {
        let mut state = self.0.state.lock();
        state.done.syncs += 1;
        match state.fault {
            Some(Fault::Sync { from }) if state.done.syncs > from => state.refuse(Refused::Sync),
            _ => Ok(()),
        }
    }

    pub(crate) fn synced(&self, file: &str) {
        self.0.state.lock().note(|| Event::Synced {
            file: file.to_owned(),
        });
    }

    pub(crate) fn deleting(&self, _file: &str) -> Result<(), Refused> {
        Ok(())
    }

    pub(crate) fn deleted(&self, file: &str) {
        self.0.state.lock().note(|| Event::Deleted {
            file: file.to_owned(),
        });
    }
}

impl State {
    fn note(&mut self, event: impl FnOnce() -> Event) {
        if self.recording {
            self.events.push(event());
        }
    }

    fn refuse(&mut self, refused: Refused) -> Result<(), Refused> {
        self.refused += 1;
        Err(refused)
    }

    /// Whether the record accounts for what the file holds.
    fn knows(&self, file: &str) -> bool {
        let last = self.events.iter().rev().find_map(|event| match event {
            Event::Deleted { file: gone } if gone == file => Some(false),
            Event::Found { file: known, .. } | Event::Written { file: known, .. } if known == file => {
                Some(true)
            }
            _ => None,
        });
        last == Some(true)
    }
}

/// What a disk was made to do, in order.
pub struct Record(Vec<Event>);

/// What of the writes before the end has reached the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survival {
    /// All of them, as when only the process is killed.
    Everything,
    /// All, but half of the last one.
    Torn,
    /// Only what had been synced.
    SyncedOnly,
    /// What had been synced, and of the rest whatever the seed picks, the last pick being torn.
    Shuffled(u64),
}

/// What is left after a cut.
pub struct Left {
    /// Files by name.
    pub files: BTreeMap<String, Vec<u8>>,
    /// The marks made before the cut.
    pub marks: Vec<u64>,
}

impl Left {
    /// Writes the files into an empty directory.
    pub fn put(&self, directory: &Path) {
        for (name, content) in &self.files {
            std::fs::write(directory.join(name), content).expect("the directory can be written");
        }
    }
}

#[derive(Default)]
struct Medium {
    /// `None`: the file does not exist.
    synced: Option<Vec<u8>>,
    since: Vec<Change>,
}

enum Change {
    Write(u64, Vec<u8>),
    Size(u64),
}

impl Record {
    /// Writes, truncations and deletions: the moments at which a cut leaves something else.
    pub fn len(&self) -> usize {
        self.0.iter().filter(|event| is_step(event)).count()
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Step `n` and its neighbours in words, for the message of a failure.
    pub fn around(&self, n: usize) -> String {
        let mut done = 0;
        let mut told = Vec::new();
        for event in &self.0 {
            done += usize::from(is_step(event));
            if done + 4 > n && done < n + 3 {
                told.push(format!(
                    "{done}: {}",
                    match event {
                        Event::Found { file, content } => format!("found {file}, {} bytes", content.len()),
                        Event::Written { file, offset, bytes } => format!("{file} {offset}+{}", bytes.len()),
                        Event::Truncated { file, size } => format!("{file} cut to {size}"),
                        Event::Synced { file } => format!("{file} synced"),
                        Event::Deleted { file } => format!("{file} deleted"),
                        Event::Mark(mark) => format!("mark {mark}"),
                    }
                ));
            }
        }
        told.join("\n")
    }

    /// What is left when everything ends after `steps` steps and before the next one.
    pub fn after(&self, steps: usize, survival: Survival) -> Left {
        let mut media: BTreeMap<&str, Medium> = BTreeMap::new();
        let mut marks = Vec::new();
        let mut done = 0;
        for event in &self.0 {
            done += usize::from(is_step(event));
            if done > steps {
                break;
            }
            match event {
                Event::Found { file, content } => {
                    media.insert(
                        file,
                        Medium {
                            synced: Some(content.clone()),
                            since: Vec::new(),
                        },
                    );
                }
                Event::Written { file, offset, bytes } => {
                    let torn = survival == Survival::Torn && done == steps;
                    let kept = if torn {
                        &bytes[..bytes.len() / 2]
                    } else {
                        &bytes[..]
                    };
                    let medium = media.entry(file).or_default();
                    medium.since.push(Change::Write(*offset, kept.to_owned()));
                }
                Event::Truncated { file, size } => {
                    media.entry(file).or_default().since.push(Change::Size(*size))
                }
                Event::Synced { file } => media.entry(file).or_default().settle(|_| true),
                Event::Deleted { file } => {
                    media.remove(file.as_str());
                }
                Event::Mark(mark) => marks.push(*mark),
            }
            if survival == Survival::Torn && done == steps {
                // What was torn was not yet synced, nor was anybody told.
                break;
            }
        }
        let mut dice = match survival {
            Survival::Shuffled(seed) => {
                seed.wrapping_mul(0x9E37_79B9_7F4A_7C15)
                    .wrapping_add(steps as u64)
                    | 1
            }
            _ => 1,
        };
        let mut roll = || {
            dice ^= dice << 13;
            dice ^= dice >> 7;
            dice ^= dice << 17;
            dice >> 33 & 1 == 1
        };
        for medium in media.values_mut() {
            match survival {
                Survival::Everything | Survival::Torn => medium.settle(|_| true),
                Survival::SyncedOnly => medium.since.clear(),
                Survival::Shuffled(_) => {
                    medium.since.retain(|_| roll());
                    if let Some(Change::Write(_, bytes)) = medium.since.last_mut() {
                        bytes.truncate(bytes.len() / 2);
                    }
                    medium.settle(|_| true);
                }
            }
        }
        let files = media
            .into_iter()
            .filter_map(|(name, medium)| Some((name.to_owned(), medium.synced?)))
            .collect();
        Left { files, marks }
    }
}

impl Medium {
    fn settle(&mut self, kept: impl Fn(&Change) -> bool) {
        if self.since.is_empty() {
            return;
        }
        let content = self.synced.get_or_insert_default();
        for change in self.since.drain(..).filter(|change| kept(change)) {
            match change {
                Change::Size(size) => content.resize(size as usize, 0),
                Change::Write(offset, bytes) => {
                    let end = offset as usize + bytes.len();
                    if content.len() < end {
                        content.resize(end, 0);
                    }
                    content[offset as usize..end].copy_from_slice(&bytes);
                }
            }
        }
    }
}

fn is_step(event: &Event) -> bool {
    match event {
        Event::Written { .. } | Event::Truncated { .. } | Event::Deleted { .. } => true,
        Event::Found { .. } | Event::Synced { .. } | Event::Mark(_) => false,
    }
}
