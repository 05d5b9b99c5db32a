//! A problem of a rule or a row in a response, and its text with the line it is about.

use super::table::printable;
use crate::cli::rules::coloured;
use serde_json::Value;
use std::fmt::{self, Write as _};
use std::sync::Arc;
use tollgate_limiter::core::problem::{Location, Origin, Problem, Severity};

/// A problem of a rule or a row, as the server reports it.
#[derive(Debug)]
pub(super) struct ServerProblem {
    is_error: bool,
    pub(super) file: String,
    pub(super) line: Option<u32>,
    column: Option<u32>,
    width: u32,
    text: String,
    hint: String,
    /// The text that was sent, under the name that the person gave.
    pub(super) origin: Option<Arc<Origin>>,
}

impl ServerProblem {
    pub(super) fn new(problem: &Value) -> Self {
        let member = |name: &str| printable(problem.get(name).and_then(Value::as_str).unwrap_or_default());
        let number = |name: &str| problem.get(name).and_then(Value::as_u64)?.try_into().ok();
        Self {
            is_error: member("severity") != "warning",
            file: member("file"),
            line: number("line"),
            column: number("column"),
            width: number("width").unwrap_or(1),
            text: member("text"),
            hint: member("hint"),
            origin: None,
        }
    }

    /// The problem with the line it is about, if the text is known.
    fn with_snippet(&self) -> Option<Problem> {
        let location = Location {
            origin: Arc::clone(self.origin.as_ref()?),
            line: self.line?,
            column: self.column?,
            width: self.width,
        };
        let mut problem = Problem::error(&location, self.text.clone());
        problem.severity = match self.is_error {
            true => Severity::Error,
            false => Severity::Warning,
        };
        problem.hint = (!self.hint.is_empty()).then(|| self.hint.clone());
        Some(problem)
    }
}

impl fmt::Display for ServerProblem {
    /// As `rules check` prints it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(problem) = self.with_snippet() {
            return f.write_str(&coloured(&problem));
        }
        let mut location = self.file.clone();
        for number in [self.line, self.column].into_iter().flatten() {
            if location.is_empty() {
                location.push_str("line ");
            } else if !location.ends_with(' ') {
                location.push(':');
            }
            let _ = write!(location, "{number}");
        }
        if !location.is_empty() {
            write!(f, "{location}: ")?;
        }
        let severity = if self.is_error { "error" } else { "warning" };
        write!(f, "{severity}: {}", self.text)?;
        match self.hint.is_empty() {
            true => Ok(()),
            false => write!(f, "; {}", self.hint),
        }
    }
}
