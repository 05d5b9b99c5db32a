//! Values with their places, and how they are read: what does not fit becomes a problem, and reading goes on.

use super::shown;
use crate::problem::{Location, Problem, Problems, ValueError, did_you_mean, closest_match};
use std::borrow::Cow;

/// A value and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Where it begins; for a scalar all of it.
    pub place: Location,
    /// What it is.
    pub kind: Kind,
}

/// What a value is, by the core schema of YAML 1.2: `yes`, `on` and `0777/s` are texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nothing, `~` or `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number, as it is written.
    Number(Box<str>),
    /// Any other text, or one in quotes.
    Text(Box<str>),
    /// Values in order.
    List(Vec<Node>),
    /// Values by key, in the order they are written. No key stands twice.
    Map(Vec<(Key, Node)>),
}

/// A key of a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// Where it stands.
    pub place: Location,
    /// What it says.
    pub text: Box<str>,
}

/// The values of a map under the keys that are known for it.
#[derive(Clone, Debug)]
pub struct Fields<'n> {
    /// Where the map begins.
    pub place: &'n Location,
    /// No more than there are known keys.
    entries: Vec<(&'n Key, &'n Node)>,
    /// Known keys that were likely meant by others. They are not missed as well.
    meant: Vec<Box<str>>,
}

impl Node {
    /// What it is, with its article: `a list`.
    pub fn what(&self) -> &'static str {
        match self.kind {
            Kind::Null => "nothing",
            Kind::Bool(_) => "true or false",
            Kind::Number(_) => "a number",
            Kind::Text(_) => "a text",
            Kind::List(_) => "a list",
            Kind::Map(_) => "a map",
        }
    }

    /// Whether nothing stands there.
    pub fn is_null(&self) -> bool {
        self.kind == Kind::Null
    }

    /// A text, a number or a truth value as text. Nothing for what has no text of its own.
    pub fn scalar(&self) -> Option<&str> {
        match &self.kind {
            Kind::Bool(true) => Some("true"),
            Kind::Bool(false) => Some("false"),
            Kind::Number(text) | Kind::Text(text) => Some(text),
            Kind::Null | Kind::List(_) | Kind::Map(_) => None,
        }
    }

    /// The same, or a problem that says what was expected: `the name of an attribute`.
    pub fn text(&self, expected: &str, problems: &mut Problems) -> Option<&str> {
        let text = self.scalar();
        if text.is_none() {
            let hint = match self.kind {
                Kind::Null => "write it behind the colon, or take the key away; an empty text is `\"\"`",
                _ => "write one value; a text that begins with `[` or `{` stands in quotes",
            };
            self.unexpected(expected, hint, problems);
        }
        text
    }

    /// What `parse` makes of the text, or the problem it has with it.
    pub fn read<T>(
        &self,
        expected: &str,
        parse: impl FnOnce(&str) -> Result<T, ValueError>,
        problems: &mut Problems,
    ) -> Option<T> {
        match parse(self.text(expected, problems)?) {
            Ok(value) => Some(value),
            Err(refusal) => {
                problems.push(refusal.at(&self.place));
                None
            }
        }
    }

    /// `true` or `false`.
    pub fn flag(&self, problems: &mut Problems) -> Option<bool> {
        match &self.kind {
            Kind::Bool(flag) => Some(*flag),
            Kind::Text(text) => {
                let hint = match text.to_ascii_lowercase().as_str() {
                    "yes" | "on" | "y" | "true" => "write `true`",
                    "no" | "off" | "n" | "false" => "write `false`",
                    _ => "write `true` or `false`, without quotes",
                };
                problems.error_with(
                    &self.place,
                    format!("`{}` is neither true nor false", shown(text)),
                    hint,
                );
                None
            }
            _ => {
                self.unexpected("true or false", "write `true` or `false`", problems);
                None
            }
        }
    }

    /// A whole number from `least` to `most`. Underscores may part its digits.
    pub fn whole(&self, expected: &str, range: std::ops::RangeInclusive<u64>, problems: &mut Problems) -> Option<u64> {
        let text = self.text(expected, problems)?;
        let number = crate::quantity::parse_integer(text).filter(|number| range.contains(number));
        if number.is_none() {
            problems.error_with(
                &self.place,
                format!("`{}` is not {expected}", shown(text)),
                format!("write a whole number from {} to {}", range.start(), range.end()),
            );
        }
        number
    }

    /// One of a few words, as what it stands for.
    pub fn word<T: Clone>(&self, expected: &str, known: &[(&str, T)], problems: &mut Problems) -> Option<T> {
        let text = self.text(expected, problems)?;
        let found = known.iter().find(|(word, _)| *word == text);
        if found.is_none() {
            let words = || known.iter().map(|(word, _)| *word);
            let text_of = format!("`{}` is not {expected}", shown(text));
            problems.error_with(&self.place, text_of, did_you_mean(text, words));
        }
        found.map(|(_, value)| value.clone())
    }

    /// The values of a list.
    pub fn list(&self, expected: &str, problems: &mut Problems) -> Option<&[Self]> {
        if let Kind::List(items) = &self.kind {
            return Some(items);
        }
        let hint = match self.kind {
            Kind::Null => "write each on a line of its own behind `- `, or `[]` for none",
            _ => "write it behind `- `, also if it is the only one",
        };
        self.unexpected(expected, hint, problems);
        None
    }

    /// The values of a list, or the one value that stands in its place.
    pub fn one_or_more(&self) -> &[Self] {
        match &self.kind {
            Kind::List(items) => items,
            _ => std::slice::from_ref(self),
        }
    }

    /// The keys and values of a map whose keys are the writer's own; `example` shows how it looks: `{ tier: free }`.
    pub fn entries(&self, expected: &str, example: &str, problems: &mut Problems) -> Option<&[(Key, Self)]> {
        if let Kind::Map(entries) = &self.kind {
            return Some(entries);
        }
        self.unexpected(expected, &format!("write for example `{example}`"), problems);
        None
    }

    /// The values of a map whose keys are `known`, of `what`: `a rule`. Every other key is a problem.
    pub fn fields(&self, what: &str, known: &[&str], problems: &mut Problems) -> Option<Fields<'_>> {
        let Kind::Map(entries) = &self.kind else {
            let keys: Vec<String> = known.iter().map(|key| format!("`{key}: …`")).collect();
            let hint = format!("write it with its keys: {}", keys.join(", "));
            self.unexpected(&format!("{what}, which is a map"), &hint, problems);
            return None;
        };
        let mut fields = Fields {
            place: &self.place,
            entries: Vec::new(),
            meant: Vec::new(),
        };
        for (key, value) in entries {
            if known.contains(&&*key.text) {
                fields.entries.push((key, value));
            } else {
                let words = || known.iter().copied();
                let meant_keys = &mut fields.meant;
                problems.error_lazily(|| {
                    meant_keys.extend(closest_match(&key.text, words()).map(Box::from));
                    let text = format!("`{}` is not a key of {what}", shown(&key.text));
                    Problem::error(&key.place, text).with_hint(did_you_mean(&key.text, words))
                });
            }
        }
        Some(fields)
    }

    /// The problem of something else that stands here, and what to write instead.
    pub fn unexpected(&self, expected: &str, hint: &str, problems: &mut Problems) {
        problems.error_with(&self.place, format!("expected {expected}, found {}", self.what()), hint);
    }
}

