//! Forward-auth: a gateway asks whether a request may pass, and reads the answer from the status.
//!
//! Nothing in the original request chooses rules or cost. The domain is in the path, which the gateway's configuration
//! writes; the cost is one; the attributes are extracted as the settings say.

mod original_request;

pub use tollgate_tower::extract::client_address;

use self::original_request::OriginalRequest;
use super::problem_details::ProblemDetails;
use crate::names::names;
use hyper::header::HeaderName;
use hyper::http::request::Parts;
use std::borrow::Cow;
use std::net::IpAddr;
use tollgate_limiter::core::network::Networks;
use tollgate_limiter::core::rules::Attribute;

/// The way attributes are extracted from the requests of a gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forward {
    /// The gateway. It describes the original request in one place, and nothing else is trusted.
    pub gateway: Gateway,
    /// The attributes by name, and the fields they are taken from.
    pub attributes: Vec<(Box<str>, RequestField)>,
    /// The proxies whose report of a client's address is trusted.
    pub trusted_proxies: Networks,
    /// The answer to requests to a domain without rules.
    pub unknown_domain: UnknownDomainPolicy,
}

/// The answer to a gateway that asks for a domain without rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnknownDomainPolicy {
    /// 404: the path in the gateway is misspelt, and nothing would be limited.
    #[default]
    Deny,
    /// 200.
    Allow,
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

/// A field of the original request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestField {
    /// Its normalized path, without the query.
    Path,
    /// Its method.
    Method,
    /// The host it was sent to, in lower case, without a port.
    Host,
    /// The address of the client.
    ClientIp,
    /// A header field; on several lines, several values.
    Header(HeaderName),
}

/// A parsed path: `/v1/forward/{domain}[/…]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardPath<'p> {
    /// The domain of the rules.
    pub domain: Cow<'p, str>,
    /// The rest of the path.
    pub rest: &'p str,
    /// The status of a denial.
    pub deny_status: DenyStatus,
}

/// The status of a denial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DenyStatus {
    /// 429, or 503 if the store is unavailable and a rule has `on_store_failure: closed`.
    Plain,
    /// 403 in any case: the only status that nginx passes on.
    Forbidden,
}

/// The attributes of one request, by name.
#[derive(Debug, PartialEq, Eq)]
pub struct ExtractedAttributes<'a>(Vec<(&'a str, Cow<'a, [u8]>)>);

impl Forward {
    /// The default attributes: `path`, `method`, `host` and `ip`.
    pub fn default_attributes() -> Vec<(Box<str>, RequestField)> {
        vec![
            ("path".into(), RequestField::Path),
            ("method".into(), RequestField::Method),
            ("host".into(), RequestField::Host),
            ("ip".into(), RequestField::ClientIp),
        ]
    }

    /// The address of the client of a request, where `peer` is the gateway.
    pub fn client_address(&self, head: &Parts, peer: IpAddr) -> IpAddr {
        let lines = head
            .headers
            .get_all(OriginalRequest::new(self.gateway, head, "").client_header());
        client_address(peer, lines.iter().map(|value| value.as_bytes()), &self.trusted_proxies)
    }

    /// Extracts the attributes of the original request from `head`. `rest` is the path behind the domain, `peer` the address
    /// of the gateway. A field that the gateway does not send is absent.
    ///
    /// # Errors
    /// A field that is there twice: no gateway sends it twice, and choosing one would be a guess.
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
                    let address = self.client_address(head, peer);
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
    /// The attributes as the rules take them.
    pub fn attributes(&self) -> Vec<Attribute<'_>> {
        let each = self.0.iter();
        each.map(|(name, value)| Attribute { name, value }).collect()
    }
}

impl Gateway {
    names! { "traefik" => Traefik, "caddy" => Caddy, "nginx" => Nginx, "envoy" => Envoy, "haproxy" => Haproxy }
}

impl UnknownDomainPolicy {
    names! { "deny" => Deny, "allow" => Allow }
}

impl RequestField {
    /// The field of a name in the settings: `path`, `method`, `host`, `client_ip` or `header:NAME`.
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
    /// Parses a path; none if it is not one of these. The first segment is the domain, whatever a gateway appends.
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

/// The paths as the OpenAPI document has them.
pub(super) const PATHS: [&str; 2] = ["/v1/forward-403/{domain}", "/v1/forward/{domain}"];

#[cfg(test)]
mod tests;
