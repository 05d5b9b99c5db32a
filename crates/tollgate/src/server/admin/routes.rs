//! The routes: one table with the right that each needs. The router, the OpenAPI document and the tests are made from it.

use super::access::rights::{Access, Right};
use super::endpoints::{access, attributes, audit, documents, overrides, rules, state, subjects, versions};
use super::problem::AdminProblem;
use super::reply::Reply;
use super::request::Call;
use hyper::Method;
use std::pin::Pin;

/// One operation.
pub(super) struct Route {
    pub(super) method: Method,
    pub(super) path: &'static str,
    /// The access it needs; there is no route without it.
    pub(super) access: Access,
    pub(super) body: Body,
    /// The names of its parameters; `*`: any.
    pub(super) query: &'static [&'static str],
    /// True if `Idempotency-Key` is honoured.
    pub(super) is_idempotent: bool,
    pub(super) summary: &'static str,
    pub(super) handler: Handler,
}

/// The body that a route reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Body {
    None,
    /// At most 64 KiB.
    Small,
    /// At most 16 MiB.
    Large,
}

/// The function of a route.
pub(super) type Handler = fn(Call) -> Pin<Box<dyn Future<Output = Result<Reply, AdminProblem>> + Send>>;

/// Any valid credential.
const ANY: Access = Access::Any;
const VIEW: Access = Access::Needs(Right::View);
const SUBJECTS: Access = Access::Needs(Right::Subjects);
const EXPLAIN: Access = Access::Needs(Right::Explain);
const FORGET: Access = Access::Needs(Right::Forget);
const OVERRIDE: Access = Access::Needs(Right::Override);
const AUDIT: Access = Access::Needs(Right::Audit);
const EDIT: Access = Access::Needs(Right::Edit);
const ADMIN: Access = Access::Needs(Right::Admin);

macro_rules! routes {
    ($($method:ident $path:literal $access:expr, $body:ident, $idempotent:literal, [$($query:literal),*], $handler:path, $summary:literal;)*) => {
        &[$(Route {
            method: Method::$method,
            path: $path,
            access: $access,
            body: Body::$body,
            query: &[$($query),*],
            is_idempotent: $idempotent,
            summary: $summary,
            handler: |call| Box::pin($handler(call)),
        }),*]
    };
}

