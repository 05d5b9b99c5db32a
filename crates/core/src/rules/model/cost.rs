//! Costs by condition: the first case that holds gives the cost of a rule.

use super::{Condition, CostSource, Rule};
use crate::rules::attempt::Attempt;

/// The cases of a cost, in order. The first whose conditions hold applies, else the default.
#[derive(Debug)]
pub struct CostCases {
    pub(crate) cases: Box<[CostCase]>,
    /// A constant or an attribute; never cases again.
    pub(crate) default: CostSource,
}

/// One case of a cost.
#[derive(Debug)]
pub struct CostCase {
    /// All of them must hold. Never empty.
    pub(crate) when: Box<[Condition]>,
    /// A constant or an attribute; never cases again.
    pub(crate) cost: CostSource,
}

/// The origin of a cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CostOrigin {
    /// The rule's `cost`, which is the same for all attempts.
    Cost,
    /// The case at this index of the rule's list.
    Case(usize),
    /// The default of the rule's list: no case holds.
    Default,
}

impl CostCases {
    /// The cases, in order.
    pub fn cases(&self) -> &[CostCase] {
        &self.cases
    }

    /// The cost without a case that holds.
    pub const fn default_cost(&self) -> &CostSource {
        &self.default
    }

    /// The case for an attempt.
    pub(crate) fn select(&self, attempt: &Attempt<'_>) -> (&CostSource, CostOrigin) {
        let holds = |case: &CostCase| case.when.iter().all(|condition| condition.holds(attempt));
        match self.cases.iter().enumerate().find(|(_, case)| holds(case)) {
            Some((index, case)) => (&case.cost, CostOrigin::Case(index)),
            None => (&self.default, CostOrigin::Default),
        }
    }
}

impl CostCase {
    /// Its conditions.
    pub fn when(&self) -> &[Condition] {
        &self.when
    }

    /// The cost if they hold.
    pub const fn cost(&self) -> &CostSource {
        &self.cost
    }
}

impl CostSource {
    /// The attributes it reads, those of conditions included. May have duplicates.
    pub fn attributes(&self) -> Vec<&str> {
        match self {
            Self::Attempt | Self::Fixed(_) => Vec::new(),
            Self::Attribute { name, .. } => vec![name],
            Self::Cases(list) => {
                let mut attributes: Vec<&str> = Vec::new();
                for case in &list.cases {
                    let tested = case.when.iter().map(|condition| &*condition.attribute);
                    attributes.extend(tested);
                    attributes.extend(case.cost.attributes());
                }
                attributes.extend(list.default.attributes());
                attributes
            }
        }
    }

    /// True if it never charges anything.
    pub(crate) fn is_free(&self) -> bool {
        match self {
            Self::Fixed(cost) => cost.get() == 0,
            Self::Cases(list) => list.default.is_free() && list.cases.iter().all(|case| case.cost.is_free()),
            Self::Attempt | Self::Attribute { .. } => false,
        }
    }
}

impl Rule {
    /// The attribute that the cost of an attempt comes from. None if it is a constant, or the attempt's own.
    pub fn cost_attribute(&self, attempt: &Attempt<'_>) -> Option<&str> {
        let selected = match &self.cost_source {
            CostSource::Cases(list) => list.select(attempt).0,
            source => source,
        };
        match selected {
            CostSource::Attribute { name, .. } => Some(name),
            CostSource::Attempt | CostSource::Fixed(_) | CostSource::Cases(_) => None,
        }
    }

    /// The origin of the cost of an attempt.
    pub(crate) fn cost_origin(&self, attempt: &Attempt<'_>) -> CostOrigin {
        match &self.cost_source {
            CostSource::Cases(list) => list.select(attempt).1,
            CostSource::Attempt | CostSource::Fixed(_) | CostSource::Attribute { .. } => CostOrigin::Cost,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::decision::Cost;
    use crate::rules::model::CostOrigin;
    use crate::rules::{Attempt, attributes, sample};

    const RULES: &str = r#"
rules:
- id: plan
  per: user
  limit: 100/min
  cost:
  - { when: { endpoint: /search, method: [GET, HEAD] }, cost: 5 }
  - { when: { endpoint: "/export/*" }, cost: { attribute: rows, default: 20 } }
  - { when: { bot: { present: true } }, cost: 0 }
  - { default: { attribute: points, default: 2 } }
- { id: short, limit: 100/min, cost: [{ when: { endpoint: /search }, cost: 7 }] }
"#;

    #[test]
    fn the_first_case_that_holds_gives_the_cost() {
        let rules = sample(RULES);
        let case = CostOrigin::Case;
        for (pairs, expected) in [
            (
                &[("endpoint", "/search"), ("method", "GET")][..],
                [(10, case(0)), (14, case(0))],
            ),
            (
                &[("endpoint", "/search"), ("method", "PUT")],
                [(4, CostOrigin::Default), (14, case(0))],
            ),
            (
                &[("endpoint", "/export/a"), ("bot", "1")],
                [(40, case(1)), (2, CostOrigin::Default)],
            ),
            (
                &[("endpoint", "/export/a"), ("rows", "300")],
                [(600, case(1)), (2, CostOrigin::Default)],
            ),
            (
                &[("endpoint", "/export/a"), ("rows", "many")],
                [(40, case(1)), (2, CostOrigin::Default)],
            ),
            (&[("bot", "1")], [(0, case(2)), (2, CostOrigin::Default)]),
            (
                &[("points", "9")],
                [(18, CostOrigin::Default), (2, CostOrigin::Default)],
            ),
            (&[], [(4, CostOrigin::Default), (2, CostOrigin::Default)]),
        ] {
            let pairs: Vec<(&str, &[u8])> = pairs.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
            let attempt = Attempt {
                domain: Attempt::DOMAIN,
                attributes: &attributes(&pairs),
                cost: Cost::new(2).expect("in range"),
            };
            let found = rules
                .rules
                .iter()
                .map(|rule| (rule.cost(&attempt).0.get(), rule.cost_origin(&attempt)));
            assert_eq!(found.collect::<Vec<_>>(), expected, "{pairs:?}");
        }
    }

    #[test]
    fn the_case_that_holds_says_which_attribute_the_cost_comes_from() {
        let rules = sample(RULES);
        for (pairs, expected) in [
            (&[("endpoint", "/export/a")][..], [Some("rows"), None]),
            (&[("endpoint", "/search"), ("method", "GET")], [None, None]),
            (&[("points", "9")], [Some("points"), None]),
        ] {
            let pairs: Vec<(&str, &[u8])> = pairs.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
            let attempt = Attempt {
                domain: Attempt::DOMAIN,
                attributes: &attributes(&pairs),
                cost: Cost::ONE,
            };
            let found = rules.rules.iter().map(|rule| rule.cost_attribute(&attempt));
            assert_eq!(found.collect::<Vec<_>>(), expected, "{pairs:?}");
        }
    }

    #[test]
    fn a_list_names_every_attribute_that_it_reads() {
        let rules = sample(RULES);
        let named = rules.rules.iter().map(|rule| rule.cost_source().attributes());
        assert_eq!(
            named.collect::<Vec<_>>(),
            [
                &["endpoint", "method", "endpoint", "rows", "bot", "points"][..],
                &["endpoint"]
            ]
        );
    }
}
