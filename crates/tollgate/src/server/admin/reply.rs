//! Responses of the admin API.

use super::request::etag;
use crate::server::net::idle::RequestGuard;
use axum::body::Body;
use bytes::Bytes;
use hyper::body::Frame;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use tokio::sync::mpsc;

/// A response: a status, a body, and headers.
#[derive(Debug)]
pub(in crate::server::admin) struct Reply {
    pub(in crate::server::admin) status: StatusCode,
    pub(in crate::server::admin) body: Bytes,
    /// The body in the place of `body`, as it is made.
    stream: Option<EventStream>,
    content_type: &'static str,
    caching: &'static str,
    headers: Vec<(HeaderName, HeaderValue)>,
}

/// A body that is sent as it is made. It ends with its sender.
#[derive(Debug)]
pub(in crate::server::admin) struct EventStream {
    receiver: mpsc::Receiver<Bytes>,
    hold: StreamHold,
}

/// The request of a stream: in flight until the task that sends the stream drops it. So a client that does not read is not waited
/// for once the stream has ended.
#[derive(Clone, Debug, Default)]
pub(in crate::server::admin) struct StreamHold(Arc<Mutex<Option<RequestGuard>>>);

/// Ends the request of a stream when it is dropped.
#[derive(Debug)]
pub(in crate::server::admin) struct OpenRequest(StreamHold);

impl EventStream {
    /// A body, and its sender.
    pub(in crate::server::admin) fn new() -> (mpsc::Sender<Bytes>, Self) {
        let (sender, receiver) = mpsc::channel(1);
        let hold = StreamHold::default();
        (sender, Self { receiver, hold })
    }

    /// Keeps the request in flight until it is dropped.
    pub(in crate::server::admin) fn hold(&self) -> OpenRequest {
        OpenRequest(self.hold.clone())
    }
}

impl StreamHold {
    /// Takes the guard of the request. If the stream has ended already, it is kept until the response is dropped.
    pub(in crate::server::admin) fn keep(&self, guard: RequestGuard) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(guard);
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        let guard = self.0.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(guard);
    }
}

impl hyper::body::Body for EventStream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.receiver
            .poll_recv(cx)
            .map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
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
            stream: None,
            content_type,
            caching: "no-store",
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

    /// A stream of events.
    pub(in crate::server::admin) fn stream(stream: EventStream) -> Self {
        let reply = Self::new(StatusCode::OK, "text/event-stream", Bytes::new());
        Self {
            stream: Some(stream),
            ..reply
        }
        // Proxies such as nginx would collect it.
        .with_header(HeaderName::from_static("x-accel-buffering"), "no")
    }

    /// One page of a list.
    pub(in crate::server::admin) fn page(items: Vec<Value>, next: Option<String>) -> Self {
        Self::ok(&json!({ "items": items, "next": next }))
    }

    pub(in crate::server::admin) fn with_type(self, content_type: &'static str) -> Self {
        Self { content_type, ..self }
    }

    /// The same, but kept by the browser as `Cache-Control` says.
    pub(in crate::server::admin) fn with_caching(self, caching: &'static str) -> Self {
        Self { caching, ..self }
    }

    /// The same with a header; one that cannot be sent is left out.
    pub(in crate::server::admin) fn with_header(mut self, name: HeaderName, value: &str) -> Self {
        if let Ok(value) = HeaderValue::try_from(value) {
            self.headers.push((name, value));
        }
        self
    }

    pub(in crate::server::admin) fn into_response(self) -> Response<Body> {
        let hold = self.stream.as_ref().map(|stream| stream.hold.clone());
        let mut response = Response::new(match self.stream {
            Some(stream) => Body::new(stream),
            None => Body::from(self.body),
        });
        if let Some(hold) = hold {
            response.extensions_mut().insert(hold);
        }
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        for (name, value) in PROTECTION {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        headers.insert(CACHE_CONTROL, HeaderValue::from_static(self.caching));
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
