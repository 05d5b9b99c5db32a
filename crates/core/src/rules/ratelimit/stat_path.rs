//! Names of limits in statistics.

use super::tree::DescriptorNode;
use crate::rules::attempt::Attribute;

/// The name of a limit in statistics: the domain, and one label per level, joined by dots.
#[derive(Debug)]
pub struct StatPath {
    /// The label of each level. None: key and value of the request's entry.
    levels: Box<[Option<Box<str>>]>,
    /// The label of an empty value.
    empty: Empty,
    /// The whole name, if no value of a request is part of it.
    fixed: Option<Box<str>>,
}

/// The label of a key whose value is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Empty {
    /// The key.
    Bare,
    /// The key and an underscore: where every value is reported, and none as its pattern.
    Underscore,
}

/// The label that a node contributes to the limits below it.
#[derive(Clone, Debug)]
pub(super) struct PathLevel {
    name: Box<str>,
    label: LabelSource,
}

#[derive(Clone, Copy, Debug)]
enum LabelSource {
    /// Key and value of the request's entry.
    RequestValue,
    /// The node's name, unless the limit has detailed metrics.
    NameUnlessDetailed,
    /// The node's name: all values of its pattern share a counter.
    Name,
}

impl PathLevel {
    pub(super) fn new(node: &DescriptorNode) -> Self {
        let label = match node.is_shared {
            true => LabelSource::Name,
            false if node.names_request_value() => LabelSource::RequestValue,
            false => LabelSource::NameUnlessDetailed,
        };
        Self {
            name: node.name.clone(),
            label,
        }
    }
}

impl StatPath {
    /// Returns the path of the limit below these levels. With `detailed`, every value of the request is part of it.
    pub(super) fn new<'n>(domain: &str, levels: impl IntoIterator<Item = &'n PathLevel>, detailed: bool) -> Self {
        let label = |level: &PathLevel| match level.label {
            LabelSource::RequestValue => None,
            LabelSource::NameUnlessDetailed if detailed => None,
            LabelSource::NameUnlessDetailed | LabelSource::Name => Some(level.name.clone()),
        };
        let levels: Vec<&PathLevel> = levels.into_iter().collect();
        let is_shared = levels.iter().any(|level| matches!(level.label, LabelSource::Name));
        let mut path = Self {
            levels: levels.into_iter().map(label).collect(),
            empty: if detailed && !is_shared {
                Empty::Underscore
            } else {
                Empty::Bare
            },
            fixed: None,
        };
        if path.levels.iter().all(Option::is_some) {
            let mut name = String::new();
            path.write(domain, &[], &mut name);
            path.fixed = Some(name.into());
        }
        path
    }

    /// The whole name, if it is the same for every request.
    pub fn fixed(&self) -> Option<&str> {
        self.fixed.as_deref()
    }

    /// Writes the name for these entries, replacing the contents of `name`.
    pub fn write(&self, domain: &str, entries: &[Attribute<'_>], name: &mut String) {
        name.clear();
        name.push_str(domain);
        for (index, level) in self.levels.iter().enumerate() {
            name.push('.');
            match (level, entries.get(index)) {
                (Some(known), _) => name.push_str(known),
                (None, Some(entry)) => push_entry(entry, self.empty, name),
                (None, None) => {}
            }
        }
        sanitize(name);
    }
}

/// Writes the name of a limit override, replacing the contents of `name`: every value is part of it.
pub fn override_path(domain: &str, entries: &[Attribute<'_>], name: &mut String) {
    name.clear();
    name.push_str(domain);
    for entry in entries {
        name.push('.');
        push_entry(entry, Empty::Bare, name);
    }
    sanitize(name);
}

fn push_entry(entry: &Attribute<'_>, empty: Empty, name: &mut String) {
    name.push_str(entry.name);
    if entry.value.is_empty() && empty == Empty::Bare {
        return;
    }
    name.push('_');
    name.push_str(&String::from_utf8_lossy(entry.value));
}

/// Replaces by underscores the separators of statistics: colons, bars, and the dots of IPv4 addresses, which would look
/// like levels.
fn sanitize(name: &mut String) {
    if name.contains([':', '|']) {
        *name = name.replace([':', '|'], "_");
    }
    let mut from = 0;
    while let Some(start) = name
        .get(from..)
        .and_then(|rest| rest.find(|c: char| c.is_ascii_digit()))
    {
        let start = from + start;
        from = match address_end(name.as_bytes(), start) {
            Some(end) => {
                let address = name.get(start..end).unwrap_or_default().replace('.', "_");
                name.replace_range(start..end, &address);
                end
            }
            None => start + 1,
        };
    }
}

/// Returns the end of an IPv4 address that starts here: four runs of one to three digits.
fn address_end(bytes: &[u8], start: usize) -> Option<usize> {
    let mut at = start;
    for group in 0..4 {
        if group > 0 {
            (bytes.get(at) == Some(&b'.')).then_some(())?;
            at += 1;
        }
        let rest = bytes.get(at..)?.iter().take(3);
        let digits = rest.take_while(|byte| byte.is_ascii_digit()).count();
        (digits > 0).then_some(())?;
        at += digits;
    }
    Some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_request_brings_has_every_value_in_its_name() {
        let entries = [("a", "x"), ("b", ""), ("ip", "10.0.0.1")].map(|(name, value)| Attribute {
            name,
            value: value.as_bytes(),
        });
        let mut name = "what was there before".to_owned();
        override_path("d", &entries, &mut name);
        assert_eq!(name, "d.a_x.b.ip_10_0_0_1");
    }

    #[test]
    fn colons_bars_and_the_dots_of_addresses_become_underscores() {
        for (name, sanitized) in [
            ("d.key", "d.key"),
            ("d.a:b|c", "d.a_b_c"),
            ("d.remote_address_10.0.0.1", "d.remote_address_10_0_0_1"),
            ("d.ip_1.2.3.4.path_5.6.7.8", "d.ip_1_2_3_4.path_5_6_7_8"),
            ("d.net_10.0.0.0/24", "d.net_10_0_0_0/24"),
            ("d.version_1.2.3", "d.version_1.2.3"),
            ("d.long_1234.5.6.7", "d.long_1234_5_6_7"),
            ("d.more_1.2.3.4.5", "d.more_1_2_3_4.5"),
            ("d.ip_::1", "d.ip___1"),
            ("d.ü_1.2.3.4ü", "d.ü_1_2_3_4ü"),
            ("d.end_1.2.3.", "d.end_1.2.3."),
        ] {
            let mut text = name.to_owned();
            sanitize(&mut text);
            assert_eq!(text, sanitized, "{name}");
        }
    }
}
