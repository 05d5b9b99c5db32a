//! Forward-auth: a gateway asks about a request that somebody else sent it, and takes the status for the answer.
//!
//! Nothing of that request chooses which rules are asked or what is charged. The domain stands in the path, which the
//! gateway's configuration writes, the cost is one, and what rules look at is read as the settings say.

mod client_address;
mod original_request;

pub use client_address::client_address;

use self::original_request::OriginalRequest;
use super::problem_details::ProblemDetails;
use hyper::header::HeaderName;
use hyper::http::request::Parts;
use std::borrow::Cow;
use std::net::IpAddr;
use tollgate_limiter::core::network::Networks;
use tollgate_limiter::core::rules::Attribute;

/// How requests are read that a gateway asks about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forward {
    /// Who asks: what it says of the original request is in one place, and nothing else is believed.
    pub gateway: Gateway,
    /// What rules see of a request, by name.
    pub attributes: Vec<(Box<str>, RequestField)>,
    /// Whose word on a client's address is taken.
    pub trusted_proxies: Networks,
}

/// A kind of gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gateway {
    /// Traefik's ForwardAuth.
    Traefik,
    /// Caddy's `forward_auth`.
    Caddy,
    /// nginx's `auth_request`.
    Nginx,
    /// Envoy's `ext_authz` over HTTP.
    Envoy,
    /// HAProxy with the Lua script of the examples.
    Haproxy,
}

/// A part of the original request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestField {
    /// Its path without the query, as all its spellings have it in common.
    Path,
    /// Its method.
    Method,
    /// The host it was sent to, in lower case, without a port.
    Host,
    /// The address of whoever sent it.
    ClientIp,
    /// A header field; on several lines, several values.
    Header(HeaderName),
}

/// What is asked: `/v1/forward/{domain}[/…]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardPath<'p> {
    /// The domain of the rules.
    pub domain: Cow<'p, str>,
    /// What follows it.
    pub rest: &'p str,
    /// How a refusal is told.
    pub deny_status: DenyStatus,
}

/// How a refusal is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DenyStatus {
    /// 429, or 503 if a rule could not be asked.
    Plain,
    /// 403 in any case: the one status that nginx hands on.
    Forbidden,
}

/// The attributes of one request, by name.
#[derive(Debug, PartialEq, Eq)]
pub struct ExtractedAttributes<'a>(Vec<(&'a str, Cow<'a, [u8]>)>);

impl Forward {
    /// What rules see if the settings do not say: `path`, `method`, `host` and `ip`.
    pub fn default_attributes() -> Vec<(Box<str>, RequestField)> {
        vec![
            ("path".into(), RequestField::Path),
            ("method".into(), RequestField::Method),
            ("host".into(), RequestField::Host),
            ("ip".into(), RequestField::ClientIp),
        ]
    }

    /// What rules see of the request that `head` asks about. `rest` is what follows the domain in its path, `peer` who sent
    /// it. What the gateway does not say is not there.
    ///
    /// # Errors
    /// A part that is said twice: no gateway does, and which of them holds would be a guess.
    pub fn extract<'a>(
        &'a self,
        head: &'a Parts,
        rest: &'a str,
        peer: IpAddr,
    ) -> Result<ExtractedAttributes<'a>, ProblemDetails> {
        let original = OriginalRequest::new(self.gateway, head, rest);
        let mut extracted = Vec::with_capacity(self.attributes.len());
        for (name, source) in &self.attributes {
            let value = match source {
                RequestField::Path => original.path()?,
                RequestField::Method => original.method()?,
                RequestField::Host => original.host()?,
                RequestField::ClientIp => {
                    let lines = head.headers.get_all(original.client_header()).iter();
                    let address = client_address(peer, lines.map(|value| value.as_bytes()), &self.trusted_proxies);
                    Some(Cow::Owned(address.to_string().into_bytes()))
                }
                RequestField::Header(field) => {
                    let lines = head.headers.get_all(field).iter();
                    extracted.extend(lines.map(|value| (&**name, Cow::Borrowed(value.as_bytes()))));
                    continue;
                }
            };
            extracted.extend(value.map(|value| (&**name, value)));
        }
        Ok(ExtractedAttributes(extracted))
    }
}

impl ExtractedAttributes<'_> {
    /// As rules take them.
    pub fn attributes(&self) -> Vec<Attribute<'_>> {
        let each = self.0.iter();
        each.map(|(name, value)| Attribute { name, value }).collect()
    }
}

impl Gateway {
    /// Each under the name that operators write.
    pub const NAMES: [(&'static str, Self); 5] = [
        ("traefik", Self::Traefik),
        ("caddy", Self::Caddy),
        ("nginx", Self::Nginx),
        ("envoy", Self::Envoy),
        ("haproxy", Self::Haproxy),
    ];
}

impl RequestField {
    /// As operators write it: `path`, `method`, `host`, `client_ip` or `header:NAME`.
    pub fn from_name(text: &str) -> Option<Self> {
        match text {
            "path" => Some(Self::Path),
            "method" => Some(Self::Method),
            "host" => Some(Self::Host),
            "client_ip" => Some(Self::ClientIp),
            _ => {
                let name = text.strip_prefix("header:")?;
                HeaderName::try_from(name).ok().map(Self::Header)
            }
        }
    }
}

impl<'p> ForwardPath<'p> {
    /// What a path asks for, if it is one of these. The first segment is the domain, whatever a gateway hangs behind it.
    pub fn parse(path: &'p str) -> Option<Self> {
        let (deny_status, suffix) = PREFIXES
            .iter()
            .find_map(|(prefix, deny_status)| Some((*deny_status, path.strip_prefix(prefix)?)))?;
        let (domain, rest) = match suffix.find('/') {
            Some(at) => suffix.split_at(at),
            None => (suffix, ""),
        };
        let domain = original_request::decode_segment(domain)?;
        (!domain.is_empty()).then_some(Self {
            domain,
            rest,
            deny_status,
        })
    }
}

const PREFIXES: [(&str, DenyStatus); 2] = [
    ("/v1/forward/", DenyStatus::Plain),
    ("/v1/forward-403/", DenyStatus::Forbidden),
];

/// As the description of the API writes these paths.
pub(super) const PATHS: [&str; 2] = ["/v1/forward-403/{domain}", "/v1/forward/{domain}"];

#[cfg(test)]
mod tests;
