//! Dynamic metadata of a response, for later filters of the proxy: the request, and the `metadata` of the limits that
//! allowed it.

use super::rate_limit_descriptor::RateLimitOverride;
use super::{RateLimitDescriptor, RateLimitRequest, RateLimitUnit};
use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};
use std::collections::btree_map::Entry;
use tollgate_limiter::core::yaml::{self, Node};
use tollgate_limiter::{CombinedVerdict, ItemVerdict};

/// Returns the metadata in the form of envoyproxy/ratelimit.
pub(super) fn dynamic_metadata(request: &RateLimitRequest, combined: &CombinedVerdict<'_>) -> Struct {
    let mut message = Struct::default();
    let mut insert = |name: &str, kind| message.fields.insert(name.to_owned(), value(kind));
    insert("domain", Kind::StringValue(request.domain.clone()));
    insert("descriptors", list(request.descriptors.iter().map(descriptor)));
    if request.hits_addend > 0 {
        insert("hitsAddend", Kind::NumberValue(request.hits_addend.into()));
    }
    let mut merged = Struct::default();
    for item in combined.items.iter().filter(|item| item.is_allow()) {
        let ItemVerdict::Rules(verdict) = item else { continue };
        let descriptors = verdict.rulings.iter().filter_map(|ruling| ruling.rule.descriptor());
        for metadata in descriptors.filter_map(|descriptor| descriptor.metadata.as_ref()) {
            if let Kind::StructValue(metadata) = from_yaml(metadata) {
                merge(&mut merged, metadata);
            }
        }
    }
    if !merged.fields.is_empty() {
        insert("metadata", Kind::StructValue(merged));
    }
    message
}

fn descriptor(descriptor: &RateLimitDescriptor) -> Kind {
    let mut message = Struct::default();
    let mut insert = |name: &str, kind| message.fields.insert(name.to_owned(), value(kind));
    let entries = descriptor.entries.iter();
    // The message has no bytes; what is not UTF-8 is replaced.
    let text = |bytes| String::from_utf8_lossy(bytes);
    let entries = entries.map(|entry| Kind::StringValue(format!("{}={}", text(&entry.key), text(&entry.value))));
    insert("entries", list(entries));
    if let Some(limit) = &descriptor.limit {
        insert("limit", Kind::StringValue(limit_text(limit)));
    }
    if let Some(hits) = descriptor.hits_addend {
        insert("hitsAddend", Kind::NumberValue(number(hits)));
    }
    Kind::StructValue(message)
}

fn limit_text(limit: &RateLimitOverride) -> String {
    let unit = RateLimitUnit::try_from(limit.unit).unwrap_or(RateLimitUnit::Unknown);
    format!(
        "requests_per_unit:{} unit:{}",
        limit.requests_per_unit,
        unit.as_str_name()
    )
}

/// Merges two structs. Nested structs are merged; of other values the first is kept.
fn merge(into: &mut Struct, from: Struct) {
    for (name, new) in from.fields {
        match into.fields.entry(name) {
            Entry::Vacant(vacant) => {
                vacant.insert(new);
            }
            Entry::Occupied(mut occupied) => {
                if let (Some(Kind::StructValue(existing)), Some(Kind::StructValue(new))) =
                    (&mut occupied.get_mut().kind, new.kind)
                {
                    merge(existing, new);
                }
            }
        }
    }
}

fn from_yaml(node: &Node) -> Kind {
    match &node.kind {
        yaml::NodeKind::Null => Kind::NullValue(0),
        yaml::NodeKind::Bool(flag) => Kind::BoolValue(*flag),
        yaml::NodeKind::Text(text) => Kind::StringValue(text.to_string()),
        yaml::NodeKind::Number(text) => match text.parse() {
            Ok(number) => Kind::NumberValue(number),
            Err(_) => Kind::StringValue(text.to_string()),
        },
        yaml::NodeKind::List(items) => list(items.iter().map(from_yaml)),
        yaml::NodeKind::Map(entries) => {
            let field = |(key, node): &(yaml::MapKey, Node)| (key.text.to_string(), value(from_yaml(node)));
            Kind::StructValue(Struct {
                fields: entries.iter().map(field).collect(),
            })
        }
    }
}

fn list(kinds: impl Iterator<Item = Kind>) -> Kind {
    Kind::ListValue(ListValue {
        values: kinds.map(value).collect(),
    })
}

const fn value(kind: Kind) -> Value {
    Value { kind: Some(kind) }
}

/// Converts a number to the only type these messages have.
#[expect(
    clippy::cast_precision_loss,
    reason = "the message type has only doubles, and nothing is computed from it"
)]
const fn number(number: u64) -> f64 {
    number as f64
}
