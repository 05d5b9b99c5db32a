//! Nodes of the tree with their locations, and typed access to them. A value of the wrong type becomes a problem, and
//! parsing continues.

use super::excerpt;
use crate::text::problem::{Location, Problem, Problems, ValueError, closest_match, did_you_mean};
use std::borrow::Cow;

/// A value and its location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The start of the value; for a scalar its whole extent.
    pub location: Location,
    /// The value.
    pub kind: NodeKind,
}

/// A value by the core schema of YAML 1.2: `yes`, `on` and `0777/s` are texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// Nothing, `~` or `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number, as written.
    Number(Box<str>),
    /// Any other text, or one in quotes.
    Text(Box<str>),
    /// Values in order.
    List(Vec<Node>),
    /// Values by key, in the order of the text. Keys are unique.
    Map(Vec<(MapKey, Node)>),
}

/// A key of a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapKey {
    /// The location.
    pub location: Location,
    /// The text.
    pub text: Box<str>,
}

/// The entries of a map with known keys.
#[derive(Clone, Debug)]
pub struct Fields<'n> {
    /// The start of the map.
    pub location: &'n Location,
    /// No more than there are known keys.
    entries: Vec<(&'n MapKey, &'n Node)>,
    /// Known keys that were suggested for unknown ones. They are not reported as missing as well.
    suggestions: Vec<Box<str>>,
}

impl Node {
    /// The kind of value with its article: `a list`.
    pub fn kind_name(&self) -> &'static str {
        match self.kind {
            NodeKind::Null => "nothing",
            NodeKind::Bool(_) => "true or false",
            NodeKind::Number(_) => "a number",
            NodeKind::Text(_) => "a text",
            NodeKind::List(_) => "a list",
            NodeKind::Map(_) => "a map",
        }
    }

    /// True if there is no value.
    pub fn is_null(&self) -> bool {
        self.kind == NodeKind::Null
    }

    /// A text, a number or a boolean as text. None for other values.
    pub fn scalar(&self) -> Option<&str> {
        match &self.kind {
            NodeKind::Bool(true) => Some("true"),
            NodeKind::Bool(false) => Some("false"),
            NodeKind::Number(text) | NodeKind::Text(text) => Some(text),
            NodeKind::Null | NodeKind::List(_) | NodeKind::Map(_) => None,
        }
    }

    /// The same, or a problem with what was expected: `the name of an attribute`.
    pub fn text(&self, expected: &str, problems: &mut Problems) -> Option<&str> {
        let text = self.scalar();
        if text.is_none() {
            let hint = match self.kind {
                NodeKind::Null => "write it behind the colon, or take the key away; an empty text is `\"\"`",
                _ => "write one value; a text that begins with `[` or `{` stands in quotes",
            };
            self.report_unexpected(expected, hint, problems);
        }
        text
    }

    /// The text parsed by `parse`, or its error as a problem.
    pub fn read<T>(
        &self,
        expected: &str,
        parse: impl FnOnce(&str) -> Result<T, ValueError>,
        problems: &mut Problems,
    ) -> Option<T> {
        match parse(self.text(expected, problems)?) {
            Ok(value) => Some(value),
            Err(error) => {
                problems.push(error.at(&self.location));
                None
            }
        }
    }

    /// `true` or `false`.
    pub fn flag(&self, problems: &mut Problems) -> Option<bool> {
        match &self.kind {
            NodeKind::Bool(flag) => Some(*flag),
            NodeKind::Text(text) => {
                let hint = match text.to_ascii_lowercase().as_str() {
                    "yes" | "on" | "y" | "true" => "write `true`",
                    "no" | "off" | "n" | "false" => "write `false`",
                    _ => "write `true` or `false`, without quotes",
                };
                problems.error_with(
                    &self.location,
                    format!("`{}` is neither true nor false", excerpt(text)),
                    hint,
                );
                None
            }
            _ => {
                self.report_unexpected("true or false", "write `true` or `false`", problems);
                None
            }
        }
    }

    /// An integer in `range`. Underscores may separate its digits.
    pub fn integer(
        &self,
        expected: &str,
        range: std::ops::RangeInclusive<u64>,
        problems: &mut Problems,
    ) -> Option<u64> {
        let text = self.text(expected, problems)?;
        let number = crate::text::quantity::parse_integer(text).filter(|number| range.contains(number));
        if number.is_none() {
            problems.error_with(
                &self.location,
                format!("`{}` is not {expected}", excerpt(text)),
                format!("write a whole number from {} to {}", range.start(), range.end()),
            );
        }
        number
    }

    /// The value of a keyword.
    pub fn keyword<T: Clone>(&self, expected: &str, known: &[(&str, T)], problems: &mut Problems) -> Option<T> {
        let text = self.text(expected, problems)?;
        let found = known.iter().find(|(keyword, _)| *keyword == text);
        if found.is_none() {
            let keywords = || known.iter().map(|(keyword, _)| *keyword);
            let message = format!("`{}` is not {expected}", excerpt(text));
            problems.error_with(&self.location, message, did_you_mean(text, keywords));
        }
        found.map(|(_, value)| value.clone())
    }

    /// The values of a list.
    pub fn list(&self, expected: &str, problems: &mut Problems) -> Option<&[Self]> {
        if let NodeKind::List(items) = &self.kind {
            return Some(items);
        }
        let hint = match self.kind {
            NodeKind::Null => "write each on a line of its own behind `- `, or `[]` for none",
            _ => "write it behind `- `, also if it is the only one",
        };
        self.report_unexpected(expected, hint, problems);
        None
    }

    /// The values of a list, or a single value in place of a list.
    pub fn one_or_more(&self) -> &[Self] {
        match &self.kind {
            NodeKind::List(items) => items,
            _ => std::slice::from_ref(self),
        }
    }

    /// The entries of a map whose keys are free; `example` is for the hint: `{ tier: free }`.
    pub fn entries(&self, expected: &str, example: &str, problems: &mut Problems) -> Option<&[(MapKey, Self)]> {
        if let NodeKind::Map(entries) = &self.kind {
            return Some(entries);
        }
        self.report_unexpected(expected, &format!("write for example `{example}`"), problems);
        None
    }

    /// The entries of a map with `known` keys, of `what`: `a rule`. Every other key is a problem.
    pub fn fields(&self, what: &str, known: &[&str], problems: &mut Problems) -> Option<Fields<'_>> {
        let NodeKind::Map(entries) = &self.kind else {
            let keys: Vec<String> = known.iter().map(|key| format!("`{key}: …`")).collect();
            let hint = format!("write it with its keys: {}", keys.join(", "));
            self.report_unexpected(&format!("{what}, which is a map"), &hint, problems);
            return None;
        };
        let mut fields = Fields {
            location: &self.location,
            entries: Vec::new(),
            suggestions: Vec::new(),
        };
        for (key, value) in entries {
            if known.contains(&&*key.text) {
                fields.entries.push((key, value));
            } else {
                let known_keys = || known.iter().copied();
                let suggestions = &mut fields.suggestions;
                problems.error_lazily(|| {
                    suggestions.extend(closest_match(&key.text, known_keys()).map(Box::from));
                    let text = format!("`{}` is not a key of {what}", excerpt(&key.text));
                    Problem::error(&key.location, text).with_hint(did_you_mean(&key.text, known_keys))
                });
            }
        }
        Some(fields)
    }

    /// Reports a value of the wrong kind, with a hint.
    pub fn report_unexpected(&self, expected: &str, hint: &str, problems: &mut Problems) {
        problems.error_with(
            &self.location,
            format!("expected {expected}, found {}", self.kind_name()),
            hint,
        );
    }
}

