//! The kinds that check one pure function.

use memory_wire::traverse::{
    self, Addr, Build, DocKey, Memo, Node, NodeIx, Schema, SchemaPool, Tracker, Tree, TypeName, Verdict,
};
use memory_wire::{EntityId, Scope, ScopeKey, SpaceId, Value};
use serde_json::Value as Json;

use super::line;

fn same(what: &str, ours: &Value, theirs: &Value) -> Result<(), String> {
    let (ours, theirs) = (line::text(ours), line::text(theirs));
    if ours == theirs {
        Ok(())
    } else {
        Err(format!("{what}\n  ours   {ours}\n  theirs {theirs}"))
    }
}

pub(crate) fn schema_at_path(line: &Json) -> Result<(), String> {
    let mut pool = SchemaPool::new();
    let schema = line::schema(line.get("schema")).unwrap();
    let path = line::path(&line["path"]);
    let plain = line::value(line.get("ours").unwrap_or(&line["expect"]));
    same(
        "plain",
        traverse::narrow(&mut pool, &schema, &path).value(),
        &plain,
    )?;
    let marked = line.get("withMarkers").map_or(plain, line::value);
    same(
        "with markers",
        traverse::narrow_marked(&mut pool, &schema, &path).value(),
        &marked,
    )
}

pub(crate) fn combine(line: &Json) -> Result<(), String> {
    let (parent, link) = (line::schema(line.get("parent")), line::schema(line.get("link")));
    let combined = traverse::combine_optional(&mut SchemaPool::new(), parent.as_ref(), link.as_ref());
    match (combined, &line["expect"]) {
        (None, Json::Null) => Ok(()),
        (Some(ours), expect) => same("combined", ours.value(), &line::value(expect)),
        (None, expect) => Err(format!("absent, expected {expect}")),
    }
}

pub(crate) fn type_check(line: &Json) -> Result<(), String> {
    let schema = line::schema(line.get("schema")).unwrap();
    let mut pool = SchemaPool::new();
    for (name, expect) in line["expect"].as_object().unwrap() {
        let ty = match name.as_str() {
            "string" => TypeName::String,
            "number" => TypeName::Number,
            "integer" => TypeName::Integer,
            "boolean" => TypeName::Boolean,
            "null" => TypeName::Null,
            "undefined" => TypeName::Undefined,
            "object" => TypeName::Object,
            "array" => TypeName::Array,
            "FabricBytes" => TypeName::FabricBytes,
            other => return Err(format!("unknown type {other}")),
        };
        let ours = match traverse::type_check(&mut pool, &schema, ty) {
            Verdict::Yes => "yes",
            Verdict::Unknown => "unknown",
            Verdict::No => "no",
        };
        if ours != expect {
            return Err(format!("{name}: {ours}, expected {expect}"));
        }
    }
    Ok(())
}

pub(crate) fn branch_match(line: &Json) -> Result<(), String> {
    let schema = line::schema(line.get("schema")).unwrap();
    let ours = traverse::branch_may_match(&mut SchemaPool::new(), &schema, &line::value(&line["value"]));
    if ours == line["expect"] {
        Ok(())
    } else {
        Err(format!("{ours}"))
    }
}

pub(crate) fn scope_cap(line: &Json) -> Result<(), String> {
    let schema = line::schema(line.get("schema")).unwrap();
    let hop = traverse::hop_cap(&mut SchemaPool::new(), &schema).map(|cap| cap.as_str());
    let handle = traverse::handle_cap(&schema).map(|cap| cap.as_str());
    let ours = serde_json::json!({ "hop": hop, "handle": handle, "isHandle": schema.is_handle() });
    if ours == line["expect"] {
        Ok(())
    } else {
        Err(format!("{ours}"))
    }
}

