//! The reasons why a command did nothing: what the server, the command or the person refused, and the next step.

use super::server_problem::ServerProblem;
use super::table::{printable, subject_text};
use crate::cli::EXIT_ERROR;
use crate::cli::client::{ClientError, ServerResponse};
use hyper::StatusCode;
use serde_json::Value;
use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use tollgate_limiter::core::problem::Origin;

/// The reason why a command did nothing.
#[derive(Debug, Default)]
pub(crate) struct Failure {
    /// The exit code: refused, or an error.
    pub(crate) code: u8,
    /// The reason.
    text: String,
    /// The next step; empty if the reason names it.
    next_step: Box<str>,
    /// The `code` of the server's problem document; empty without one.
    pub(crate) problem_code: String,
    problems: Vec<ServerProblem>,
    /// Rows and instances that the server names.
    lines: Vec<String>,
}

/// The exit code and what was done, or the reason why nothing was.
pub(crate) type CommandResult = Result<ExitCode, Failure>;

/// The exit code of a command that the control plane, or the person, refused.
pub(crate) const EXIT_REFUSED: u8 = 1;

impl Failure {
    /// An error.
    pub(crate) fn error(text: impl Into<String>) -> Self {
        Self {
            code: EXIT_ERROR,
            text: text.into(),
            ..Self::default()
        }
    }

    /// A refusal by the command itself.
    pub(crate) fn refused(text: impl Into<String>) -> Self {
        Self {
            code: EXIT_REFUSED,
            ..Self::error(text)
        }
    }

    /// A response that no admin API gives.
    pub(crate) fn unexpected(what: &str) -> Self {
        Self::error(format!("the response {what}; {IS_IT_TOLLGATE}"))
    }

    /// The failure that a response reports.
    pub(crate) fn from_response(response: &ServerResponse) -> Self {
        let body = response.json().unwrap_or(Value::Null);
        let member = |name: &str| multi_line(body.get(name).and_then(Value::as_str).unwrap_or_default());
        let code = match response.status {
            StatusCode::CONFLICT
            | StatusCode::PRECONDITION_FAILED
            | StatusCode::UNPROCESSABLE_ENTITY
            | StatusCode::PRECONDITION_REQUIRED => EXIT_REFUSED,
            _ => EXIT_ERROR,
        };
        let problems: Vec<ServerProblem> = match body.get("problems").and_then(Value::as_array) {
            Some(problems) => problems.iter().map(ServerProblem::new).collect(),
            None => Vec::new(),
        };
        let problem_code = member("code");
        let mut text = match (member("detail"), member("title")) {
            // Another server, or another front end of this one.
            _ if problem_code.is_empty() && response.status == StatusCode::NOT_FOUND => {
                "there is no admin API at this URL".to_owned()
            }
            _ if problem_code == "invalid" && !problems.is_empty() => match problems.len() {
                1 => "1 problem".to_owned(),
                count => format!("{count} problems"),
            },
            (detail, _) if !detail.is_empty() => detail,
            (_, title) if !title.is_empty() => title,
            _ => format!("server error {}", response.status),
        };
        let field = member("field");
        if !field.is_empty() && !text.contains(&field) {
            text = format!("`{field}` {text}");
        }
        let author = member("author");
        for (value, label) in [(author.clone(), "by"), (member("reason"), "reason")] {
            if !value.is_empty() && !text.contains(&value) {
                let _ = write!(text, "; {label} {value}");
            }
        }
        let has_author = !author.is_empty();
        let next_step = match problem_code.as_str() {
            "" => IS_IT_TOLLGATE,
            "drift" if has_author => "take the change over with `tollgate rules pull`, or replace it with --force",
            "edits-git" => "push it, or as an admin add --break-glass and --reason",
            "rows-invalid" => "change them, or delete them with --drop-rows",
            "prepare-incomplete" => {
                "see `tollgate control status`; if an instance cannot be reached, an admin may add --skip-prepare and --reason"
            }
            "database-regressed" => "see `tollgate control status`; after a restore, `tollgate control adopt`",
            "stale" => "it was changed meanwhile: look at it and run again",
            "setup-done" => "with the token of an admin, `tollgate token add NAME --role ROLE` adds another",
            "code" => "copy it from the line `setup:`; every start has another",
            _ if text.ends_with("needs a reason") => "add --reason",
            _ => match response.status {
                StatusCode::FORBIDDEN => "use a credential that has this right",
                StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => "retry later",
                _ => "",
            },
        };
        Self {
            code,
            text,
            next_step: next_step.into(),
            problem_code,
            problems,
            lines: [row_lines(&body), instance_lines(&body), diff_lines(&member("diff"))].concat(),
        }
    }

