//! A full disk at every write, and its siblings: failing writes, syncs and reads. The commit that meets the fault gets an
//! error with a name, nothing of it is applied, reads go on, and once the disk is mended the same handle writes again.

use std::path::Path;
use std::sync::Arc;

use engine_faults::audit::{Acknowledged, audit, look};
use engine_faults::workload::{self, Workload};
use engine_faults::{Counts, Disk, Fault};
use memory_engine::{ActorOptions, EngineError, EngineHandle, StoreLocation};
use memory_wire::ids::Seq;
use memory_wire::message::ClientCommit;
use parking_lot::Mutex;

const FILE: &str = "store.sqlite";

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a decimal number"))
}

fn handle(directory: &Path) -> EngineHandle {
    let location = StoreLocation::File(directory.canonicalize().unwrap().join(FILE));
    EngineHandle::new(location, workload::options(), ActorOptions::default())
}

/// Whether the error's name tells of the fault.
fn tells(error: &EngineError, fault: Fault) -> bool {
    match fault {
        Fault::Full { .. } | Fault::NoGrowth { .. } => matches!(error, EngineError::StoreFull(_)),
        Fault::Write { .. } | Fault::Sync { .. } | Fault::Read { .. } => {
            matches!(error, EngineError::StoreIo(_) | EngineError::BadStore(_))
        }
    }
}

/// Runs the workload with the fault, one step after the other. At the first failure looks at what the failure left,
/// mends the disk and goes on. Says how many steps failed.
fn endure(seed: u64, length: usize, fault: Fault) -> Result<usize, String> {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::watch(dir.path());
    let handle = handle(dir.path());
    let workload = Workload::new(seed, length);
    let acknowledged: Arc<Mutex<Vec<Acknowledged>>> = Arc::default();
    let submit = |n: usize| {
        let acknowledged = acknowledged.clone();
        workload
            .submit(&handle, n, move |told| acknowledged.lock().push(told))
            .wait()
    };
    let seq = || {
        let newest = acknowledged.lock().last().map_or(0, |told| told.seq);
        let read = handle
            .read(|reader| reader.server_seq())
            .wait()
            .and_then(|seq| seq);
        (newest, read.map(|seq| seq.0))
    };
    disk.break_it(fault);
    let mut failures = 0;
    for n in 0..workload.len() {
        let Err(error) = submit(n) else { continue };
        failures += 1;
        if !tells(&error, fault) {
            return Err(format!("step {n} failed with {error:?}"));
        }
        let opened = dir.path().join(FILE).exists();
        let reads_work = !matches!(fault, Fault::Read { .. }) && !acknowledged.lock().is_empty() && opened;
        match seq() {
            (newest, Ok(seen)) if seen == newest => {}
            (_, Err(error)) if !reads_work && tells(&error, fault) => {}
            (newest, seen) => {
                return Err(format!(
                    "after {newest} acknowledged, step {n} failed, reads see {seen:?}"
                ));
            }
        }
        // While it lasts, each attempt fails alike, or works and is whole.
        match submit(n) {
            Ok(_) => continue,
            Err(error) if tells(&error, fault) => {}
            Err(error) => return Err(format!("step {n} failed again with {error:?}")),
        }
        disk.mend();
        match seq() {
            (newest, Ok(seen)) if seen == newest => {}
            (newest, seen) => return Err(format!("mended after {newest} acknowledged, reads see {seen:?}")),
        }
        submit(n).map_err(|error| format!("step {n} on the mended disk: {error:?}"))?;
    }
    disk.mend();
    let acknowledged = acknowledged.lock().clone();
    let path = dir.path().canonicalize().unwrap().join(FILE);
    let (looked_at, all) = (path.clone(), acknowledged.clone());
    handle
        .turn(move |engine| look(&looked_at, engine, &all))
        .wait()
        .unwrap()?;
    handle.close().wait().unwrap();
    drop(handle);
    audit(&path, &acknowledged)?;
    Ok(failures)
}

/// How much the workload asks of a sound disk.
fn measure(seed: u64, length: usize) -> Counts {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::watch(dir.path());
    let handle = handle(dir.path());
    let workload = Workload::new(seed, length);
    for n in 0..workload.len() {
        workload.submit(&handle, n, drop).wait().unwrap();
    }
    disk.counts()
}

/// Every occasion of every fault.
fn endure_all(faults: &[fn(u64) -> Fault], asked: fn(Counts) -> u64) {
    let (from, count) = (number("LONG_FROM", 0), number("LONG_COUNT", 1));
    let (length, stride) = if std::env::var("LONG_COUNT").is_ok() {
        (20, 1)
    } else {
        (6, 13)
    };
    let (mut occasions, mut failures) = (0, 0);
    for seed in from..from + count {
        let asked = asked(measure(seed, length));
        assert!(asked > 10, "seed {seed}: nothing was tried");
        for fault in faults {
            for nth in (0..asked).step_by(stride) {
                let fault = fault(nth);
                failures += endure(seed, length, fault)
                    .unwrap_or_else(|wrong| panic!("seed {seed}, {fault:?}: {wrong}"));
                occasions += 1;
            }
        }
    }
    println!("{failures} failed steps on {occasions} occasions");
    assert!(failures > occasions / 2, "the faults were met");
}

