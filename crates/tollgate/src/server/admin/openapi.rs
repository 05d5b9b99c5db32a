//! The OpenAPI document, made from the table of routes.

use super::access::rights::Access;
use super::routes::{Body, ROUTES, Route};
use serde_json::{Map, Value, json};

/// The document.
pub(super) fn document() -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for route in ROUTES {
        let item = paths.entry(route.path).or_insert_with(|| json!({}));
        if let Value::Object(operations) = item {
            operations.insert(route.method.as_str().to_ascii_lowercase(), operation(route));
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": { "title": "Tollgate admin API", "version": env!("CARGO_PKG_VERSION") },
        "paths": paths,
        "components": {
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
            "schemas": { "Problem": {
                "type": "object",
                "required": ["status", "title", "detail", "code"],
                "properties": {
                    "status": { "type": "integer" },
                    "title": { "type": "string" },
                    "detail": { "type": "string" },
                    "code": { "type": "string" },
                },
            } },
        },
    })
}

fn operation(route: &Route) -> Value {
    let is_named = |name: &&&str| **name != "*";
    let parameters: Vec<Value> = route
        .query
        .iter()
        .filter(is_named)
        .map(|name| json!({ "name": name, "in": "query", "schema": { "type": "string" } }))
        .collect();
    let problem = json!({
        "description": "An error",
        "content": { "application/problem+json": { "schema": { "$ref": "#/components/schemas/Problem" } } },
    });
    let mut operation = json!({
        "summary": route.summary,
        "operationId": operation_id(route),
        "x-right": route.access.name(),
        "parameters": parameters,
        "responses": { "2XX": { "description": "Done" }, "4XX": problem, "5XX": problem },
    });
    if let Value::Object(members) = &mut operation {
        if route.body != Body::None {
            let body =
                json!({ "required": true, "content": { "application/json": { "schema": { "type": "object" } } } });
            members.insert("requestBody".into(), body);
        }
        if matches!(route.access, Access::Any | Access::Needs(_)) {
            members.insert("security".into(), json!([{ "token": [] }]));
        }
    }
    operation
}

fn operation_id(route: &Route) -> String {
    let path = route
        .path
        .trim_start_matches("/v1")
        .trim_matches('/')
        .replace(['/', '.'], "_");
    format!("{}_{path}", route.method.as_str().to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_is_described_once_with_its_right() {
        let document = document();
        let paths = document["paths"].as_object().unwrap();
        let described: usize = paths.values().map(|item| item.as_object().unwrap().len()).sum();
        assert_eq!(described, ROUTES.len());
        for route in ROUTES {
            let right = &paths[route.path][route.method.as_str().to_ascii_lowercase()]["x-right"];
            assert_eq!(right, route.access.name(), "{}", route.path);
        }
    }

    #[test]
    fn what_changes_something_needs_more_than_a_view() {
        let harmless = ["/v1/rules/check", "/v1/plan", "/v1/session"];
        for route in ROUTES
            .iter()
            .filter(|route| !route.method.is_safe() && !harmless.contains(&route.path))
        {
            let is_guarded = !matches!(route.access, Access::Open | Access::Any) && route.access.name() != "view";
            assert!(is_guarded, "{} {}", route.method, route.path);
        }
    }
}
