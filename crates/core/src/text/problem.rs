//! Problems in configuration and rules: location, text, and a hint.

use std::collections::HashMap;
use std::fmt::{self, Write};
use std::sync::{Arc, OnceLock};

/// A text that was read: a file, an environment variable, a flag.
#[derive(Debug)]
pub struct Origin {
    /// The name in messages: `rules/api.yaml`, `TOLLGATE_STORE`, `--set`.
    pub name: Box<str>,
    /// The content.
    pub text: Box<str>,
    /// The start of each line, computed once: a large text may have a thousand problems to show.
    lines: OnceLock<Box<[usize]>>,
    /// True for a variable or a flag: its name alone is the location of the whole value.
    is_value: bool,
}

/// A part of one line of a text. Lines and columns count from one, columns in characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The text.
    pub origin: Arc<Origin>,
    /// The line.
    pub line: u32,
    /// The first column.
    pub column: u32,
    /// The number of characters, at least one.
    pub width: u32,
}

/// The severity of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The text is accepted, but is probably not what was intended.
    Warning,
    /// The text is rejected as a whole.
    Error,
}

/// One problem in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The severity.
    pub severity: Severity,
    /// The location.
    pub location: Location,
    /// The message, in lower case and without a full stop.
    pub text: String,
    /// The way to fix it, if known.
    pub hint: Option<String>,
    /// The number of errors that were left out, if this is the last entry of a truncated list.
    omitted: usize,
}

/// Problems as they are found, up to [`Problems::MAX`] of each severity.
#[derive(Debug, Default)]
pub struct Problems {
    /// Separate from errors, so that no number of warnings hides one.
    warnings: Vec<Problem>,
    kept_errors: Vec<Problem>,
    error_count: usize,
}

impl Problems {
    /// The most errors and the most warnings that are kept.
    pub const MAX: usize = 1_000;

    /// An empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a problem. Beyond [`Problems::MAX`] it is dropped; an error is still counted.
    pub fn push(&mut self, problem: Problem) {
        self.error_count += problem.error_count();
        if problem.omitted > 0 {
            return;
        }
        let kept = if problem.is_error() {
            &mut self.kept_errors
        } else {
            &mut self.warnings
        };
        if kept.len() < Self::MAX {
            kept.push(problem);
        }
    }

    /// Adds all problems of another list.
    pub fn extend(&mut self, problems: impl IntoIterator<Item = Problem>) {
        for problem in problems {
            self.push(problem);
        }
    }

    /// Adds an error.
    pub fn error(&mut self, location: &Location, text: impl Into<String>) {
        self.push(Problem::error(location, text));
    }

    /// Adds an error with a hint.
    pub fn error_with(&mut self, location: &Location, text: impl Into<String>, hint: impl Into<String>) {
        self.push(Problem::error(location, text).with_hint(hint));
    }

    /// True if there is an error.
    pub fn has_errors(&self) -> bool {
        self.error_count > 0
    }

    /// The number of errors, kept or not. Parsers compare it to see whether a part was valid.
    pub fn error_count(&self) -> usize {
        self.error_count
    }

    /// Adds an error, which is built only if it is kept; otherwise it is only counted.
    pub fn error_lazily(&mut self, problem: impl FnOnce() -> Problem) {
        if self.kept_errors.len() < Self::MAX {
            self.push(problem());
        } else {
            self.error_count += 1;
        }
    }

    /// The kept problems in the order of the texts. Errors that were dropped are counted in a last entry.
    pub fn sorted(self) -> Vec<Problem> {
        let shown_errors = self.kept_errors.len();
        let mut found = self.kept_errors;
        found.extend(self.warnings);
        let mut origins = HashMap::new();
        for problem in &found {
            let next = origins.len();
            origins.entry(Arc::as_ptr(&problem.location.origin)).or_insert(next);
        }
        found.sort_by_key(|Problem { location, .. }| {
            let origin = origins.get(&Arc::as_ptr(&location.origin)).copied();
            (origin, location.line, location.column)
        });
        let omitted = self.error_count.saturating_sub(shown_errors);
        let rest = found.last().filter(|_| omitted > 0).map(|last| Problem {
            omitted,
            ..Problem::error(
                &Location::start(&Origin::new(last.location.origin.name.clone(), "")),
                format!("and {omitted} more"),
            )
            .with_hint(format!(
                "showing the first {} problems; fix them and run again",
                Self::MAX
            ))
        });
        found.extend(rest);
        found
    }
}

