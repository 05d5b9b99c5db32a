//! Parses request bodies. Any bytes result in a request or a problem; nothing panics, and nothing allocates more than was
//! sent.

mod elements;
mod fast_path;

use crate::server::http::problem_details::ProblemDetails;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;
use tollgate_limiter::core::Cost;
use tollgate_limiter::core::rules::{Attempt, Attribute};

/// The most attributes of one attempt.
pub const ATTRIBUTES_MAX: usize = 64;
/// The longest name of an attribute or a domain, in bytes.
pub const NAME_BYTES_MAX: usize = 256;
/// The longest value of an attribute, in bytes.
pub const VALUE_BYTES_MAX: usize = 8 * 1024;
/// The most attempts of one batch.
pub const BATCH_MAX: usize = 1_000;
/// The longest lease, in bytes. Ours are shorter.
const LEASE_BYTES_MAX: usize = 16 * 1024;

/// The body of a check, a refund, an explanation or a forget.
#[derive(Debug, PartialEq, Eq)]
pub struct CheckRequest<'a> {
    domain: Text<'a>,
    attributes: Attributes<'a>,
    cost: Cost,
    /// For forget only: the rule whose counters are cleared.
    rule: Option<Text<'a>>,
}

/// Attributes borrowed from the request, or decoded because of escapes.
#[derive(Debug)]
enum Attributes<'a> {
    Borrowed(Vec<Attribute<'a>>),
    Decoded(Vec<(Text<'a>, Text<'a>)>),
}

/// Text borrowed from the request, unless it has escapes.
type Text<'a> = Cow<'a, str>;

/// The member a request may have besides `domain` and `attributes`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// `cost`.
    Attempt,
    /// `rule`.
    Subject,
}

/// `{"domain":"default","attributes":{"merchant":"m_1"},"cost":1}`: domain and cost are optional.
///
/// # Errors
/// The problem, with the member that has it.
pub fn attempt(body: &[u8]) -> Result<CheckRequest<'_>, ProblemDetails> {
    parse_attempt(utf8(body)?)
}

/// An array of attempts.
///
/// # Errors
/// The problem, with the element and the member that have it.
pub fn batch(body: &[u8]) -> Result<Vec<CheckRequest<'_>>, ProblemDetails> {
    let each = elements::read(body)?.into_iter().enumerate();
    each.map(|(index, element)| parse_attempt(element.get()).map_err(|problem| problem.at_index(index)))
        .collect()
}

fn parse_attempt(json: &str) -> Result<CheckRequest<'_>, ProblemDetails> {
    match fast_path::attempt(json) {
        Some(request) => Ok(request),
        None => CheckRequest::read(json, Form::Attempt),
    }
}

/// `{"domain":"default","attributes":{"merchant":"m_1"},"rule":"merchant-plan"}`: domain and rule are optional.
///
/// # Errors
/// The problem, with the member that has it.
pub fn subject(body: &[u8]) -> Result<CheckRequest<'_>, ProblemDetails> {
    CheckRequest::read(utf8(body)?, Form::Subject)
}

/// `{"lease":"…"}`.
///
/// # Errors
/// The problem, with the member that has it.
pub fn lease(body: &[u8]) -> Result<Text<'_>, ProblemDetails> {
    let members = Members::read(utf8(body)?)?;
    let mut lease = None;
    for (name, value) in members.entries {
        match &*name {
            "lease" => set_once(&mut lease, &name, parse_string(&name, value, LEASE_BYTES_MAX)?)?,
            _ => return Err(unknown(&name, "lease")),
        }
    }
    lease.ok_or_else(|| ProblemDetails::for_field("lease", "is missing; send the lease that a check returned"))
}

