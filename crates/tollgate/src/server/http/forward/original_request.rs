//! Reads the original request from the headers in which a gateway describes it.
//!
//! Paths and hosts have many equivalent spellings. They are normalized, or `/v1/%63harges` would not match a rule for
//! `/v1/charges`.

use super::Gateway;
use crate::server::http::problem_details::ProblemDetails;
use hyper::header::{HOST, HeaderName};
use hyper::http::request::Parts;
use std::borrow::Cow;
use std::sync::Once;
use tollgate_tower::extract::{normalize_host, normalize_path, unescape};

/// The original request that a head describes.
pub(super) struct OriginalRequest<'a> {
    sources: &'static HeaderSources,
    head: &'a Parts,
    /// The path behind the domain.
    rest: &'a str,
}

/// The headers in which a gateway describes a request.
struct HeaderSources {
    line: RequestLine,
    host: HeaderName,
    client: HeaderName,
}

/// The place of the original method and path.
enum RequestLine {
    /// In these headers.
    Headers { method: HeaderName, uri: HeaderName },
    /// In the request line, the path behind the domain.
    Direct,
}

impl<'a> OriginalRequest<'a> {
    pub(super) fn new(gateway: Gateway, head: &'a Parts, rest: &'a str) -> Self {
        let sources = match gateway {
            Gateway::Traefik | Gateway::Caddy | Gateway::Haproxy => &FORWARDED,
            Gateway::Nginx => &NGINX,
            Gateway::Envoy => &ENVOY,
        };
        Self { sources, head, rest }
    }

    /// The header that names the client.
    pub(super) fn client_header(&self) -> &'static HeaderName {
        &self.sources.client
    }

    pub(super) fn method(&self) -> Result<Option<Cow<'a, [u8]>>, ProblemDetails> {
        match &self.sources.line {
            RequestLine::Headers { method, .. } => {
                static WARNED: Once = Once::new();
                Ok(self.header(method, &WARNED)?.map(Cow::Borrowed))
            }
            RequestLine::Direct => Ok(Some(Cow::Borrowed(self.head.method.as_str().as_bytes()))),
        }
    }

    pub(super) fn path(&self) -> Result<Option<Cow<'a, [u8]>>, ProblemDetails> {
        match &self.sources.line {
            RequestLine::Headers { uri, .. } => {
                static WARNED: Once = Once::new();
                Ok(self.header(uri, &WARNED)?.map(normalize_path))
            }
            RequestLine::Direct => Ok(Some(normalize_path(self.rest.as_bytes()))),
        }
    }

    pub(super) fn host(&self) -> Result<Option<Cow<'a, [u8]>>, ProblemDetails> {
        let host_value = if self.sources.host == HOST {
            // HTTP/2 has it in `:authority`.
            let header = self.head.headers.get(HOST).map(|value| value.as_bytes());
            header.or_else(|| self.head.uri.host().map(str::as_bytes))
        } else {
            static WARNED: Once = Once::new();
            self.header(&self.sources.host, &WARNED)?
        };
        Ok(host_value.map(normalize_host))
    }

    /// The value of a header that the gateway sends once. Its absence is logged once for each of them.
    fn header(&self, name: &HeaderName, warned: &'static Once) -> Result<Option<&'a [u8]>, ProblemDetails> {
        let mut lines = self.head.headers.get_all(name).iter();
        match (lines.next(), lines.next()) {
            (Some(value), None) => Ok(Some(value.as_bytes())),
            (None, _) => {
                warned.call_once(|| {
                    tracing::warn!(
                        header = name.as_str(),
                        "the gateway does not send this header, so rules that need it do not match; \
                         check `forward_auth.gateway`"
                    );
                });
                Ok(None)
            }
            (Some(_), Some(_)) => Err(ProblemDetails::bad_request(format!(
                "more than one {name} header; the gateway must send one, and remove the client's own"
            ))),
        }
    }
}

/// Decodes a segment of a path; none if it is not UTF-8.
pub(super) fn decode_segment(segment: &str) -> Option<Cow<'_, str>> {
    if !segment.contains('%') {
        return Some(Cow::Borrowed(segment));
    }
    String::from_utf8(unescape(segment.as_bytes(), |_| true))
        .ok()
        .map(Cow::Owned)
}

/// Traefik, Caddy and our script for HAProxy overwrite these headers of a client.
static FORWARDED: HeaderSources = HeaderSources {
    line: RequestLine::Headers {
        method: HeaderName::from_static("x-forwarded-method"),
        uri: HeaderName::from_static("x-forwarded-uri"),
    },
    host: HeaderName::from_static("x-forwarded-host"),
    client: HeaderName::from_static("x-forwarded-for"),
};

/// Our configuration for nginx sets these; nginx always sets `Host`.
static NGINX: HeaderSources = HeaderSources {
    line: RequestLine::Headers {
        method: HeaderName::from_static("x-original-method"),
        uri: HeaderName::from_static("x-original-uri"),
    },
    host: HOST,
    client: HeaderName::from_static("x-real-ip"),
};

/// Envoy sends the original request itself.
static ENVOY: HeaderSources = HeaderSources {
    line: RequestLine::Direct,
    host: HOST,
    client: HeaderName::from_static("x-forwarded-for"),
};

#[cfg(test)]
mod tests;