impl Origin {
    /// A text with its name in messages.
    pub fn new(name: impl Into<Box<str>>, text: impl Into<Box<str>>) -> Arc<Self> {
        Arc::new(Self {
            name: name.into(),
            text: text.into(),
            lines: OnceLock::new(),
            is_value: false,
        })
    }

    /// The value of a variable or a flag.
    pub fn value(name: impl Into<Box<str>>, text: impl Into<Box<str>>) -> Arc<Self> {
        Arc::new(Self {
            name: name.into(),
            text: text.into(),
            lines: OnceLock::new(),
            is_value: true,
        })
    }

    /// The same without its text, for a value that must not be shown.
    pub fn without_text(&self) -> Arc<Self> {
        Arc::new(Self {
            name: self.name.clone(),
            text: Box::default(),
            lines: OnceLock::new(),
            is_value: self.is_value,
        })
    }

    /// A line, counted from one, without its end. As in YAML, a single carriage return ends a line too.
    fn line(&self, number: u32) -> Option<&str> {
        let starts = self.lines.get_or_init(|| {
            let bytes = self.text.as_bytes();
            let is_end = |(at, byte): &(usize, u8)| match byte {
                b'\n' => true,
                b'\r' => bytes.get(at + 1) != Some(&b'\n'),
                _ => false,
            };
            let ends = self.text.bytes().enumerate().filter(is_end);
            std::iter::once(0).chain(ends.map(|(at, _)| at + 1)).collect()
        });
        let number = number as usize;
        let start = *starts.get(number.checked_sub(1)?)?;
        let end = starts.get(number).copied().unwrap_or(self.text.len());
        Some(self.text.get(start..end)?.trim_end_matches(['\n', '\r']))
    }
}

impl PartialEq for Origin {
    fn eq(&self, other: &Self) -> bool {
        (&self.name, &self.text) == (&other.name, &other.text)
    }
}

impl Eq for Origin {}

impl Problem {
    /// An error.
    pub fn error(location: &Location, text: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            location: location.clone(),
            text: text.into(),
            hint: None,
            omitted: 0,
        }
    }

    /// A warning.
    pub fn warning(location: &Location, text: impl Into<String>) -> Self {
        Self {
            severity: Severity::Warning,
            ..Self::error(location, text)
        }
    }

    /// The same with a hint.
    pub fn with_hint(self, hint: impl Into<String>) -> Self {
        Self {
            hint: Some(hint.into()),
            ..self
        }
    }

    /// The same at another location.
    pub fn with_location(self, location: Location) -> Self {
        Self { location, ..self }
    }

    /// True for an error.
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }

    /// The number of errors: one, zero for a warning, and for the last entry of a truncated list all that were left out.
    pub fn error_count(&self) -> usize {
        if self.is_error() { self.omitted.max(1) } else { 0 }
    }
}

/// The form for people: location and message, the line with a marker under it, the hint.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Warning => "warning",
            Severity::Error => "error",
        };
        writeln!(f, "{}: {severity}: {}", self.location, self.text)?;
        // A very long line is not shown: searching it again for each of its problems would take too long.
        if let Some(line) = self.location.line().filter(|line| (1..LINE_MAX).contains(&line.len())) {
            let (before, shown, width) = self.location.snippet(line);
            let number = self.location.line.to_string();
            writeln!(f, "{number} | {shown}")?;
            write!(f, "{:1$} | ", "", number.len())?;
            for _ in 0..before {
                f.write_char(' ')?;
            }
            for _ in 0..width {
                f.write_char('^')?;
            }
            writeln!(f)?;
        }
        match &self.hint {
            Some(hint) => writeln!(f, "  hint: {hint}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.origin.is_value && (self.line, self.column) == (1, 1) {
            return f.write_str(&self.origin.name);
        }
        write!(f, "{}:{}:{}", self.origin.name, self.line, self.column)
    }
}

