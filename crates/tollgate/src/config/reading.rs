//! What reading the sections of the settings has in common.

use super::layers::Written;
use std::path::PathBuf;
use std::time::Duration;
use tollgate_limiter::core::problem::{Origin, Location, Problems};
use tollgate_limiter::core::quantity;
use tollgate_limiter::core::yaml::Node;

/// Settings half read, and what was wrong so far.
pub(super) struct Reading<'w> {
    pub(super) written: &'w Written,
    pub(super) problems: Problems,
}

impl<'w> Reading<'w> {
    pub(super) fn new(written: &'w Written) -> Self {
        Self {
            written,
            problems: Problems::new(),
        }
    }

    /// The folder that defaults are in: the file's, or else the working folder.
    pub(super) fn home(&self) -> PathBuf {
        match &self.written.file {
            Some(file) => file.path.parent().map(Into::into).unwrap_or_default(),
            None => PathBuf::new(),
        }
    }

    /// A path, relative to the file that says it.
    pub(super) fn path(&mut self, node: &Node, expected: &str) -> Option<PathBuf> {
        let text = node.text(expected, &mut self.problems)?;
        if text.is_empty() || text.contains('\0') {
            let hint = "write a path, relative to the file that says it";
            self.problems
                .error_with(&node.location, format!("this is not {expected}"), hint);
            return None;
        }
        Some(self.written.folder_of(&node.location).join(text))
    }

    /// A length of time that is not zero and at most `most`.
    pub(super) fn duration(&mut self, node: &Node, most: Duration) -> Option<Duration> {
        let read = node.read("a length of time", quantity::parse_duration, &mut self.problems)?;
        let duration = Duration::from(read);
        if duration.is_zero() || duration > most {
            self.problems.error_with(
                &node.location,
                "this is out of range",
                format!("write more than nothing and at most `{}s`", most.as_secs()),
            );
            return None;
        }
        Some(duration)
    }

    /// A text that no message repeats, whatever is wrong with it.
    pub(super) fn secret<'n>(&mut self, node: &'n Node, expected: &str) -> Option<&'n str> {
        let text = node.scalar();
        if text.is_none() {
            let found = format!("expected {expected}, found {}", node.kind_name());
            let hint = "write one value; a text that begins with `[` or `{` stands in quotes";
            self.problems.error_with(&without_text(&node.location), found, hint);
        }
        text
    }

    /// Says that this version has no such thing, where it was asked for.
    pub(super) fn not_yet(&mut self, place: &Location, what: &str, hint: &str) {
        self.problems
            .error_with(place, format!("this version has no {what} yet"), hint);
    }
}

/// The same place without its text: for values that no log should repeat.
pub(super) fn without_text(place: &Location) -> Location {
    Location {
        origin: Origin::new(place.origin.name.clone(), ""),
        ..place.clone()
    }
}
