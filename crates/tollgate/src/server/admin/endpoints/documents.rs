//! Documents that need no credential: the dashboard's files, the OpenAPI document, the schema of rules.

use super::EndpointResult;
use crate::server::admin::openapi;
use crate::server::admin::problem::AdminProblem;
use crate::server::admin::reply::Reply;
use crate::server::admin::request::Call;
use crate::ui::{UiFile, UiFiles};
use hyper::header::{ACCEPT_ENCODING, CONTENT_ENCODING, VARY};
use hyper::{HeaderMap, StatusCode};
use serde_json::json;
use tollgate_limiter::core::rules;

pub(in crate::server::admin) async fn page(call: Call) -> EndpointResult {
    let file = call.service.ui.page().map_err(|error| {
        tracing::error!(%error, "the page of the dashboard cannot be read; see admin.ui_dir");
        AdminProblem::not_found("the page of the dashboard cannot be read; see the log of the server")
    })?;
    reply(&file, &call.headers, "no-cache")
}

/// A file of the dashboard, by the rest of its path after `/a/`. It needs no credential: it is the same for everybody.
pub(in crate::server::admin) fn ui_file(ui: &UiFiles, path: &str, headers: &HeaderMap) -> EndpointResult {
    let (digest, name) = path.split_once('/').unwrap_or((path, ""));
    let Some(file) = ui.file(digest, name) else {
        return Err(AdminProblem::not_found(
            "no such file in this version of the dashboard; load the page again",
        ));
    };
    let caching = match ui.is_immutable() {
        true => "public, max-age=31536000, immutable",
        false => "no-store",
    };
    reply(&file, headers, caching)
}

/// A file as the client reads it: compressed, or not.
fn reply(file: &UiFile, headers: &HeaderMap, caching: &'static str) -> EndpointResult {
    let reply = match accepts_gzip(headers) {
        true => Reply::new(StatusCode::OK, file.content_type, file.gzip.to_vec()).with_header(CONTENT_ENCODING, "gzip"),
        false => {
            let plain = file.plain().map_err(|error| {
                tracing::error!(%error, "a file of the dashboard cannot be read; see admin.ui_dir");
                AdminProblem::not_found("the file cannot be read; see the log of the server")
            })?;
            Reply::new(StatusCode::OK, file.content_type, plain)
        }
    };
    Ok(reply.with_caching(caching).with_header(VARY, "accept-encoding"))
}

/// True if the client reads gzip.
fn accepts_gzip(headers: &HeaderMap) -> bool {
    let values = headers.get_all(ACCEPT_ENCODING).iter();
    let mut codings = values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    codings.any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        let is_gzip = parts.next().is_some_and(|name| name.eq_ignore_ascii_case("gzip"));
        let is_refused = parts.any(|part| {
            let weight = part.strip_prefix("q=").and_then(|weight| weight.parse::<f32>().ok());
            weight.is_some_and(|weight| weight <= 0.0)
        });
        is_gzip && !is_refused
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_sent_to_those_who_read_it() {
        for (value, expected) in [
            ("gzip", true),
            ("br, GZIP;q=0.5", true),
            ("deflate, gzip ; q=1", true),
            ("", false),
            ("identity", false),
            ("gzip;q=0", false),
            ("br;q=1, gzip;q=0.0", false),
            ("x-gzip2", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT_ENCODING, value.parse().unwrap());
            assert_eq!(accepts_gzip(&headers), expected, "{value}");
        }
        assert!(!accepts_gzip(&HeaderMap::new()));
    }
}