impl Kind {
    /// What a scalar without quotes is.
    pub(super) fn of_plain(text: &str) -> Self {
        match text {
            "" | "~" | "null" | "Null" | "NULL" => Self::Null,
            "true" | "True" | "TRUE" => Self::Bool(true),
            "false" | "False" | "FALSE" => Self::Bool(false),
            _ if is_number(text) => Self::Number(text.into()),
            _ => Self::Text(text.into()),
        }
    }
}

impl Key {
    /// A scalar as a key, or the place of what cannot be one.
    pub(super) fn of(node: Node) -> Result<Self, Location> {
        let text: Cow<'_, str> = match node.kind {
            Kind::Number(text) | Kind::Text(text) => String::from(text).into(),
            Kind::Bool(true) => "true".into(),
            Kind::Bool(false) => "false".into(),
            Kind::Null | Kind::List(_) | Kind::Map(_) => return Err(node.place),
        };
        Ok(Self {
            place: node.place,
            text: text.into(),
        })
    }
}

impl<'n> Fields<'n> {
    /// The value under a key, if it is written.
    pub fn find(&self, key: &str) -> Option<&'n Node> {
        self.entry(key).map(|(_, value)| value)
    }

    /// The key and its value, if it is written.
    pub fn entry(&self, key: &str) -> Option<(&'n Key, &'n Node)> {
        self.entries.iter().find(|(known, _)| *known.text == *key).copied()
    }

    /// Whether one of its keys is not known, and so may have been meant for another.
    pub fn has_misspelt(&self) -> bool {
        !self.meant.is_empty()
    }

    /// The value under a key that must be there; `example` shows how it looks: `limit: 100/min`.
    pub fn need(&self, what: &str, key: &str, example: &str, problems: &mut Problems) -> Option<&'n Node> {
        let found = self.find(key);
        if found.is_none() && !self.meant.iter().any(|meant| **meant == *key) {
            problems.error_with(
                self.place,
                format!("{what} has no `{key}`"),
                format!("add one: `{example}`"),
            );
        }
        found
    }
}

/// By the core schema: digits with a sign, a fraction and an exponent; octal, hexadecimal, infinity, not a number.
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