pub(crate) fn covers(line: &Json) -> Result<(), String> {
    let key = DocKey::new(SpaceId::from("s"), ScopeKey::space(), EntityId::from("of:a"));
    let mut tracker = Tracker::new();
    for tracked in line["tracked"].as_array().unwrap() {
        tracker.add(&key, line::selector(tracked));
    }
    let ours = traverse::covered(&tracker, &key, &line::selector(&line["selector"]));
    if ours == line["expect"] {
        Ok(())
    } else {
        Err(format!("{ours}"))
    }
}

pub(crate) fn memo_identity(line: &Json) -> Result<(), String> {
    let mut memo: Memo<()> = Memo::new();
    memo.bind(&line::identity(&line["first"])).unwrap();
    let ours = memo.bind(&line::identity(&line["second"])).is_ok();
    if ours == line["expect"] {
        Ok(())
    } else {
        Err(format!("{ours}"))
    }
}

fn plant(tree: &mut Tree, json: &Json) -> NodeIx {
    let at = Addr {
        space: SpaceId::from("s"),
        id: EntityId::from("of:a"),
        scope: Scope::Space,
        path: Vec::new(),
    };
    match json {
        Json::Object(members) => {
            let object = tree.object(at);
            for (key, member) in members {
                let member = plant(tree, member);
                tree.insert(&object, &key.as_str().into(), member);
            }
            object
        }
        Json::Array(elements) => {
            let array = tree.array(at);
            for element in elements {
                let element = plant(tree, element);
                tree.push(&array, Some(element));
            }
            array
        }
        leaf => tree.leaf(&line::value(leaf)),
    }
}

fn harvest(tree: &Tree, ix: NodeIx) -> Value {
    match tree.node(ix) {
        Node::Leaf(value) => value.clone(),
        Node::Object { members, .. } => Value::Object(
            members
                .iter()
                .map(|(key, member)| (key.clone(), harvest(tree, *member)))
                .collect(),
        ),
        Node::Array { elements, .. } => Value::Array(
            elements
                .iter()
                .map(|e| e.map_or(Value::Undefined, |e| harvest(tree, e)))
                .collect(),
        ),
        other => panic!("no such node in these lines: {other:?}"),
    }
}

pub(crate) fn merge_matches(line: &Json) -> Result<(), String> {
    let mut tree = Tree::new();
    let matches = line["matches"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| plant(&mut tree, m))
        .collect();
    let merged = traverse::merge_matches(&mut tree, matches, &Schema::everything());
    match (merged, &line["expect"]) {
        (None, Json::Null) => Ok(()),
        (Some(ix), expect) => same("merged", &harvest(&tree, ix), &line::value(expect)),
        (None, expect) => Err(format!("nothing, expected {expect}")),
    }
}

pub(crate) fn resolve_ref(line: &Json) -> Result<(), String> {
    let schema = line::schema(line.get("schema")).unwrap();
    match (
        traverse::resolve_ref(&mut SchemaPool::new(), &schema),
        &line["expect"],
    ) {
        (None, Json::Null) => Ok(()),
        (Some(ours), expect) if !expect.is_null() => same("resolved", ours.value(), &line::value(expect)),
        (ours, expect) => Err(format!("{ours:?}, expected {expect}")),
    }
}

pub(crate) fn embedded(line: &Json) -> Result<(), String> {
    let reference = memory_wire::value!({ "$ref": (line["ref"].as_str().unwrap()) });
    let resolved =
        traverse::resolve_ref(&mut SchemaPool::new(), &Schema::of(&reference)).ok_or("unresolvable")?;
    // The reference resolves to the content; a compiled-in schema that is itself a reference has been followed.
    let content = line::value(&line["schema"]);
    if memory_wire::hash::tagged_hash(&content) != line["hash"].as_str().unwrap() {
        return Err("the line's own hash differs".into());
    }
    let expect =
        traverse::resolve_ref(&mut SchemaPool::new(), &Schema::of(&content)).ok_or("unresolvable content")?;
    if content.member("$ref").is_none() {
        return same("content", resolved.value(), &content);
    }
    same("resolved content", resolved.value(), expect.value())
}
