//! The description of the API, held against what the server does.

use serde_json::{Value, json};
use tollgate::server::http::{Forward, Gateway, HttpSettings, OPENAPI, RequestField, UnknownDomainPolicy};
use tollgate_limiter::core::network::Networks;
use tollgate_test_kit::http::{Answer, HttpServer, settings};

const RULES: &str = "
- { id: plan, per: user, limit: 2/min }
- { id: dry, mode: shadow, limit: 1/min }
- { id: off, mode: disabled, limit: 1/min }
- { id: charges, when: { endpoint: [/a, \"/b/*\"] }, domain: shop, limit: unlimited }
- { id: try, per: user, limit: 100/min, experiment: { share: 50%, algorithm: gcra } }
- { id: ban, per: user, limit: 1000/min, by: { tier: { bad: 0/min } }, overrides: [ { user: vip, limit: unlimited } ] }
- { id: inflight, per: [user, slot], algorithm: concurrency, limit: 5 }
";

fn document() -> Value {
    serde_json::from_str(OPENAPI).unwrap()
}

/// The schema for an answer of this path, method and status.
fn schema<'d>(document: &'d Value, path: &str, method: &str, answer: &Answer) -> &'d Value {
    let responses = &document["paths"][path][method]["responses"];
    let exact = answer.status.to_string();
    let response = responses
        .get(&exact)
        .or_else(|| responses.get(format!("{}XX", answer.status / 100)))
        .unwrap_or_else(|| panic!("{path} does not say that it answers {exact}"));
    let response = match response.get("$ref") {
        Some(pointer) => document
            .pointer(pointer.as_str().unwrap().trim_start_matches('#'))
            .unwrap(),
        None => response,
    };
    let kind = answer.header("content-type").unwrap().split(';').next().unwrap();
    let content = &response["content"][kind]["schema"];
    assert!(
        !content.is_null(),
        "{path} {exact} does not say that it answers with {kind}"
    );
    content
}

fn conforms(document: &Value, schema: &Value, instance: &Value) {
    let whole = json!({ "allOf": [schema], "components": document["components"] });
    let validator = jsonschema::draft202012::new(&whole).unwrap();
    let errors: Vec<String> = validator
        .iter_errors(instance)
        .map(|error| format!("{} at {}", error, error.instance_path()))
        .collect();
    assert!(errors.is_empty(), "{instance}: {errors:#?}");
}

#[test]
fn every_path_and_method_is_described_and_there_is_no_other() {
    let server = HttpServer::start(RULES);
    let mut client = server.connect();
    let document = document();
    let described = document["paths"].as_object().unwrap();
    for (path, item) in described {
        for method in ["get", "post"] {
            let answer = match method {
                "get" => client.get(path),
                _ => client.post(path, ""),
            };
            assert_eq!(item.get(method).is_none(), answer.status == 405, "{method} {path}");
        }
    }
    // The server lists its paths to who takes a wrong one.
    let listed = client.get("/nowhere").json()["detail"].as_str().unwrap().to_owned();
    let mut listed: Vec<&str> = listed
        .split_once("the endpoints are /")
        .unwrap()
        .1
        .split(", /")
        .collect();
    listed.sort_unstable();
    let described: Vec<&str> = described.keys().map(|path| path.trim_start_matches('/')).collect();
    assert_eq!(listed, described);
    assert_eq!(client.get("/openapi.json").json(), document);
}

#[test]
fn real_answers_are_as_described() {
    let server = HttpServer::start(RULES);
    let mut client = server.connect();
    let document = document();
    let attempt = r#"{"attributes":{"user":"a","endpoint":"/c","slot":1}}"#;
    let held = client.post("/v1/check", attempt);
    let lease = json!({ "lease": held.json()["lease"] }).to_string();
    conforms(&document, schema(&document, "/v1/check", "post", &held), &held.json());
    for (path, body) in [
        ("/v1/check", attempt),
        ("/v1/check", attempt),
        ("/v1/check", r#"{"attributes":{}}"#),
        ("/v1/check", r#"{"domain":"shop","attributes":{"endpoint":"/a"}}"#),
        ("/v1/check", r#"{"domain":"nowhere","attributes":{}}"#),
        ("/v1/check", r#"{"attributes":{"user":"b","tier":"bad"}}"#),
        ("/v1/check", r#"{"attributes":{"user":"vip"},"cost":1000000}"#),
        ("/v1/check", r#"{"attributes":{"user":[]}}"#),
        ("/v1/check/batch", &format!("[{attempt},{{\"attributes\":{{}}}}]")),
        ("/v1/check/batch", "[{}]"),
        ("/v1/refund", attempt),
        ("/v1/refund", "{}"),
        ("/v1/explain", attempt),
        ("/v1/explain", r#"{"attributes":{"user":"b","tier":"bad"}}"#),
        ("/v1/explain", r#"{"attributes":{"user":"vip"}}"#),
        ("/v1/explain", r#"{"domain":"shop","attributes":{"endpoint":"/a"}}"#),
        ("/v1/renew", &lease),
        ("/v1/release", &lease),
        ("/v1/renew", &lease),
        ("/v1/release", "{}"),
        ("/v1/forget", r#"{"attributes":{"user":"a"}}"#),
        ("/v1/forget", r#"{"attributes":{},"cost":1}"#),
        (
            "/json",
            r#"{"domain":"default","descriptors":[{"entries":[{"key":"user","value":"j"}]},{}]}"#,
        ),
        (
            "/json",
            r#"{"domain":"default","descriptors":[{"entries":[{"key":"user","value":"j"}]}],"hitsAddend":9}"#,
        ),
        ("/json", "{}"),
    ] {
        let answer = client.post(path, body);
        conforms(&document, schema(&document, path, "post", &answer), &answer.json());
    }
    for path in ["/healthz", "/readyz", "/openapi.json"] {
        let answer = client.get(path);
        conforms(&document, schema(&document, path, "get", &answer), &answer.json());
    }
    let forward = Forward {
        gateway: Gateway::Envoy,
        attributes: vec![("user".into(), RequestField::Host)],
        trusted_proxies: Networks::default(),
        unknown_domain: UnknownDomainPolicy::Deny,
    };
    let settings = HttpSettings {
        forward: Some(forward),
        ..settings()
    };
    let server = HttpServer::start_with(RULES, settings);
    let mut gateway = server.connect();
    for (way, statuses) in [("/v1/forward", [200, 200, 429]), ("/v1/forward-403", [403, 403, 403])] {
        for status in statuses {
            let answer = gateway.get(&format!("{way}/default"));
            assert_eq!(answer.status, status);
            let path = format!("{way}/{{domain}}");
            if status == 200 {
                assert!(answer.body.is_empty() && document["paths"][&path]["get"]["responses"]["200"].is_object());
            } else {
                conforms(&document, schema(&document, &path, "get", &answer), &answer.json());
            }
        }
    }
    let health = client.get("/healthcheck");
    assert_eq!((health.status, &*health.body), (200, "OK"));
    assert!(document["paths"]["/healthcheck"]["get"]["responses"]["200"].is_object());
    let metrics = client.get("/metrics");
    conforms(
        &document,
        schema(&document, "/metrics", "get", &metrics),
        &json!(metrics.body),
    );
    let wrong = client.get("/v1/check");
    conforms(
        &document,
        &json!({ "$ref": "#/components/schemas/Problem" }),
        &wrong.json(),
    );
}

#[test]
fn what_the_server_takes_is_what_is_described() {
    let server = HttpServer::start(RULES);
    let mut client = server.connect();
    let document = document();
    let of = |name: &str| {
        let schema = json!({ "$ref": format!("#/components/schemas/{name}"), "components": document["components"] });
        jsonschema::draft202012::new(&schema).unwrap()
    };
    let (attempt, subject, lease) = (of("Attempt"), of("Subject"), of("Lease"));
    for (path, schema) in [
        ("/v1/check", &attempt),
        ("/v1/forget", &subject),
        ("/v1/release", &lease),
    ] {
        for body in [
            json!({}),
            json!({ "attributes": {} }),
            json!({ "attributes": { "a": "b", "c": 1, "d": 1.5, "e": true } }),
            json!({ "attributes": { "a": null } }),
            json!({ "attributes": { "a": [] } }),
            json!({ "attributes": { "": "a" } }),
            json!({ "attributes": [] }),
            json!({ "attributes": {}, "cost": 0 }),
            json!({ "attributes": {}, "cost": 999_999_999_999_999_u64 }),
            json!({ "attributes": {}, "cost": 1_000_000_001 }),
            json!({ "attributes": {}, "cost": -1 }),
            json!({ "attributes": {}, "cost": 1.5 }),
            json!({ "attributes": {}, "cost": "1" }),
            json!({ "attributes": {}, "domain": "shop" }),
            json!({ "attributes": {}, "domain": 1 }),
            json!({ "attributes": {}, "domain": "" }),
            json!({ "attributes": {}, "domain": "d".repeat(257) }),
            json!({ "attributes": {}, "rule": "plan" }),
            json!({ "attributes": {}, "rule": null }),
            json!({ "attributes": {}, "more": 1 }),
            json!({ "lease": "x" }),
            json!({ "lease": 1 }),
            json!({ "lease": "x", "more": 1 }),
        ] {
            let taken = client.post(path, body.to_string()).status != 400;
            assert_eq!(taken, schema.is_valid(&body), "{path} {body}");
        }
    }
}
