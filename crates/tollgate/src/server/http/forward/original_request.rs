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

/// Normalizes the path of a URI: no query, no fragment, no `.` and `..`, no empty segments, no needless escapes, and escapes
/// in upper case.
fn normalize_path(uri: &[u8]) -> Cow<'_, [u8]> {
    let end = uri.iter().position(|byte| b"?#".contains(byte)).unwrap_or(uri.len());
    let path = without_authority(uri.get(..end).unwrap_or(uri));
    if path.is_empty() {
        return Cow::Borrowed(b"/");
    }
    let is_irregular = |pair: &[u8]| matches!(pair, [b'/', b'/' | b'.']);
    if path.first() != Some(&b'/') || !(path.contains(&b'%') || path.windows(2).any(is_irregular)) {
        return Cow::Borrowed(path);
    }
    let plain = unescape(path, is_unreserved);
    let mut path = Vec::with_capacity(plain.len());
    // It is a folder if it ends in a slash, `.` or `..`.
    let mut is_folder = false;
    for segment in plain.split(|byte| *byte == b'/') {
        is_folder = matches!(segment, b"" | b"." | b"..");
        match segment {
            b"" | b"." => {}
            b".." => path.truncate(path.iter().rposition(|byte| *byte == b'/').unwrap_or(0)),
            _ => {
                path.push(b'/');
                path.extend_from_slice(segment);
            }
        }
    }
    if is_folder {
        path.push(b'/');
    }
    Cow::Owned(path)
}

/// The part behind scheme and host, if a client sent them.
fn without_authority(uri: &[u8]) -> &[u8] {
    if uri.first() == Some(&b'/') {
        return uri;
    }
    let Some(scheme) = uri.windows(3).position(|three| three == b"://") else {
        return uri;
    };
    let rest = uri.get(scheme + 3..).unwrap_or_default();
    let path = rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
    rest.get(path..).unwrap_or_default()
}

/// Normalizes a host: lower case, no port, no final dot.
fn normalize_host(value: &[u8]) -> Cow<'_, [u8]> {
    let mut parts = value.rsplitn(2, |byte| *byte == b':');
    let name = match (parts.next(), parts.next()) {
        (Some(port), Some(name)) if port.iter().all(u8::is_ascii_digit) => name,
        _ => value,
    };
    let name = name.strip_suffix(b".").unwrap_or(name);
    if name.iter().any(u8::is_ascii_uppercase) {
        Cow::Owned(name.to_ascii_lowercase())
    } else {
        Cow::Borrowed(name)
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

/// Decodes the escapes of bytes that `should_decode` accepts. Other escapes become upper case.
fn unescape(text: &[u8], should_decode: impl Fn(u8) -> bool) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        let escaped = match (first, after) {
            (b'%', [high, low, after @ ..]) => hex(*high).zip(hex(*low)).map(|digits| (digits, [*high, *low], after)),
            _ => None,
        };
        match escaped {
            None => plain.push(*first),
            Some(((high, low), hex_digits, after)) => {
                rest = after;
                let byte = high << 4 | low;
                if should_decode(byte) {
                    plain.push(byte);
                } else {
                    plain.push(b'%');
                    plain.extend(hex_digits.map(|digit| digit.to_ascii_uppercase()));
                }
            }
        }
    }
    plain
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit)
        .to_digit(16)
        .and_then(|value| u8::try_from(value).ok())
}

/// True for bytes that mean the same escaped or not (RFC 3986, 2.3).
fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
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
