//! The table as a page: `docs/knobs.md`.

use std::fmt::Write;

use super::{KNOBS, Knobs};

/// The text of `docs/knobs.md`. A test compares; `UPDATE_PAGES=1` writes.
pub fn document() -> String {
    let defaults = Knobs::default();
    let mut page = String::from(
        "# Knobs of the server\n\n\
         Everything an operator can set, from the table in `memory-server/src/knobs`. Do not edit this page: it is \
         written from that table, and a test compares them.\n\n\
         What is said later wins: default, configuration file (`space-server serve --config FILE`, or \
         `SPACE_SERVER_CONFIG`), environment, command line. `space-server serve --print-config` prints the outcome as a \
         configuration file, with where each value was said. An unknown key, and a value that means nothing, refuse to \
         start and are named. Blank variables count as unset.\n\n\
         In the file a key with a dot lives in a table: `limits.session_ttl` is `session_ttl` under `[limits]`. Durations \
         are `250ms`, `30s`, `5m`, `1h` or plain milliseconds; byte counts are `64KiB`, `4MiB`, `1GiB` or plain bytes.\n",
    );
    let mut group = None;
    for knob in KNOBS {
        let of = knob.key.split_once('.').map_or("", |(group, _)| group);
        if group != Some(of) {
            group = Some(of);
            let title = match of {
                "" => "Program".to_owned(),
                group => format!("`[{group}]`"),
            };
            // Writing to a string cannot fail.
            let _ = write!(
                page,
                "\n## {title}\n\n| key | unit | default | environment | flag | meaning |\n| --- | --- | --- | --- | --- | --- |\n"
            );
        }
        // What depends on the machine is not a constant of the page.
        let default = match knob.key {
            "limits.concurrent_full_evaluations" | "limits.concurrent_sqlite_reads" => {
                "cores, at least 2".to_owned()
            }
            _ => match knob.shown(&defaults) {
                unset if unset.is_empty() => "unset".to_owned(),
                shown => format!("`{shown}`"),
            },
        };
        let environment: Vec<String> = knob.environment.iter().map(|name| format!("`{name}`")).collect();
        let _ = writeln!(
            page,
            "| `{}` | {} | {default} | {} | `--{}` | {} |",
            knob.key,
            knob.unit,
            environment.join(", "),
            knob.flag(),
            knob.meaning
        );
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/knobs.md");
        if std::env::var_os("UPDATE_PAGES").is_some() {
            std::fs::write(path, document()).expect("docs/knobs.md can be written");
        }
        let written = std::fs::read_to_string(path).expect("docs/knobs.md is there");
        assert!(
            written == document(),
            "docs/knobs.md is not what the table says; run this test with UPDATE_PAGES=1"
        );
    }
}
