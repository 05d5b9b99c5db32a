//! Responses of the admin API.

use super::request::etag;
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};

/// A response: a status, a body, and headers.
#[derive(Clone, Debug)]
pub(in crate::server::admin) struct Reply {
    pub(in crate::server::admin) status: StatusCode,
    pub(in crate::server::admin) body: Bytes,
    content_type: &'static str,
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl Reply {
    pub(in crate::server::admin) fn new(
        status: StatusCode,
        content_type: &'static str,
        body: impl Into<Bytes>,
    ) -> Self {
        Self {
            status,
            body: body.into(),
            content_type,
            headers: Vec::new(),
        }
    }

    pub(in crate::server::admin) fn json(status: StatusCode, body: &Value) -> Self {
        Self::new(status, "application/json", body.to_string())
    }

    pub(in crate::server::admin) fn ok(body: &Value) -> Self {
        Self::json(StatusCode::OK, body)
    }

    pub(in crate::server::admin) fn empty() -> Self {
        Self::new(StatusCode::NO_CONTENT, "", Bytes::new())
    }

    /// An item with its tag, as a header and as members.
    pub(in crate::server::admin) fn item(status: StatusCode, mut body: Value, epoch: u64, revision: u64) -> Self {
        let tag = etag::text(epoch, revision);
        if let Value::Object(members) = &mut body {
            members.insert("epoch".into(), epoch.into());
            members.insert("revision".into(), revision.into());
            members.insert("etag".into(), tag.as_str().into());
        }
        Self::json(status, &body).with_header(ETAG, &tag)
    }

    /// One page of a list.
    pub(in crate::server::admin) fn page(items: Vec<Value>, next: Option<String>) -> Self {
        Self::ok(&json!({ "items": items, "next": next }))
    }

    pub(in crate::server::admin) fn with_type(self, content_type: &'static str) -> Self {
        Self { content_type, ..self }
    }

    /// The same with a header; one that cannot be sent is left out.
    pub(in crate::server::admin) fn with_header(mut self, name: HeaderName, value: &str) -> Self {
        if let Ok(value) = HeaderValue::try_from(value) {
            self.headers.push((name, value));
        }
        self
    }

    pub(in crate::server::admin) fn into_response(self) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::new(self.body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        for (name, value) in PROTECTION {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if !self.content_type.is_empty() {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        }
        for (name, value) in self.headers {
            headers.append(name, value);
        }
        response
    }
}

/// Headers that keep a browser from doing anything but showing our own page.
const PROTECTION: [(&str, &str); 5] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
];
