//! Content that says whose it is: every value carries the owner of its instance in marks that occur nowhere else, so that a
//! frame can be searched for what it must not hold, whatever form it came in.

use serde_json::{Value as Json, json};

use crate::support::link;

/// Documents of the space.
pub(crate) const DOCUMENTS: usize = 7;
/// Those of them that others link to: they are always there, for a link to what is not there is the client's to watch
/// (ENG-1026). The others come and go.
pub(crate) const LINKED: usize = 5;

pub(crate) fn document(n: usize) -> String {
    format!("of:{n}")
}

/// Who an instance belongs to: nobody in particular, a principal, or one session of it.
pub(crate) fn owner(scope: &str, principal: &str, session: &str) -> String {
    match scope {
        "space" => "everyone".to_owned(),
        "user" => principal.to_owned(),
        _ => format!("{principal}/{session}"),
    }
}

/// A value of `owner`'s instance, the `n`th that was written, perhaps with a link to another document.
pub(crate) fn value(owner: &str, n: u64, next: Option<&str>) -> Json {
    let mut value = json!({ "mark": format!("«{owner}»{n}"), "list": [n] });
    if let Some(next) = next {
        value["next"] = link(next);
    }
    value
}

/// The document a value links to.
pub(crate) fn linked(value: &Json) -> Option<&str> {
    value["next"]["/quote"]["/"]["link@1"]["id"].as_str()
}

/// The owners a text has content of.
pub(crate) fn owners(text: &str) -> impl Iterator<Item = &str> {
    text.split('«').skip(1).filter_map(|rest| rest.split('»').next())
}

/// The numbers of the values a text has.
pub(crate) fn numbers(text: &str) -> impl Iterator<Item = u64> {
    text.split('»').skip(1).filter_map(|rest| {
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().ok()
    })
}
