//! The schemas that references may name without a stored document (TRV-901). Clients send selectors that name
//! them, so their content is part of the protocol. Used by `refs` only.

use std::sync::LazyLock;

use super::schema::Schema;
use crate::codec;

static VDOM: LazyLock<Schema> = LazyLock::new(|| compiled(include_str!("embedded/vdom.json")));
static VNODE: LazyLock<Schema> = LazyLock::new(|| compiled(include_str!("embedded/vnode.json")));

fn compiled(text: &str) -> Schema {
    Schema::of(&codec::decode_body(text).expect("the compiled-in schema is valid JSON, as the tests show"))
}

/// The schema behind a compiled-in reference.
pub(super) fn schema(url: &str) -> Option<&'static Schema> {
    match url {
        "https://commonfabric.org/schemas/vdom.json" => Some(&VDOM),
        "https://commonfabric.org/schemas/vnode.json" => Some(&VNODE),
        _ => None,
    }
}
