//! A document text, a newline, a text of patches: application answers or refuses, the base stays as it was, the
//! footprint of what applied covers the document's root (WIRE-602…608), and a document that was within the bounds of
//! nesting and holes stays within them and has a text (WIRE-312, WIRE-314).
#![no_main]

use libfuzzer_sys::fuzz_target;
use memory_wire::codec::{MAX_DOCUMENT_DEPTH, decode, encode};
use memory_wire::patch::{
    apply_patches, parse_patches, patches_conflict_with_read, patches_to_value, touched_paths,
};
use memory_wire::value::Extent;

fuzz_target!(|input: &str| {
    let Some((base, patches)) = input.split_once('\n') else {
        return;
    };
    let (Ok(base), Ok(list)) = (decode(base), decode(patches)) else {
        return;
    };
    let Ok(patches) = parse_patches(&list) else { return };
    assert_eq!(encode(&patches_to_value(&patches)), encode(&list));
    let before = encode(&base);
    let outcome = apply_patches(&base, &patches);
    assert_eq!(encode(&base), before);
    assert_eq!(
        patches_conflict_with_read(&patches, &[], false),
        !touched_paths(&patches).is_empty()
    );
    if let Ok(document) = outcome {
        assert!(document.as_object().is_some());
        if Extent::of(&base).depth <= MAX_DOCUMENT_DEPTH {
            let text = encode(&document).expect("a patched document has a text");
            drop(decode(&text).expect("a patched document reads back"));
        }
    }
});
