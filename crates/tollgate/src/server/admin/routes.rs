//! The routes: one table with the right that each needs. The router, the OpenAPI document and the tests are made from it.

use super::access::rights::{Access, Right};
use super::endpoints::{
    alerts, attributes, audit, documents, overrides, principals, rules, sessions, state, subjects, versions, watch,
};
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
    /// The name of the schema of its body in the OpenAPI document; `Table`: NDJSON or CSV.
    pub(super) takes: &'static str,
    /// The responses that are no errors: a status with the name of a schema, or a type that is no JSON; 204 has nothing.
    pub(super) gives: &'static [(u16, &'static str)],
    pub(super) summary: &'static str,
    pub(super) handler: Handler,
}

/// The body that a route reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Body {
    None,
    /// At most 64 KiB.
    Small,
    /// At most 20 MiB.
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
const TRY: Access = Access::NeedsBeyondQuickstart(Right::Explain);

macro_rules! routes {
    ($($method:ident $path:literal $access:expr, $body:ident, $idempotent:literal, [$($query:literal),*], $handler:path,
        $takes:literal => [$($status:literal $gives:literal),*], $summary:literal;)*) => {
        &[$(Route {
            method: Method::$method,
            path: $path,
            access: $access,
            body: Body::$body,
            query: &[$($query),*],
            is_idempotent: $idempotent,
            takes: $takes,
            gives: &[$(($status, $gives)),*],
            summary: $summary,
            handler: |call| Box::pin($handler(call)),
        }),*]
    };
}

