//! What a rule asks of attributes.

use super::Reader;
use crate::problem::{Problems, Refusal};
use crate::rules::rule::{Condition, Test};
use crate::yaml::{Kind, Node, shown};
use ipnet::{IpNet, Ipv4Net};
use std::net::IpAddr;

/// The keys of a condition that is a map.
pub(in crate::rules) const CONDITION_KEYS: [&str; 3] = ["regex", "cidr", "present"];
/// The most conditions of one rule.
const CONDITIONS_MAX: usize = 32;
/// The most stars of one glob.
const STARS_MAX: usize = 16;

const EXPECTED: &str = "a value, a list of values, or one of { regex: … }, { cidr: … } and { present: … }";

impl Reader {
    /// The conditions of a rule. What is faulty is left out.
    pub(super) fn when(&mut self, node: &Node) -> Box<[Condition]> {
        let entries = node.entries(
            "a map of attributes and what they must be",
            "{ endpoint: /v1/charges }",
            &mut self.problems,
        );
        let entries = entries.unwrap_or_default();
        if entries.len() > CONDITIONS_MAX {
            self.problems.error_with(
                &node.place,
                format!("a rule has {} conditions, more than {CONDITIONS_MAX}", entries.len()),
                "make several rules of it",
            );
            return Box::default();
        }
        let mut conditions = Vec::with_capacity(entries.len());
        for (key, value) in entries {
            let attribute = super::name("an attribute", &key.text, &key.place, &mut self.problems);
            let test = self.test(value);
            if let (Some(attribute), Some(test)) = (attribute, test) {
                conditions.push(Condition {
                    attribute: attribute.into(),
                    test,
                });
            }
        }
        conditions.into()
    }

    fn test(&mut self, node: &Node) -> Option<Test> {
        match &node.kind {
            Kind::List(items) => self.any(items),
            _ => self.single(node),
        }
    }

    /// What may stand alone and in a list.
    fn single(&mut self, node: &Node) -> Option<Test> {
        if let Some(text) = node.scalar() {
            return match pattern(text) {
                Ok(test) => Some(test),
                Err(refusal) => {
                    self.problems.push(refusal.at(&node.place));
                    None
                }
            };
        }
        if !matches!(node.kind, Kind::Map(_)) {
            let hint = "write for example `/v1/charges`, `[free, trial]` or `{ present: true }`";
            node.unexpected(EXPECTED, hint, &mut self.problems);
            return None;
        }
        let fields = node.fields("a condition", &CONDITION_KEYS, &mut self.problems)?;
        let written: Vec<(&str, &Node)> = CONDITION_KEYS
            .iter()
            .filter_map(|key| Some((*key, fields.find(key)?)))
            .collect();
        let (key, value) = match written.as_slice() {
            [one] => *one,
            // Nothing, because of a key that was told of already.
            [] if matches!(&node.kind, Kind::Map(entries) if !entries.is_empty()) => return None,
            _ => {
                self.problems.error_with(
                    &node.place,
                    "a condition is exactly one of `regex`, `cidr` and `present`",
                    "of several that should do alone, make a list: `[{ regex: … }, { cidr: … }]`",
                );
                return None;
            }
        };
        match key {
            "regex" => {
                let expressions = &mut self.expressions;
                let compile = |text: &str| expressions.compile(text);
                let regex = value.read("a regular expression", compile, &mut self.problems)?;
                Some(Test::Regex(Box::new(regex)))
            }
            "cidr" => networks(value, &mut self.problems).map(Test::Cidr),
            _ => value.flag(&mut self.problems).map(Test::Present),
        }
    }

    fn any(&mut self, items: &[Node]) -> Option<Test> {
        let mut values = Vec::new();
        let mut others = Vec::new();
        let errors = self.problems.errors();
        for item in items {
            match self.single(item) {
                Some(Test::OneOf(value)) => values.extend(value),
                Some(test) => others.push(test),
                None => {}
            }
        }
        if self.problems.errors() > errors {
            return None;
        }
        values.sort_unstable();
        values.dedup();
        if others.is_empty() {
            return Some(Test::OneOf(values.into()));
        }
        if !values.is_empty() {
            others.push(Test::OneOf(values.into()));
        }
        Some(Test::Any(others.into()))
    }
}

/// A value, or a glob if there is a star in it. After a backslash a star is a star and a backslash a backslash.
fn pattern(text: &str) -> Result<Test, Refusal> {
    let mut parts = Vec::new();
    let mut part = String::new();
    let mut letters = text.chars().peekable();
    let mut after_star = false;
    while let Some(letter) = letters.next() {
        match letter {
            // Several stars are one.
            '*' if after_star => {}
            '*' => {
                parts.push(std::mem::take(&mut part).into());
                after_star = true;
                continue;
            }
            '\\' => part.push(letters.next_if(|next| matches!(next, '*' | '\\')).unwrap_or('\\')),
            _ => part.push(letter),
        }
        after_star = letter == '*';
    }
    parts.push(part.into());
    if parts.len() > STARS_MAX + 1 {
        return Err(Refusal::new(
            format!("`{}` has more than {STARS_MAX} stars", shown(text)),
            "use fewer, or a regular expression: `{ regex: … }`",
        ));
    }
    Ok(match parts.len() {
        1 => Test::OneOf(parts.into()),
        _ => Test::Glob(parts.into()),
    })
}

fn networks(node: &Node, problems: &mut Problems) -> Option<Box<[IpNet]>> {
    let errors = problems.errors();
    let found: Vec<IpNet> = node
        .one_or_more()
        .iter()
        .filter_map(|item| item.read("a network like 10.0.0.0/8", network, problems))
        .collect();
    (problems.errors() == errors).then(|| found.into())
}

/// IPv4 addresses that are written as IPv6 ones, `::ffff:10.0.0.0/104`, are a network of IPv4 addresses.
fn plain(network: IpNet) -> IpNet {
    let IpAddr::V4(first) = network.network().to_canonical() else {
        return network;
    };
    match network.prefix_len().checked_sub(MAPPED_BITS) {
        Some(bits) if network.network().is_ipv6() => Ipv4Net::new(first, bits).map_or(network, IpNet::V4),
        _ => network,
    }
}

/// What stands before an IPv4 address in an IPv6 one.
const MAPPED_BITS: u8 = 96;

/// A network, or an address, which is a network of one.
fn network(text: &str) -> Result<IpNet, Refusal> {
    text.parse()
        .or_else(|_| text.parse::<IpAddr>().map(IpNet::from))
        .map(|network: IpNet| plain(network.trunc()))
        .map_err(|_| {
            Refusal::new(
                format!("`{}` is not a network", shown(text)),
                "write an address and how many bits count: `10.0.0.0/8`, `2001:db8::/32`",
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_of_ipv4_addresses_is_one_however_it_is_written() {
        for (written, meant) in [
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
            ("::FFFF:0a01:0203/112", "10.1.0.0/16"),
            ("::ffff:10.0.0.1", "10.0.0.1/32"),
            ("::ffff:0:0/96", "0.0.0.0/0"),
            ("::ffff:0:0/95", "::fffe:0:0/95"),
            ("::/0", "::/0"),
            ("2001:db8::/32", "2001:db8::/32"),
            ("10.1.2.3", "10.1.2.3/32"),
        ] {
            let network = network(written).expect("a network");
            assert_eq!(network.to_string(), meant, "{written}");
        }
    }
}
