//! Problem details of RFC 9457.

use super::json::ObjectWriter;
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use std::borrow::Cow;

/// The error response to a request. The client can fix it, unless the status is 5xx.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProblemDetails {
    /// The status of the response.
    pub status: StatusCode,
    /// The error and its remedy.
    pub detail: Cow<'static, str>,
    /// The member of the request that has the error, such as `attributes.merchant`.
    pub field: Option<String>,
    /// The index of the element of a batch that has the error.
    pub index: Option<usize>,
    /// A header that belongs to the status.
    pub header: Option<(HeaderName, &'static str)>,
}

impl ProblemDetails {
    pub(crate) fn new(status: StatusCode, detail: impl Into<Cow<'static, str>>) -> Self {
        Self {
            status,
            detail: detail.into(),
            field: None,
            index: None,
            header: None,
        }
    }

    /// An error of one member.
    pub(crate) fn for_field(field: impl Into<String>, detail: impl Into<Cow<'static, str>>) -> Self {
        Self {
            field: Some(field.into()),
            ..Self::bad_request(detail)
        }
    }

    /// An error of the request as a whole.
    pub(crate) fn bad_request(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// An error of one element of a batch.
    pub(crate) fn at_index(self, index: usize) -> Self {
        Self {
            index: Some(index),
            detail: format!("{} (element {index} of the batch, counted from 0)", self.detail).into(),
            ..self
        }
    }

    pub(crate) fn with_header(self, name: HeaderName, value: &'static str) -> Self {
        Self {
            header: Some((name, value)),
            ..self
        }
    }

    pub(super) fn into_response(self) -> Response<Full<Bytes>> {
        let mut body = Vec::with_capacity(256);
        ObjectWriter::write(&mut body, |object| {
            object.value("type", "about:blank");
            object.value("title", self.status.canonical_reason().unwrap_or("Error"));
            object.value("status", &self.status.as_u16());
            object.value("detail", &*self.detail);
            if let Some(field) = &self.field {
                object.value("field", field);
            }
            if let Some(index) = self.index {
                object.value("index", &index);
            }
        });
        let mut response = Response::new(Full::new(Bytes::from(body)));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, PROBLEM_JSON);
        headers.insert(CACHE_CONTROL, NO_STORE);
        if let Some((name, value)) = self.header {
            headers.insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

pub(super) const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");
pub(super) const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");