impl<'a> CheckRequest<'a> {
    fn read(json: &'a str, form: Form) -> Result<Self, ProblemDetails> {
        let members = Members::read(json)?;
        let (mut domain, mut attributes, mut cost, mut rule) = (None, None, None, None);
        for (name, value) in members.entries {
            match &*name {
                "domain" => set_once(&mut domain, &name, parse_domain(&name, value)?)?,
                "attributes" => set_once(&mut attributes, &name, parse_attributes(value)?)?,
                "cost" if form == Form::Attempt => set_once(&mut cost, &name, parse_cost(value)?)?,
                "rule" if form == Form::Subject => {
                    set_once(&mut rule, &name, parse_string(&name, value, NAME_BYTES_MAX)?)?;
                }
                _ if form == Form::Attempt => return Err(unknown(&name, "domain, attributes and cost")),
                _ => return Err(unknown(&name, "domain, attributes and rule")),
            }
        }
        let Some(attributes) = attributes else {
            return Err(ProblemDetails::for_field(
                "attributes",
                "is missing; send {} for an attempt without any",
            ));
        };
        Ok(Self {
            domain: domain.unwrap_or(Cow::Borrowed(Attempt::DOMAIN)),
            attributes: Attributes::Decoded(attributes),
            cost: cost.unwrap_or(Cost::ONE),
            rule,
        })
    }

    /// The attributes as rules see them.
    pub fn attributes(&self) -> Cow<'_, [Attribute<'_>]> {
        self.attributes.to_attributes()
    }

    /// The attempt, with the attributes of [`CheckRequest::attributes`].
    pub fn attempt<'b>(&'b self, attributes: &'b [Attribute<'b>]) -> Attempt<'b> {
        Attempt {
            domain: &self.domain,
            attributes,
            cost: self.cost,
        }
    }

    /// The rule, if one is named.
    pub fn rule(&self) -> Option<&str> {
        self.rule.as_deref()
    }
}

impl Attributes<'_> {
    fn to_attributes(&self) -> Cow<'_, [Attribute<'_>]> {
        let read = match self {
            Self::Borrowed(attributes) => return Cow::Borrowed(attributes),
            Self::Decoded(attributes) => attributes.iter(),
        };
        read.map(|(name, value)| Attribute {
            name,
            value: value.as_bytes(),
        })
        .collect()
    }
}

impl PartialEq for Attributes<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.to_attributes() == other.to_attributes()
    }
}

impl Eq for Attributes<'_> {}

fn parse_attributes<'a>(value: &'a RawValue) -> Result<Vec<(Text<'a>, Text<'a>)>, ProblemDetails> {
    if !value.get().starts_with('{') {
        return Err(ProblemDetails::for_field(
            "attributes",
            "must be an object of names and values",
        ));
    }
    let members = Members::read(value.get()).map_err(|problem| ProblemDetails {
        field: Some("attributes".into()),
        ..problem
    })?;
    if members.count > ATTRIBUTES_MAX {
        let detail = format!(
            "has {} members, and an attempt has at most {ATTRIBUTES_MAX} attributes; send those that rules use",
            members.count
        );
        return Err(ProblemDetails::for_field("attributes", detail));
    }
    let mut attributes: Vec<(Text<'a>, Text<'a>)> = Vec::with_capacity(members.count);
    for (name, value) in members.entries {
        let field = || format!("attributes.{name}");
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            let detail = format!("the name of an attribute has 1 to {NAME_BYTES_MAX} bytes");
            return Err(ProblemDetails::for_field("attributes", detail));
        }
        if attributes.iter().any(|(other, _)| *other == name) {
            return Err(ProblemDetails::for_field(
                field(),
                "duplicate attribute; an attribute has one value",
            ));
        }
        let json = value.get();
        let value = match json.as_bytes().first() {
            Some(b'"') => unquoted(json).map_err(|detail| ProblemDetails::for_field(field(), detail))?,
            // A number or a boolean is its text: `1.0` and `1` are different values.
            Some(b'-' | b'0'..=b'9' | b't' | b'f') => Cow::Borrowed(json),
            _ => {
                return Err(ProblemDetails::for_field(
                    field(),
                    "must be a string, a number or a boolean",
                ));
            }
        };
        if value.len() > VALUE_BYTES_MAX {
            return Err(ProblemDetails::for_field(
                field(),
                format!("has more than {VALUE_BYTES_MAX} bytes"),
            ));
        }
        attributes.push((name, value));
    }
    Ok(attributes)
}

