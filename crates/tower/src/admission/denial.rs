//! Denials as responses: problem details, or a gRPC status.

use crate::headers::problem::{DenialProblem, ProblemKind};
use crate::headers::{RetryAfter, retry_after};
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use http::{HeaderMap, Response, StatusCode};
use tollgate_limiter::clock::Clock;
use tollgate_limiter::core::{Micros, Retry};

/// A denial, before it is written in the protocol of the request.
#[derive(Clone, Debug)]
pub struct Denial {
    /// The kind of denial.
    pub kind: DenialKind,
    /// The headers of its response: rate limits and `Retry-After`.
    pub headers: HeaderMap,
    /// The time until a retry is worthwhile, spreading included.
    pub retry: Retry,
    /// A sentence about it.
    pub detail: Option<String>,
    /// The reason, if it is not that a limit is used up.
    pub reason: Option<&'static str>,
    /// The names of the limits that deny.
    pub policies: Vec<Box<str>>,
}

/// The kind of a denial, which gives its status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DenialKind {
    /// A limit is used up: 429, or gRPC's `RESOURCE_EXHAUSTED`.
    Limited,
    /// The service can do less than usual, or a limit could not be decided: 503, or gRPC's `UNAVAILABLE`.
    Reduced,
}

/// The protocol of a request, as far as denials differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DenialForm {
    Problem,
    Grpc,
}

impl Denial {
    /// A denial by limits.
    pub(crate) fn new(kind: DenialKind, retry: Retry) -> Self {
        Self {
            kind,
            headers: HeaderMap::new(),
            retry,
            detail: None,
            reason: None,
            policies: Vec::new(),
        }
    }

    /// A denial that protects the service, for one second at least.
    pub(crate) fn reduced(policy: &str, detail: &str) -> Box<Self> {
        Box::new(Self {
            detail: Some(detail.to_owned()),
            policies: vec![policy.into()],
            ..Self::new(DenialKind::Reduced, Retry::After(Micros::from_secs(1)))
        })
    }

    /// The denial with `Retry-After` in this form, as of the machine's time.
    pub(crate) fn with_retry_after(mut self: Box<Self>, settings: RetryAfter) -> Box<Self> {
        let now = Clock::wall().now();
        let after = retry_after(settings, self.retry, Micros::ZERO, now, fastrand::u32(..));
        if let Some(value) = after.and_then(|after| HeaderValue::try_from(after).ok()) {
            self.headers.insert(RETRY_AFTER, value);
        }
        self
    }

