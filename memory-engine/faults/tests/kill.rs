//! kill −9 under load, and two processes on one store. A seed is a store whose process is killed [`KILLS`] times at random
//! moments: each time everything it had acknowledged is there, every commit is whole, and the next process goes on.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use engine_faults::audit::{Acknowledged, audit};
use engine_faults::workload::{self, Dice, key};
use memory_engine::{Engine, StoreLocation};
use memory_wire::ids::LocalSeq;

/// Kills of one store.
const KILLS: u64 = 5;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a decimal number"))
}

fn start(store: &Path, writers: u64, tag: &str, each: Option<u64>) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_commits_under_load"));
    command.arg(store).arg(writers.to_string()).arg(tag);
    if let Some(each) = each {
        command.arg(each.to_string());
    }
    command
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts")
}

/// A line that was told whole. What the kill cut off has no end.
fn told(line: &str) -> Option<Acknowledged> {
    let mut words = line.strip_suffix('\n')?.split(' ');
    Some(Acknowledged {
        session: key(words.next()?),
        local_seq: words.next()?.parse().ok()?,
        seq: words.next()?.parse().ok()?,
    })
}

/// Everything a process tells until it ends.
fn listen(out: impl std::io::Read) -> impl Iterator<Item = Acknowledged> {
    let mut out = BufReader::new(out);
    std::iter::from_fn(move || {
        let mut line = String::new();
        out.read_line(&mut line).expect("its output is text");
        told(&line)
    })
}

#[test]
fn a_store_whose_process_is_killed_under_load_keeps_every_acknowledged_commit() {
    let (from, count) = (number("LONG_FROM", 0), number("LONG_COUNT", 1));
    let (mut kills, mut commits, mut unacknowledged) = (0, 0, 0);
    for seed in from..from + count {
        let mut dice = Dice::new(seed);
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("store.sqlite");
        let mut acknowledged: Vec<Acknowledged> = Vec::new();
        for kill in 0..KILLS {
            let mut child = start(&store, 4 + dice.below(5), &format!("k{kill}"), None);
            let mut heard = listen(child.stdout.take().expect("it is piped"));
            // Some are killed before they tell anything, while the store is made or recovered.
            let patience = if dice.below(5) == 0 { 0 } else { dice.below(120) };
            acknowledged.extend(heard.by_ref().take(patience as usize));
            // Anywhere between two lines.
            for _ in 0..dice.below(40_000) {
                std::hint::spin_loop();
            }
            child.kill().expect("it runs");
            child.wait().expect("it was started here");
            acknowledged.extend(heard);
            let audited = audit(&store, &acknowledged).unwrap_or_else(|wrong| {
                panic!("seed {seed}, kill {kill}, {} told: {wrong}", acknowledged.len())
            });
            kills += 1;
            // The audits' own commits are nobody's.
            unacknowledged += audited.commits - kill - acknowledged.len() as u64;
        }
        commits += acknowledged.len();
    }
    println!(
        "{kills} kills, {commits} acknowledged commits kept, {unacknowledged} more were durable and not yet told"
    );
}

/// Field faults F4 and F5: the process dies between a durable commit and its answer. Whoever sends the commits again gets
/// the verdicts that were stored, each commit is there once, and each verdict can be asked for by session and local seq.
#[test]
fn f4_f5_a_commit_sent_again_after_a_kill_gets_its_stored_verdict_and_lands_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store.sqlite");
    let mut child = start(&store, 4, "c", None);
    let mut heard = listen(child.stdout.take().expect("it is piped"));
    let mut acknowledged: Vec<Acknowledged> = heard.by_ref().take(60).collect();
    child.kill().expect("it runs");
    child.wait().expect("it was started here");
    acknowledged.extend(heard);
    let mut engine = Engine::open(StoreLocation::File(store.clone()), workload::options()).unwrap();
    let durable = engine.server_seq().unwrap().0;
    let mut all = Vec::new();
    for writer in 0..4 {
        let session = format!("cw{writer}");
        let told = |local_seq: u64| {
            let mine = acknowledged
                .iter()
                .find(|told| told.session == key(&session) && told.local_seq == local_seq);
            mine.map(|told| told.seq)
        };
        let answered = acknowledged
            .iter()
            .filter(|told| told.session == key(&session))
            .count() as u64;
        // Everything that was answered, what may have been under way, and one more.
        for (local_seq, commit) in (1..=answered + 2).zip(workload::of_session(&session)) {
            let stored = engine.committed_at(&key(&session), LocalSeq(local_seq)).unwrap();
            let applied = workload::apply(&mut engine, &session, &commit).unwrap();
            match told(local_seq) {
                Some(seq) => {
                    assert_eq!((applied.seq.0, applied.replayed), (seq, true));
                    assert_eq!(stored, Some(applied.seq));
                }
                // Durable and not told, or never arrived.
                None => assert_eq!(applied.replayed, stored.is_some() && applied.seq.0 <= durable),
            }
            all.push(Acknowledged {
                session: key(&session),
                local_seq,
                seq: applied.seq.0,
            });
        }
    }
    drop(engine);
    let audited = audit(&store, &all).unwrap_or_else(|wrong| panic!("{wrong}"));
    assert_eq!(audited.commits, all.len() as u64, "each is there once");
}

/// ENG-143, decision 11: two processes that open one store at once, before there is one, commit side by side.
#[test]
fn two_processes_on_one_store_never_lose_or_reuse_a_seq() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store.sqlite");
    let mut children = [start(&store, 2, "a", Some(15)), start(&store, 2, "b", Some(15))];
    let heard: Vec<_> = children
        .iter_mut()
        .map(|child| {
            let out = child.stdout.take().expect("it is piped");
            std::thread::spawn(move || listen(out).collect::<Vec<_>>())
        })
        .collect();
    let acknowledged: Vec<Acknowledged> = heard
        .into_iter()
        .flat_map(|heard| heard.join().unwrap())
        .collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(acknowledged.len(), 60);
    let audited = audit(&store, &acknowledged).unwrap_or_else(|wrong| panic!("{wrong}"));
    assert_eq!(audited.commits, 60);
    // Neither left a draft of the store behind.
    let files: Vec<_> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.contains("-new-"))
        .collect();
    assert_eq!(files, [""; 0]);
}
