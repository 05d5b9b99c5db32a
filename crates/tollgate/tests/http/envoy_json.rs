//! `POST /json`: Envoy's request as JSON.

use serde_json::{Value, json};
use tollgate_test_kit::http::{Client, HttpServer};

const RULES: &str =
    "- { id: tenant, per: tenant, limit: 10/min }\n- { id: free, when: { plan: gold }, limit: unlimited }\n";

fn should_rate_limit(client: &mut Client, request: &Value) -> (u16, Value) {
    let answer = client.post("/json", request.to_string());
    (answer.status, answer.json())
}

fn tenant(name: &str, more: Value) -> Value {
    let mut descriptor = json!({ "entries": [{ "key": "tenant", "value": name }] });
    let (fields, more) = (descriptor.as_object_mut().unwrap(), more);
    fields.extend(more.as_object().unwrap().clone());
    descriptor
}

#[test]
fn a_request_is_answered_as_over_grpc() {
    let server = HttpServer::start(RULES);
    let mut client = server.connect();
    let request = json!({ "domain": "default", "descriptors": [tenant("a", json!({})), { "entries": [{ "key": "plan", "value": "gold" }] }] });
    let (status, answer) = should_rate_limit(&mut client, &request);
    let limit = json!({ "requestsPerUnit": 10, "unit": "MINUTE", "name": "tenant" });
    assert_eq!(
        (status, answer),
        (
            200,
            json!({
                "overallCode": "OK",
                "statuses": [
                    { "code": "OK", "currentLimit": limit, "limitRemaining": 9, "durationUntilReset": "6s" },
                    { "code": "OK", "limitRemaining": 4_294_967_295_u32 },
                ],
                "responseHeadersToAdd": [
                    { "key": "ratelimit-policy", "value": "\"tenant\";q=10;w=60" },
                    { "key": "ratelimit", "value": "\"tenant\";r=9;t=6" },
                ],
            })
        )
    );
    // In the other spelling, and with numbers as text.
    let request = json!({ "domain": "default", "hits_addend": "10", "descriptors": [tenant("a", json!({ "hits_addend": null }))] });
    let answer = client.post("/json", request.to_string());
    assert_eq!(answer.status, 429);
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    let status = &answer.json()["statuses"][0];
    assert_eq!(
        *status,
        json!({ "code": "OVER_LIMIT", "currentLimit": limit, "durationUntilReset": "6s" })
    );
    let back = json!({ "domain": "default", "descriptors": [tenant("a", json!({ "isNegativeHits": true, "hitsAddend": "3" }))] });
    assert_eq!(
        should_rate_limit(&mut client, &back).1["statuses"][0]["limitRemaining"],
        10
    );
    let with_limit = json!({ "domain": "default", "descriptors": [tenant("a", json!({ "limit": { "requestsPerUnit": 3, "unit": "DAY" } }))] });
    assert_eq!(
        should_rate_limit(&mut client, &with_limit).1["statuses"][0]["currentLimit"],
        json!({ "requestsPerUnit": 3, "unit": "DAY" })
    );
    let metrics = server.gate.metrics_text();
    assert!(
        metrics.contains("tollgate_checks_total{result=\"deny\",source=\"memory\",protocol=\"http\"} 1\n"),
        "{metrics}"
    );
}

#[test]
fn what_makes_no_sense_is_told_by_its_member_and_takes_nothing() {
    let server = HttpServer::start(RULES);
    let mut client = server.connect();
    for (request, field, detail) in [
        (json!([]), None, "must be an object"),
        (
            json!({ "descriptors": [{}] }),
            None,
            "rate limit domain must not be empty",
        ),
        (
            json!({ "domain": "default" }),
            None,
            "rate limit descriptor list must not be empty",
        ),
        (json!({ "domain": 1, "descriptors": [{}] }), Some("domain"), "a string"),
        (
            json!({ "domain": "default", "descriptors": {} }),
            Some("descriptors"),
            "a list",
        ),
        (json!({ "domain": "default", "more": 1 }), Some("more"), "not a member"),
        (
            json!({ "domain": "default", "descriptors": [{}, { "entries": [{ "key": "k", "valeu": "v" }] }] }),
            Some("descriptors[1].entries[0].valeu"),
            "not a member",
        ),
        (
            json!({ "domain": "default", "hitsAddend": -1 }),
            Some("hitsAddend"),
            "not negative",
        ),
        (
            json!({ "domain": "default", "hitsAddend": 4_294_967_296_u64 }),
            Some("hitsAddend"),
            "2^32",
        ),
        (
            json!({ "domain": "default", "descriptors": [{ "limit": { "unit": "FORTNIGHT" } }] }),
            Some("descriptors[0].limit.unit"),
            "a unit",
        ),
        (
            json!({ "domain": "default", "descriptors": [{ "limit": {} }] }),
            None,
            "no unit",
        ),
    ] {
        let (status, problem) = should_rate_limit(&mut client, &request);
        assert_eq!(status, 400, "{request}");
        assert_eq!(problem.get("field").and_then(Value::as_str), field, "{problem}");
        assert!(problem["detail"].as_str().unwrap().contains(detail), "{problem}");
    }
    let answer = client.post("/json", "{");
    assert_eq!(answer.status, 400);
}

#[test]
fn lists_that_are_too_long_are_refused_and_take_nothing() {
    let server = HttpServer::start(RULES);
    let mut client = server.connect();
    let of = |entries: &[usize]| {
        let entry = json!({ "key": "tenant", "value": "a" });
        let descriptors = entries.iter().map(|count| json!({ "entries": vec![&entry; *count] }));
        json!({ "domain": "default", "descriptors": descriptors.collect::<Vec<_>>() })
    };
    for (entries, field) in [
        (vec![0; 65], "descriptors"),
        (vec![1, 65], "descriptors[1].entries"),
        ([vec![8; 63], vec![9]].concat(), "descriptors[63].entries"),
    ] {
        let (status, answer) = should_rate_limit(&mut client, &of(&entries));
        assert_eq!((status, answer["field"].as_str()), (400, Some(field)), "{answer}");
    }
    let peek = json!({ "domain": "default", "descriptors": [tenant("a", json!({ "hitsAddend": 0 }))] });
    assert_eq!(
        should_rate_limit(&mut client, &peek).1["statuses"][0]["limitRemaining"],
        10
    );
    assert_eq!(
        should_rate_limit(&mut client, &of(&[vec![0; 56], vec![64; 8]].concat())).0,
        200
    );
}
