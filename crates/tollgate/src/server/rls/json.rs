//! The rls messages as proto3 JSON: names in either spelling, large numbers also as strings, `null` for absent members.

mod walk;

use self::walk::walk;
use super::bounds::ALL_ENTRIES_MAX;
use super::rate_limit_descriptor::{Entry, RateLimitOverride};
use super::rate_limit_response::{DescriptorStatus, RateLimit};
use super::request::{DESCRIPTORS_MAX, ENTRIES_MAX};
use super::{RateLimitDescriptor, RateLimitRequest, RateLimitResponse, RateLimitUnit};
use prost_types::Struct;
use prost_types::value::Kind;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

/// An invalid request. The caller can fix it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonError {
    /// The invalid member, such as `descriptors[0].entries`; empty for the whole request.
    pub field: String,
    /// The error and the next step.
    pub detail: String,
}

/// Reads `{"domain":"default","descriptors":[{"entries":[{"key":"tenant","value":"acme"}]}],"hitsAddend":1}`.
///
/// A list that is too long is not decoded.
///
/// # Errors
/// The invalid member.
pub fn read(body: &[u8]) -> Result<RateLimitRequest, JsonError> {
    let value: &RawValue = serde_json::from_slice(body).map_err(|error| JsonError {
        field: String::new(),
        detail: format!("this is not JSON: {error}"),
    })?;
    let mut remaining = ALL_ENTRIES_MAX;
    message(value, "", |request: &mut RateLimitRequest, name, value, at| {
        match name {
            "domain" => request.domain = text(value, at)?,
            "descriptors" => {
                remaining = ALL_ENTRIES_MAX;
                request.descriptors = elements(value, at, DESCRIPTORS_MAX, |value, at| {
                    descriptor(value, at, &mut remaining)
                })?;
            }
            "hitsAddend" => request.hits_addend = u32_number(value, at)?,
            _ => return Err(unknown_member(at)),
        }
        Ok(())
    })
}

/// Reads a descriptor; `remaining` entries are left for all descriptors.
fn descriptor(value: &RawValue, at: &str, remaining: &mut usize) -> Result<RateLimitDescriptor, JsonError> {
    let descriptor = message(value, at, |descriptor: &mut RateLimitDescriptor, name, value, at| {
        match name {
            "entries" => descriptor.entries = elements(value, at, ENTRIES_MAX.min(*remaining), entry)?,
            "limit" => descriptor.limit = Some(limit(value, at)?),
            "hitsAddend" => descriptor.hits_addend = Some(number(value, at)?),
            "isNegativeHits" => {
                let flag = serde_json::from_str(value.get());
                descriptor.is_negative_hits = flag.map_err(|_| type_error(at, "true or false"))?;
            }
            _ => return Err(unknown_member(at)),
        }
        Ok(())
    })?;
    *remaining -= descriptor.entries.len().min(*remaining);
    Ok(descriptor)
}

fn entry(value: &RawValue, at: &str) -> Result<Entry, JsonError> {
    message(value, at, |entry: &mut Entry, name, value, at| {
        match name {
            "key" => entry.key = text(value, at)?.into(),
            "value" => entry.value = text(value, at)?.into(),
            _ => return Err(unknown_member(at)),
        }
        Ok(())
    })
}

fn limit(value: &RawValue, at: &str) -> Result<RateLimitOverride, JsonError> {
    message(value, at, |limit: &mut RateLimitOverride, name, value, at| {
        match name {
            "requestsPerUnit" => limit.requests_per_unit = u32_number(value, at)?,
            "unit" => {
                let by_name = || RateLimitUnit::from_str_name(&text(value, at).ok()?).map(i32::from);
                limit.unit = serde_json::from_str(value.get())
                    .ok()
                    .or_else(by_name)
                    .ok_or_else(|| type_error(at, "a unit such as \"MINUTE\""))?;
            }
            _ => return Err(unknown_member(at)),
        }
        Ok(())
    })
}

/// Reads an object into a message: `member` sets its members that are not `null`, by their JSON names.
fn message<T: Default>(
    value: &RawValue,
    at: &str,
    mut member: impl FnMut(&mut T, &str, &RawValue, &str) -> Result<(), JsonError>,
) -> Result<T, JsonError> {
    let mut message = T::default();
    walk(value, "an object", at, |name, _, value| {
        let name = name.unwrap_or_default();
        if value.get() == "null" {
            return Ok(());
        }
        match at {
            "" => member(&mut message, canonical_name(name), value, name),
            at => member(&mut message, canonical_name(name), value, &format!("{at}.{name}")),
        }
    })?;
    Ok(message)
}