/// All operations.
pub(super) static ROUTES: &[Route] = routes! {
    GET "/" Access::Open, None, false, [], documents::page, "The page with the setup form";
    GET "/setup.js" Access::Open, None, false, [], documents::script, "Its script";
    GET "/setup.css" Access::Open, None, false, [], documents::style, "Its style";
    GET "/v1/livez" Access::Open, None, false, [], documents::live, "The admin API answers";
    GET "/v1/openapi.json" Access::Open, None, false, [], documents::openapi, "This document";
    GET "/v1/schema/rules.json" Access::Open, None, false, [], documents::schema, "The JSON Schema of rule files";
    POST "/v1/setup" Access::Login, Small, false, [], access::setup, "Creates the first admin with the printed code";
    POST "/v1/session" Access::Login, Small, false, [], access::login, "Logs in";
    DELETE "/v1/session" ANY, None, false, [], access::logout, "Logs out";
    GET "/v1/me" ANY, None, false, [], access::me, "The caller and its rights";
    GET "/v1/users" ADMIN, None, false, ["limit", "after"], access::users, "Users";
    POST "/v1/users" ADMIN, Small, false, ["dry_run"], access::add_user, "Adds a user";
    DELETE "/v1/users" ADMIN, None, false, ["name", "reason", "dry_run"], access::disable_user, "Disables a user";
    GET "/v1/tokens" ADMIN, None, false, ["limit", "after"], access::tokens, "Tokens";
    POST "/v1/tokens" ADMIN, Small, false, ["dry_run"], access::add_token, "Adds a token";
    DELETE "/v1/tokens" ADMIN, None, false, ["name", "reason", "dry_run"], access::revoke_token, "Revokes a token";
    GET "/v1/sessions" ADMIN, None, false, [], access::sessions, "Sessions";
    DELETE "/v1/sessions" ADMIN, None, false, ["principal", "reason"], access::end_sessions, "Ends the sessions of a user";
    GET "/v1/status" VIEW, None, false, [], state::status, "The state of the control plane";
    GET "/v1/instances" VIEW, None, false, [], state::instances, "The instances";
    GET "/v1/store" VIEW, None, false, [], state::store, "The store of the counters";
    GET "/v1/rules" VIEW, None, false, ["domain", "q", "mode", "layer", "limit", "after"], rules::list, "Active rules";
    GET "/v1/rule" VIEW, None, false, ["domain", "id"], rules::get, "One rule";
    PUT "/v1/rule" EDIT, Small, false, ["domain", "id", "dry_run"], rules::put, "Replaces or adds a rule and publishes";
    DELETE "/v1/rule" EDIT, None, false, ["domain", "id", "reason", "break_glass", "drop_rows", "dry_run"], rules::delete, "Deletes a rule and publishes";
    GET "/v1/rule/history" VIEW, None, false, ["domain", "id", "limit"], rules::history, "The history of a rule";
    POST "/v1/rules/check" VIEW, Large, false, [], rules::check, "Checks files";
    POST "/v1/plan" VIEW, Large, false, [], rules::plan, "The plan that would make files or a version live";
    GET "/v1/versions" VIEW, None, false, ["limit", "after"], versions::list, "Versions";
    POST "/v1/versions" EDIT, Large, true, ["dry_run"], versions::save, "Saves a draft";
    GET "/v1/version" VIEW, None, false, ["number"], versions::get, "One version with its files";
    GET "/v1/diff" VIEW, None, false, ["from", "to"], versions::diff, "The differences between two versions";
    POST "/v1/publish" EDIT, Large, true, ["wait", "prepare", "dry_run"], versions::publish, "Makes a version live";
    POST "/v1/rollback" EDIT, Small, true, ["wait", "dry_run"], versions::rollback, "Makes an older version live again";
    POST "/v1/adopt" ADMIN, Small, false, [], versions::adopt, "Starts a new epoch";
    GET "/v1/overrides" VIEW, None, false, ["domain", "rule", "q", "expiring", "limit", "after"], overrides::list, "Override rows";
    GET "/v1/override" VIEW, None, false, ["*"], overrides::get, "One override row";
    PUT "/v1/override" OVERRIDE, Small, false, ["*"], overrides::put, "Sets an override row";
    DELETE "/v1/override" OVERRIDE, None, false, ["*"], overrides::delete, "Deletes an override row";
    POST "/v1/overrides/import" OVERRIDE, Large, true, ["format", "domain", "rule", "dry_run", "reason"], overrides::import, "Sets and deletes many rows";
    GET "/v1/overrides/export" OVERRIDE, None, false, ["format", "domain", "rule", "limit", "after"], overrides::export, "Rows as a file";
    GET "/v1/attributes" VIEW, None, false, ["source", "subject", "q", "limit", "after"], attributes::list, "Subject attributes";
    GET "/v1/attribute" VIEW, None, false, ["source", "subject", "name"], attributes::get, "One subject attribute";
    PUT "/v1/attribute" OVERRIDE, Small, false, ["source", "subject", "name", "dry_run"], attributes::put, "Sets a subject attribute";
    DELETE "/v1/attribute" OVERRIDE, None, false, ["source", "subject", "name", "reason", "dry_run"], attributes::delete, "Deletes a subject attribute";
    POST "/v1/attributes/import" OVERRIDE, Large, true, ["format", "dry_run", "reason"], attributes::import, "Sets and deletes many attributes";
    GET "/v1/attributes/export" OVERRIDE, None, false, ["format", "source", "limit", "after"], attributes::export, "Attributes as a file";
    GET "/v1/subject" SUBJECTS, None, false, ["*"], subjects::subject, "Everything about one subject";
    POST "/v1/explain" EXPLAIN, Small, false, [], subjects::explain, "Explains a verdict";
    POST "/v1/forget" FORGET, Small, true, [], subjects::forget, "Clears the counters of a subject";
    GET "/v1/audit" AUDIT, None, false, ["since", "until", "actor", "action", "target", "limit", "after"], audit::list, "The audit log";
    GET "/v1/audit/verify" AUDIT, None, false, ["anchor"], audit::verify, "Verifies the audit log";
};
