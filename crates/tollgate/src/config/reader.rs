//! The reader of settings: values that several sections share.

use super::layers::RawSettings;
use std::path::PathBuf;
use std::time::Duration;
use tollgate_limiter::core::problem::{Location, Problems};
use tollgate_limiter::core::quantity;
use tollgate_limiter::core::yaml::Node;

/// Validates settings section by section and collects the problems.
pub(crate) struct SettingsReader<'w> {
    pub(crate) raw: &'w RawSettings,
    pub(crate) problems: Problems,
}

impl<'w> SettingsReader<'w> {
    pub(crate) fn new(raw: &'w RawSettings) -> Self {
        Self {
            raw,
            problems: Problems::new(),
        }
    }

    /// The directory of default paths: that of the settings file, else the working directory.
    pub(crate) fn base_dir(&self) -> PathBuf {
        match &self.raw.file {
            Some(file) => file.path.parent().map(Into::into).unwrap_or_default(),
            None => PathBuf::new(),
        }
    }

    /// A path, relative to the settings file if it stands there.
    pub(crate) fn path(&mut self, node: &Node, expected: &str) -> Option<PathBuf> {
        let text = node.text(expected, &mut self.problems)?;
        if text.is_empty() || text.contains('\0') {
            let hint = "write a path; relative ones start at the settings file";
            self.problems
                .error_with(&node.location, format!("expected {expected}"), hint);
            return None;
        }
        Some(self.raw.base_dir_of(&node.location).join(text))
    }

    /// A duration above zero and at most `max`.
    pub(crate) fn duration(&mut self, node: &Node, max: Duration) -> Option<Duration> {
        let read = node.read("a duration", quantity::parse_duration, &mut self.problems)?;
        let duration = Duration::from(read);
        if duration.is_zero() || duration > max {
            self.problems.error_with(
                &node.location,
                "out of range",
                format!("write a duration above 0 and at most `{}s`", max.as_secs()),
            );
            return None;
        }
        Some(duration)
    }

    /// A secret: no message repeats its text.
    pub(crate) fn secret<'n>(&mut self, node: &'n Node, expected: &str) -> Option<&'n str> {
        let text = node.scalar();
        if text.is_none() {
            let found = format!("expected {expected}, found {}", node.kind_name());
            let hint = "write one value; put a text that starts with `[` or `{` in quotes";
            self.problems.error_with(&without_snippet(&node.location), found, hint);
        }
        text
    }

    /// Reports a setting of a feature that this version does not have.
    pub(crate) fn unsupported(&mut self, location: &Location, what: &str, hint: &str) {
        self.problems
            .error_with(location, format!("this version has no {what} yet"), hint);
    }
}

/// The same location without its source line: for values that must not be logged.
pub(crate) fn without_snippet(location: &Location) -> Location {
    Location {
        origin: location.origin.without_text(),
        ..location.clone()
    }
}
