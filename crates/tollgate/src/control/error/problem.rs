//! Problems of rules as clients of the admin API read them.

use crate::rule_source::MANAGED_PREFIX;
use serde::Serialize;
use tollgate_limiter::core::problem::{Problem, Severity};

/// A problem of one file of a set, or of a row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SetProblem {
    /// `error` or `warning`.
    pub severity: &'static str,
    /// The path of the file in the set, or the name of a file of this instance.
    pub file: Option<String>,
    /// The line, from 1.
    pub line: Option<u32>,
    /// The column, from 1.
    pub column: Option<u32>,
    /// The number of characters it concerns.
    pub width: Option<u32>,
    /// The message.
    pub text: String,
    /// The way to fix it.
    pub hint: Option<String>,
}

impl SetProblem {
    /// An error without a location.
    pub fn error(text: impl Into<String>) -> Self {
        Self {
            severity: "error",
            file: None,
            line: None,
            column: None,
            width: None,
            text: text.into(),
            hint: None,
        }
    }

    /// A warning without a location.
    pub fn warning(text: impl Into<String>) -> Self {
        Self {
            severity: "warning",
            ..Self::error(text)
        }
    }

    /// The same with a hint.
    pub fn with_hint(self, hint: impl Into<String>) -> Self {
        Self {
            hint: Some(hint.into()),
            ..self
        }
    }

    /// The same at a line, for a row of an import.
    pub fn at_line(self, line: u32) -> Self {
        Self {
            line: Some(line),
            ..self
        }
    }

    /// True for an error.
    pub fn is_error(&self) -> bool {
        self.severity == "error"
    }
}

impl From<&Problem> for SetProblem {
    fn from(problem: &Problem) -> Self {
        let name = &*problem.location.origin.name;
        Self {
            severity: match problem.severity {
                Severity::Warning => "warning",
                Severity::Error => "error",
            },
            file: Some(name.strip_prefix(MANAGED_PREFIX).unwrap_or(name).to_owned()),
            line: Some(problem.location.line),
            column: Some(problem.location.column),
            width: Some(problem.location.width),
            text: problem.text.replace(MANAGED_PREFIX, ""),
            hint: problem.hint.as_ref().map(|hint| hint.replace(MANAGED_PREFIX, "")),
        }
    }
}
