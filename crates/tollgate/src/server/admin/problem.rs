//! Errors of the admin API: problem details of RFC 9457 with a code.

use super::reply::Reply;
use crate::control::ControlError;
use crate::control::database::{DatabaseError, StaleItem};
use crate::server::http::ProblemDetails;
use hyper::StatusCode;
use hyper::header::{HeaderName, RETRY_AFTER};
use serde_json::{Map, Value, json};
use std::borrow::Cow;

/// An error response with a code.
#[derive(Clone, Debug)]
pub(in crate::server::admin) struct AdminProblem {
    pub(in crate::server::admin) status: StatusCode,
    pub(in crate::server::admin) code: &'static str,
    /// Boxed: most results are no error, and all have room for one.
    parts: Box<ProblemParts>,
}

#[derive(Clone, Debug)]
struct ProblemParts {
    detail: Cow<'static, str>,
    members: Map<String, Value>,
    header: Option<(HeaderName, String)>,
}

impl AdminProblem {
    pub(in crate::server::admin) fn new(
        status: StatusCode,
        code: &'static str,
        detail: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            status,
            code,
            parts: Box::new(ProblemParts {
                detail: detail.into(),
                members: Map::new(),
                header: None,
            }),
        }
    }

    /// The text for the caller.
    pub(in crate::server::admin) fn detail(&self) -> &str {
        &self.parts.detail
    }

    /// A request that cannot be read.
    pub(in crate::server::admin) fn malformed(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "malformed", detail)
    }

    /// A member or parameter that cannot be read.
    pub(in crate::server::admin) fn field(name: &str, detail: impl Into<Cow<'static, str>>) -> Self {
        Self::malformed(detail).with("field", name)
    }

    pub(in crate::server::admin) fn forbidden(code: &'static str, detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::FORBIDDEN, code, detail)
    }

    pub(in crate::server::admin) fn not_found(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not-found", detail)
    }

    pub(in crate::server::admin) fn unauthorized() -> Self {
        let detail = "no valid credential; send a token (`Authorization: Bearer …`), or log in";
        let problem = Self::new(StatusCode::UNAUTHORIZED, "unauthorized", detail);
        problem.with_header(hyper::header::WWW_AUTHENTICATE, "Bearer")
    }

    pub(in crate::server::admin) fn too_many(detail: &'static str) -> Self {
        let problem = Self::new(StatusCode::TOO_MANY_REQUESTS, "too-many-requests", detail);
        problem.with_header(RETRY_AFTER, "60")
    }

    pub(in crate::server::admin) fn busy(detail: &'static str) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "busy", detail).with_header(RETRY_AFTER, "1")
    }

    /// The same with a member.
    pub(in crate::server::admin) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.parts.members.insert(name.to_owned(), value.into());
        self
    }

    pub(in crate::server::admin) fn with_header(mut self, name: HeaderName, value: impl Into<String>) -> Self {
        self.parts.header = Some((name, value.into()));
        self
    }

    pub(in crate::server::admin) fn into_reply(self) -> Reply {
        let mut body = json!({
            "type": "about:blank",
            "title": self.status.canonical_reason().unwrap_or("Error"),
            "status": self.status.as_u16(),
            "detail": self.parts.detail,
            "code": self.code,
        });
        if let Value::Object(members) = &mut body {
            members.extend(self.parts.members);
        }
        let mut reply = Reply::json(self.status, &body).with_type("application/problem+json");
        if let Some((name, value)) = self.parts.header {
            reply = reply.with_header(name, &value);
        }
        reply
    }
}

