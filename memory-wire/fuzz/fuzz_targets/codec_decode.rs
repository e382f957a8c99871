//! Any text: decoding answers or refuses; what decodes encodes to a text that stands still, and stays equal to
//! itself (WIRE-310, WIRE-1003).
#![no_main]

use libfuzzer_sys::fuzz_target;
use memory_wire::codec::{decode, encode};
use memory_wire::equality::value_equal;
use memory_wire::hash::hash_value;

fuzz_target!(|text: &str| {
    let Ok(value) = decode(text) else { return };
    let hash = hash_value(&value);
    // Escaping may need more depth than the input had.
    let Ok(canonical) = encode(&value) else { return };
    let again = decode(&canonical).expect("canonical text decodes");
    assert_eq!(encode(&again).as_deref(), Ok(canonical.as_str()));
    assert!(value_equal(&value, &again));
    assert_eq!(hash_value(&again), hash);
});