/// Returns the JSON name of a member, which may also be spelled as in the proto files.
fn canonical_name(name: &str) -> &str {
    match name {
        "hits_addend" => "hitsAddend",
        "is_negative_hits" => "isNegativeHits",
        "requests_per_unit" => "requestsPerUnit",
        name => name,
    }
}

/// Reads a list of at most `max` elements.
fn elements<T>(
    value: &RawValue,
    at: &str,
    max: usize,
    mut read: impl FnMut(&RawValue, &str) -> Result<T, JsonError>,
) -> Result<Vec<T>, JsonError> {
    let mut items = Vec::new();
    walk(value, "a list", at, |_, index, item| {
        if index >= max {
            return Err(JsonError {
                field: at.to_owned(),
                detail: format!(
                    "has more than {max} elements; a request has at most {DESCRIPTORS_MAX} descriptors, each of at most \
                     {ENTRIES_MAX} entries, and {ALL_ENTRIES_MAX} entries in all"
                ),
            });
        }
        items.push(read(item, &format!("{at}[{index}]"))?);
        Ok(())
    })?;
    Ok(items)
}

fn text(value: &RawValue, at: &str) -> Result<String, JsonError> {
    serde_json::from_str(value.get()).map_err(|_| type_error(at, "a string"))
}

fn number(value: &RawValue, at: &str) -> Result<u64, JsonError> {
    let from_text = || serde_json::from_str::<String>(value.get()).ok()?.parse().ok();
    let number = value.get().parse().ok().or_else(from_text);
    number.ok_or_else(|| type_error(at, "a whole number that is not negative"))
}

fn u32_number(value: &RawValue, at: &str) -> Result<u32, JsonError> {
    let number = number(value, at)?;
    u32::try_from(number).map_err(|_| type_error(at, "a whole number below 2^32"))
}

fn type_error(at: &str, expected: &str) -> JsonError {
    JsonError {
        field: at.to_owned(),
        detail: format!("must be {expected}"),
    }
}

fn unknown_member(at: &str) -> JsonError {
    JsonError {
        field: at.to_owned(),
        detail: "is not a member of this message".to_owned(),
    }
}

/// Encodes a response. Default values are left out, as proto3 does.
pub fn encode(response: &RateLimitResponse) -> Value {
    let mut object = Map::new();
    object.insert("overallCode".into(), response.overall_code().as_str_name().into());
    object.insert("statuses".into(), response.statuses.iter().map(status).collect());
    let headers = &response.response_headers_to_add;
    if !headers.is_empty() {
        let header = |header: &super::HeaderValue| json!({ "key": header.key, "value": header.value });
        object.insert("responseHeadersToAdd".into(), headers.iter().map(header).collect());
    }
    if let Some(metadata) = &response.dynamic_metadata {
        object.insert("dynamicMetadata".into(), struct_value(metadata));
    }
    object.into()
}

fn struct_value(metadata: &Struct) -> Value {
    let fields = metadata.fields.iter();
    fields.map(|(name, value)| (name.clone(), json_value(value))).collect()
}

fn json_value(value: &prost_types::Value) -> Value {
    match &value.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::BoolValue(flag)) => (*flag).into(),
        // Integers are written without a fraction.
        Some(Kind::NumberValue(number)) => match format!("{number}").parse::<u64>() {
            Ok(integer) => integer.into(),
            Err(_) => (*number).into(),
        },
        Some(Kind::StringValue(text)) => text.clone().into(),
        Some(Kind::ListValue(list)) => list.values.iter().map(json_value).collect(),
        Some(Kind::StructValue(fields)) => struct_value(fields),
    }
}

fn status(status: &DescriptorStatus) -> Value {
    let mut object = Map::new();
    object.insert("code".into(), status.code().as_str_name().into());
    if let Some(limit) = &status.current_limit {
        object.insert("currentLimit".into(), current_limit(limit));
    }
    if status.limit_remaining > 0 {
        object.insert("limitRemaining".into(), status.limit_remaining.into());
    }
    if let Some(until) = &status.duration_until_reset {
        object.insert("durationUntilReset".into(), format!("{}s", until.seconds).into());
    }
    object.into()
}

fn current_limit(limit: &RateLimit) -> Value {
    let mut object = Map::new();
    if limit.requests_per_unit > 0 {
        object.insert("requestsPerUnit".into(), limit.requests_per_unit.into());
    }
    if limit.unit != 0 {
        object.insert("unit".into(), limit.unit().as_str_name().into());
    }
    if !limit.name.is_empty() {
        object.insert("name".into(), limit.name.clone().into());
    }
    object.into()
}
