//! The ways in. A further one is a line in [`DOORS`] and a function.

use crate::site::Site;
use crate::{grpc, http, resp};
use serde_json::{Value, json};
use tollgate::server::envoy::rate_limit_response::{Code, DescriptorStatus};

/// An attempt as all doors can say it.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) attributes: Vec<(&'static str, String)>,
    pub(crate) cost: u64,
}

/// A verdict as all doors can tell it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) allowed: bool,
    /// The limit that it speaks for.
    rule: Option<String>,
    /// What is left of it, unless it refuses: Envoy then hears of nothing.
    remaining: Option<u64>,
}

/// Makes all attempts, each on its own and in order, with its name as the attribute `door`.
type Ask = fn(&Site, &str, &[Wanted]) -> Vec<Said>;

/// Each way in, the door it is counted under, and how it is asked.
pub(crate) const DOORS: &[(&str, &str, Ask)] = &[
    ("check", "http", check),
    ("batch", "http", batch),
    ("json", "http", envoy_json),
    ("grpc", "grpc", calls),
    ("resp", "resp", commands),
];

pub(crate) fn check(site: &Site, name: &str, attempts: &[Wanted]) -> Vec<Said> {
    let mut client = http::Client::connect(site.http);
    let ask = |wanted: &Wanted| verdict(&client.post("/v1/check", wanted.body(name).to_string()).json());
    attempts.iter().map(ask).collect()
}

fn batch(site: &Site, name: &str, attempts: &[Wanted]) -> Vec<Said> {
    let bodies: Value = attempts.iter().map(|wanted| wanted.body(name)).collect();
    let answer = http::Client::connect(site.http).post("/v1/check/batch", bodies.to_string());
    answer.json().as_array().unwrap().iter().map(verdict).collect()
}

fn envoy_json(site: &Site, name: &str, attempts: &[Wanted]) -> Vec<Said> {
    let mut client = http::Client::connect(site.http);
    let ask = |wanted: &Wanted| {
        let entries = wanted
            .entries(name)
            .map(|(key, value)| json!({ "key": key, "value": value }));
        let descriptor = json!({ "entries": entries.collect::<Value>(), "hitsAddend": wanted.cost });
        let request = json!({ "domain": "default", "descriptors": [descriptor] });
        let answer = client.post("/json", request.to_string());
        let status = &answer.json()["statuses"][0];
        let allowed = status["code"] == "OK";
        assert_eq!(answer.status, if allowed { 200 } else { 429 });
        let limit = status.get("currentLimit");
        Said {
            allowed,
            rule: limit.map(|limit| limit["name"].as_str().unwrap().to_owned()),
            remaining: limit
                .filter(|_| allowed)
                .map(|_| status["limitRemaining"].as_u64().unwrap_or(0)),
        }
    };
    attempts.iter().map(ask).collect()
}

fn calls(site: &Site, name: &str, attempts: &[Wanted]) -> Vec<Said> {
    let mut client = grpc::Client::connect(&site.runtime, site.grpc);
    let ask = |wanted: &Wanted| {
        let entries: Vec<(&str, &str)> = wanted.entries(name).collect();
        let response = client.ask(&grpc::asks([grpc::hits(&entries, wanted.cost)]));
        assert_eq!(response.overall_code(), response.statuses[0].code());
        status(&response.statuses[0])
    };
    attempts.iter().map(ask).collect()
}

/// A gateway asks at the cost of one, and hears of a limit that lets pass what its headers tell.
pub(crate) fn forward(site: &Site, name: &str, attempts: &[Wanted]) -> Vec<Said> {
    let mut client = http::Client::connect(site.http);
    let ask = |wanted: &Wanted| {
        assert_eq!(wanted.cost, 1);
        let headers: String = wanted
            .entries(name)
            .map(|(name, value)| format!("{name}: {value}\r\n"))
            .collect();
        client.send(format!(
            "GET /v1/forward/default HTTP/1.1\r\nHost: test\r\n{headers}\r\n"
        ));
        let answer = client.answer();
        if answer.status != 200 {
            return verdict(&answer.json());
        }
        let remaining = answer.header("x-ratelimit-remaining");
        Said {
            allowed: true,
            rule: None,
            remaining: remaining.map(|remaining| remaining.parse().unwrap()),
        }
    };
    attempts.iter().map(ask).collect()
}

/// What a gateway hears of it.
pub(crate) fn heard(said: Said) -> Said {
    Said {
        rule: said.rule.filter(|_| !said.allowed),
        ..said
    }
}

fn commands(site: &Site, name: &str, attempts: &[Wanted]) -> Vec<Said> {
    let mut client = resp::Client::connect(site.resp);
    // All of them at once: a pipeline is decided in order.
    for wanted in attempts {
        let cost = wanted.cost.to_string();
        let pairs = wanted.entries(name).flat_map(|(key, value)| [key, value]);
        let words: Vec<&str> = ["TOLLGATE.CHECK", "default", &cost].into_iter().chain(pairs).collect();
        client.send(resp::command(&words));
    }
    let heard = |_: &Wanted| {
        assert_eq!(client.line(), "*6");
        let [limited, _, remaining, _, _, rule] = std::array::from_fn(|_| client.line());
        let allowed = limited == ":0";
        let rule = (rule != "$-1").then(|| client.line());
        Said {
            allowed,
            remaining: remaining[1..].parse().ok().filter(|_| allowed && rule.is_some()),
            rule,
        }
    };
    attempts.iter().map(heard).collect()
}

fn verdict(body: &Value) -> Said {
    let allowed = body["allowed"].as_bool().unwrap();
    Said {
        allowed,
        rule: body["rule"].as_str().map(str::to_owned),
        remaining: body["remaining"].as_u64().filter(|_| allowed),
    }
}

fn status(status: &DescriptorStatus) -> Said {
    let allowed = status.code() == Code::Ok;
    let limit = status.current_limit.as_ref();
    Said {
        allowed,
        rule: limit.map(|limit| limit.name.clone()),
        remaining: limit.filter(|_| allowed).map(|_| status.limit_remaining.into()),
    }
}

impl Wanted {
    fn entries<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        let own = self.attributes.iter().map(|(name, value)| (*name, value.as_str()));
        [("door", name)].into_iter().chain(own)
    }

    fn body(&self, name: &str) -> Value {
        let attributes: serde_json::Map<String, Value> = self
            .entries(name)
            .map(|(name, value)| (name.to_owned(), value.into()))
            .collect();
        json!({ "attributes": attributes, "cost": self.cost })
    }
}
