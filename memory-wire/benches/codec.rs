//! Cost of decode, encode and hash on a document of about 10 kB, beside `serde_json` and bare SHA-256 on the same
//! bytes. Prints the ratios that the design asks for before the criterion runs.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput};
use memory_wire::codec::{PREFIX, decode, encode, encode_into};
use memory_wire::equality::value_equal;
use memory_wire::hash::{hash_preimage, hash_value};
use memory_wire::value::{Object, Value};
use sha2::{Digest as _, Sha256};

/// A document as applications write them: records of short fields, some prose, links, numbers.
fn document() -> Value {
    let prose =
        "It was a bright cold day in April, and the \"clocks\" were striking thirteen — naïve, isn't it?";
    let records: Vec<Value> = (0..32u32)
        .map(|n| {
            memory_wire::value!({
                "id": (format!("of:fid1:{:043}", n)),
                "title": (format!("Item number {n}")),
                "done": (n % 3 == 0),
                "rank": (f64::from(n)),
                "score": (f64::from(n) * 0.37),
                "tags": ["red", "green", (format!("tag{n}"))],
                "note": (prose.chars().take(20 + (n as usize * 7) % 60).collect::<String>()),
                "source": (link(n))
            })
        })
        .collect();
    memory_wire::value!({ "value": { "title": "Shopping", "items": records }, "source": (link(7)) })
}

fn link(n: u32) -> Value {
    let target = memory_wire::value!({ "id": (format!("of:fid1:{n:020}")), "path": ["value", "items"] });
    let tagged: Object = [("link@1", target)].into_iter().collect();
    Value::Object([("/", tagged)].into_iter().collect())
}

/// Best time of one call over many short batches; the best is the least disturbed by other work on the machine.
fn best(mut work: impl FnMut()) -> Duration {
    const CALLS: u32 = 20;
    (0..400)
        .map(|_| {
            let start = Instant::now();
            (0..CALLS).for_each(|_| work());
            start.elapsed() / CALLS
        })
        .min()
        .unwrap_or_default()
}

fn print_ratio(what: &str, ours: Duration, theirs: Duration, bound: &str) {
    let ratio = ours.as_secs_f64() / theirs.as_secs_f64();
    println!("{what}: {ours:?} against {theirs:?}, {ratio:.2} times as long ({bound})");
}

fn print_ratios(value: &Value) {
    let text = encode(value).expect("the document has a text");
    let json: serde_json::Value = serde_json::from_str(&text[PREFIX.len()..]).expect("the body is JSON");
    let stream = hash_preimage(value);
    println!(
        "document: {} bytes of text, {} bytes of hash stream",
        text.len(),
        stream.len()
    );
    let ours = best(|| drop(black_box(decode(black_box(&text)))));
    let theirs = best(|| {
        drop(black_box(serde_json::from_str::<serde_json::Value>(black_box(
            &text[PREFIX.len()..],
        ))))
    });
    print_ratio("decode", ours, theirs, "at most 1.5");
    let ours = best(|| {
        let mut out = Vec::with_capacity(128);
        encode_into(&mut out, black_box(value)).expect("the document has a text");
        black_box(out);
    });
    let theirs = best(|| drop(black_box(serde_json::to_vec(black_box(&json)))));
    print_ratio("encode", ours, theirs, "at most 1.3");
    let ours = best(|| _ = black_box(hash_value(black_box(value))));
    let theirs = best(|| _ = black_box(Sha256::digest(black_box(&stream))));
    print_ratio("hash", ours, theirs, "at most 2");
}

fn main() {
    let value = document();
    print_ratios(&value);
    let text = encode(&value).expect("the document has a text");
    let copy = decode(&text).expect("the text was just written");
    let mut criterion = Criterion::default().configure_from_args();
    let mut group = criterion.benchmark_group("codec");
    group.throughput(Throughput::Bytes(text.len() as u64));
    group.bench_function("decode", |b| b.iter(|| decode(black_box(&text))));
    group.bench_function("encode", |b| b.iter(|| encode(black_box(&value))));
    group.bench_function("hash", |b| b.iter(|| hash_value(black_box(&value))));
    group.bench_function("equal", |b| {
        b.iter(|| value_equal(black_box(&value), black_box(&copy)))
    });
    group.finish();
    criterion.final_summary();
}
