//! `docs/operate.md`, the dashboard and the alerts against the code: every metric, error and knob they name exists, and
//! none is missing where all should be. `UPDATE_PAGES=1` writes the table of metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use memory_server::{MetricKind, MetricRow, metrics_table};
use memory_wire::error::{ErrorName, SocketClose};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operate.md");
const DASHBOARD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/grafana/dashboard.json");
const ALERTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/grafana/alerts.yml");

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Words of `text` made of letters, digits and underscores.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .filter(|word| !word.is_empty())
}

fn rows() -> BTreeMap<&'static str, &'static MetricRow> {
    metrics_table().map(|row| (row.name, row)).collect()
}

/// Metrics named in `text`; a series of a histogram counts as its metric. Words that look like metrics and are none are
/// reported.
fn metrics_in(text: &str) -> (BTreeSet<&'static str>, Vec<String>) {
    let rows = rows();
    let (mut known, mut unknown) = (BTreeSet::new(), Vec::new());
    for word in words(text).filter(|word| word.starts_with("memory_") || word.starts_with("serving_loop_")) {
        let of_histogram = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|suffix| rows.get(word.strip_suffix(suffix)?))
            .filter(|row| row.kind == MetricKind::Histogram);
        match rows.get(word).or(of_histogram.as_ref().map(|row| row as _)) {
            Some(row) => drop(known.insert(row.name)),
            // Targets of the log and prefixes written with an ellipsis.
            None if matches!(word, "memory_server" | "serving_loop_") => {}
            None => unknown.push(word.to_owned()),
        }
    }
    (known, unknown)
}

fn table() -> String {
    let mut text = String::from("| metric | kind | labels | meaning |\n| --- | --- | --- | --- |\n");
    for row in metrics_table() {
        let labels: Vec<String> = row.labels.iter().map(|label| format!("`{label}`")).collect();
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "| `{}` | {} | {} | {} |",
            row.name,
            row.kind,
            labels.join(", "),
            row.meaning()
        );
    }
    text
}

const BEGIN: &str =
    "<!-- metrics: written by `UPDATE_PAGES=1 cargo test -p memory-server --test operate` -->\n";
const END: &str = "<!-- end of metrics -->\n";

#[test]
fn the_page_has_every_metric_as_the_table_has_it() {
    let page = read(PAGE);
    let (head, rest) = page.split_once(BEGIN).expect("the beginning of the table");
    let (written, tail) = rest.split_once(END).expect("its end");
    if std::env::var_os("UPDATE_PAGES").is_some() {
        std::fs::write(PAGE, format!("{head}{BEGIN}{}{END}{tail}", table())).expect("writable");
        return;
    }
    assert_eq!(written, table(), "run the command in the page");
    let (_, unknown) = metrics_in(&page);
    assert_eq!(unknown, Vec::<String>::new(), "names of no metric");
}

/// The table of errors: every name once, with its label, and no other; elsewhere only names there are.
#[test]
fn the_page_says_what_each_error_asks_for() {
    let page = read(PAGE);
    let section = page
        .split_once("\n## Errors\n")
        .and_then(|(_, rest)| rest.split_once("\n## "))
        .map(|(section, _)| section)
        .expect("the section");
    let cells: Vec<Vec<&str>> = section
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    let written: BTreeMap<&str, &str> = cells
        .iter()
        .map(|cells| (cells[0].trim_matches('`'), cells[1].trim_matches('`')))
        .collect();
    assert_eq!(written.len(), cells.len(), "an error stands twice");
    let expected: BTreeMap<&str, &str> = ErrorName::ALL
        .iter()
        .map(|name| (name.as_str(), name.metric_label()))
        .collect();
    assert_eq!(written, expected);
    for cells in &cells {
        assert_eq!(cells.len(), 4, "{cells:?}");
        assert!(!cells[3].is_empty(), "{}: what to do?", cells[0]);
    }
    for word in words(&page) {
        let looks_like_one = word.ends_with("Error") && word.len() > "Error".len();
        assert!(
            !looks_like_one || ErrorName::from_name(word).is_some(),
            "{word} is no error of the wire"
        );
    }
}

/// Codes in the table of limits are those the protocol has.
#[test]
fn the_page_names_close_codes_that_are_sent() {
    let codes: BTreeSet<u16> = [
        SocketClose::GoingAway,
        SocketClose::NoPong,
        SocketClose::NotMemoryProtocol,
        SocketClose::NoHello,
        SocketClose::Unused,
        SocketClose::MessageTooLarge,
        SocketClose::OutboundBuffer,
    ]
    .iter()
    .map(|close| close.code())
    .collect();
    let page = read(PAGE);
    let named: BTreeSet<u16> = words(&page)
        .filter(|word| word.len() == 4 && word.starts_with("10"))
        .filter_map(|word| word.parse().ok())
        .filter(|code| (1000..1016).contains(code))
        .collect();
    assert!(!named.is_empty());
    assert!(
        named.is_subset(&codes),
        "{named:?} in the page, {codes:?} are sent"
    );
}

#[test]
fn the_page_names_knobs_that_exist() {
    let keys: BTreeSet<&str> = memory_server::knobs::KNOBS.iter().map(|knob| knob.key).collect();
    let page = read(PAGE);
    let mut named = 0;
    for span in page.split('`').skip(1).step_by(2) {
        let is_key = ["limits.", "rates.", "execution."]
            .iter()
            .any(|group| span.starts_with(group));
        if is_key {
            assert!(keys.contains(span), "{span} is no knob");
            named += 1;
        }
    }
    assert!(named > 10, "{named} knobs named");
}

#[test]
fn every_panel_of_the_dashboard_names_metrics_that_exist() {
    let dashboard: serde_json::Value = serde_json::from_str(&read(DASHBOARD)).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let mut shown = BTreeSet::new();
    let mut ids = BTreeSet::new();
    for panel in panels {
        assert!(
            ids.insert(panel["id"].as_u64().expect("an id")),
            "{} twice",
            panel["id"]
        );
        if panel["type"] == "row" {
            continue;
        }
        let title = panel["title"].as_str().expect("a title");
        let targets = panel["targets"].as_array().expect("targets");
        assert!(!targets.is_empty(), "{title} shows nothing");
        for target in targets {
            let expression = target["expr"].as_str().expect("an expression");
            let (known, unknown) = metrics_in(expression);
            assert!(unknown.is_empty(), "{title}: no metrics: {unknown:?}");
            assert!(!known.is_empty(), "{title}: {expression} names no metric");
            for name in &known {
                let row = rows()[name];
                let is_rate = expression.contains("rate(");
                assert!(
                    !is_rate || row.kind != MetricKind::Gauge,
                    "{title}: a rate of the gauge {name}"
                );
            }
            shown.extend(known);
        }
    }
    println!("{} panels, {} metrics", panels.len(), shown.len());
    assert!(shown.len() > 40, "{} metrics shown", shown.len());
}

#[test]
fn every_alert_names_metrics_that_exist() {
    let text = read(ALERTS);
    let (known, unknown) = metrics_in(&text);
    assert_eq!(unknown, Vec::<String>::new());
    assert!(known.len() >= 7, "{known:?}");
}