impl NodeKind {
    /// The value of a scalar without quotes.
    pub(super) fn from_plain(text: &str) -> Self {
        match text {
            "" | "~" | "null" | "Null" | "NULL" => Self::Null,
            "true" | "True" | "TRUE" => Self::Bool(true),
            "false" | "False" | "FALSE" => Self::Bool(false),
            _ if is_number(text) => Self::Number(text.into()),
            _ => Self::Text(text.into()),
        }
    }
}

impl MapKey {
    /// A scalar as a key, or the location of a value that cannot be one.
    pub(super) fn from_node(node: Node) -> Result<Self, Location> {
        let text: Cow<'_, str> = match node.kind {
            NodeKind::Number(text) | NodeKind::Text(text) => String::from(text).into(),
            NodeKind::Bool(true) => "true".into(),
            NodeKind::Bool(false) => "false".into(),
            NodeKind::Null | NodeKind::List(_) | NodeKind::Map(_) => return Err(node.location),
        };
        Ok(Self {
            location: node.location,
            text: text.into(),
        })
    }
}

impl<'n> Fields<'n> {
    /// The value under a key, if present.
    pub fn find(&self, key: &str) -> Option<&'n Node> {
        self.entry(key).map(|(_, value)| value)
    }

    /// The value under a key, unless it is null.
    pub fn value(&self, key: &str) -> Option<&'n Node> {
        self.find(key).filter(|node| !node.is_null())
    }

    /// The key and its value, if present.
    pub fn entry(&self, key: &str) -> Option<(&'n MapKey, &'n Node)> {
        self.entries.iter().find(|(known, _)| *known.text == *key).copied()
    }

    /// True if one of its keys is not known and may be a misspelling of a known one.
    pub fn has_unknown_keys(&self) -> bool {
        !self.suggestions.is_empty()
    }

    /// The value under a required key; `example` is for the hint: `limit: 100/min`.
    pub fn require(&self, what: &str, key: &str, example: &str, problems: &mut Problems) -> Option<&'n Node> {
        let found = self.find(key);
        if found.is_none() && !self.suggestions.iter().any(|suggestion| **suggestion == *key) {
            problems.error_with(
                self.location,
                format!("{what} has no `{key}`"),
                format!("add one: `{example}`"),
            );
        }
        found
    }
}

/// True for a number of the core schema: digits with a sign, a fraction and an exponent; octal, hexadecimal, infinity, not a number.
fn is_number(text: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if let Some(octal) = text.strip_prefix("0o") {
        return !octal.is_empty() && octal.bytes().all(|b| matches!(b, b'0'..=b'7'));
    }
    if let Some(hexadecimal) = text.strip_prefix("0x") {
        return !hexadecimal.is_empty() && hexadecimal.bytes().all(|b| b.is_ascii_hexdigit());
    }
    if matches!(text, ".nan" | ".NaN" | ".NAN") {
        return true;
    }
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    if matches!(unsigned, ".inf" | ".Inf" | ".INF") {
        return true;
    }
    let (number, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((number, exponent)) => (number, Some(exponent.strip_prefix(['-', '+']).unwrap_or(exponent))),
        None => (unsigned, None),
    };
    let plain = match number.split_once('.') {
        Some((whole, "")) => digits(whole),
        Some(("", fraction)) => digits(fraction),
        Some((whole, fraction)) => digits(whole) && digits(fraction),
        None => digits(number),
    };
    plain && exponent.is_none_or(digits)
}
