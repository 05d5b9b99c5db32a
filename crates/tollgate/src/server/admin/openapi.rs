//! The OpenAPI document, made from the table of routes and the schemas of `openapi/schemas.json`.

use super::access::rights::Access;
use super::routes::{Body, ROUTES, Route};
use hyper::Method;
use serde_json::{Map, Value, json};
use std::sync::LazyLock;

/// The document.
pub(super) fn document() -> &'static Value {
    &DOCUMENT
}

static DOCUMENT: LazyLock<Value> = LazyLock::new(|| {
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
            "schemas": schemas().get("schemas"),
        },
    })
});

/// Schemas and parameters. They are our own text, and a test reads them.
fn schemas() -> Value {
    serde_json::from_str(include_str!("openapi/schemas.json")).unwrap_or_default()
}

fn operation(route: &Route) -> Value {
    let mut parameters: Vec<Value> = route.query.iter().filter_map(|name| parameter(route, name)).collect();
    if needs_condition(route) {
        parameters.push(header(
            "If-Match",
            "The tag of the item as it was read, or `*` with a reason",
        ));
        parameters.push(header("If-None-Match", "`*`: the item must not exist"));
    }
    if route.is_idempotent {
        parameters.push(header(
            "Idempotency-Key",
            "1 to 128 characters: the request is done once",
        ));
    }
    let problem = json!({
        "description": "An error",
        "content": { "application/problem+json": { "schema": reference("Problem") } },
    });
    let mut responses: Map<String, Value> = route
        .gives
        .iter()
        .map(|(status, name)| (status.to_string(), response(name)))
        .collect();
    responses.insert("4XX".to_owned(), problem.clone());
    responses.insert("5XX".to_owned(), problem);
    let mut operation = json!({
        "summary": route.summary,
        "operationId": operation_id(route),
        "x-right": route.access.name(),
        "parameters": parameters,
        "responses": responses,
    });
    if let Value::Object(members) = &mut operation {
        if route.body != Body::None {
            members.insert("requestBody".into(), request_body(route.takes));
        }
        if !matches!(route.access, Access::Open | Access::Login) {
            members.insert("security".into(), json!([{ "token": [] }]));
        }
    }
    operation
}

/// True if a write is done under a condition.
fn needs_condition(route: &Route) -> bool {
    let is_item = ["/v1/rule", "/v1/override", "/v1/attribute"].contains(&route.path);
    let is_set = ["/v1/publish", "/v1/rollback"].contains(&route.path);
    is_set || (is_item && route.method != Method::GET)
}

/// A parameter of the query. `*` stands for the attributes of a subject, one parameter each.
fn parameter(route: &Route, name: &str) -> Option<Value> {
    let schemas = schemas();
    let parameters = schemas.get("parameters")?;
    let own = format!("{} {name}", route.path);
    let schema = parameters.get(&own).or_else(|| parameters.get(name))?;
    let is_required = REQUIRED.contains(&(route.path, name));
    Some(match name {
        "*" => json!({ "name": "attributes", "in": "query", "style": "form", "explode": true, "schema": schema }),
        _ => json!({ "name": name, "in": "query", "required": is_required, "schema": schema }),
    })
}

fn header(name: &str, description: &str) -> Value {
    json!({ "name": name, "in": "header", "description": description, "schema": { "type": "string" } })
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

fn request_body(name: &str) -> Value {
    let content = match name {
        "Table" => table(),
        _ => json!({ "application/json": { "schema": reference(name) } }),
    };
    json!({ "required": true, "content": content })
}

fn response(name: &str) -> Value {
    match name {
        "" => json!({ "description": "Done" }),
        "Table" => json!({ "description": "Done", "content": table() }),
        "Explanation" => json!({ "description": "Done", "content": {
            "application/json": { "schema": reference(name) },
            "text/plain": { "schema": { "type": "string" } },
        } }),
        "application/schema+json" => {
            json!({ "description": "Done", "content": { name: { "schema": { "type": "object" } } } })
        }
        _ if name.contains('/') => {
            json!({ "description": "Done", "content": { name: { "schema": { "type": "string" } } } })
        }
        _ => json!({ "description": "Done", "content": { "application/json": { "schema": reference(name) } } }),
    }
}

fn table() -> Value {
    json!({
        "application/x-ndjson": { "schema": { "type": "string" } },
        "text/csv": { "schema": { "type": "string" } },
    })
}

fn operation_id(route: &Route) -> String {
    let path = route
        .path
        .trim_start_matches("/v1")
        .trim_matches('/')
        .replace(['/', '.'], "_");
    format!("{}_{path}", route.method.as_str().to_ascii_lowercase())
}

/// Parameters that must be there.
const REQUIRED: [(&str, &str); 13] = [
    ("/v1/users", "name"),
    ("/v1/tokens", "name"),
    ("/v1/sessions", "principal"),
    ("/v1/rule", "id"),
    ("/v1/rule/history", "id"),
    ("/v1/version", "number"),
    ("/v1/diff", "from"),
    ("/v1/diff", "to"),
    ("/v1/override", "rule"),
    ("/v1/attribute", "source"),
    ("/v1/attribute", "subject"),
    ("/v1/attribute", "name"),
    ("/v1/alerts/silence", "id"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_is_described_once_with_its_right() {
        let paths = document()["paths"].as_object().unwrap();
        let described: usize = paths.values().map(|item| item.as_object().unwrap().len()).sum();
        assert_eq!(described, ROUTES.len());
        for route in ROUTES {
            let right = &paths[route.path][route.method.as_str().to_ascii_lowercase()]["x-right"];
            assert_eq!(right, route.access.name(), "{}", route.path);
        }
    }

    #[test]
    fn every_schema_and_parameter_that_a_route_names_exists_and_no_other() {
        let schemas = schemas();
        let known = schemas["schemas"].as_object().unwrap();
        let text = document().to_string();
        for name in known.keys() {
            assert!(
                text.contains(&format!("#/components/schemas/{name}\"")),
                "{name} is not used"
            );
        }
        for part in text.split("#/components/schemas/").skip(1) {
            let name = part.split('"').next().unwrap();
            assert!(known.contains_key(name), "{name} is not there");
        }
        for route in ROUTES {
            let names = route.query.iter().filter(|name| parameter(route, name).is_none());
            assert_eq!(names.count(), 0, "{}", route.path);
            assert_eq!(route.takes.is_empty(), route.body == Body::None, "{}", route.path);
            assert!(!route.gives.is_empty(), "{}", route.path);
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
