//! The meaning of compiled rules: read access to their limits, and equality that ignores how a rule was written. For plans,
//! which compare two rule sets.

use super::{
    Condition, CostCase, CostCases, CostSource, Experiment, LimitSelector, Overrides, Rule, Terms, Test, Window,
};
use crate::limit::Limit;
use crate::quantity::{Period, period_name};
use std::fmt;

/// The terms of one override of a rule.
#[derive(Debug)]
pub struct OverrideTerms<'r> {
    /// Attributes and values, as counted, sorted by attribute.
    pub subject: Vec<(&'r str, Vec<u8>)>,
    /// Its terms.
    pub terms: &'r Terms,
}

impl Rule {
    /// Its limits outside an experiment.
    pub const fn limit_selector(&self) -> &LimitSelector {
        &self.selector
    }

    /// True if both rules match the same attempts, by their conditions.
    pub fn same_conditions(&self, other: &Self) -> bool {
        same_list(&self.when, &other.when)
    }

    /// True if both rules relate to the other rules of a request in the same way.
    pub fn same_group(&self, other: &Self) -> bool {
        match (&self.group, &other.group) {
            (None, None) => true,
            (Some(one), Some(two)) => {
                one.name == two.name && one.replaces == two.replaces && one.is_quota == two.is_quota
            }
            _ => false,
        }
    }
}

impl Experiment {
    /// The share of subjects in it, in millionths.
    pub const fn share_millionths(&self) -> u64 {
        // At most 2^32 times 10^6, which is below 2^52.
        (self.share * 1_000_000).div_ceil(Self::ALL)
    }

    /// Its limits.
    pub const fn limit_selector(&self) -> &LimitSelector {
        &self.selector
    }
}

impl LimitSelector {
    /// The terms where neither an override nor `by` applies.
    pub const fn limit(&self) -> &Terms {
        &self.limit
    }

    /// The terms by values of an attribute: the attribute, the value, the terms.
    pub fn by_values(&self) -> impl Iterator<Item = (&str, &[u8], &Terms)> {
        self.by.iter().flat_map(|by| {
            let pairs = by.values.iter().zip(by.terms.as_slice());
            pairs.map(|(value, terms)| (&*by.attribute, &**value, terms))
        })
    }

    /// All overrides, in the order in which they are written.
    pub fn override_terms(&self) -> Vec<OverrideTerms<'_>> {
        let sets = self.overrides.iter();
        let mut found: Vec<(u32, OverrideTerms<'_>)> = sets.flat_map(Overrides::decode).collect();
        found.sort_by(|(one, a), (two, b)| one.cmp(two).then_with(|| a.subject.cmp(&b.subject)));
        found.into_iter().map(|(_, terms)| terms).collect()
    }
}

impl Overrides {
    /// Its entries with the values of their keys; see [`Overrides::key`].
    fn decode(&self) -> impl Iterator<Item = (u32, OverrideTerms<'_>)> {
        self.terms.iter().map(|(key, (index, terms))| {
            let names = self.attributes.iter().map(|dimension| &*dimension.attribute);
            let subject = if self.attributes.len() == 1 {
                names.map(|name| (name, key.to_vec())).collect()
            } else {
                let mut rest: &[u8] = key;
                names.map(|name| (name, next_value(&mut rest))).collect()
            };
            (*index, OverrideTerms { subject, terms })
        })
    }
}

/// Takes one length-prefixed value from the front.
fn next_value(rest: &mut &[u8]) -> Vec<u8> {
    let Some((length, after)) = rest.split_first_chunk::<8>() else {
        return Vec::new();
    };
    let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
    let (value, after) = after.split_at_checked(length).unwrap_or((after, &[]));
    *rest = after;
    value.to_vec()
}

/// True if each has what the other has, in any order.
pub(super) fn same_list<T: PartialEq>(one: &[T], other: &[T]) -> bool {
    one.len() == other.len() && one.iter().all(|item| other.contains(item))
}

impl PartialEq for Condition {
    fn eq(&self, other: &Self) -> bool {
        self.attribute == other.attribute && self.test == other.test
    }
}

impl PartialEq for Test {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::OneOf(one), Self::OneOf(two)) | (Self::Glob(one), Self::Glob(two)) => one == two,
            (Self::Any(one), Self::Any(two)) => same_list(one, two),
            (Self::Regex(one), Self::Regex(two)) => one.as_str() == two.as_str(),
            (Self::Cidr(one), Self::Cidr(two)) => one == two,
            (Self::Present(one), Self::Present(two)) => one == two,
            _ => false,
        }
    }
}

impl PartialEq for CostSource {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Attempt, Self::Attempt) => true,
            (Self::Fixed(one), Self::Fixed(two)) => one == two,
            (
                Self::Attribute { name, default },
                Self::Attribute {
                    name: other,
                    default: two,
                },
            ) => name == other && default == two,
            (Self::Cases(one), Self::Cases(two)) => one == two,
            _ => false,
        }
    }
}

impl PartialEq for CostCases {
    fn eq(&self, other: &Self) -> bool {
        self.cases == other.cases && self.default == other.default
    }
}

impl PartialEq for CostCase {
    fn eq(&self, other: &Self) -> bool {
        same_list(&self.when, &other.when) && self.cost == other.cost
    }
}