#[test]
fn a_full_disk_at_any_write_refuses_by_name_and_writing_resumes_without_restart() {
    endure_all(
        &[|from| Fault::Full { from }, |from| Fault::NoGrowth { from }],
        |asked| asked.writes,
    );
}

#[test]
fn a_failing_write_refuses_by_name_and_writing_resumes_without_restart() {
    endure_all(&[|from| Fault::Write { from }], |asked| asked.writes);
}

#[test]
fn a_failing_sync_refuses_by_name_and_writing_resumes_without_restart() {
    endure_all(&[|from| Fault::Sync { from }], |asked| asked.syncs);
}

#[test]
fn a_failing_read_refuses_by_name_and_reading_resumes_without_restart() {
    endure_all(&[|from| Fault::Read { from }], |asked| asked.reads);
}

/// As [`endure`], with commits of three sessions that wait together and share transactions: each member of a group that
/// meets the fault is told, and none of what was told to have failed is there.
fn endure_in_groups(seed: u64, length: usize, fault: Fault) -> Result<usize, String> {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::watch(dir.path());
    let path = dir.path().canonicalize().unwrap().join(FILE);
    let actor = ActorOptions {
        max_group: 8,
        ..ActorOptions::default()
    };
    let open = || EngineHandle::new(StoreLocation::File(path.clone()), workload::options(), actor);
    let mut dice = workload::Dice::new(seed);
    let mut sessions = ["s1", "s2", "s3"].map(|session| (session, workload::of_session(session)));
    let mut next = || {
        let (session, commits) = &mut sessions[dice.below(3) as usize];
        (*session, commits.next().expect("there is no end of commits"))
    };
    let commits: Vec<(&'static str, ClientCommit)> = (0..length).map(|_| next()).collect();
    let (before, after) = commits.split_at(length / 3);
    let submit = |handle: &EngineHandle, commits: &[(&'static str, ClientCommit)]| {
        let (release, held) = std::sync::mpsc::channel::<()>();
        drop(handle.turn(move |_| held.recv().is_err()));
        let replies: Vec<_> = commits
            .iter()
            .map(|(session, commit)| {
                let (session, commit) = (*session, commit.clone());
                handle.write(move |engine| {
                    workload::apply(engine, session, &commit).map(|applied| applied.seq.0)
                })
            })
            .collect();
        drop(release);
        let answers = replies
            .into_iter()
            .map(|reply| reply.wait().and_then(|answer| answer));
        answers.collect::<Vec<_>>()
    };
    let mut acknowledged: Vec<Acknowledged> = Vec::new();
    let note = |(session, commit): &(&str, ClientCommit), seq| Acknowledged {
        session: workload::key(session),
        local_seq: commit.local_seq.0,
        seq,
    };
    let first = open();
    for (commit, answer) in before.iter().zip(submit(&first, before)) {
        acknowledged.push(note(commit, answer.unwrap()));
    }
    first.close().wait().unwrap();
    drop(first);
    // The second handle reads its pages anew, in the middle of its groups.
    let handle = open();
    disk.break_it(fault);
    let answers = submit(&handle, after);
    disk.mend();
    let mut failed = Vec::new();
    for (commit, answer) in after.iter().zip(answers) {
        match answer {
            Ok(seq) => acknowledged.push(note(commit, seq)),
            Err(error) if tells(&error, fault) => failed.push(commit),
            Err(error) => return Err(format!("commit {} failed with {error:?}", commit.1.local_seq)),
        }
    }
    let newest = acknowledged.iter().map(|told| told.seq).max();
    let seen = handle
        .turn(|engine| engine.server_seq())
        .wait()
        .and_then(|seq| seq);
    if seen.as_ref().ok().map(|seq| seq.0) != newest {
        return Err(format!("{newest:?} was acknowledged, {seen:?} is there"));
    }
    for commit in &failed {
        let (session, commit) = (commit.0, commit.1.clone());
        let (key, local_seq) = (workload::key(session), commit.local_seq);
        let written = handle.write(move |engine| workload::apply(engine, session, &commit));
        let applied = written
            .wait()
            .and_then(|answer| answer)
            .map_err(|error| format!("on the mended disk: {error:?}"))?;
        if applied.replayed {
            return Err(format!(
                "commit {local_seq} of {session} was there although it had failed"
            ));
        }
        acknowledged.push(Acknowledged {
            session: key,
            local_seq: local_seq.0,
            seq: applied.seq.0,
        });
    }
    handle.close().wait().unwrap();
    drop(handle);
    audit(&path, &acknowledged)?;
    Ok(failed.len())
}

/// Groups under every fault, at every occasion.
#[test]
fn a_group_that_meets_a_fault_fails_by_name_and_whole() {
    let (from, count) = (number("LONG_FROM", 0), number("LONG_COUNT", 1));
    let (length, stride) = if std::env::var("LONG_COUNT").is_ok() {
        (60, 1)
    } else {
        (24, 17)
    };
    let faults: [fn(u64) -> Fault; 5] = [
        |from| Fault::Read { from },
        |from| Fault::Full { from },
        |from| Fault::NoGrowth { from },
        |from| Fault::Write { from },
        |from| Fault::Sync { from },
    ];
    let (mut occasions, mut failures) = (0, 0);
    for seed in from..from + count {
        for fault in faults {
            for nth in (0..).step_by(stride) {
                let fault = fault(nth);
                let failed = endure_in_groups(seed, length, fault)
                    .unwrap_or_else(|wrong| panic!("seed {seed}, {fault:?}: {wrong}"));
                occasions += 1;
                failures += failed;
                if failed == 0 {
                    // Beyond the last occasion.
                    break;
                }
            }
        }
    }
    println!("{failures} failed commits on {occasions} occasions");
    assert!(failures > occasions);
}

/// A space whose files were closed when the disk became full cannot even be given the index of its log; it is read all the
/// same, and written once there is room.
#[test]
fn reads_go_on_in_a_space_that_came_to_rest_before_the_disk_was_full() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::watch(dir.path());
    let location = StoreLocation::File(dir.path().canonicalize().unwrap().join(FILE));
    let actor = ActorOptions {
        idle_close: std::time::Duration::from_millis(5),
        ..ActorOptions::default()
    };
    let handle = EngineHandle::new(location, workload::options(), actor);
    let mut commits = workload::of_session("s");
    let mut write = || {
        let commit = commits.next().unwrap();
        let written =
            handle.write(move |engine| workload::apply(engine, "s", &commit).map(|applied| applied.seq.0));
        written.wait().and_then(|answer| answer)
    };
    let read = || {
        let seen = handle.read(|reader| {
            let ids = reader.commits_since(Seq(0), &"".into(), None)?.len();
            Ok::<_, EngineError>((reader.server_seq()?.0, ids))
        });
        seen.wait().and_then(|answer| answer)
    };
    for n in 1..=3 {
        assert_eq!(write().unwrap(), n);
    }
    handle.close().wait().unwrap();
    while !handle.is_resting() {
        std::thread::yield_now();
    }
    disk.break_it(Fault::Full { from: 0 });
    for _ in 0..3 {
        assert_eq!(read().unwrap(), (3, 3));
        assert!(matches!(write(), Err(EngineError::StoreFull(_))));
    }
    assert!(disk.refused() > 0);
    disk.mend();
    assert_eq!(write().unwrap(), 4);
    assert_eq!(read().unwrap(), (4, 4));
}

/// Field fault F24: saves that fail are not tried again by themselves, pile nothing up and leave nothing behind; many that
/// wait share one.
#[test]
fn f24_failed_saves_make_no_storm_and_pin_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::watch(dir.path());
    let handle = handle(dir.path());
    let commits: Vec<_> = workload::of_session("s").take(641).collect();
    let (first, rest) = commits.split_first().unwrap();
    let write = |commit: &ClientCommit| {
        let commit = commit.clone();
        handle.write(move |engine| workload::apply(engine, "s", &commit).map(|applied| applied.seq.0))
    };
    assert_eq!(write(first).wait().unwrap().unwrap(), 1);
    // All of them wait while the writer is busy.
    let burst = || {
        let (release, held) = std::sync::mpsc::channel::<()>();
        drop(handle.turn(move |_| held.recv().is_err()));
        let replies: Vec<_> = rest.iter().map(write).collect();
        drop(release);
        replies
            .into_iter()
            .map(|reply| reply.wait().and_then(|answer| answer))
            .collect::<Vec<_>>()
    };
    disk.break_it(Fault::Full { from: 0 });
    let answers = burst();
    assert!(
        answers
            .iter()
            .all(|answer| matches!(answer, Err(EngineError::StoreFull(_))))
    );
    let tried = disk.refused();
    assert!(
        tried > 0 && tried <= 10,
        "640 waiting writes are at most 10 saves, not {tried}"
    );
    assert_eq!(handle.backlog(), 0);
    // Nobody goes on trying.
    handle.turn(|_| ()).wait().unwrap();
    assert_eq!(disk.refused(), tried);
    let seen = handle.read(|reader| reader.server_seq()).wait().unwrap().unwrap();
    assert_eq!(seen.0, 1);
    // Nothing of what failed is remembered: the same commits land as if for the first time.
    disk.break_it(Fault::Full { from: u64::MAX });
    let answers: Vec<u64> = burst().into_iter().map(|answer| answer.unwrap()).collect();
    assert_eq!(answers, (2..=641).collect::<Vec<_>>());
    // A save a group, and the log's own beginnings and endings.
    let syncs = disk.counts().syncs;
    assert!(syncs < 100, "640 waiting writes took {syncs} syncs");
}
