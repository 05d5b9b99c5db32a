//! Tests of an attempt's attributes against the conditions of a rule.

use crate::rules::attempt::Attempt;
use crate::rules::model::{Condition, Rule, Test};
use memchr::memmem;
use std::net::IpAddr;

impl Rule {
    /// True if all its conditions hold. Domain and mode are not checked.
    #[cfg(test)]
    pub(crate) fn holds(&self, attempt: &Attempt<'_>) -> bool {
        self.when.iter().all(|condition| condition.holds(attempt))
    }

    /// True if all its conditions hold, given that the one at index `proven` does.
    #[inline]
    pub(crate) fn holds_except(&self, proven: u32, attempt: &Attempt<'_>) -> bool {
        let mut conditions = self.when.iter().zip(0..);
        conditions.all(|(condition, index)| index == proven || condition.holds(attempt))
    }
}

impl Condition {
    /// True if it holds for one of the attribute's values.
    #[inline]
    pub(crate) fn holds(&self, attempt: &Attempt<'_>) -> bool {
        let mut values = attempt.values(&self.attribute);
        match values.next() {
            None => self.test.accepts_absence(),
            Some(first) => self.test.accepts(first) || values.any(|value| self.test.accepts(value)),
        }
    }
}

impl Test {
    /// True if a value passes.
    pub(crate) fn accepts(&self, value: &[u8]) -> bool {
        match self {
            Self::OneOf(values) => values.binary_search_by(|wanted| wanted.as_bytes().cmp(value)).is_ok(),
            Self::Glob(parts) => glob(parts, value),
            Self::Any(tests) => tests.iter().any(|test| test.accepts(value)),
            Self::Regex(regex) => regex.is_match(value),
            Self::Cidr(networks) => parse_address(value).is_some_and(|address| networks.contains(address)),
            Self::Present(wanted) => *wanted,
        }
    }

    /// True if a missing attribute passes.
    pub(crate) fn accepts_absence(&self) -> bool {
        match self {
            Self::Present(wanted) => !wanted,
            Self::Any(tests) => tests.iter().any(Self::accepts_absence),
            Self::OneOf(_) | Self::Glob(_) | Self::Regex(_) | Self::Cidr(_) => false,
        }
    }
}

/// Parses an address in its usual notation, without port and zone.
pub(crate) fn parse_address(value: &[u8]) -> Option<IpAddr> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

/// True if `value` consists of the parts in order, with anything between them. Takes linear time: the first part must
/// be its prefix, the last its suffix, and of each other part the first occurrence suffices.
fn glob(parts: &[Box<str>], value: &[u8]) -> bool {
    let Some((first, rest)) = parts.split_first() else {
        return false;
    };
    let Some((last, middle)) = rest.split_last() else {
        return first.as_bytes() == value;
    };
    let within = value
        .strip_prefix(first.as_bytes())
        .and_then(|value| value.strip_suffix(last.as_bytes()));
    let Some(mut within) = within else { return false };
    for part in middle {
        let found = memmem::find(within, part.as_bytes());
        match found.and_then(|at| within.get(at + part.len()..)) {
            Some(rest) => within = rest,
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::Cost;
    use crate::rules::Attribute;
    use proptest::prelude::*;

    fn parts(glob: &str) -> Test {
        Test::Glob(glob.split('*').map(Box::from).collect())
    }

    fn holds(test: Test, values: &[&str]) -> bool {
        let condition = Condition {
            attribute: "a".into(),
            test,
        };
        let attributes: Vec<Attribute<'_>> = values
            .iter()
            .map(|value| Attribute {
                name: "a",
                value: value.as_bytes(),
            })
            .collect();
        condition.holds(&Attempt {
            domain: Attempt::DOMAIN,
            attributes: &attributes,
            cost: Cost::ONE,
        })
    }

    fn one_of(values: &[&str]) -> Test {
        Test::OneOf(values.iter().copied().map(Box::from).collect())
    }

    fn cidr(networks: &[&str]) -> Test {
        Test::Cidr(
            networks
                .iter()
                .map(|network| network.parse().expect("a network"))
                .collect(),
        )
    }

    fn regex(text: &str) -> Test {
        Test::Regex(Box::new(regex::bytes::Regex::new(text).expect("an expression")))
    }

    #[test]
    fn a_condition_holds_for_what_it_says() {
        for (test, values, expected) in [
            (one_of(&["x", "y"]), &["y"][..], true),
            (one_of(&["x", "y"]), &["z"], false),
            (one_of(&["x"]), &["z", "x"], true),
            (one_of(&["x"]), &[], false),
            (parts("/v1/*"), &["/v1/charges"], true),
            (parts("/v1/*"), &["/v1/"], true),
            (parts("/v1/*"), &["/v1"], false),
            (parts("*.png"), &["a.png"], true),
            (parts("a*a"), &["a"], false),
            (parts("a*a"), &["aa"], true),
            (parts("*ab*ab*"), &["abab"], true),
            (parts("*ab*ab*"), &["aab"], false),
            (parts("*aab*"), &["aaaab"], true),
            (parts("*"), &[""], true),
            (parts("*"), &[], false),
            (regex("^m_[0-9]+$"), &["m_42"], true),
            (regex("^m_[0-9]+$"), &["m_x"], false),
            (cidr(&["10.0.0.0/8"]), &["10.1.2.3"], true),
            (cidr(&["10.0.0.0/8"]), &["::ffff:10.1.2.3"], true),
            (cidr(&["::/0"]), &["::ffff:10.1.2.3"], false),
            (cidr(&["10.0.0.0/8"]), &["11.1.2.3"], false),
            (cidr(&["10.0.0.0/8"]), &["10.1.2.3:80"], false),
            (cidr(&["2001:db8::/32"]), &["2001:db8:1::1"], true),
            (cidr(&["0.0.0.0/0"]), &["2001:db8:1::1"], false),
            (Test::Present(true), &["x"], true),
            (Test::Present(true), &[], false),
            (Test::Present(false), &["x"], false),
            (Test::Present(false), &[], true),
            (Test::Any(Box::new([one_of(&["x"]), parts("y*")])), &["yes"], true),
            (Test::Any(Box::new([one_of(&["x"]), parts("y*")])), &["no"], false),
            (Test::Any(Box::new([one_of(&["x"]), Test::Present(false)])), &[], true),
        ] {
            let shown = format!("{test:?} of {values:?}");
            assert_eq!(holds(test, values), expected, "{shown}");
        }
    }

    #[test]
    fn a_long_value_made_to_nearly_fit_takes_no_longer() {
        let part = format!("*{}b*", "a".repeat(20_000));
        assert!(!holds(parts(&part), &[&"a".repeat(4_000_000)]));
    }

    proptest! {
        #[test]
        fn a_glob_is_what_the_same_regular_expression_is(glob in "[ab*]{0,8}", value in "[ab]{0,12}") {
            let expression = format!("^(?s-u:{})$", glob.replace('*', ".*"));
            prop_assert_eq!(holds(parts(&glob), &[&value]), holds(regex(&expression), &[&value]));
        }
    }
}