impl PartialEq for Terms {
    /// Compares the limits, not the counters they use or the names of windows. A ban is a ban, whatever its period.
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Limited(one), Self::Limited(two)) => same_list(one.as_slice(), two.as_slice()),
            (Self::Banned(_), Self::Banned(_)) | (Self::Unlimited, Self::Unlimited) => true,
            _ => false,
        }
    }
}

impl PartialEq for Window {
    fn eq(&self, other: &Self) -> bool {
        self.limit == other.limit
    }
}

impl fmt::Display for CostSource {
    /// As rules write it; of a list the number of its entries.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Attempt => f.write_str("of the attempt"),
            Self::Fixed(cost) => write!(f, "{}", cost.get()),
            Self::Attribute { name, default } => write!(f, "from {name} (default {})", default.get()),
            Self::Cases(list) => write!(f, "of {} cases", list.cases().len()),
        }
    }
}

impl fmt::Display for Terms {
    /// As rules write it: `100/min burst 200`, `[10/s, 100/min]`, `unlimited`, `0/min`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unlimited => f.write_str("unlimited"),
            Self::Banned(None) => f.write_str("0"),
            Self::Banned(Some(period)) => write!(f, "0/{}", unit_text(&period_name(*period))),
            Self::Limited(windows) => match windows.as_slice() {
                [window] => write_limit(window.limit(), f),
                windows => {
                    f.write_str("[")?;
                    for (index, window) in windows.iter().enumerate() {
                        if index > 0 {
                            f.write_str(", ")?;
                        }
                        write_limit(window.limit(), f)?;
                    }
                    f.write_str("]")
                }
            },
        }
    }
}

fn write_limit(limit: &Limit, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let (capacity, Some(rate), Some(period)) = (limit.capacity(), limit.rate(), limit.counter_period()) else {
        return write!(f, "{}", limit.capacity());
    };
    write!(f, "{}/{}", rate.units(), unit_text(&Period::name(period)))?;
    match limit {
        Limit::TokenBucket(_) | Limit::Gcra(_) | Limit::LeakyBucket(_) if capacity != rate.units() => {
            write!(f, " burst {capacity}")
        }
        _ => Ok(()),
    }
}

/// A period as rules write it after the slash: `min` for `1min`, `30s` as it is.
fn unit_text(name: &str) -> &str {
    match name.strip_prefix('1') {
        Some(unit) if !unit.starts_with(|c: char| c.is_ascii_digit()) => unit,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use crate::rules::sample;

    #[test]
    fn terms_are_written_as_rules_write_them() {
        for (limit, expected) in [
            ("100/min", "100/min"),
            ("60/60s", "60/min"),
            ("5/30s", "5/30s"),
            ("10/10s burst 7", "10/10s burst 7"),
            ("100/min burst 100", "100/min"),
            ("[10/s, 100/min burst 5]", "[10/s, 100/min burst 5]"),
            ("unlimited", "unlimited"),
            ("0/day", "0/day"),
        ] {
            let rules = sample(
                &format!("rules: [{{ id: r, limit: \"{limit}\" }}]")
                    .replace("\"[", "[")
                    .replace("]\"", "]"),
            );
            let rule = rules.rules().first().expect("one rule");
            assert_eq!(rule.limit_selector().limit().to_string(), expected);
        }
        let month =
            "rules: [{ id: r, algorithm: fixed_window, limit: 7/month }, { id: c, algorithm: concurrency, limit: 20 }]";
        let texts: Vec<String> = sample(month)
            .rules()
            .iter()
            .map(|rule| rule.limit_selector().limit().to_string())
            .collect();
        assert_eq!(texts, ["7/month", "20"]);
    }

    #[test]
    fn overrides_are_listed_in_their_order_with_their_values() {
        let rules = sample(
            "rules:\n- id: r\n  per: user\n  limit: 1/s\n  overrides:\n  - { user: [b, a], limit: 2/s }\n  - { user: c, city: x, limit: 0/s }\n",
        );
        let rule = rules.rules().first().expect("one rule");
        let listed: Vec<String> = rule
            .limit_selector()
            .override_terms()
            .iter()
            .map(|entry| {
                let values = entry
                    .subject
                    .iter()
                    .map(|(name, value)| format!("{name}={}", String::from_utf8_lossy(value)));
                format!("{} {}", values.collect::<Vec<_>>().join(","), entry.terms)
            })
            .collect();
        assert_eq!(listed, ["user=a 2/s", "user=b 2/s", "city=x,user=c 0/s"]);
    }

    #[test]
    fn rules_are_equal_however_they_are_written() {
        let first = sample("rules: [{ id: r, when: { a: x, b: [y, z] }, cost: 1, limit: [60/min, 5/s] }]");
        let second = sample("rules: [{ id: r, when: { b: [z, y], a: x }, limit: [5/1s, 60/60s] }]");
        let third = sample("rules: [{ id: r, when: { b: [z, y], a: w }, cost: 2, limit: [5/1s, 61/60s] }]");
        for (other, equal) in [(second, true), (third, false)] {
            let (one, two) = (&first.rules()[0], &other.rules()[0]);
            assert_eq!(one.same_conditions(two), equal);
            assert_eq!(one.limit_selector().limit() == two.limit_selector().limit(), equal);
            assert_eq!(one.cost_source() == two.cost_source(), equal);
            assert!(one.same_group(two));
        }
    }
}
