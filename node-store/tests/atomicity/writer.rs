//! The process that writes batches until it is killed, halted, or refused by the system; and what is found after it.

use std::path::Path;

use node_store::Store;

use crate::batches::{find_batch, write};
use crate::support::disk;
use crate::support::faults::{Faulty, Plan};
use crate::support::process::{Beyond, End, FileLimit, Process, STOPPED, say, say_last, told};

/// The test function that the process runs.
const TEST: &str = "writer::the_process_that_writes";

/// Where a writer dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Death {
    /// By SIGKILL before its write number `at`, or after it.
    AtWrite { at: usize, after: bool },
    /// By SIGKILL at no chosen point, once it has reported so many writes. Nearly all of its time passes inside a write.
    AfterReports(usize),
    /// By the system, within whichever write goes beyond a file's limit: what is below the limit is written.
    Torn { blocks: u64 },
    /// A write beyond the limit is refused; the process goes on, is refused again, and is then killed.
    Refused { blocks: u64 },
}

/// One life of a writer over a directory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Life {
    pub(crate) backend: &'static str,
    /// The first batch's number.
    pub(crate) first: u32,
    pub(crate) value_bytes: usize,
    pub(crate) death: Death,
}

/// How far a writer came: the last batch it reported, and the one it may have been at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reach {
    reported: u32,
    begun: u32,
}

impl Life {
    /// Lives and dies; then the store is opened anew and has to hold a whole batch: the last one reported, or one that was
    /// begun after it. Gives its number.
    pub(crate) fn run(self, directory: &Path) -> u32 {
        let reach = self.live(directory);
        let backend = disk::open(self.backend, directory).unwrap_or_else(|error| panic!("{self:?}: {error}"));
        let mut store = Store::new(backend);
        let found = find_batch(&store, self.value_bytes);
        assert!(
            (reach.reported..=reach.begun).contains(&found),
            "{self:?}: batch {found} is there, of {reach:?}"
        );
        // And the store takes writes again.
        write(&mut store, found + 1, self.value_bytes).unwrap();
        assert_eq!(find_batch(&store, self.value_bytes), found + 1, "{self:?}");
        found + 1
    }

    fn live(self, directory: &Path) -> Reach {
        let mut variables = vec![
            ("NODE_STORE_CHILD", directory.display().to_string()),
            ("NODE_STORE_BACKEND", self.backend.to_owned()),
            ("NODE_STORE_FIRST", self.first.to_string()),
            ("NODE_STORE_VALUE", self.value_bytes.to_string()),
        ];
        let limit = |blocks, beyond| Some(FileLimit { blocks, beyond });
        let limit = match self.death {
            Death::AtWrite { at, after } => {
                variables.push(("NODE_STORE_AT", at.to_string()));
                variables.push(("NODE_STORE_AFTER", u8::from(after).to_string()));
                None
            }
            Death::AfterReports(_) => None,
            Death::Torn { blocks } => limit(blocks, Beyond::Death),
            Death::Refused { blocks } => limit(blocks, Beyond::Refusal),
        };
        let before = self.first - 1;
        let mut process = Process::start(TEST, &variables, limit);
        let mut reported = before;
        loop {
            match process.hear().as_deref() {
                Some(STOPPED) => {
                    assert_eq!(process.kill(), End::Killed);
                    let Death::AtWrite { at, after } = self.death else {
                        panic!("{self:?}: stopped")
                    };
                    let done = before + at as u32 - u32::from(!after);
                    return Reach {
                        reported: done,
                        begun: done,
                    };
                }
                Some("refused") => {
                    assert!(matches!(self.death, Death::Refused { .. }), "{self:?}: refused");
                    assert_eq!(process.kill(), End::Killed);
                    // What was refused is not there, now or later.
                    return Reach {
                        reported,
                        begun: reported,
                    };
                }
                Some(line) => {
                    reported = line.parse().unwrap();
                    if self.death == Death::AfterReports((reported - before) as usize) {
                        assert_eq!(process.kill(), End::Killed);
                        return Reach {
                            reported,
                            begun: u32::MAX,
                        };
                    }
                }
                None => {
                    assert_eq!(process.end(), End::Torn, "{self:?}");
                    return Reach {
                        reported,
                        begun: reported + 1,
                    };
                }
            }
        }
    }
}

#[test]
fn the_process_that_writes() {
    let Some(directory) = told("NODE_STORE_CHILD") else {
        return;
    };
    let number = |variable: &str| told(variable).map(|text| text.parse::<usize>().unwrap());
    let (first, value_bytes) = (
        number("NODE_STORE_FIRST").unwrap() as u32,
        number("NODE_STORE_VALUE").unwrap(),
    );
    let Ok(inner) = disk::open(&told("NODE_STORE_BACKEND").unwrap(), Path::new(&directory)) else {
        // The limit did not leave room for an empty store.
        say_last("refused");
    };
    let plan = Plan::new();
    if let Some(at) = number("NODE_STORE_AT") {
        plan.halt(at, number("NODE_STORE_AFTER") == Some(1));
    }
    let mut store = Store::new(Faulty { inner, plan });
    for number in first.. {
        if write(&mut store, number, value_bytes).is_err() {
            assert!(
                write(&mut store, number, value_bytes).is_err(),
                "there is no more room than before"
            );
            say_last("refused");
        }
        say(&number.to_string());
    }
}
