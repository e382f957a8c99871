//! Names that want to be paths (SRV-121…124): of spaces, over socket and HTTP, and of blobs. Nothing outside the data
//! directory is read, made or told about.

use memory_engine::sqlite_builtin::cell_file;
use memory_wire::{ScopeKey, SpaceId, value};
use serde_json::json;

use crate::rig::{Rig, http, judge, mallory};

#[tokio::test(flavor = "multi_thread")]
async fn srv_124_a_space_name_is_no_path() {
    let mut rig = Rig::start().await;
    let names = [
        "../escape",
        "../../../../etc/passwd",
        "/etc/passwd",
        "a/b",
        "a\\b",
        "..",
        ".",
        "did:key:../../escape",
        "did:key:..\\escape",
        "did:key:x\u{0}y",
        "\u{0}",
    ];
    // A SQLite database of the shared space, under whose name a store would be made.
    let database = cell_file::file_name(&rig.shared, "of:db", &ScopeKey::space());
    let stem = database.strip_suffix(".sqlite").expect("a SQLite file");
    let mut attackers = Vec::new();
    for name in names.into_iter().chain([stem, "cell-"]) {
        let mut peer = rig.peer(mallory()).await;
        let open = peer
            .honest(&SpaceId::from(name), value!({ "sessionId": "m" }))
            .frame();
        let before = rig.counters().await["memory_errors_total{name=\"protocol\"}"];
        let answer = peer.ask(&open).await;
        judge(
            name,
            &answer,
            "ProtocolError",
            "Invalid memory space identifier for store path",
        )
        .expect("refused");
        assert_eq!(
            rig.counters().await["memory_errors_total{name=\"protocol\"}"],
            before + 1,
            "{name:?}"
        );
        attackers.push(peer);
    }
    let attackers: Vec<_> = attackers.iter().collect();
    rig.unharmed(&attackers).await;
}

/// A name that no file can have fails in the file system; where that is, is nobody's business.
#[tokio::test(flavor = "multi_thread")]
async fn srv_124_a_store_that_cannot_be_opened_does_not_say_where_it_is() {
    let mut rig = Rig::start().await;
    let mut peer = rig.peer(mallory()).await;
    let space = SpaceId::from(format!("did:key:z{}", "a".repeat(300)));
    let open = peer.honest(&space, value!({ "sessionId": "m" })).frame();
    let answer = peer.ask(&open).await;
    assert!(answer["error"].is_object(), "{answer}");
    let mut member = rig.member().await;
    let shared = rig.shared.clone();
    // Where a database should be there is a directory.
    let database = cell_file::file_name(&shared, "of:db", &ScopeKey::space());
    let stores = find(rig.around.path(), &format!("{shared}.sqlite"));
    std::fs::create_dir(stores.with_file_name(database)).expect("made");
    let db = json!({ "id": "of:db", "tables": { "t": { "properties": { "n": { "sqlType": "integer" } } } } });
    let answer = member
        .request(json!({
            "type": "sqlite.query", "requestId": "q", "space": shared.as_str(), "sessionId": "m", "db": db,
            "sql": "SELECT n FROM t",
        }))
        .await;
    assert_eq!(answer["error"]["name"], "SqliteError", "{answer}");
    let write = json!([{ "op": "sqlite", "db": db, "sql": "INSERT INTO t (n) VALUES (1)", "params": [] }]);
    let answer = member.transact(&shared, "m", 1, write).await;
    assert_eq!(answer["error"]["name"], "TransactionError", "{answer}");
    let place = rig.around.path().display().to_string();
    for heard in [&peer.heard, &member.heard] {
        heard.holds_no(&[place.clone(), ".sqlite".to_owned()]);
    }
    rig.unharmed(&[&peer, &member]).await;
}

