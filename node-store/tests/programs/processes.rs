//! The scenarios in a real process over a real file, killed by SIGKILL at a write or by the system within one, and killed
//! again while it recovers.

use std::io::Read;
use std::path::Path;

use node_store::program::Bundle;

use crate::kills::require_recovered;
use crate::scenarios::Scenario;
use crate::support::disk::{self, BACKENDS};
use crate::support::process::{Beyond, End, FileLimit, Process, STOPPED, say, told, wait_to_be_killed};
use crate::support::seeds::{mixed, seeds};
use crate::versions::bundle;
use crate::world::World;

/// No start writes more often than this. On disk a file goes only once the removal of its row is synced, which is a write more
/// than in memory.
const MOST_WRITES_OF_A_START: usize = 5;

/// The test function that the process runs.
const TEST: &str = "processes::the_process_of_a_node";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Death {
    /// SIGKILL before write number `at`, or after it.
    AtWrite { at: usize, after: bool },
    /// Within the write that makes a file larger than so many blocks of 512 bytes.
    Torn { blocks: u64 },
}

/// A scenario, the death of the process that runs it, and the death of the one that starts after it.
#[derive(Clone, Copy, Debug)]
struct Case {
    backend: &'static str,
    scenario: Scenario,
    deaths: [Death; 2],
}

/// Of four seeds of a scenario, three take its pairs of kills at a write, each pair once before any comes again, and one is
/// torn anywhere. `writes` tells how often a scenario writes.
fn case(seed: u64, writes: impl Fn(Scenario) -> usize) -> Case {
    let scenario = Scenario::ALL[seed as usize % Scenario::ALL.len()];
    let number = seed / Scenario::ALL.len() as u64;
    let backend = BACKENDS[number as usize % BACKENDS.len()];
    let number = number / BACKENDS.len() as u64;
    let chosen = mixed(seed);
    let torn = |chosen: u64| Death::Torn {
        blocks: 1 + chosen % 500,
    };
    let deaths = if number % 4 == 3 {
        [torn(chosen), torn(chosen >> 32)]
    } else {
        let (firsts, seconds) = (2 * writes(scenario), 2 * MOST_WRITES_OF_A_START);
        // A step that shares no factor with the number of pairs goes through all of them, far ones first.
        let pair = (number / 4 * 3 + number % 4) as usize * 7919 % (firsts * seconds);
        let at_write = |number: usize| Death::AtWrite {
            at: 1 + number / 2,
            after: number % 2 == 1,
        };
        [at_write(pair % firsts), at_write(pair / firsts)]
    };
    Case {
        backend,
        scenario,
        deaths,
    }
}

/// How often a scenario writes on disk, and how often the start after it does, found by letting them.
fn writes_of(scenario: Scenario) -> usize {
    let directory = prepared(BACKENDS[0], scenario);
    let world = World::open(BACKENDS[0], directory.path());
    world.plan.die(usize::MAX, false);
    scenario.run(&world).unwrap();
    let writes = world.plan.calls();
    world.plan.die(usize::MAX, false);
    scenario.start(&world).unwrap();
    assert!(world.plan.calls() <= MOST_WRITES_OF_A_START, "{scenario:?}");
    writes
}

/// The directory of a node that is about to begin a scenario.
fn prepared(backend: &str, scenario: Scenario) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let world = World::open(backend, directory.path());
    world.set_up();
    scenario.prepare(&world);
    directory
}

impl Case {
    /// One process that runs the scenario, or starts after it, until its death; whether it died.
    fn live(&self, directory: &Path, starts: bool, death: Death) -> bool {
        let number = Scenario::ALL
            .iter()
            .position(|scenario| *scenario == self.scenario);
        let mut variables = vec![
            ("NODE_STORE_CHILD", directory.display().to_string()),
            ("NODE_STORE_BACKEND", self.backend.to_owned()),
            ("NODE_STORE_SCENARIO", number.unwrap().to_string()),
            ("NODE_STORE_STARTS", u8::from(starts).to_string()),
        ];
        let limit = match death {
            Death::AtWrite { at, after } => {
                variables.push(("NODE_STORE_AT", at.to_string()));
                variables.push(("NODE_STORE_AFTER", u8::from(after).to_string()));
                None
            }
            Death::Torn { blocks } => Some(FileLimit {
                blocks,
                beyond: Beyond::Death,
            }),
        };
        let mut process = Process::start(TEST, &variables, limit);
        match process.hear().as_deref() {
            Some(STOPPED) => {
                assert_eq!(process.kill(), End::Killed, "{self:?}");
                true
            }
            Some("done") => {
                // What is left may still be torn: the log is put into the file when the store closes.
                let end = process.end();
                assert!(matches!(end, End::Success | End::Torn), "{self:?}: {end:?}");
                end == End::Torn
            }
            Some(other) => panic!("{self:?}: {other}"),
            None => {
                assert_eq!(process.end(), End::Torn, "{self:?}");
                true
            }
        }
    }

