//! The reader of settings: values that several sections share.

use super::layers::{RawSettings, read_text};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tollgate_limiter::core::problem::{Location, Problem, Problems};
use tollgate_limiter::core::quantity;
use tollgate_limiter::core::yaml::{self, Fields, Node};

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

    /// The file that the setting `tokens_file` names, with its path. Its problems are added to those of the tokens.
    pub(super) fn tokens_file(&mut self, fields: &Fields<'_>, problems: &mut Problems) -> Option<(Node, PathBuf)> {
        let path = self.path(fields.value("tokens_file")?, "a tokens file")?;
        match read_text(&path)
            .map_err(|problem| vec![problem])
            .and_then(|origin| yaml::parse(&origin))
        {
            Ok(file) => Some((file, path)),
            Err(found) => {
                problems.extend(found);
                None
            }
        }
    }

    /// Adds the problems of tokens, without the source line: they go to the log.
    pub(super) fn extend_without_snippets(&mut self, problems: Problems) {
        for problem in problems.sorted() {
            let location = without_snippet(&problem.location);
            self.problems.push(problem.with_location(location));
        }
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

    /// The secret of the setting `key`, or of the file that `key` with `_file` names, and the location of the setting.
    pub(crate) fn secret_or_file(
        &mut self,
        fields: &Fields<'_>,
        key: &str,
        expected: &str,
    ) -> Option<(String, Location)> {
        let find = |key: &str| fields.value(key);
        let file_key = format!("{key}_file");
        match (find(key), find(&file_key)) {
            (None, None) => None,
            (Some(node), None) => {
                let text = self.secret(node, expected)?.to_owned();
                Some((text, without_snippet(&node.location)))
            }
            (None, Some(node)) => {
                let base_dir = self.raw.base_dir_of(&node.location);
                let text = read_secret_file(node, &base_dir, &file_key, &mut self.problems)?;
                Some((text, without_snippet(&node.location)))
            }
            (Some(_), Some(node)) => {
                self.problems.error_with(
                    &without_snippet(&node.location),
                    format!("both `{key}` and `{file_key}` are set"),
                    format!("keep `{file_key}` and remove `{key}`"),
                );
                None
            }
        }
    }
}

/// The secret in a file: its first line. The setting `key` names the file, relative to `base_dir`.
pub(crate) fn read_secret_file(node: &Node, base_dir: &Path, key: &str, problems: &mut Problems) -> Option<String> {
    let name = node.text("a file with a secret", problems)?;
    // The line may hold another secret.
    let location = without_snippet(&node.location);
    if name.is_empty() || name.contains('\0') {
        let hint = "write a path; relative ones start at the file that names it";
        problems.error_with(&location, format!("`{key}` names no file"), hint);
        return None;
    }
    let path = base_dir.join(name);
    let origin = match read_text(&path) {
        Ok(origin) => origin,
        Err(problem) => {
            let text = format!("`{key}`: {}: {}", path.display(), problem.text);
            let hint = problem.hint.as_deref().unwrap_or("name a file that this user may read");
            problems.error_with(&location, text, hint);
            return None;
        }
    };
    let mut lines = origin.text.lines();
    let secret = lines.next().unwrap_or_default();
    if secret.is_empty() {
        let text = format!("`{key}`: {}: its first line is empty", path.display());
        problems.error_with(&location, text, "write the secret into the first line");
        return None;
    }
    if lines.any(|line| !line.trim().is_empty()) {
        let text = format!("`{key}`: {}: only its first line is used", path.display());
        let problem = Problem::warning(&location, text);
        problems.push(problem.with_hint("a secret is one line; remove the others"));
    }
    Some(secret.to_owned())
}

/// The same location without its source line: for values that must not be logged.
pub(crate) fn without_snippet(location: &Location) -> Location {
    Location {
        origin: location.origin.without_text(),
        ..location.clone()
    }
}
