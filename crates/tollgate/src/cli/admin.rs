//! Calls of the admin API, for the commands that change and inspect what a control plane manages.
//!
//! `admin/bulk.rs` imports and exports, `admin/date.rs` reads and prints times, `admin/failure.rs` has the reasons why a command did
//! nothing, `admin/server_problem.rs` the problems of rules and rows among them, `admin/table.rs` prints columns.

pub(super) mod bulk;
pub(super) mod date;
mod failure;
mod server_problem;
pub(super) mod table;

pub(crate) use failure::{CommandResult, EXIT_REFUSED, Failure, finish};

use super::EXIT_OK;
use super::args::print;
use super::client::{Call, Endpoint, ServerResponse, read_token};
use hyper::body::Bytes;
use hyper::header::{ACCEPT, CONTENT_TYPE, ETAG, HeaderName, IF_MATCH, IF_NONE_MATCH};
use hyper::{Method, StatusCode};
use serde_json::Value;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// The control plane to call, the credential, and the form of the output.
#[derive(clap::Args)]
pub(crate) struct AdminArgs {
    /// The address of the admin API: http://…, https://… or unix:/path
    #[arg(
        long,
        env = "TOLLGATE_ADMIN_URL",
        default_value = "http://127.0.0.1:8090",
        value_name = "URL"
    )]
    admin_url: String,
    /// File whose first line is a token of the admin API; or set TOLLGATE_ADMIN_TOKEN
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The token. Only a variable: a flag would be visible in `ps`
    #[arg(
        long,
        env = "TOLLGATE_ADMIN_TOKEN",
        hide = true,
        hide_env_values = true,
        value_name = "TOKEN"
    )]
    admin_token: Option<String>,
    /// PEM file of certificate authorities to trust instead of the system's
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Prints the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// A request of the admin API.
pub(crate) struct AdminCall {
    method: Method,
    path: String,
    query: String,
    headers: Vec<(HeaderName, String)>,
    body: Bytes,
    timeout: Duration,
}

impl AdminArgs {
    /// Makes a request. Statuses other than success are failures.
    pub(crate) fn call(&self, call: AdminCall) -> Result<ServerResponse, Failure> {
        // A file named on the command line wins over a variable of the shell.
        let token = self.admin_token.as_deref().filter(|_| self.token_file.is_none());
        let token = read_token(token, self.token_file.as_deref(), "--token-file, TOLLGATE_ADMIN_TOKEN")?;
        let has_token = token.is_some();
        let endpoint = Endpoint {
            url: &self.admin_url,
            token,
            ca: self.ca.as_deref(),
            address_source: "--admin-url or TOLLGATE_ADMIN_URL",
        };
        let mut headers = call.headers;
        // As a page of the server itself sends them: the server takes no other setup, whatever token is set, and no other write
        // without one.
        headers.push((HeaderName::from_static("x-tollgate"), "1".to_owned()));
        headers.push((HeaderName::from_static("sec-fetch-site"), "same-origin".to_owned()));
        let response = endpoint.call(Call {
            method: call.method,
            path: format!("/v1{}{}", call.path, call.query),
            headers,
            body: call.body,
            timeout: call.timeout,
        })?;
        if response.status.is_success() {
            let media_type = response.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
            let is_data = |media_type: &str| {
                ["application/json", "application/x-ndjson", "text/csv"]
                    .iter()
                    .any(|known| media_type.starts_with(known))
            };
            // A page of another server, or of a proxy, must not pass for a result.
            return match response.body.is_empty() || media_type.is_some_and(is_data) {
                true => Ok(response),
                false => Err(Failure::unexpected("is not JSON")),
            };
        }
        let failure = Failure::from_response(&response);
        let is_known = !failure.problem_code.is_empty();
        Err(match (response.status, has_token) {
            (StatusCode::UNAUTHORIZED, true) if is_known => failure.because(
                "the token is not valid: unknown, expired or revoked",
                "pass another with --token-file or TOLLGATE_ADMIN_TOKEN",
            ),
            (StatusCode::UNAUTHORIZED, false) if is_known => failure.because(
                "a token is needed",
                "pass one with --token-file or TOLLGATE_ADMIN_TOKEN; the first is made with `tollgate token add NAME --setup CODE`",
            ),
            _ => failure,
        })
    }

    /// Makes a request and returns the JSON of its response, which must have this member.
    pub(crate) fn json_with(&self, member: &str, call: AdminCall) -> Result<Value, Failure> {
        let body = self.json(call)?;
        match body.get(member) {
            Some(_) => Ok(body),
            None => Err(Failure::unexpected(&format!("has no `{member}`"))),
        }
    }

    /// Makes a request and returns the JSON of its response.
    fn json(&self, call: AdminCall) -> Result<Value, Failure> {
        let response = self.call(call)?;
        response
            .json()
            .filter(Value::is_object)
            .ok_or_else(|| Failure::unexpected("is not a JSON object"))
    }