    /// Both deaths, then a start in peace; how many of the two deaths there were.
    fn run(&self, template: &Path) -> usize {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        disk::copy(template, path);
        let bystanders = World::open(self.backend, path).of_bystander();
        let mut died = 0;
        for (starts, death) in [(false, self.deaths[0]), (true, self.deaths[1])] {
            died += usize::from(self.live(path, starts, death));
            // What is found after a death is what holds; looking must not mend it for the next process.
            let seen = tempfile::tempdir().unwrap();
            disk::copy(path, seen.path());
            World::open(self.backend, seen.path()).check(&format!("{self:?}, starts {starts}"));
        }
        require_recovered(
            self.scenario,
            &World::open(self.backend, path),
            &bystanders,
            &format!("{self:?}"),
        );
        died
    }
}

#[test]
fn the_process_of_a_node() {
    let Some(directory) = told("NODE_STORE_CHILD") else {
        return;
    };
    let number = |variable: &str| told(variable).map(|text| text.parse::<usize>().unwrap());
    let world = World::open(&told("NODE_STORE_BACKEND").unwrap(), Path::new(&directory));
    if let Some(bytes) = number("NODE_STORE_HALTING_CODE") {
        let code = Box::new(HaltingCode { left: bytes });
        world.programs().install(Bundle { code, ..bundle(2) }).unwrap();
        unreachable!("the code halts");
    }
    let scenario = Scenario::ALL[number("NODE_STORE_SCENARIO").unwrap()];
    if let Some(at) = number("NODE_STORE_AT") {
        world.plan.halt(at, number("NODE_STORE_AFTER") == Some(1));
    }
    if number("NODE_STORE_STARTS") == Some(1) {
        scenario.start(&world).unwrap();
    } else {
        scenario.run(&world).unwrap();
    }
    say("done");
}

#[test]
fn node_31_node_32_killed_twice_for_real_a_node_comes_back_by_itself() {
    let writes: Vec<usize> = Scenario::ALL
        .iter()
        .map(|scenario| writes_of(*scenario))
        .collect();
    let mut templates: Vec<(&str, Scenario, tempfile::TempDir)> = Vec::new();
    let (mut cases, mut deaths) = (0, 0);
    for seed in seeds("programs", 24) {
        println!("seed {seed}");
        let case = case(seed, |scenario| {
            let at = Scenario::ALL.iter().position(|other| *other == scenario);
            writes[at.unwrap()]
        });
        let found = templates
            .iter()
            .position(|(backend, scenario, _)| (*backend, *scenario) == (case.backend, case.scenario));
        let at = found.unwrap_or_else(|| {
            templates.push((case.backend, case.scenario, prepared(case.backend, case.scenario)));
            templates.len() - 1
        });
        deaths += case.run(templates[at].2.path());
        cases += 1;
    }
    println!("programs: {cases} seeds, {deaths} deaths; a scenario writes {writes:?} times");
}

/// Code that comes in up to a point, where the process is killed.
struct HaltingCode {
    left: usize,
}

impl Read for HaltingCode {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.left == 0 {
            wait_to_be_killed();
        }
        let read = self.left.min(buffer.len());
        buffer[..read].fill(7);
        self.left -= read;
        Ok(read)
    }
}

#[test]
fn node_30_killed_while_the_code_streams_in_nothing_of_it_stays() {
    for backend in BACKENDS {
        let template = prepared(backend, Scenario::Install);
        // At once, within a chunk, at its end, and with whole chunks on the disk.
        for bytes in [0, 1000, 1 << 20, (2 << 20) + 1] {
            let directory = tempfile::tempdir().unwrap();
            disk::copy(template.path(), directory.path());
            let bystanders = World::open(backend, directory.path()).of_bystander();
            let variables = [
                ("NODE_STORE_CHILD", directory.path().display().to_string()),
                ("NODE_STORE_BACKEND", (*backend).to_owned()),
                ("NODE_STORE_HALTING_CODE", bytes.to_string()),
            ];
            let mut process = Process::start(TEST, &variables, None);
            assert_eq!(process.hear().as_deref(), Some(STOPPED));
            assert_eq!(process.kill(), End::Killed);
            let world = World::open(backend, directory.path());
            require_recovered(
                Scenario::Install,
                &world,
                &bystanders,
                &format!("{backend}, {bytes} bytes in"),
            );
        }
    }
}
