//! Writes the seed corpora from the golden vectors: `cargo run --example seeds` in this folder. Small inputs only;
//! a run is reproducible, so that a change of the vectors shows as a change of the seeds.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value as Json;

/// Most seeds of one kind of line in one target.
const PER_KIND: usize = 12;
/// Longest seed, in bytes.
const LONGEST: usize = 600;

fn main() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR"));
    let vectors = fuzz.join("../../tests/vectors");
    let text = |json: &Json, key: &str| json[key].as_str().map(str::to_owned);
    // Plain JSON with its `/`-keys taken literally.
    let literal = |json: &Json| format!("fvj1:{{\"/quote\":{json}}}");

    let mut seeds = Seeds::default();
    for (kind, line) in lines(&vectors.join("wire-codec.jsonl")) {
        seeds.add("codec_decode", &kind, text(&line, "text"));
    }
    for (kind, line) in lines(&vectors.join("wire-frames.jsonl")) {
        seeds.add(
            "message_decode",
            &format!("{kind}-{}", line["dir"].as_str().unwrap_or("c2s")),
            text(&line, "text"),
        );
    }
    for (kind, line) in lines(&vectors.join("server-ingress.jsonl")) {
        seeds.add("message_decode", &format!("ingress-{kind}"), text(&line, "frame"));
    }
    for (kind, line) in lines(&vectors.join("wire-scope-key.jsonl")) {
        seeds.add(
            "scope_key",
            &kind,
            text(&line, "key").or_else(|| text(&line, "scopeKey")),
        );
    }
    for (kind, line) in lines(&vectors.join("wire-patch.jsonl")) {
        let base = text(&line, "base").unwrap_or_else(|| "fvj1:{}".to_owned());
        seeds.add(
            "patch",
            &kind,
            text(&line, "patches").map(|patches| format!("{base}\n{patches}")),
        );
    }
    for (kind, line) in lines(&vectors.join("wire-auth.jsonl")) {
        seeds.add("did", &kind, text(&line, "did"));
    }
    for (kind, line) in lines(&vectors.join("traversal.jsonl")) {
        let (root, schema) = match line["roots"].get(0) {
            Some(root) => (&root["id"], &root["selector"]["schema"]),
            None => (&line["root"], &line["schema"]),
        };
        let document = root
            .as_str()
            .map(|id| &line["documents"][id])
            .filter(|document| document.is_object());
        if let Some(document) = document.filter(|_| !schema.is_null()) {
            seeds.add(
                "traverse_selector",
                &kind,
                Some(format!("{}\n{}", literal(document), literal(schema))),
            );
        }
    }
    seeds.write(&fuzz.join("seeds"));
}

/// The lines of a vector file with their kinds.
fn lines(path: &Path) -> Vec<(String, Json)> {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines()
        .map(|line| {
            let json: Json = serde_json::from_str(line).expect("a vector line is JSON");
            (json["kind"].as_str().unwrap_or("line").to_owned(), json)
        })
        .collect()
}

/// Seeds by target and kind, evenly spread over the lines that offered one.
#[derive(Default)]
struct Seeds(BTreeMap<(&'static str, String), Vec<String>>);

impl Seeds {
    fn add(&mut self, target: &'static str, kind: &str, seed: Option<String>) {
        if let Some(seed) = seed.filter(|seed| seed.len() <= LONGEST) {
            self.0.entry((target, kind.to_owned())).or_default().push(seed);
        }
    }

    fn write(self, folder: &Path) {
        for ((target, kind), offered) in self.0 {
            let folder = folder.join(target);
            fs::create_dir_all(&folder).expect("the seed folder can be made");
            let step = offered.len().div_ceil(PER_KIND);
            for (index, seed) in offered.iter().step_by(step).enumerate() {
                fs::write(folder.join(format!("{kind}-{index:02}")), seed).expect("a seed can be written");
            }
        }
    }
}