    /// The same as an error: for commands whose other exit code means something else.
    pub(crate) fn into_error(self) -> Self {
        Self {
            code: EXIT_ERROR,
            ..self
        }
    }

    /// The same with another reason and next step.
    pub(crate) fn because(self, text: impl Into<String>, next_step: impl Into<Box<str>>) -> Self {
        Self {
            text: text.into(),
            next_step: next_step.into(),
            ..self
        }
    }

    /// The same with a line at the end.
    pub(crate) fn with_line(mut self, line: impl Into<String>) -> Self {
        self.lines.push(line.into());
        self
    }

    /// Finds the texts that its problems are about by their paths in the version, so that their lines can be shown.
    pub(crate) fn locate(mut self, find: impl Fn(&str) -> Option<Arc<Origin>>) -> Self {
        for problem in &mut self.problems {
            problem.origin = find(&problem.file);
        }
        self
    }

    /// The same for a write of a single item, which has no lines.
    pub(crate) fn without_lines(mut self) -> Self {
        self.problems.iter_mut().for_each(|problem| problem.line = None);
        self
    }

    /// Counts the lines of problems from a later line of a file, of which a part was sent.
    pub(crate) fn shift_lines(mut self, by: u32) -> Self {
        for problem in &mut self.problems {
            problem.line = problem.line.map(|line| line.saturating_add(by));
        }
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        if !self.next_step.is_empty() {
            write!(f, "; {}", self.next_step)?;
        }
        for problem in &self.problems {
            write!(f, "\n{}", problem.to_string().trim_end())?;
        }
        for line in &self.lines {
            write!(f, "\n{line}")?;
        }
        Ok(())
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        Self::error(error.to_string())
    }
}

fn row_lines(body: &Value) -> Vec<String> {
    let line = |row: &Value| {
        let member = |name: &str| printable(row.get(name).and_then(Value::as_str).unwrap_or_default());
        let subject = row.get("subject").map(subject_text).unwrap_or_default();
        let (domain, rule, terms, text) = (member("domain"), member("rule"), member("terms"), member("text"));
        format!("  {domain}/{rule}  {subject}  {terms}  {text}")
    };
    let rows = body.get("rows").and_then(Value::as_array);
    rows.map_or_else(Vec::new, |rows| rows.iter().map(line).collect())
}

/// Instances are named, or described by an object with an `id` and what is known of it.
fn instance_lines(body: &Value) -> Vec<String> {
    let line = |instance: &Value| match instance {
        Value::String(name) => format!("  instance {}", printable(name)),
        Value::Object(members) => {
            let id = instance.get("id").and_then(Value::as_str).unwrap_or_default();
            let mut text = format!("  instance {}", printable(id));
            for (name, value) in members.iter().filter(|(name, _)| *name != "id") {
                let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                let _ = write!(text, ", {name} {}", printable(&value));
            }
            text
        }
        other => format!("  instance {}", printable(&other.to_string())),
    };
    let instances = body.get("instances").and_then(Value::as_array);
    instances.map_or_else(Vec::new, |list| list.iter().map(line).collect())
}

/// The difference between what is there and what was sent, up to a number of lines.
fn diff_lines(diff: &str) -> Vec<String> {
    let mut lines: Vec<String> = diff
        .lines()
        .take(DIFF_LINES_MAX)
        .map(|line| format!("  {line}"))
        .collect();
    if diff.lines().nth(DIFF_LINES_MAX).is_some() {
        lines.push("  …".to_owned());
    }
    lines
}

/// A text of several lines without other control characters.
fn multi_line(text: &str) -> String {
    text.lines().map(printable).collect::<Vec<_>>().join("\n")
}

/// Prints why a command did nothing, and returns its exit code.
pub(crate) fn finish(result: CommandResult) -> ExitCode {
    match result {
        Ok(code) => code,
        Err(failure) => {
            let word = if failure.code == EXIT_REFUSED { "refused: " } else { "" };
            // If stderr is closed, the exit code still says it.
            let _ = writeln!(anstream::stderr(), "tollgate: {word}{failure}");
            ExitCode::from(failure.code)
        }
    }
}

/// The most lines of a difference that are shown.
const DIFF_LINES_MAX: usize = 40;

