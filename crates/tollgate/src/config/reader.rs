//! What reading the sections of the settings has in common.

use super::layers::RawSettings;
use std::path::PathBuf;
use std::time::Duration;
use tollgate_limiter::core::problem::{Location, Origin, Problems};
use tollgate_limiter::core::quantity;
use tollgate_limiter::core::yaml::Node;

/// Settings half read, and what was wrong so far.
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

    /// The folder that defaults are in: the file's, or else the working folder.
    pub(crate) fn base_dir(&self) -> PathBuf {
        match &self.raw.file {
            Some(file) => file.path.parent().map(Into::into).unwrap_or_default(),
            None => PathBuf::new(),
        }
    }

    /// A path, relative to the file that says it.
    pub(crate) fn path(&mut self, node: &Node, expected: &str) -> Option<PathBuf> {
        let text = node.text(expected, &mut self.problems)?;
        if text.is_empty() || text.contains('\0') {
            let hint = "write a path, relative to the file that says it";
            self.problems
                .error_with(&node.location, format!("this is not {expected}"), hint);
            return None;
        }
        Some(self.raw.base_dir_of(&node.location).join(text))
    }

    /// A length of time that is not zero and at most `most`.
    pub(crate) fn duration(&mut self, node: &Node, max: Duration) -> Option<Duration> {
        let read = node.read("a length of time", quantity::parse_duration, &mut self.problems)?;
        let duration = Duration::from(read);
        if duration.is_zero() || duration > max {
            self.problems.error_with(
                &node.location,
                "this is out of range",
                format!("write more than nothing and at most `{}s`", max.as_secs()),
            );
            return None;
        }
        Some(duration)
    }

    /// A text that no message repeats, whatever is wrong with it.
    pub(crate) fn secret<'n>(&mut self, node: &'n Node, expected: &str) -> Option<&'n str> {
        let text = node.scalar();
        if text.is_none() {
            let found = format!("expected {expected}, found {}", node.kind_name());
            let hint = "write one value; a text that begins with `[` or `{` stands in quotes";
            self.problems.error_with(&without_snippet(&node.location), found, hint);
        }
        text
    }

    /// Says that this version has no such thing, where it was asked for.
    pub(crate) fn unsupported(&mut self, location: &Location, what: &str, hint: &str) {
        self.problems
            .error_with(location, format!("this version has no {what} yet"), hint);
    }
}

/// The same place without its text: for values that no log should repeat.
pub(crate) fn without_snippet(location: &Location) -> Location {
    Location {
        origin: Origin::new(location.origin.name.clone(), ""),
        ..location.clone()
    }
}