impl Location {
    /// The start of a text.
    pub fn start(origin: &Arc<Origin>) -> Self {
        Self {
            origin: Arc::clone(origin),
            line: 1,
            column: 1,
            width: 1,
        }
    }

    /// The line in the text.
    pub fn line(&self) -> Option<&str> {
        self.origin.line(self.line)
    }

    /// The part of the line to show, the number of its characters before the marker, and the width of the marker.
    fn snippet(&self, line: &str) -> (usize, String, usize) {
        let column = self.column.saturating_sub(1) as usize;
        let fits = line.chars().nth(SHOWN_MAX).is_none();
        let skipped = if fits { 0 } else { column.saturating_sub(SHOWN_MAX / 2) };
        let clean = |c: char| if c.is_control() { ' ' } else { c };
        let shown: String = line.chars().skip(skipped).take(SHOWN_MAX).map(clean).collect();
        let before = column - skipped;
        let left = shown.chars().count().saturating_sub(before);
        (before, shown, (self.width as usize).clamp(1, left.max(1)))
    }
}

/// The error of a value, before its location is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueError {
    /// The message.
    pub text: String,
    /// The way to fix it.
    pub hint: String,
}

impl ValueError {
    /// An error and the way to fix it.
    pub fn new(text: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            hint: hint.into(),
        }
    }

    /// The problem at a location.
    pub fn at(self, location: &Location) -> Problem {
        Problem::error(location, self.text).with_hint(self.hint)
    }
}

impl fmt::Display for ValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.text, self.hint)
    }
}

impl std::error::Error for ValueError {}

/// The hint for a word that is not among the `known`: the closest one, or all of them.
pub fn did_you_mean<'k, I: Iterator<Item = &'k str>>(given: &str, known: impl Fn() -> I) -> String {
    match closest_match(given, known()) {
        Some(word) => format!("did you mean `{word}`?"),
        None => {
            let words: Vec<String> = known().map(|word| format!("`{word}`")).collect();
            format!("write one of {}", words.join(", "))
        }
    }
}

/// The word of `known` that is closest to `given`, if one is similar enough.
pub fn closest_match<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if given.len() > 64 {
        return None;
    }
    let given = given.to_lowercase();
    let distance_max = given.chars().count().div_ceil(3).min(3);
    known
        .into_iter()
        // The names may be many and the given one a caller's: most are ruled out without computing a distance.
        .filter(|word| may_be_within(&given, word, distance_max))
        .map(|word| (distance(&given, word), word))
        .filter(|(distance, _)| *distance <= distance_max)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, word)| word)
}

/// False if the edit distance is certainly larger: an edit changes the length by one at most, and the number of occurrences of
/// two characters at most.
fn may_be_within(a: &str, b: &str, distance_max: usize) -> bool {
    if !a.is_ascii() || !b.is_ascii() {
        return a.chars().count().abs_diff(b.chars().count()) <= distance_max;
    }
    let mut occurrences = [0_i16; 128];
    let mut add = |text: &str, step: i16| {
        for byte in text.bytes().take(128) {
            if let Some(count) = occurrences.get_mut(usize::from(byte)) {
                *count += step;
            }
        }
    };
    add(a, 1);
    add(b, -1);
    let differing: usize = occurrences.iter().map(|count| usize::from(count.unsigned_abs())).sum();
    a.len().abs_diff(b.len()) <= distance_max && differing <= 2 * distance_max
}