    /// The status of its response, unless that is one of gRPC.
    pub const fn status(&self) -> StatusCode {
        match self.kind {
            DenialKind::Limited => StatusCode::TOO_MANY_REQUESTS,
            DenialKind::Reduced => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    pub(crate) fn into_response(self, form: DenialForm) -> Response<Option<Bytes>> {
        match form {
            DenialForm::Problem => self.into_problem(),
            DenialForm::Grpc => self.into_grpc(),
        }
    }

    fn into_problem(self) -> Response<Option<Bytes>> {
        let mut body = Vec::with_capacity(BODY_BYTES);
        body.push(b'{');
        let problem = DenialProblem {
            kind: match self.kind {
                DenialKind::Limited => ProblemKind::QuotaExceeded,
                DenialKind::Reduced => ProblemKind::ReducedCapacity,
            },
            status: self.status(),
            detail: self.detail.as_deref(),
            reason: self.reason,
        };
        problem.write_members(&mut body, self.policies.iter().map(|policy| &**policy));
        body.push(b'}');
        let status = self.status();
        let mut response = Response::new(Some(Bytes::from(body)));
        *response.status_mut() = status;
        *response.headers_mut() = self.headers;
        response.headers_mut().insert(CONTENT_TYPE, PROBLEM_JSON);
        response.headers_mut().insert(CACHE_CONTROL, NO_STORE);
        response
    }

    /// A trailers-only response: the status is in the headers, and there is no body.
    fn into_grpc(self) -> Response<Option<Bytes>> {
        let code = match self.kind {
            DenialKind::Limited => RESOURCE_EXHAUSTED,
            DenialKind::Reduced => UNAVAILABLE,
        };
        let detail = self.detail.as_deref().unwrap_or("rate limit exceeded");
        let mut response = Response::new(None);
        *response.headers_mut() = self.headers;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(GRPC_STATUS, code);
        if let Ok(message) = HeaderValue::try_from(percent_encoded(detail)) {
            headers.insert(GRPC_MESSAGE, message);
        }
        let pushback = match self.retry {
            Retry::After(wait) => wait.as_millis_ceil().max(1).to_string(),
            Retry::Unknown => "1000".to_owned(),
            // A negative number: do not retry.
            Retry::Never => "-1".to_owned(),
        };
        if let Ok(pushback) = HeaderValue::try_from(pushback) {
            headers.insert(GRPC_RETRY_PUSHBACK_MS, pushback);
        }
        response
    }
}

impl DenialForm {
    /// The form for a request with these headers.
    pub(crate) fn of_request(headers: &HeaderMap) -> Self {
        let content_type = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
        match content_type {
            Some(value)
                if value
                    .get(..GRPC.len())
                    .is_some_and(|start| start.eq_ignore_ascii_case(GRPC)) =>
            {
                Self::Grpc
            }
            _ => Self::Problem,
        }
    }
}

/// A message as `grpc-message` has it.
fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => encoded.push(char::from(byte)),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");
const GRPC: &[u8] = b"application/grpc";
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_RETRY_PUSHBACK_MS: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");
const RESOURCE_EXHAUSTED: HeaderValue = HeaderValue::from_static("8");
const UNAVAILABLE: HeaderValue = HeaderValue::from_static("14");
/// The usual size of a problem.
const BODY_BYTES: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn header<'r>(response: &'r Response<Option<Bytes>>, name: &str) -> Option<&'r str> {
        response.headers().get(name)?.to_str().ok()
    }

    #[test]
    fn a_problem_names_its_policies() {
        let denial = Denial {
            detail: Some("Policy \"api\" allows 5 requests per 1 second.".into()),
            policies: vec!["api".into(), "day".into()],
            ..Denial::new(DenialKind::Limited, Retry::After(Micros::from_secs(1)))
        };
        let response = denial.into_response(DenialForm::Problem);
        assert_eq!(response.status(), 429);
        assert_eq!(header(&response, "content-type"), Some("application/problem+json"));
        assert_eq!(header(&response, "cache-control"), Some("no-store"));
        let body: serde_json::Value = serde_json::from_slice(response.body().as_ref().unwrap()).unwrap();
        assert_eq!(
            body["type"],
            "https://iana.org/assignments/http-problem-types#quota-exceeded"
        );
        assert_eq!(body["status"], 429);
        assert_eq!(body["violated-policies"], serde_json::json!(["api", "day"]));
    }

    #[test]
    fn grpc_has_the_status_in_its_headers_and_no_body() {
        for (kind, retry, expected) in [
            (DenialKind::Limited, Retry::After(Micros::new(1_500_001)), ["8", "1501"]),
            (DenialKind::Limited, Retry::After(Micros::ZERO), ["8", "1"]),
            (DenialKind::Limited, Retry::Never, ["8", "-1"]),
            (DenialKind::Reduced, Retry::Unknown, ["14", "1000"]),
        ] {
            let denial = Denial {
                detail: Some("100 %\n".into()),
                ..Denial::new(kind, retry)
            };
            let response = denial.into_response(DenialForm::Grpc);
            assert_eq!(response.status(), 200);
            assert!(response.body().is_none());
            assert_eq!(header(&response, "grpc-message"), Some("100 %25%0A"));
            let found = ["grpc-status", "grpc-retry-pushback-ms"].map(|name| header(&response, name).unwrap());
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn only_grpc_is_answered_as_grpc() {
        for (content_type, form) in [
            ("application/grpc", DenialForm::Grpc),
            ("application/grpc+proto", DenialForm::Grpc),
            ("Application/GRPC-web", DenialForm::Grpc),
            ("application/json", DenialForm::Problem),
            ("app", DenialForm::Problem),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
            assert_eq!(DenialForm::of_request(&headers), form, "{content_type}");
        }
        assert_eq!(DenialForm::of_request(&HeaderMap::new()), DenialForm::Problem);
    }
}
