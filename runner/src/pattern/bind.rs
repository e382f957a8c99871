//! Bindings resolved to the documents of one piece.

use memory_wire::{EntityId, Object, Value};
use smol_str::SmolStr;

use crate::address::{Address, join};
use crate::entity_derivation::place_cause;
use crate::error::RunnerError;
use crate::link::Link;
use crate::pattern::graph::{Binding, BindingRoot, Template};

/// The documents of one piece.
#[derive(Clone, Debug)]
pub struct PieceLinks {
    /// The root (result) document.
    pub result: Link,
    /// The argument document.
    pub argument: Link,
    /// Internal documents by partial cause, in the pattern's order.
    pub internals: Vec<(Value, Link)>,
}

/// A template whose bindings are places.
#[derive(Clone, Debug)]
pub enum Bound {
    /// A plain value.
    Literal(Value),
    /// A place.
    Link(Link),
    /// An object.
    Object(Vec<(SmolStr, Bound)>),
    /// A list.
    Array(Vec<Bound>),
}

impl PieceLinks {
    /// The place a binding names.
    pub fn place(&self, binding: &Binding) -> Result<Link, RunnerError> {
        let root = match &binding.root {
            BindingRoot::Argument => &self.argument,
            BindingRoot::Result => &self.result,
            BindingRoot::Internal(cause) => self
                .internals
                .iter()
                .find(|(known, _)| memory_wire::equality::value_equal(known, cause))
                .map(|(_, link)| link)
                .ok_or_else(|| RunnerError::InvalidValue {
                    operation: "bind",
                    reason: format!("the pattern has no internal document {cause:?}"),
                })?,
        };
        let path = join(&root.path, &binding.path);
        Ok(Link {
            path,
            schema: binding.schema.clone(),
            ..root.clone()
        })
    }

    /// Resolves every binding of a template.
    pub fn bind(&self, template: &Template) -> Result<Bound, RunnerError> {
        Ok(match template {
            Template::Literal(value) => Bound::Literal(value.clone()),
            Template::Binding(binding) => Bound::Link(self.place(binding)?),
            Template::Object(fields) => Bound::Object(
                fields
                    .iter()
                    .map(|(key, field)| Ok((key.clone(), self.bind(field)?)))
                    .collect::<Result<_, RunnerError>>()?,
            ),
            Template::Array(items) => Bound::Array(
                items
                    .iter()
                    .map(|item| self.bind(item))
                    .collect::<Result<_, _>>()?,
            ),
        })
    }

    /// Every document of the piece with the id of its root.
    pub fn documents(&self) -> impl Iterator<Item = &Link> {
        [&self.result, &self.argument]
            .into_iter()
            .chain(self.internals.iter().map(|(_, link)| link))
    }

    /// Id of the piece.
    pub fn root_id(&self) -> &EntityId {
        &self.result.id
    }
}

impl Bound {
    /// The field `name` of an object.
    pub fn field(&self, name: &str) -> Option<&Bound> {
        match self {
            Bound::Object(fields) => fields.iter().find(|(key, _)| key == name).map(|(_, value)| value),
            Bound::Literal(_) | Bound::Link(_) | Bound::Array(_) => None,
        }
    }

    /// The same without the field `name`.
    pub fn without(&self, name: &str) -> Bound {
        match self {
            Bound::Object(fields) => {
                Bound::Object(fields.iter().filter(|(key, _)| key != name).cloned().collect())
            }
            Bound::Literal(_) | Bound::Link(_) | Bound::Array(_) => self.clone(),
        }
    }

    /// Every place in it.
    pub fn links(&self) -> Vec<Link> {
        let mut found = Vec::new();
        self.collect(&mut found);
        found
    }

    fn collect(&self, found: &mut Vec<Link>) {
        match self {
            Bound::Literal(_) => {}
            Bound::Link(link) => found.push(link.clone()),
            Bound::Object(fields) => fields.iter().for_each(|(_, field)| field.collect(found)),
            Bound::Array(items) => items.iter().for_each(|item| item.collect(found)),
        }
    }

    /// Addresses of every place in it.
    pub fn addresses(&self) -> Vec<Address> {
        self.links().iter().map(Link::address).collect()
    }

    /// The causal form: places without schemas (RUN-803).
    pub fn cause(&self) -> Value {
        match self {
            Bound::Literal(value) => value.clone(),
            Bound::Link(link) => place_cause(link),
            Bound::Object(fields) => Value::Object(
                fields
                    .iter()
                    .map(|(key, field)| (key.as_str(), field.cause()))
                    .collect::<Object>(),
            ),
            Bound::Array(items) => Value::from(items.iter().map(Bound::cause).collect::<Vec<_>>()),
        }
    }

    /// The stored form, links relative to `base`. With `redirect`, places become write redirects, as in a result
    /// projection (RUN-810).
    pub fn to_value(&self, base: &Link, redirect: bool) -> Value {
        match self {
            Bound::Literal(value) => value.clone(),
            Bound::Link(link) => Link {
                redirect,
                ..link.clone()
            }
            .to_value(Some(base)),
            Bound::Object(fields) => Value::Object(
                fields
                    .iter()
                    .map(|(key, field)| (key.as_str(), field.to_value(base, redirect)))
                    .collect::<Object>(),
            ),
            Bound::Array(items) => Value::from(
                items
                    .iter()
                    .map(|item| item.to_value(base, redirect))
                    .collect::<Vec<_>>(),
            ),
        }
    }
}
