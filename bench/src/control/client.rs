//! A blocking HTTP/1.1 client of one kept connection, for checks and for the admin API.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A kept connection, with the credential of the bench.
pub(crate) struct Connection {
    stream: BufReader<TcpStream>,
    address: SocketAddr,
}

/// A response.
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) body: Value,
}

/// The token of all instances, and its digest as settings have it.
pub(crate) const TOKEN: &str = "tgt_bench_0123456789abcdef0123456789abcdef";
pub(crate) const TOKEN_SHA256: &str = "ac7080161b8d978b81357aad999413abcd2ee88c7d641cd288c9ba2c94c73e8a";

/// The longest wait for a response: a publish may prepare for almost a minute.
const TIMEOUT: Duration = Duration::from_secs(70);

impl Connection {
    pub(crate) fn open(address: SocketAddr) -> Result<Self, String> {
        let stream = TcpStream::connect(address).map_err(|error| format!("no connection to {address}: {error}"))?;
        let set_up = || {
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(TIMEOUT))
        };
        set_up().map_err(|error| format!("no connection to {address}: {error}"))?;
        Ok(Self {
            stream: BufReader::new(stream),
            address,
        })
    }

    /// Sends a request and returns the response, whatever its status.
    pub(crate) fn send(
        &mut self,
        method: &str,
        target: &str,
        headers: &str,
        body: Option<&Value>,
    ) -> Result<Response, String> {
        let text = body.map(Value::to_string).unwrap_or_default();
        self.send_text(
            method,
            target,
            &format!("content-type: application/json\r\n{headers}"),
            &text,
        )
        .map_err(|error| format!("{method} {target} at {}: {error}", self.address))
    }

    fn send_text(&mut self, method: &str, target: &str, headers: &str, text: &str) -> Result<Response, String> {
        let request = format!(
            "{method} {target} HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {TOKEN}\r\n\
             content-length: {}\r\n{headers}\r\n{text}",
            self.address,
            text.len()
        );
        let written = self.stream.get_mut().write_all(request.as_bytes());
        written.map_err(|error| error.to_string())?;
        let status = self.line()?;
        let status = status.split(' ').nth(1).and_then(|status| status.parse().ok());
        let mut length = 0;
        loop {
            let line = self.line()?.to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().map_err(|_| "a bad length".to_owned())?;
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).map_err(|error| error.to_string())?;
        Ok(Response {
            status: status.ok_or("a bad status")?,
            body: serde_json::from_slice(&body).unwrap_or_default(),
        })
    }

    fn line(&mut self) -> Result<String, String> {
        let mut line = String::new();
        match self.stream.read_line(&mut line) {
            Ok(0) => Err("the connection was closed".to_owned()),
            Ok(_) => Ok(line.trim_end().to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Imports override rows, one per line of JSON.
    pub(crate) fn import(&mut self, lines: &str) -> Result<Response, String> {
        let target = "/v1/overrides/import?format=ndjson&reason=bench";
        let response = self.send_text("POST", target, "content-type: application/x-ndjson\r\n", lines)?;
        match response.status {
            200 => Ok(response),
            status => Err(format!("import: {status}: {}", response.body)),
        }
    }

    /// Makes a check. A denial is a response like any other.
    pub(crate) fn check(&mut self, attributes: &Value) -> Result<Response, String> {
        self.send("POST", "/v1/check", "", Some(&json!({ "attributes": attributes })))
    }

    /// Makes a write that must be done, under a condition such as `if-match: *`.
    pub(crate) fn write(
        &mut self,
        method: &str,
        target: &str,
        condition: &str,
        body: &Value,
    ) -> Result<Response, String> {
        let response = self.send(method, target, &format!("{condition}\r\n"), Some(body))?;
        match response.status {
            200 | 201 => Ok(response),
            status => Err(format!("{method} {target}: {status}: {}", response.body)),
        }
    }

    /// Publishes one file.
    pub(crate) fn publish(&mut self, rules: &str, query: &str) -> Result<Response, String> {
        let files = [json!({ "path": "bench.yaml", "grammar": "own", "text": rules })];
        let body = json!({ "files": files, "reason": "bench" });
        self.write("POST", &format!("/v1/publish{query}"), "if-match: *", &body)
    }

    /// Sets the row of a subject under a rule, whatever it was.
    pub(crate) fn set_row(
        &mut self,
        rule: &str,
        attribute: &str,
        value: &str,
        terms: &str,
    ) -> Result<Response, String> {
        let target = format!("/v1/override?rule={rule}&{attribute}={value}");
        let body = json!({ "terms": terms, "reason": "bench" });
        self.write("PUT", &target, "if-match: *", &body)
    }
}

impl Response {
    /// The limit of the only rule that a check matched.
    pub(crate) fn limit(&self) -> Option<u64> {
        self.body.get("limit").and_then(Value::as_u64)
    }

    /// The limit of one of several rules that a check matched.
    pub(crate) fn limit_of(&self, rule: &str) -> Option<u64> {
        let limits = self.body.get("limits")?.as_array()?;
        let found = limits
            .iter()
            .find(|limit| limit.get("rule").is_some_and(|id| id == rule));
        found?.get("limit")?.as_u64()
    }

    /// The tag of the item that was written or read.
    pub(crate) fn etag(&self) -> Result<String, String> {
        let tag = self.body.get("etag").and_then(Value::as_str);
        tag.map(str::to_owned).ok_or_else(|| format!("no tag: {}", self.body))
    }
}