/// The file of this name below a directory.
fn find(directory: &std::path::Path, name: &str) -> std::path::PathBuf {
    walk(directory)
        .into_iter()
        .find(|path| path.file_name().is_some_and(|found| found == name))
        .unwrap_or_else(|| panic!("{name} is nowhere below {}", directory.display()))
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_121_blob_routes_lead_nowhere_else() {
    let mut rig = Rig::start().await;
    let body = r#"fvj1:{"body":{"/Bytes@1":"aGk"},"type":"text/plain"}"#;
    let private = rig.private.to_string();
    let spaces = [
        "..%2f..%2fescape",
        "%2e%2e",
        "..",
        "did:key:..%2f..%2fescape",
        "did:key:..%5c..%5cescape",
        "did:key:x%00y",
        "did:key:",
        "*",
        "did::x",
        "did:key",
        "%00",
        "did:key:%ff%fe",
    ];
    let mut heard = String::new();
    let mut attempts = 0;
    for space in spaces {
        for request in [
            format!(
                "POST /{space}/blobs HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            ),
            format!("GET /{space}/blobs/x.png HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"),
            format!("GET /api/storage/memory/dump/{space} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"),
        ] {
            let answer = http(rig.address, &request).await;
            let status = answer.split_whitespace().nth(1).unwrap_or_default().to_owned();
            assert!(
                matches!(status.as_str(), "400" | "404" | "405"),
                "{request} was answered {answer}"
            );
            heard.push_str(&answer);
            attempts += 1;
        }
    }
    // Documents are not blobs, whatever their names; and a name is not followed.
    for name in [
        "of:diary",
        "..%2f..%2fdiary",
        "fid1:..%2f..%2fdiary",
        ".png",
        "%2e%2e",
        "fid1:",
        "of:SECRET-document-name.json",
        "%00",
    ] {
        let answer = http(
            rig.address,
            &format!("GET /{private}/blobs/{name} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"),
        )
        .await;
        let status = answer.split_whitespace().nth(1).unwrap_or_default();
        assert!(matches!(status, "400" | "404"), "{name} was answered {answer}");
        // The name asked for may be echoed by nobody.
        heard.push_str(&answer);
        attempts += 1;
    }
    // A blob goes through the list's state: an unfounded space takes none, and asking makes no file. Anybody can ask.
    let stores = || walk(rig.around.path());
    let before = stores();
    for unfounded in [
        "did:key:z6MkunfoundedUnfoundedUnfounded",
        "did:key:%2e%2e",
        "did:key:...",
    ] {
        let answer = http(
            rig.address,
            &format!("POST /{unfounded}/blobs HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len()),
        )
        .await;
        assert!(answer.starts_with("HTTP/1.1 500"), "{answer}");
        let answer = http(
            rig.address,
            &format!("GET /{unfounded}/blobs/x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"),
        )
        .await;
        assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
    }
    assert_eq!(stores(), before, "a request without a signature made a store");
    println!("{attempts} attempts");
    for secret in rig.secrets() {
        assert!(!heard.contains(&secret), "HTTP told {secret}");
    }
    let counters = rig.counters().await;
    let refused: u64 = counters
        .iter()
        .filter(|(series, _)| {
            series.starts_with("memory_http_responses_total") && series.contains("status=\"4")
        })
        .map(|(_, count)| count)
        .sum();
    assert!(refused > 20, "{refused} refusals counted: {counters:?}");
    rig.unharmed(&[]).await;
}

/// The open routes name nobody and hold nothing of a space.
#[tokio::test(flavor = "multi_thread")]
async fn srv_1101_open_routes_tell_no_secrets() {
    let mut rig = Rig::start().await;
    let mut heard = String::new();
    for path in [
        "/_health",
        "/api/health/ready",
        "/api/health/stats",
        "/api/meta",
        "/metrics",
        "/api/storage/memory",
        "/api/storage/memory/dump",
        "/api/storage/memory/dump/x",
        "/",
        "/etc/passwd",
        "/../../etc/passwd",
    ] {
        heard.push_str(
            &http(
                rig.address,
                &format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"),
            )
            .await,
        );
    }
    for secret in rig.secrets() {
        assert!(!heard.contains(&secret), "a route told {secret}");
    }
    for session in ["\"vs\"", "\"vp\""] {
        assert!(!heard.contains(session), "a route told the session id {session}");
    }
    rig.unharmed(&[]).await;
}

/// Every file below `directory`, but logs that come and go with their stores.
fn walk(directory: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).expect("readable") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            found.extend(walk(&path));
        } else if path.extension().is_some_and(|extension| extension == "sqlite") {
            found.push(path);
        }
    }
    found.sort();
    found
}
