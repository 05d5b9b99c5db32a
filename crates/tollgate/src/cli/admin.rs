//! Calls of the admin API, for the commands that change and inspect what a control plane manages.
//!
//! `admin/bulk.rs` imports and exports, `admin/date.rs` reads and prints times, `admin/table.rs` prints columns.

pub(super) mod bulk;
pub(super) mod date;
pub(super) mod table;

use super::args::print;
use super::client::{Call, ClientError, Endpoint, ServerResponse, read_token};
use super::{EXIT_ERROR, EXIT_OK};
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

/// The reason why a command did nothing.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The exit code: refused, or an error.
    pub(crate) code: u8,
    /// The reason and the next step.
    pub(crate) text: String,
    /// The `code` of the server's problem document; empty if there is none.
    pub(crate) problem_code: String,
}

/// The exit code and what was done, or the reason why nothing was.
pub(crate) type CommandResult = Result<ExitCode, Failure>;

impl AdminArgs {
    /// Makes a request. Statuses other than success are failures.
    pub(crate) fn call(&self, call: AdminCall) -> Result<ServerResponse, Failure> {
        let source = "--token-file, TOLLGATE_ADMIN_TOKEN";
        let endpoint = Endpoint {
            url: &self.admin_url,
            token: read_token(self.admin_token.as_deref(), self.token_file.as_deref(), source)?,
            ca: self.ca.as_deref(),
            address_source: "--admin-url or TOLLGATE_ADMIN_URL",
        };
        let response = endpoint.call(Call {
            method: call.method,
            path: format!("/v1{}{}", call.path, call.query),
            headers: call.headers,
            body: call.body,
            timeout: call.timeout,
        })?;
        if response.status.is_success() {
            return Ok(response);
        }
        Err(Failure::from_response(&response))
    }

    /// Makes a request and returns the JSON of its response.
    pub(crate) fn json(&self, call: AdminCall) -> Result<Value, Failure> {
        let response = self.call(call)?;
        response
            .json()
            .ok_or_else(|| Failure::error("the response is not JSON; is this URL the admin API of a tollgate server?"))
    }

