//! Documents that need no credential: the page, the OpenAPI document, the schema of rules.

use super::EndpointResult;
use crate::server::admin::openapi;
use crate::server::admin::reply::Reply;
use crate::server::admin::request::Call;
use hyper::StatusCode;
use serde_json::json;
use tollgate_limiter::core::rules;

pub(in crate::server::admin) async fn page(_: Call) -> EndpointResult {
    Ok(Reply::new(
        StatusCode::OK,
        "text/html; charset=utf-8",
        include_str!("../page/setup.html"),
    ))
}

pub(in crate::server::admin) async fn script(_: Call) -> EndpointResult {
    Ok(Reply::new(
        StatusCode::OK,
        "text/javascript; charset=utf-8",
        include_str!("../page/setup.js"),
    ))
}

pub(in crate::server::admin) async fn style(_: Call) -> EndpointResult {
    Ok(Reply::new(
        StatusCode::OK,
        "text/css; charset=utf-8",
        include_str!("../page/setup.css"),
    ))
}

pub(in crate::server::admin) async fn live(_: Call) -> EndpointResult {
    Ok(Reply::ok(&json!({ "status": "ok" })))
}

pub(in crate::server::admin) async fn openapi(_: Call) -> EndpointResult {
    Ok(Reply::ok(openapi::document()))
}

pub(in crate::server::admin) async fn schema(_: Call) -> EndpointResult {
    Ok(Reply::new(StatusCode::OK, "application/schema+json", rules::SCHEMA))
}