/// The edit distance: characters to change, add, drop or swap with their neighbour.
pub(super) fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let width = b.len() + 1;
    let mut rows = vec![0_usize; width * (a.len() + 1)];
    let mut at = |i: usize, j: usize, set: Option<usize>| -> usize {
        let Some(cell) = rows.get_mut(i * width + j) else {
            return 0;
        };
        if let Some(value) = set {
            *cell = value;
        }
        *cell
    };
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            let value = if i == 0 || j == 0 {
                i + j
            } else {
                let differs = usize::from(a.get(i - 1) != b.get(j - 1));
                let mut least = (at(i - 1, j, None) + 1)
                    .min(at(i, j - 1, None) + 1)
                    .min(at(i - 1, j - 1, None) + differs);
                if i > 1 && j > 1 && a.get(i - 1) == b.get(j - 2) && a.get(i - 2) == b.get(j - 1) {
                    least = least.min(at(i - 2, j - 2, None) + 1);
                }
                least
            };
            at(i, j, Some(value));
        }
    }
    at(a.len(), b.len(), None)
}

/// The longest line that is shown, in bytes.
const LINE_MAX: usize = 64 << 10;

/// The longest part of a line that is shown, in characters.
const SHOWN_MAX: usize = 120;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_the_line_with_a_mark_and_the_advice() {
        let origin = Origin::new("rules.yaml", "rules:\n- limt: 1/s\n");
        let location = Location {
            line: 2,
            column: 3,
            width: 4,
            ..Location::start(&origin)
        };
        let problem = Problem::error(&location, "`limt` is not a key of a rule").with_hint("did you mean `limit`?");
        let shown = "rules.yaml:2:3: error: `limt` is not a key of a rule\n\
                     2 | - limt: 1/s\n  \
                       |   ^^^^\n  \
                       hint: did you mean `limit`?\n";
        assert_eq!(problem.to_string(), shown);
    }

    #[test]
    fn a_list_that_is_cut_ends_with_how_many_more_there_are_also_in_another_list() {
        let origin = Origin::new("x", "a: b\n");
        let mut problems = Problems::new();
        for _ in 0..1_500 {
            problems.error(&Location::start(&origin), "wrong");
            problems.push(Problem::warning(&Location::start(&origin), "odd"));
        }
        for _ in 0..2 {
            assert_eq!(problems.error_count(), 1_500);
            let list = problems.sorted();
            assert_eq!(list.iter().map(Problem::error_count).sum::<usize>(), 1_500);
            let last = list.last().expect("it is not empty").to_string();
            assert!(last.contains("and 500 more"), "{last}");
            assert_eq!(list.iter().filter(|problem| problem.text.contains("more")).count(), 1);
            problems = Problems::new();
            problems.extend(list);
        }
    }

    #[test]
    fn lines_end_as_they_do_in_yaml() {
        let origin = Origin::new("x", "a\r\nb\rc\n\nd");
        let lines: Vec<Option<&str>> = (0..=6).map(|number| origin.line(number)).collect();
        assert_eq!(
            lines,
            [None, Some("a"), Some("b"), Some("c"), Some(""), Some("d"), None]
        );
    }

    #[test]
    fn the_nearest_word_is_one_that_may_have_been_meant() {
        let known = ["limit", "when", "per", "algorithm"];
        assert_eq!(closest_match("limt", known), Some("limit"));
        assert_eq!(closest_match("lmiit", known), Some("limit"));
        assert_eq!(closest_match("Algoritm", known), Some("algorithm"));
        assert_eq!(closest_match("overrides", known), None);
        assert_eq!(closest_match(&"x".repeat(1 << 20), known), None);
    }

    #[test]
    fn a_line_without_end_is_shown_in_part() {
        let origin = Origin::new("x", "y".repeat(10_000));
        let location = Location {
            column: 5_000,
            width: 9_000,
            ..Location::start(&origin)
        };
        assert!(Problem::error(&location, "long").to_string().len() < 500);
    }
}
