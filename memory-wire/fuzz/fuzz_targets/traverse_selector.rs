//! A document text, a newline, a schema text: the query walk ends, whatever links and schemas are stored, and walks
//! the same way twice (TRV-1501, TRV-1601). Every address holds the one document.
#![no_main]

use libfuzzer_sys::fuzz_target;
use memory_wire::codec::decode;
use memory_wire::scope_key::{Scope, ScopeIdentity};
use memory_wire::traverse::{
    Ctx, DocKey, DocSource, Memo, Mode, Root, Schema, SchemaPool, Seen, Selector, SourceError, Tracker, visit,
};
use memory_wire::value::Value;

struct Everywhere(Value);

impl DocSource for Everywhere {
    fn load(&mut self, _key: &DocKey) -> Result<Option<Value>, SourceError> {
        Ok(Some(self.0.clone()))
    }
}

fn reached(document: &Value, schema: &Schema) -> Option<Vec<String>> {
    let identity = ScopeIdentity::session("did:key:zA", "s");
    let (mut tracker, mut memo) = (Tracker::default(), Memo::new());
    let (mut schemas, mut seen) = (SchemaPool::new(), Seen::default());
    let mut ctx = Ctx {
        mode: Mode::Query,
        identity: &identity,
        tracker: &mut tracker,
        memo: &mut memo,
        schemas: &mut schemas,
        seen: &mut seen,
        max_open: 2000,
        skip_walked: true,
    };
    let root = Root {
        space: "did:key:zS".into(),
        id: "of:root".into(),
        scope: Scope::Space,
        explicit: None,
        document: Some(document.clone()),
    };
    let selector = Selector::from_root(&[], Some(schema.clone()));
    let _outcome = visit(&mut Everywhere(document.clone()), &mut ctx, &root, &selector).ok()?;
    Some(tracker.keys().map(ToString::to_string).collect())
}

fuzz_target!(|input: &str| {
    let Some((document, schema)) = input.split_once('\n') else {
        return;
    };
    let (Ok(document), Ok(schema)) = (decode(document), decode(schema)) else {
        return;
    };
    let schema = Schema::of(&schema);
    assert_eq!(reached(&document, &schema), reached(&document, &schema));
});