    /// The entity tag of an item; none if it does not exist.
    pub(crate) fn entity_tag(&self, call: AdminCall) -> Result<Option<String>, Failure> {
        match self.call(call) {
            Ok(response) => {
                let tag = response.headers.get(ETAG).and_then(|value| value.to_str().ok());
                let missing = || {
                    Failure::error(
                        "the response has no ETag; does a proxy remove it, or is this URL not the admin API?",
                    )
                };
                tag.map(|tag| Some(tag.to_owned())).ok_or_else(missing)
            }
            Err(failure) if failure.problem_code == "not-found" => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// All items of a list, page by page, up to a maximum.
    pub(crate) fn items(&self, path: &str, query: &[(&str, String)], max: usize) -> Result<Vec<Value>, Failure> {
        let mut items: Vec<Value> = Vec::new();
        let mut after: Option<String> = None;
        for _ in 0..PAGES_MAX {
            let limit = (max - items.len()).min(PAGE_MAX);
            let mut call = AdminCall::new(Method::GET, path).query("limit", &limit.to_string());
            for (name, value) in query {
                call = call.query(name, value);
            }
            if let Some(after) = &after {
                call = call.query("after", after);
            }
            let mut page = self.json(call)?;
            let found = page.get_mut("items").map(Value::take);
            let Some(Value::Array(found)) = found else {
                return Err(Failure::unexpected("has no `items`"));
            };
            items.extend(found);
            items.truncate(max);
            // A page may be empty before the last one: the server has searched for long enough.
            after = page.get("next").and_then(Value::as_str).map(str::to_owned);
            if after.is_none() || items.len() == max {
                break;
            }
        }
        Ok(items)
    }
}

impl AdminCall {
    /// A request without a body.
    pub(crate) fn new(method: Method, path: &str) -> Self {
        Self {
            method,
            path: path.to_owned(),
            query: String::new(),
            headers: vec![
                (ACCEPT, "application/json".to_owned()),
                (HeaderName::from_static("x-tollgate-via"), "cli".to_owned()),
            ],
            body: Bytes::new(),
            timeout: CALL_TIMEOUT,
        }
    }

    /// With a parameter of the query.
    pub(crate) fn query(mut self, name: &str, value: &str) -> Self {
        self.query.push(if self.query.is_empty() { '?' } else { '&' });
        push_encoded(&mut self.query, name);
        self.query.push('=');
        push_encoded(&mut self.query, value);
        self
    }

    /// With a parameter of the query, if it has a value.
    pub(crate) fn query_if(self, name: &str, value: Option<&str>) -> Self {
        match value {
            Some(value) => self.query(name, value),
            None => self,
        }
    }

    /// With a JSON body.
    pub(crate) fn json(self, body: &Value) -> Self {
        self.body("application/json", body.to_string())
    }

    /// With a body.
    pub(crate) fn body(mut self, media_type: &str, body: impl Into<Bytes>) -> Self {
        self.headers.push((CONTENT_TYPE, media_type.to_owned()));
        self.body = body.into();
        self
    }

    /// Under the condition that the item still has this entity tag; none: that it does not exist.
    pub(crate) fn if_unchanged(mut self, tag: Option<&str>) -> Self {
        self.headers.push(match tag {
            Some(tag) => (IF_MATCH, tag.to_owned()),
            None => (IF_NONE_MATCH, "*".to_owned()),
        });
        self
    }

    /// With a header.
    pub(crate) fn header(mut self, name: HeaderName, value: &str) -> Self {
        self.headers.push((name, value.to_owned()));
        self
    }

    /// With more time, for requests that wait for instances.
    pub(crate) fn patient(mut self) -> Self {
        self.timeout = PUBLISH_TIMEOUT;
        self
    }
}

/// Prints a result: as JSON if that was requested, else as text.
pub(crate) fn report(args: &AdminArgs, body: &Value, text: &str) -> ExitCode {
    if args.json {
        print(&body.to_string());
    } else if !text.is_empty() {
        print(text);
    }
    ExitCode::from(EXIT_OK)
}

/// Writes to stderr what concerns the person at the terminal and not the result.
pub(crate) fn note(text: &str) {
    // Without a reader nothing is lost but this note.
    let _ = writeln!(anstream::stderr(), "tollgate: {text}");
}

/// A note about something that may be wrong.
pub(crate) fn warn(text: &str) {
    note(&format!("warning: {text}"));
}

/// Prints the warnings in the response to a write of rows or attributes. Lines are of a file, after so many others.
pub(crate) fn warn_of_write(done: &Value, lines_before: u64) {
    let list = |name: &str| done.get(name).and_then(Value::as_array).into_iter().flatten();
    for warning in list("warnings") {
        let line = match warning.get("line").and_then(Value::as_u64) {
            Some(line) => format!("line {}: ", line + lines_before),
            None => String::new(),
        };
        let (text, hint) = (table::cell(warning, "text"), table::cell(warning, "hint"));
        warn(format!("{line}{text}; {hint}").trim_end_matches("; "));
    }
    let old: Vec<&str> = list("too_old").filter_map(Value::as_str).collect();
    if !old.is_empty() {
        let old = table::printable(&old.join(", "));
        warn(&format!(
            "instances that are too old for it go on without it: {old}; upgrade them"
        ));
    }
}

/// Percent-encodes everything but unreserved characters.
fn push_encoded(text: &mut String, value: &str) {
    for byte in value.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => text.push(char::from(byte)),
            byte => {
                let _ = write!(text, "%{byte:02X}");
            }
        }
    }
}

/// The most items of one page.
const PAGE_MAX: usize = 1_000;

/// The most pages of one list.
const PAGES_MAX: usize = 10_000;

const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// The timeout of a publish, which may wait for the votes of instances.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(90);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_a_query_are_percent_encoded() {
        let call = AdminCall::new(Method::GET, "/override")
            .query("rule", "a/b:c")
            .query("subject", "{\"m\":\"é &\"}");
        assert_eq!(call.query, "?rule=a%2Fb%3Ac&subject=%7B%22m%22%3A%22%C3%A9%20%26%22%7D");
    }
}
