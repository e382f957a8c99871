//! Any DID: parsing answers or refuses, and a parsed key spells the same DID (WIRE-201, WIRE-202).
#![no_main]

use libfuzzer_sys::fuzz_target;
use memory_wire::did::{did_from_public_key, is_acl_did, parse_did_key};

fuzz_target!(|text: &str| {
    if let Ok(key) = parse_did_key(text) {
        assert_eq!(did_from_public_key(&key).as_str(), text);
        assert!(is_acl_did(text));
    }
    let _ = is_acl_did(text);
});
