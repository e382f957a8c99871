//! Any key: validation and inspection answer; a valid key is exactly what the constructor makes of the identity it
//! names (WIRE-105, WIRE-106).
#![no_main]

use libfuzzer_sys::fuzz_target;
use memory_wire::scope_key::{
    ScopeIdentity, ScopeKey, identity_of, is_scope_key, principal_of_session_key, scope_key_applicable_to,
    scope_of,
};

fuzz_target!(|text: &str| {
    drop((identity_of(text), principal_of_session_key(text)));
    let _ = scope_key_applicable_to(text, &ScopeIdentity::default());
    let parsed = ScopeKey::parse(text);
    assert_eq!(parsed.is_ok(), is_scope_key(text));
    let Ok(key) = parsed else { return };
    assert_eq!(key.scope(), scope_of(text));
    let again = ScopeKey::resolve(key.scope(), &key.identity()).expect("a valid key names its identity");
    assert_eq!(again.as_str(), text);
    assert!(key.applicable_to(&key.identity()));
});