const IS_IT_TOLLGATE: &str = "is this URL the admin API (`admin:` in the output of `tollgate serve`)?";

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn failure(status: StatusCode, body: &Value) -> Failure {
        Failure::from_response(&ServerResponse {
            status,
            headers: hyper::HeaderMap::new(),
            body: body.to_string().into(),
        })
    }

    #[test]
    fn a_conflict_is_a_refusal_and_names_author_reason_and_the_next_step() {
        let drift = failure(
            StatusCode::CONFLICT,
            &json!({"detail": "the live version was not pushed", "code": "drift", "author": "anna", "reason": "incident"}),
        );
        assert_eq!((drift.code, drift.problem_code.as_str()), (1, "drift"));
        assert_eq!(
            drift.to_string(),
            "the live version was not pushed; by anna; reason incident; \
             take the change over with `tollgate rules pull`, or replace it with --force"
        );
        let silent = failure(
            StatusCode::CONFLICT,
            &json!({"detail": "a vote is missing", "code": "prepare-incomplete", "instances": ["a", {"id": "b", "format": 1}]}),
        );
        let text = silent.to_string();
        assert!(text.contains("--skip-prepare"), "{text}");
        assert!(text.ends_with("\n  instance a\n  instance b, format 1"), "{text}");
        let rows = failure(
            StatusCode::CONFLICT,
            &json!({"detail": "1 row", "code": "rows-invalid", "rows":
                    [{"domain": "d", "rule": "r", "subject": {"m": "x"}, "terms": "9/s burst 9", "text": "no burst"}]}),
        );
        assert_eq!(
            rows.to_string(),
            "1 row; change them, or delete them with --drop-rows\n  d/r  m=x  9/s burst 9  no burst"
        );
    }

    #[test]
    fn invalid_rules_show_the_line_of_the_file_that_was_sent() {
        let invalid = || {
            failure(
                StatusCode::UNPROCESSABLE_ENTITY,
                &json!({"detail": "1 problems", "code": "invalid", "problems":
                       [{"severity": "error", "file": "a.yaml", "line": 1, "column": 8, "width": 4, "text": "bad", "hint": "write 1/s"}]}),
            )
        };
        assert_eq!(invalid().code, 1);
        assert_eq!(invalid().to_string(), "1 problem\na.yaml:1:8: error: bad; write 1/s");
        let text = invalid()
            .locate(|path| (path == "a.yaml").then(|| Origin::new("rules/a.yaml", "limit: many\n")))
            .to_string();
        let plain = anstream::adapter::strip_str(&text).to_string();
        assert!(
            plain.starts_with("1 problem\nrules/a.yaml:1:8: error: bad\n1 | limit: many\n  |        ^^^^"),
            "{plain}"
        );
        // A row of an import has a line and no file.
        let row = failure(
            StatusCode::UNPROCESSABLE_ENTITY,
            &json!({"detail": "1 problems", "code": "invalid", "problems": [{"severity": "error", "line": 3, "text": "bad"}]}),
        );
        assert_eq!(row.shift_lines(10_000).to_string(), "1 problem\nline 10003: error: bad");
    }

    #[test]
    fn a_stale_item_names_its_author_and_shows_the_difference() {
        let body = json!({"detail": "the item was changed at revision 7", "code": "stale", "author": "anna", "reason": "sale",
                          "diff": "-terms: 9/s\n+terms: 5/s\n"});
        let stale = failure(StatusCode::PRECONDITION_FAILED, &body);
        assert_eq!(stale.code, 1);
        assert_eq!(
            stale.to_string(),
            "the item was changed at revision 7; by anna; reason sale; it was changed meanwhile: look at it and run again\n  \
             -terms: 9/s\n  +terms: 5/s"
        );
        let long = json!({"detail": "d", "code": "stale", "diff": "-a\n".repeat(100)});
        let long = failure(StatusCode::PRECONDITION_FAILED, &long).to_string();
        assert_eq!(long.lines().count(), 1 + DIFF_LINES_MAX + 1);
    }

    #[test]
    fn what_is_no_problem_document_asks_for_the_url() {
        for body in [json!("<html>"), json!([1]), json!({"error": "no"}), Value::Null] {
            let found = failure(StatusCode::BAD_GATEWAY, &body);
            assert_eq!(found.code, 2);
            assert!(
                found
                    .to_string()
                    .starts_with("server error 502 Bad Gateway; is this URL the admin API"),
                "{found}"
            );
        }
    }

    #[test]
    fn text_of_a_server_cannot_control_the_terminal() {
        let found = failure(
            StatusCode::CONFLICT,
            &json!({"detail": "a\u{1b}[31m\nb", "code": "x", "instances": ["i\u{7}"],
                    "problems": [{"text": "t\u{1b}]0;x\u{7}"}]}),
        );
        let text = found.to_string();
        assert!(!text.contains(['\u{1b}', '\u{7}']), "{text}");
        assert!(text.starts_with("a\\u{1b}[31m\nb\nerror: t"), "{text}");
    }
}
