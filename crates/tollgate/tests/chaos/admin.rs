//! A client of the admin API of a node, and the settings that nodes with a control plane have.

use crate::node::{Node, exchange};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::Instant;

/// The token of all nodes, and its digest as settings have it.
pub(crate) const TOKEN: &str = "tgt_chaos_0123456789abcdef0123456789abcdef";
const TOKEN_SHA256: &str = "65af49a80cecbcbcf20327600bf7d9699d834551684db8a88e97a03448f39577";

/// The secret that nodes of one fleet share.
const SECRET: &str = "a secret of the chaos suite, 32 characters or more";

/// Settings of a control plane over a database.
pub(crate) fn settings(database: &str) -> String {
    format!(
        "data_dir: data\ncontrol: {{ database: '{database}', secret: '{SECRET}' }}\n\
         admin: {{ tokens: [{{ name: chaos, sha256: {TOKEN_SHA256}, role: admin }}] }}\n"
    )
}

/// A response of the admin API.
#[derive(Clone, Debug)]
pub(crate) struct AdminResponse {
    pub(crate) status: u16,
    pub(crate) body: Value,
    pub(crate) time: Duration,
}

impl AdminResponse {
    pub(crate) fn is_done(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

/// Sends a request with JSON. Status 0: no response within the timeout.
pub(crate) fn call(node: &Node, method: &str, path: &str, headers: &str, body: Option<&Value>) -> AdminResponse {
    let text = body.map(Value::to_string).unwrap_or_default();
    let kind = body.map_or("", |_| "content-type: application/json\r\n");
    send(node, (method, path), &format!("{headers}{kind}"), &text)
}

/// Posts lines of JSON.
pub(crate) fn post_text(node: &Node, path: &str, text: &str) -> AdminResponse {
    send(node, ("POST", path), "content-type: application/x-ndjson\r\n", text)
}

fn send(node: &Node, (method, path): (&str, &str), headers: &str, text: &str) -> AdminResponse {
    let port = node.admin.expect("a node with an admin API");
    let length = text.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nauthorization: Bearer {TOKEN}\r\nconnection: close\r\n\
         {headers}content-length: {length}\r\n\r\n{text}"
    );
    let started = Instant::now();
    let (status, text) = exchange(([127, 0, 0, 1], port).into(), &request).unwrap_or_default();
    let body = serde_json::from_str(&text).unwrap_or_default();
    AdminResponse {
        status,
        body,
        time: started.elapsed(),
    }
}

pub(crate) fn get(node: &Node, path: &str) -> AdminResponse {
    call(node, "GET", path, "", None)
}

/// Sets the row of a user in the rule `hot`, whatever it was.
pub(crate) fn put_row(node: &Node, rule: &str, user: &str, terms: &str) -> AdminResponse {
    let path = format!("/v1/override?domain=default&rule={rule}&subject=%7B%22user%22%3A%22{user}%22%7D");
    let body = json!({ "terms": terms, "reason": "chaos" });
    call(node, "PUT", &path, "if-match: *\r\n", Some(&body))
}

/// Publishes one file, whatever is live.
pub(crate) fn publish(node: &Node, rules: &str) -> AdminResponse {
    publish_with(node, rules, "?wait=2s")
}

pub(crate) fn publish_with(node: &Node, rules: &str, query: &str) -> AdminResponse {
    let body = json!({
        "files": [{ "path": "chaos.yaml", "grammar": "own", "text": rules }],
        "reason": "chaos",
    });
    call(
        node,
        "POST",
        &format!("/v1/publish{query}"),
        "if-match: *\r\n",
        Some(&body),
    )
}

/// The position and the digest of a node: epoch, revision, chain and digest of all layers.
pub(crate) fn position(node: &Node) -> (u64, u64, String, String) {
    let status = get(node, "/v1/status").body;
    let number = |name: &str| status[name].as_u64().unwrap_or_default();
    let text = |name: &str| status[name].as_str().unwrap_or_default().to_owned();
    (number("epoch"), number("revision"), text("chain"), text("digest"))
}