    /// The entity tag of an item; none if it does not exist.
    pub(crate) fn entity_tag(&self, call: AdminCall) -> Result<Option<String>, Failure> {
        match self.call(call) {
            Ok(response) => {
                let tag = response.headers.get(ETAG).and_then(|value| value.to_str().ok());
                let missing = || Failure::error("the response has no ETag; is a proxy removing it?");
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
        while items.len() < max {
            let limit = (max - items.len()).min(PAGE_MAX);
            let mut call = AdminCall::new(Method::GET, path).query("limit", &limit.to_string());
            for (name, value) in query {
                call = call.query(name, value);
            }
            if let Some(after) = &after {
                call = call.query("after", after);
            }
            let page = self.json(call)?;
            let found = page.get("items").and_then(Value::as_array).cloned().unwrap_or_default();
            let is_empty = found.is_empty();
            items.extend(found);
            after = page.get("next").and_then(Value::as_str).map(str::to_owned);
            if after.is_none() || is_empty {
                break;
            }
        }
        items.truncate(max);
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

impl Failure {
    /// An error.
    pub(crate) fn error(text: impl Into<String>) -> Self {
        Self {
            code: EXIT_ERROR,
            text: text.into(),
            problem_code: String::new(),
        }
    }

    /// A refusal by the command itself.
    pub(crate) fn refused(text: impl Into<String>) -> Self {
        Self {
            code: EXIT_REFUSED,
            text: text.into(),
            problem_code: String::new(),
        }
    }

    /// The failure that a response reports.
    fn from_response(response: &ServerResponse) -> Self {
        let body = response.json().unwrap_or(Value::Null);
        let member = |name: &str| body.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let code = match response.status {
            StatusCode::CONFLICT
            | StatusCode::PRECONDITION_FAILED
            | StatusCode::UNPROCESSABLE_ENTITY
            | StatusCode::PRECONDITION_REQUIRED => EXIT_REFUSED,
            _ => EXIT_ERROR,
        };
        let mut text = match (member("detail"), member("title")) {
            (detail, _) if !detail.is_empty() => detail,
            (_, title) if !title.is_empty() => title,
            _ => format!("server error {}", response.status),
        };
        for (name, label) in [("author", "by"), ("reason", "reason")] {
            let value = member(name);
            if !value.is_empty() && !text.contains(&value) {
                let _ = write!(text, "; {label} {value}");
            }
        }
        let next_step = match response.status {
            StatusCode::UNAUTHORIZED => "pass a token with --token-file or TOLLGATE_ADMIN_TOKEN",
            StatusCode::FORBIDDEN => "use a token with this right, see `tollgate token list`",
            StatusCode::PRECONDITION_FAILED => "it was changed meanwhile: look at it and run again",
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => "retry later",
            _ => "",
        };
        if !next_step.is_empty() {
            let _ = write!(text, "; {next_step}");
        }
        let lists = [problem_lines(&body), row_lines(&body), instance_lines(&body)];
        for line in lists.into_iter().flatten() {
            let _ = write!(text, "\n{line}");
        }
        Self {
            code,
            text,
            problem_code: member("code"),
        }
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        Self::error(error.to_string())
    }
}

/// The problems of a response, as `rules check` prints them.
pub(crate) fn problem_lines(body: &Value) -> Vec<String> {
    let line = |problem: &Value| {
        let member = |name: &str| problem.get(name).and_then(Value::as_str).unwrap_or_default();
        let mut text = String::new();
        if !member("file").is_empty() {
            let _ = write!(text, "{}:", member("file"));
        }
        for name in ["line", "column"] {
            if let Some(number) = problem.get(name).and_then(Value::as_u64) {
                let _ = write!(text, "{number}:");
            }
        }
        if !text.is_empty() {
            text.push(' ');
        }
        let _ = write!(text, "{}: {}", member("severity"), member("text"));
        if !member("hint").is_empty() {
            let _ = write!(text, "; {}", member("hint"));
        }
        text
    };
    let problems = body.get("problems").and_then(Value::as_array);
    problems.map_or_else(Vec::new, |problems| problems.iter().map(line).collect())
}

fn row_lines(body: &Value) -> Vec<String> {
    let line = |row: &Value| {
        let member = |name: &str| row.get(name).and_then(Value::as_str).unwrap_or_default();
        let subject = row.get("subject").map(table::subject_text).unwrap_or_default();
        let (domain, rule, terms, text) = (member("domain"), member("rule"), member("terms"), member("text"));
        format!("  {domain}/{rule}  {subject}  {terms}  {text}")
    };
    let rows = body.get("rows").and_then(Value::as_array);
    rows.map_or_else(Vec::new, |rows| rows.iter().map(line).collect())
}

fn instance_lines(body: &Value) -> Vec<String> {
    let line = |instance: &Value| match instance.as_str() {
        Some(name) => format!("  instance {name}"),
        None => format!("  instance {instance}"),
    };
    let instances = body.get("instances").and_then(Value::as_array);
    instances.map_or_else(Vec::new, |list| list.iter().map(line).collect())
}

/// Prints why a command did nothing, and returns its exit code.
pub(crate) fn finish(result: CommandResult) -> ExitCode {
    match result {
        Ok(code) => code,
        Err(failure) => {
            let word = if failure.code == EXIT_REFUSED { "refused: " } else { "" };
            // If stderr is closed, the exit code still says it.
            let _ = writeln!(std::io::stderr(), "tollgate: {word}{}", failure.text);
            ExitCode::from(failure.code)
        }
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
pub(crate) fn warn(text: &str) {
    // Without a reader no warning is seen.
    let _ = writeln!(std::io::stderr(), "tollgate: warning: {text}");
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

/// The exit code of a command that the control plane, or the person, refused.
pub(crate) const EXIT_REFUSED: u8 = 1;

/// The most items of one page.
const PAGE_MAX: usize = 1_000;

const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// The timeout of a publish, which may wait for the votes of instances.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(90);

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_of_a_query_are_percent_encoded() {
        let call = AdminCall::new(Method::GET, "/override")
            .query("rule", "a/b:c")
            .query("subject", "{\"m\":\"é &\"}");
        assert_eq!(call.query, "?rule=a%2Fb%3Ac&subject=%7B%22m%22%3A%22%C3%A9%20%26%22%7D");
    }

    #[test]
    fn a_conflict_is_a_refusal_and_says_by_whom() {
        let failure = |status: StatusCode, body: Value| {
            Failure::from_response(&ServerResponse {
                status,
                headers: hyper::HeaderMap::new(),
                body: body.to_string().into(),
            })
        };
        let drift = failure(
            StatusCode::CONFLICT,
            json!({"detail": "the live version was not pushed", "code": "drift", "author": "anna", "reason": "incident"}),
        );
        assert_eq!((drift.code, drift.problem_code.as_str()), (1, "drift"));
        assert_eq!(drift.text, "the live version was not pushed; by anna; reason incident");
        let invalid = failure(
            StatusCode::UNPROCESSABLE_ENTITY,
            json!({"detail": "1 error", "code": "invalid", "problems":
                   [{"severity": "error", "file": "a.yaml", "line": 3, "column": 5, "text": "bad", "hint": "write 1/s"}]}),
        );
        assert_eq!(invalid.text, "1 error\na.yaml:3:5: error: bad; write 1/s");
        let missing = failure(StatusCode::UNAUTHORIZED, Value::Null);
        assert_eq!(missing.code, 2);
        assert!(missing.text.contains("TOLLGATE_ADMIN_TOKEN"), "{}", missing.text);
    }
}
