//! One function per protocol. A new protocol is a line in [`PROTOCOLS`] and a function.

use crate::server::TestServer;
use serde_json::{Value, json};
use tollgate::server::rls::rate_limit_response::{Code, DescriptorStatus};
use tollgate_test_kit::{grpc, http, resp};

/// An attempt that every protocol can express.
#[derive(Debug)]
pub(crate) struct TestAttempt {
    pub(crate) attributes: Vec<(&'static str, String)>,
    pub(crate) cost: u64,
}

/// The part of a verdict that every protocol reports.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TestVerdict {
    pub(crate) allowed: bool,
    /// The name of the limit it reports.
    rule: Option<String>,
    /// Units remaining, unless it denies: the rls response then carries none.
    pub(crate) remaining: Option<u64>,
}

/// Sends all attempts in order, each on its own, with the attribute `protocol`.
type SendAll = fn(&TestServer, &str, &[TestAttempt]) -> Vec<TestVerdict>;

/// Name of the interface, label value of its protocol, and the function that sends attempts to it.
pub(crate) const PROTOCOLS: &[(&str, &str, SendAll)] = &[
    ("check", "http", check),
    ("batch", "http", batch),
    ("json", "http", rls_json),
    ("grpc", "grpc", calls),
    ("resp", "resp", commands),
];

pub(crate) fn check(server: &TestServer, name: &str, attempts: &[TestAttempt]) -> Vec<TestVerdict> {
    let mut client = http::Client::connect(server.http);
    let send = |attempt: &TestAttempt| verdict(&client.post("/v1/check", attempt.body(name).to_string()).json());
    attempts.iter().map(send).collect()
}

fn batch(server: &TestServer, name: &str, attempts: &[TestAttempt]) -> Vec<TestVerdict> {
    let bodies: Value = attempts.iter().map(|attempt| attempt.body(name)).collect();
    let response = http::Client::connect(server.http).post("/v1/check/batch", bodies.to_string());
    response.json().as_array().unwrap().iter().map(verdict).collect()
}

fn rls_json(server: &TestServer, name: &str, attempts: &[TestAttempt]) -> Vec<TestVerdict> {
    let mut client = http::Client::connect(server.http);
    let send = |attempt: &TestAttempt| {
        let entries = attempt
            .entries(name)
            .map(|(key, value)| json!({ "key": key, "value": value }));
        let descriptor = json!({ "entries": entries.collect::<Value>(), "hitsAddend": attempt.cost });
        let request = json!({ "domain": "default", "descriptors": [descriptor] });
        let response = client.post("/json", request.to_string());
        let status = &response.json()["statuses"][0];
        let allowed = status["code"] == "OK";
        assert_eq!(response.status, if allowed { 200 } else { 429 });
        let limit = status.get("currentLimit");
        TestVerdict {
            allowed,
            rule: limit.map(|limit| limit["name"].as_str().unwrap().to_owned()),
            remaining: limit
                .filter(|_| allowed)
                .map(|_| status["limitRemaining"].as_u64().unwrap_or(0)),
        }
    };
    attempts.iter().map(send).collect()
}

fn calls(server: &TestServer, name: &str, attempts: &[TestAttempt]) -> Vec<TestVerdict> {
    let mut client = grpc::Client::connect(&server.runtime, server.grpc);
    let send = |attempt: &TestAttempt| {
        let entries: Vec<(&str, &str)> = attempt.entries(name).collect();
        let response = client.should_rate_limit(&grpc::request_for([grpc::hits(&entries, attempt.cost)]));
        assert_eq!(response.overall_code(), response.statuses[0].code());
        status(&response.statuses[0])
    };
    attempts.iter().map(send).collect()
}

/// Sends forward-auth requests. Their cost is always 1, and an allowed one reports its limit in headers only.
pub(crate) fn forward(server: &TestServer, name: &str, attempts: &[TestAttempt]) -> Vec<TestVerdict> {
    let mut client = http::Client::connect(server.http);
    let send = |attempt: &TestAttempt| {
        assert_eq!(attempt.cost, 1);
        let headers: String = attempt
            .entries(name)
            .map(|(name, value)| format!("{name}: {value}\r\n"))
            .collect();
        client.send(format!(
            "GET /v1/forward/default HTTP/1.1\r\nHost: test\r\n{headers}\r\n"
        ));
        let response = client.answer();
        if response.status != 200 {
            return verdict(&response.json());
        }
        let remaining = response.header("x-ratelimit-remaining");
        TestVerdict {
            allowed: true,
            rule: None,
            remaining: remaining.map(|remaining| remaining.parse().unwrap()),
        }
    };
    attempts.iter().map(send).collect()
}

/// The part of a verdict that forward-auth reports.
pub(crate) fn gateway_view(verdict: TestVerdict) -> TestVerdict {
    TestVerdict {
        rule: verdict.rule.filter(|_| !verdict.allowed),
        ..verdict
    }
}

fn commands(server: &TestServer, name: &str, attempts: &[TestAttempt]) -> Vec<TestVerdict> {
    let mut client = resp::Client::connect(server.resp);
    // One pipeline: its commands are decided in order.
    for attempt in attempts {
        let cost = attempt.cost.to_string();
        let pairs = attempt.entries(name).flat_map(|(key, value)| [key, value]);
        let arguments: Vec<&str> = ["TOLLGATE.CHECK", "default", &cost].into_iter().chain(pairs).collect();
        client.send(resp::command(&arguments));
    }
    let read_verdict = |_: &TestAttempt| {
        assert_eq!(client.line(), "*6");
        let [limited, _, remaining, _, _, rule] = std::array::from_fn(|_| client.line());
        let allowed = limited == ":0";
        let rule = (rule != "$-1").then(|| client.line());
        TestVerdict {
            allowed,
            remaining: remaining[1..].parse().ok().filter(|_| allowed && rule.is_some()),
            rule,
        }
    };
    attempts.iter().map(read_verdict).collect()
}

fn verdict(body: &Value) -> TestVerdict {
    let allowed = body["allowed"].as_bool().unwrap();
    TestVerdict {
        allowed,
        rule: body["rule"].as_str().map(str::to_owned),
        remaining: body["remaining"].as_u64().filter(|_| allowed),
    }
}

fn status(status: &DescriptorStatus) -> TestVerdict {
    let allowed = status.code() == Code::Ok;
    let limit = status.current_limit.as_ref();
    TestVerdict {
        allowed,
        rule: limit.map(|limit| limit.name.clone()),
        remaining: limit.filter(|_| allowed).map(|_| status.limit_remaining.into()),
    }
}

impl TestAttempt {
    fn entries<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        let attributes = self.attributes.iter().map(|(name, value)| (*name, value.as_str()));
        [("protocol", name)].into_iter().chain(attributes)
    }

    fn body(&self, name: &str) -> Value {
        let attributes: serde_json::Map<String, Value> = self
            .entries(name)
            .map(|(name, value)| (name.to_owned(), value.into()))
            .collect();
        json!({ "attributes": attributes, "cost": self.cost })
    }
}
