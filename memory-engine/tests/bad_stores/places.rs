//! Where a store should be lies something else, or nothing, or something that may not be written.

use super::*;

#[test]
fn a_read_only_file_is_refused() {
    let place = Place::store();
    let mut permissions = fs::metadata(&place.path).unwrap().permissions();
    permissions.set_readonly(true);
    fs::set_permissions(&place.path, permissions).unwrap();
    refused(&place, "a read-only file");
}

#[cfg(unix)]
#[test]
fn a_read_only_directory_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::store();
    let directory = place.path.parent().unwrap();
    fs::set_permissions(directory, fs::Permissions::from_mode(0o555)).unwrap();
    refused(&place, "a read-only directory");
    // And nothing is created in one.
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).unwrap();
    fs::remove_file(&place.path).unwrap();
    fs::set_permissions(directory, fs::Permissions::from_mode(0o555)).unwrap();
    refused(&place, "a read-only directory");
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_missing_directory_is_named_and_not_made() {
    let place = Place::empty();
    let path = place.path.parent().unwrap().join("missing").join("store.sqlite");
    let error = open(&path).unwrap_err();
    assert!(
        matches!(&error, EngineError::BadStore(bad) if bad.found == "no directory to hold it"),
        "{error:?}"
    );
    assert!(!path.parent().unwrap().exists());
}

#[test]
fn a_file_where_its_directory_should_be_is_named() {
    let place = Place::empty();
    let file = place.path.parent().unwrap().join("engine-v3");
    fs::write(&file, b"not a directory").unwrap();
    let error = open(&file.join("store.sqlite")).unwrap_err();
    assert!(
        matches!(&error, EngineError::BadStore(bad) if bad.found.contains("a file where")),
        "{error:?}"
    );
    assert_eq!(fs::read(&file).unwrap(), b"not a directory");
}

#[test]
fn a_directory_where_the_file_should_be_is_refused() {
    let place = Place::empty();
    fs::create_dir(&place.path).unwrap();
    refused(&place, "a directory");
}

#[cfg(unix)]
#[test]
fn a_socket_where_the_file_should_be_is_refused() {
    let place = Place::empty();
    let _listener = std::os::unix::net::UnixListener::bind(&place.path).unwrap();
    refused(&place, "not a regular file");
}

#[cfg(unix)]
#[test]
fn a_link_to_a_store_serves_and_a_link_to_nothing_is_refused() {
    let place = Place::store();
    let elsewhere = place.path.with_file_name("elsewhere.sqlite");
    fs::rename(&place.path, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &place.path).unwrap();
    serves(&place, 20);
    fs::remove_file(&elsewhere).unwrap();
    refused(&place, "a symbolic link to nothing");
    fs::remove_file(&place.path).unwrap();
    std::os::unix::fs::symlink(&place.path, &place.path).unwrap();
    let error = open(&place.path).unwrap_err();
    assert!(matches!(error, EngineError::Io { .. }), "{error:?}");
}

/// A log or an index of a log that belongs to nothing: SQLite tells by its checksums, and the store's content stays.
#[test]
fn a_stale_log_is_ignored() {
    let stale = |place: &Place, suffix: &str, content: &[u8]| {
        fs::write(place.beside(suffix), content).unwrap();
        serves(place, 20);
    };
    stale(&Place::store(), "-wal", &[7; 200_000]);
    stale(&Place::store(), "-wal", b"");
    stale(&Place::store(), "-shm", &[7; 32_768]);
    stale(&Place::store(), "-journal", &[7; 10_000]);
    // A log whose header is right and whose frames are not.
    let place = Place::store();
    let mut engine = open(&place.path).unwrap();
    write(&mut engine, 21).unwrap();
    let log = fs::read(place.beside("-wal")).unwrap();
    let file = fs::read(&place.path).unwrap();
    drop(engine);
    fs::write(&place.path, file).unwrap();
    let mut cut = log[..log.len() / 2].to_vec();
    cut.extend(vec![0xEE; 50_000]);
    stale(&place, "-wal", &cut);
}

/// Where a server keeps its files is not told to clients.
#[test]
fn what_a_client_hears_of_a_bad_store_holds_no_path() {
    let place = Place::empty();
    fs::write(&place.path, b"").unwrap();
    let WireError { message, .. } = open(&place.path).unwrap_err().to_wire(Seq(0));
    assert!(
        message.contains("an empty file") && !message.contains(place.path.to_str().unwrap()),
        "{message}"
    );
}

/// A store is made whole or not at all: what a process left that was stopped while making one does not stand in the way.
#[test]
fn a_draft_that_was_left_behind_is_cleared_away() {
    let place = Place::empty();
    fs::write(place.beside("-new-0"), b"half a st").unwrap();
    fs::write(place.beside("-new-1"), b"").unwrap();
    serves(&place, 0);
    let names: Vec<String> = place.everything().into_iter().map(|(name, ..)| name).collect();
    assert_eq!(names, ["did:key:zSpace.sqlite"]);
}