/// All operations.
pub(super) static ROUTES: &[Route] = routes! {
    GET "/" Access::Open, None, false, [], documents::page,
        "" => [200 "text/html"], "The dashboard";
    GET "/v1/livez" Access::Open, None, false, [], documents::live,
        "" => [200 "Live"], "The admin API answers";
    GET "/v1/openapi.json" Access::Open, None, false, [], documents::openapi,
        "" => [200 "Document"], "This document";
    GET "/v1/schema/rules.json" Access::Open, None, false, [], documents::schema,
        "" => [200 "application/schema+json"], "The JSON Schema of rule files";
    POST "/v1/setup" Access::Login, Small, false, [], sessions::setup,
        "SetupBody" => [201 "NewPrincipal"], "Creates the first admin with the printed code";
    POST "/v1/session" Access::Login, Small, false, [], sessions::login,
        "LoginBody" => [200 "Login"], "Logs in";
    DELETE "/v1/session" ANY, None, false, [], sessions::logout,
        "" => [204 ""], "Logs out";
    GET "/v1/me" ANY, None, false, [], sessions::me,
        "" => [200 "Me"], "The caller and its rights";
    GET "/v1/users" ADMIN, None, false, ["limit", "after"], principals::users,
        "" => [200 "PrincipalList"], "Users";
    POST "/v1/users" ADMIN, Small, false, ["dry_run"], principals::add_user,
        "UserBody" => [200 "NewPrincipal", 201 "NewPrincipal"], "Adds a user";
    DELETE "/v1/users" ADMIN, None, false, ["name", "reason", "dry_run"], principals::disable_user,
        "" => [204 ""], "Disables a user";
    GET "/v1/tokens" ADMIN, None, false, ["limit", "after"], principals::tokens,
        "" => [200 "PrincipalList"], "Tokens";
    POST "/v1/tokens" ADMIN, Small, false, ["dry_run"], principals::add_token,
        "TokenBody" => [200 "NewPrincipal", 201 "NewPrincipal"], "Adds a token";
    DELETE "/v1/tokens" ADMIN, None, false, ["name", "reason", "dry_run"], principals::revoke_token,
        "" => [204 ""], "Revokes a token";
    GET "/v1/sessions" ADMIN, None, false, ["limit", "after"], sessions::sessions,
        "" => [200 "SessionList"], "Sessions";
    DELETE "/v1/sessions" ADMIN, None, false, ["principal", "reason", "dry_run"], sessions::end_sessions,
        "" => [204 ""], "Ends the sessions of a user";
    GET "/v1/status" VIEW, None, false, [], state::status,
        "" => [200 "Status"], "The state of the control plane";
    GET "/v1/instances" VIEW, None, false, [], state::instances,
        "" => [200 "InstanceList"], "The instances";
    GET "/v1/store" VIEW, None, false, [], state::store,
        "" => [200 "Store"], "The store of the counters";
    GET "/v1/rules" VIEW, None, false, ["domain", "q", "mode", "layer", "limit", "after"], rules::list,
        "" => [200 "RuleList"], "Active rules";
    GET "/v1/rule" VIEW, None, false, ["domain", "id"], rules::get,
        "" => [200 "Rule"], "One rule";
    PUT "/v1/rule" EDIT, Small, false, ["domain", "id", "dry_run"], rules::put,
        "RuleBody" => [200 "Published", 201 "Published"], "Replaces or adds a rule and publishes";
    DELETE "/v1/rule" EDIT, None, false, ["domain", "id", "reason", "break_glass", "drop_rows", "dry_run"], rules::delete,
        "" => [200 "Published"], "Deletes a rule and publishes";
    GET "/v1/rule/history" VIEW, None, false, ["domain", "id", "limit"], rules::history,
        "" => [200 "RuleHistory"], "The history of a rule";
    POST "/v1/rules/check" VIEW, Large, false, [], rules::check,
        "FilesBody" => [200 "CheckedFiles"], "Checks files";
    POST "/v1/plan" VIEW, Large, false, [], rules::plan,
        "PlanBody" => [200 "Planned"], "The plan that would make files or a version live";
    GET "/v1/versions" VIEW, None, false, ["limit", "after"], versions::list,
        "" => [200 "VersionList"], "Versions";
    POST "/v1/versions" EDIT, Large, true, ["dry_run"], versions::save,
        "DraftBody" => [200 "Draft", 201 "Draft"], "Saves a draft";
    GET "/v1/version" VIEW, None, false, ["number"], versions::get,
        "" => [200 "VersionFiles"], "One version with its files";
    GET "/v1/diff" VIEW, None, false, ["from", "to"], versions::diff,
        "" => [200 "Differences"], "The differences between two versions";
    POST "/v1/publish" EDIT, Large, true, ["wait", "prepare", "dry_run"], versions::publish,
        "PublishBody" => [200 "Published"], "Makes a version live";
    POST "/v1/rollback" EDIT, Small, true, ["wait", "dry_run"], versions::rollback,
        "RollbackBody" => [200 "Published"], "Makes an older version live again";
    POST "/v1/adopt" ADMIN, Small, false, ["dry_run"], versions::adopt,
        "AdoptBody" => [200 "Adopted"], "Starts a new epoch";
    GET "/v1/overrides" VIEW, None, false, ["domain", "rule", "q", "expiring", "orphans", "limit", "after"], overrides::list,
        "" => [200 "RowList"], "Override rows";
    GET "/v1/override" VIEW, None, false, ["*", "domain", "rule", "subject"], overrides::get,
        "" => [200 "Row"], "One override row";
    PUT "/v1/override" OVERRIDE, Small, false, ["*", "domain", "rule", "subject", "dry_run"], overrides::put,
        "RowBody" => [200 "Row", 201 "Row"], "Sets an override row";
    DELETE "/v1/override" OVERRIDE, None, false, ["*", "domain", "rule", "subject", "reason", "dry_run"], overrides::delete,
        "" => [204 ""], "Deletes an override row";
    POST "/v1/overrides/import" OVERRIDE, Large, true, ["format", "domain", "rule", "dry_run", "reason"], overrides::import,
        "Table" => [200 "Imported"], "Sets and deletes many rows";
    GET "/v1/overrides/export" OVERRIDE, None, false, ["format", "domain", "rule", "q", "expiring", "limit", "after"], overrides::export,
        "" => [200 "Table"], "Rows as a file";
    GET "/v1/attributes" VIEW, None, false, ["source", "subject", "q", "limit", "after"], attributes::list,
        "" => [200 "AttributeList"], "Subject attributes";
    GET "/v1/attribute" VIEW, None, false, ["source", "subject", "name"], attributes::get,
        "" => [200 "Attribute"], "One subject attribute";
    PUT "/v1/attribute" OVERRIDE, Small, false, ["source", "subject", "name", "dry_run"], attributes::put,
        "AttributeBody" => [200 "Attribute", 201 "Attribute"], "Sets a subject attribute";
    DELETE "/v1/attribute" OVERRIDE, None, false, ["source", "subject", "name", "reason", "dry_run"], attributes::delete,
        "" => [204 ""], "Deletes a subject attribute";
    POST "/v1/attributes/import" OVERRIDE, Large, true, ["format", "dry_run", "reason"], attributes::import,
        "Table" => [200 "Imported"], "Sets and deletes many attributes";
    GET "/v1/attributes/export" OVERRIDE, None, false, ["format", "source", "subject", "q", "limit", "after"], attributes::export,
        "" => [200 "Table"], "Attributes as a file";
    GET "/v1/subject" SUBJECTS, None, false, ["*", "domain"], subjects::subject,
        "" => [200 "Subject"], "Everything about one subject";
    POST "/v1/explain" EXPLAIN, Small, false, [], subjects::explain,
        "AttemptBody" => [200 "Explanation"], "Explains a verdict";
    POST "/v1/forget" FORGET, Small, true, ["dry_run"], subjects::forget,
        "ForgetBody" => [200 "Forgotten"], "Clears the counters of a subject";
    GET "/v1/series" VIEW, None, false, ["scope", "domain", "rule", "range", "by", "q", "sort", "limit", "after"], watch::series::series,
        "" => [200 "Series"], "Time series of decisions, or all rules with their last minute";
    GET "/v1/top" VIEW, None, false, ["domain", "rule", "minutes", "limit"], watch::top::top,
        "" => [200 "Top"], "The subjects that are refused most";
    GET "/v1/stream" VIEW, None, false, ["rules", "decisions", "filter"], watch::stream::stream,
        "" => [200 "text/event-stream"], "Events as they happen";
    POST "/v1/try" TRY, Small, false, [], watch::check::check,
        "AttemptBody" => [200 "Checked"], "Checks an attempt, as the check API does";
    GET "/v1/alerts" VIEW, None, false, ["state", "limit", "after"], alerts::list,
        "" => [200 "AlertList"], "Alerts, silences and webhooks";
    POST "/v1/alerts/silence" OVERRIDE, Small, true, ["dry_run"], alerts::silence,
        "SilenceBody" => [200 "Silence", 201 "Silence"], "Holds back messages about some alerts until a time";
    DELETE "/v1/alerts/silence" OVERRIDE, None, false, ["id", "reason", "dry_run"], alerts::end_silence,
        "" => [204 ""], "Ends a silence";
    POST "/v1/webhooks/test" ADMIN, Small, false, [], alerts::test_webhook,
        "WebhookTestBody" => [200 "WebhookDelivery"], "Sends a message without alerts to a webhook";
    GET "/v1/audit" AUDIT, None, false, ["since", "until", "actor", "action", "target", "limit", "after"], audit::list,
        "" => [200 "AuditList"], "The audit log";
    GET "/v1/audit/verify" AUDIT, None, false, ["anchor"], audit::verify,
        "" => [200 "AuditReport"], "Verifies the audit log";
};