fn parse_cost(value: &RawValue) -> Result<Cost, ProblemDetails> {
    let digits = value.get();
    let units = digits
        .bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| digits.parse().ok());
    let cost = units.flatten().and_then(|units| Cost::new(units).ok());
    cost.ok_or_else(|| {
        ProblemDetails::for_field("cost", format!("must be a whole number from 0 to {}", Cost::MAX.get()))
    })
}

fn parse_string<'a>(name: &str, value: &'a RawValue, bytes_max: usize) -> Result<Text<'a>, ProblemDetails> {
    if !value.get().starts_with('"') {
        return Err(ProblemDetails::for_field(name, "must be a string"));
    }
    let text = unquoted(value.get()).map_err(|detail| ProblemDetails::for_field(name, detail))?;
    if text.len() > bytes_max {
        return Err(ProblemDetails::for_field(
            name,
            format!("has more than {bytes_max} bytes"),
        ));
    }
    Ok(text)
}

/// The name of a domain. An empty one is a caller's mistake, such as a variable that is not set: no rule has it, so nothing
/// would be limited.
fn parse_domain<'a>(name: &str, value: &'a RawValue) -> Result<Text<'a>, ProblemDetails> {
    let domain = parse_string(name, value, NAME_BYTES_MAX)?;
    match domain.is_empty() {
        true => Err(ProblemDetails::for_field(
            name,
            "is empty; send the domain of the rules, or leave it out for `default`",
        )),
        false => Ok(domain),
    }
}

/// The text of a JSON string; borrowed if it has no escapes.
fn unquoted(json: &str) -> Result<Text<'_>, String> {
    let inner = json.get(1..json.len().saturating_sub(1)).unwrap_or_default();
    if !inner.contains('\\') {
        return Ok(Cow::Borrowed(inner));
    }
    let text: Result<String, _> = serde_json::from_str(json);
    text.map(Cow::Owned)
        .map_err(|error| format!("is a string that cannot be read: {error}"))
}

fn set_once<T>(slot: &mut Option<T>, name: &str, value: T) -> Result<(), ProblemDetails> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(ProblemDetails::for_field(name, "duplicate member")),
    }
}

fn unknown(name: &str, known: &'static str) -> ProblemDetails {
    let mut display_name: String = name.chars().take(NAME_BYTES_MAX).collect();
    if display_name.len() < name.len() {
        display_name.push('…');
    }
    ProblemDetails::for_field(display_name, format!("is not a member of this request; it has {known}"))
}

fn utf8(body: &[u8]) -> Result<&str, ProblemDetails> {
    std::str::from_utf8(body).map_err(|error| not_utf8(&error))
}

fn not_utf8(error: &std::str::Utf8Error) -> ProblemDetails {
    let at = error.valid_up_to();
    ProblemDetails::bad_request(format!("the body is not UTF-8: see the byte at {at}"))
}

/// The members of an object in order, with their raw values.
struct Members<'a> {
    /// At most as many as any object of a request may have.
    entries: Vec<(Text<'a>, &'a RawValue)>,
    /// The number of all members.
    count: usize,
}

impl<'a> Members<'a> {
    fn read(json: &'a str) -> Result<Self, ProblemDetails> {
        serde_json::from_str(json)
            .map_err(|error| ProblemDetails::bad_request(format!("this is not an object in JSON: {error}")))
    }
}

impl<'de: 'a, 'a> serde::Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MembersVisitor;
        impl<'de> Visitor<'de> for MembersVisitor {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
                let mut read = Vec::with_capacity(4);
                while read.len() < ATTRIBUTES_MAX
                    && let Some(Name(name)) = map.next_key()?
                {
                    read.push((name, map.next_value()?));
                }
                let mut count = read.len();
                // After the end of an object, `next_entry` must not be called.
                if count == ATTRIBUTES_MAX {
                    while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
                        count += 1;
                    }
                }
                Ok(Members { entries: read, count })
            }
        }
        deserializer.deserialize_map(MembersVisitor)
    }
}

/// A member's name; borrowed if it has no escapes.
#[derive(serde::Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

#[cfg(test)]
mod tests;