impl From<ControlError> for AdminProblem {
    fn from(error: ControlError) -> Self {
        let status = match &error {
            ControlError::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
            ControlError::Full => StatusCode::INSUFFICIENT_STORAGE,
            ControlError::Stale(_) => StatusCode::PRECONDITION_FAILED,
            ControlError::NotFound(_) => StatusCode::NOT_FOUND,
            ControlError::Invalid(_) | ControlError::InvalidRule { .. } => StatusCode::UNPROCESSABLE_ENTITY,
            ControlError::Malformed(_) => StatusCode::BAD_REQUEST,
            ControlError::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            _ => StatusCode::CONFLICT,
        };
        let problem = Self::new(status, error.code(), error.to_string());
        match error {
            ControlError::Unavailable(_) => problem.with_header(RETRY_AFTER, "1"),
            ControlError::Stale(item) => problem.with_stale(&item),
            ControlError::Invalid(problems) | ControlError::PrepareRejected(problems) => {
                problem.with("problems", json!(problems))
            }
            ControlError::InvalidRule { own, others } => problem.with("problems", json!([own, others].concat())),
            ControlError::FleetRejected(rejections) => {
                let instances: Vec<&str> = rejections.iter().map(|rejection| rejection.instance.as_str()).collect();
                let problem = problem.with("instances", json!(instances));
                problem.with("rejections", json!(rejections))
            }
            ControlError::PrepareIncomplete { instances, .. } => problem.with("instances", json!(instances)),
            ControlError::RowsInvalid(rows) => problem.with("rows", json!(rows)),
            ControlError::Drift { live: Some(live), .. } => problem
                .with("author", live.actor)
                .with("reason", live.reason)
                .with("version", live.number),
            _ => problem,
        }
    }
}

impl AdminProblem {
    /// The members of a stale item; `current` and `diff` are added by the endpoint.
    fn with_stale(self, item: &StaleItem) -> Self {
        let current = serde_json::from_str(&item.item).unwrap_or(Value::Null);
        self.with("current", current)
            .with("diff", "")
            .with("author", item.author.actor.clone())
            .with("reason", item.author.reason.clone())
            .with("at", item.at)
            .with("revision", item.revision)
            .with("epoch", item.epoch)
            .with("etag", super::request::etag::text(item.epoch, item.revision))
    }
}

impl From<DatabaseError> for AdminProblem {
    fn from(error: DatabaseError) -> Self {
        match error {
            DatabaseError::Exists(_) => Self::new(StatusCode::CONFLICT, "exists", error.to_string()),
            DatabaseError::KeyReused => Self::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "idempotency-key-reused",
                error.to_string(),
            ),
            error => ControlError::from(error).into(),
        }
    }
}

impl From<ProblemDetails> for AdminProblem {
    fn from(problem: ProblemDetails) -> Self {
        let code = match problem.status {
            StatusCode::BAD_REQUEST => "malformed",
            StatusCode::SERVICE_UNAVAILABLE => "store-unavailable",
            _ => "error",
        };
        let mapped = Self::new(problem.status, code, problem.detail);
        match problem.field {
            Some(field) => mapped.with("field", field),
            None => mapped,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_status_and_code() {
        let cases = [
            (ControlError::Unavailable(String::new()), 503, "database-unavailable"),
            (ControlError::Full, 507, "disk-full"),
            (ControlError::NoDatabase, 409, "no-database"),
            (ControlError::OtherDatabase(String::new()), 409, "other-database"),
            (ControlError::Regressed(String::new()), 409, "database-regressed"),
            (ControlError::NotFound(String::new()), 404, "not-found"),
            (ControlError::Invalid(Vec::new()), 422, "invalid"),
            (ControlError::Malformed(String::new()), 400, "malformed"),
            (ControlError::TooLarge(String::new()), 413, "too-large"),
            (ControlError::RowsInvalid(Vec::new()), 409, "rows-invalid"),
            (ControlError::FileLayer(String::new()), 409, "file-layer"),
            (ControlError::GitOnly, 409, "edits-git"),
            (ControlError::PrepareRejected(Vec::new()), 409, "prepare-rejected"),
        ];
        for (error, status, code) in cases {
            let problem = AdminProblem::from(error);
            assert_eq!((problem.status.as_u16(), problem.code), (status, code));
        }
        let full = AdminProblem::from(DatabaseError::Full);
        assert_eq!((full.status.as_u16(), full.code), (507, "disk-full"));
        let reused = AdminProblem::from(DatabaseError::KeyReused);
        assert_eq!((reused.status.as_u16(), reused.code), (422, "idempotency-key-reused"));
    }
}
