//! `attributes`: the attributes of forwarded requests and their sources, and those that callers send themselves.

use super::reader::SettingsReader;
use crate::server::http::{Forward, RequestField};
use tollgate_limiter::core::problem::{Problem, closest_match};
use tollgate_limiter::core::rules::holds_addresses;
use tollgate_limiter::core::spelling::{is_misspelling, is_misspelling_of_known, words};
use tollgate_limiter::core::yaml::{MapKey, Node};

/// The attributes of all callers.
#[derive(Clone, Debug)]
pub(super) struct AttributeSettings {
    /// Those that forward-auth takes from a request.
    pub(super) extracted: Vec<(Box<str>, RequestField)>,
    /// Those that callers of the other protocols send themselves.
    pub(super) from_callers: Vec<Box<str>>,
}

/// The source of an attribute.
enum AttributeSource {
    /// A field of the original request.
    Request(RequestField),
    /// Callers send it.
    Caller,
    /// It is removed.
    None,
}

impl Default for AttributeSettings {
    fn default() -> Self {
        Self {
            extracted: Forward::default_attributes(),
            from_callers: Vec::new(),
        }
    }
}

impl SettingsReader<'_> {
    /// The default attributes with those of the settings: a name that is there replaces its default, `none` removes it.
    /// None if one of them is invalid.
    pub(super) fn attributes(&mut self, node: &Node) -> Option<AttributeSettings> {
        let entries = node.entries(
            "names of attributes and their sources",
            "{ merchant: header:x-merchant-id }",
            &mut self.problems,
        )?;
        let mut settings = AttributeSettings::default();
        let mut is_valid = true;
        for (name, source) in entries {
            settings.extracted.retain(|(known, _)| *known != name.text);
            match self.attribute_source(source) {
                None => is_valid = false,
                Some(AttributeSource::None) => {}
                Some(AttributeSource::Caller) => settings.from_callers.push(name.text.clone()),
                Some(AttributeSource::Request(field)) => {
                    self.lint_source(name, source, &field, &settings.extracted);
                    settings.extracted.push((name.text.clone(), field));
                }
            }
        }
        is_valid.then_some(settings)
    }

    fn attribute_source(&mut self, node: &Node) -> Option<AttributeSource> {
        let text = node.text("the source of an attribute", &mut self.problems)?;
        match text {
            "none" => return Some(AttributeSource::None),
            "caller" => return Some(AttributeSource::Caller),
            _ => {}
        }
        let field = RequestField::from_name(text);
        if field.is_none() {
            let all = "write `path`, `method`, `host`, `client_ip`, `header:NAME`, `caller` or `none`";
            let suggestion = match text.split_once(':') {
                Some((prefix, name)) => closest_match(prefix, ["header"]).map(|known| format!("{known}:{name}")),
                None => closest_match(text, SOURCES).map(str::to_owned),
            };
            let hint = match suggestion.filter(|suggestion| suggestion != text) {
                Some(suggestion) => format!("did you mean `{suggestion}`? {all}"),
                None => all.to_owned(),
            };
            self.problems
                .error_with(&node.location, "unknown source of an attribute", hint);
        }
        field.map(AttributeSource::Request)
    }

    /// Warns of a source that is probably a mistake. `others` are the attributes before it.
    fn lint_source(&mut self, name: &MapKey, node: &Node, field: &RequestField, others: &[(Box<str>, RequestField)]) {
        match field {
            RequestField::ClientIp if !holds_addresses(&name.text) => {
                let text = format!(
                    "rules do not treat `{}` as an address, so each IPv6 address is counted separately",
                    name.text
                );
                let hint = "a client with one IPv6 address has millions; name the attribute `ip` or `client_ip`, so that `ipv6_prefix` applies";
                self.problems
                    .push(Problem::warning(&name.location, text).with_hint(hint));
            }
            RequestField::Header(header) => {
                if let Some(meant) = header_meant(header.as_str(), &name.text, others) {
                    let text = format!("the header `{header}` may be misspelt");
                    let hint = format!("did you mean `{meant}`? requests without it have no `{}`", name.text);
                    self.problems
                        .push(Problem::warning(&node.location, text).with_hint(hint));
                }
            }
            _ => {}
        }
    }
}

/// The header that a probably misspelt one means: a standard one, one of another attribute, or one with a word of the
/// attribute's name in it.
fn header_meant(header: &str, attribute: &str, others: &[(Box<str>, RequestField)]) -> Option<String> {
    if HEADERS.contains(&header) {
        return None;
    }
    let standard = HEADERS.iter().find(|known| is_misspelling_of_known(header, known));
    let other = others.iter().find_map(|(_, field)| match field {
        RequestField::Header(other) if is_misspelling(other.as_str(), header) => Some(other.as_str()),
        _ => None,
    });
    if let Some(known) = standard.copied().or(other) {
        return Some(known.to_owned());
    }
    let of_header = words(header);
    let attribute = attribute.to_lowercase();
    words(&attribute).into_iter().find_map(|word| {
        let is_misspelt = |of_header: &&str| is_misspelling(of_header, word) && word.len() > 3;
        let misspelt = of_header.iter().copied().find(is_misspelt);
        let misspelt = misspelt.filter(|_| !of_header.contains(&word))?;
        Some(header.replacen(misspelt, word, 1))
    })
}

const SOURCES: [&str; 6] = ["path", "method", "host", "client_ip", "caller", "none"];

/// Headers that requests usually have.
const HEADERS: [&str; 30] = [
    "accept",
    "accept-encoding",
    "accept-language",
    "authorization",
    "cf-connecting-ip",
    "content-length",
    "content-type",
    "cookie",
    "forwarded",
    "idempotency-key",
    "origin",
    "proxy-authorization",
    "referer",
    "sec-fetch-mode",
    "traceparent",
    "true-client-ip",
    "user-agent",
    "x-api-key",
    "x-client-id",
    "x-correlation-id",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-organization-id",
    "x-real-ip",
    "x-request-id",
    "x-session-id",
    "x-tenant-id",
    "x-trace-id",
    "x-user-id",
];
