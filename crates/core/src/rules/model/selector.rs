//! Selection of a rule's limit for an attempt, and of the cost it charges.

use crate::decision::Cost;
use crate::rules::attempt::Attempt;
use crate::rules::matching::Value;
use crate::rules::model::{By, CostSource, LimitSelector, Overrides, Rule, Terms};
use crate::rules::rows::RowSubject;

/// The origin of the terms that apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitOrigin<'r> {
    /// The rule's `limit`.
    Limit,
    /// `by`, for a value of an attribute.
    By {
        /// The attribute.
        attribute: &'r str,
        /// Its value.
        value: &'r [u8],
    },
    /// The override at this index of the rule's list.
    Override(u32),
    /// The row for this subject.
    Row(RowSubject<'r>),
}

/// The maximum number of value combinations that overrides with several attributes are looked up for. Attributes rarely
/// have several values, and two such attributes in one override are rarer still.
const COMBINATIONS_MAX: usize = 256;

impl LimitSelector {
    /// Returns the terms of the first matching override, else of `by`, else `limit`.
    #[inline]
    pub(crate) fn terms<'r>(&'r self, attempt: &Attempt<'_>) -> (&'r Terms, LimitOrigin<'r>) {
        let mut first: Option<(u32, &Terms)> = None;
        for overrides in &self.overrides {
            if let Some(found) = overrides.find(attempt)
                && first.is_none_or(|(index, _)| found.0 < index)
            {
                first = Some(found);
            }
        }
        if let Some((index, terms)) = first {
            return (terms, LimitOrigin::Override(index));
        }
        match self.by.as_ref().and_then(|by| by.find(attempt)) {
            Some(found) => found,
            None => (&self.limit, LimitOrigin::Limit),
        }
    }
}

impl By {
    fn find<'r>(&'r self, attempt: &Attempt<'_>) -> Option<(&'r Terms, LimitOrigin<'r>)> {
        let mut values = attempt.values(&self.attribute);
        let index = values.find_map(|value| self.values.binary_search_by(|known| (**known).cmp(value)).ok())?;
        let (value, terms) = (self.values.get(index)?, self.terms.as_slice().get(index)?);
        let attribute = &self.attribute;
        Some((terms, LimitOrigin::By { attribute, value }))
    }
}

impl Overrides {
    /// Returns the first match and its index. One matching value of several is enough.
    fn find(&self, attempt: &Attempt<'_>) -> Option<(u32, &Terms)> {
        let find_terms = |values: &[Value<'_>]| {
            let found = match values {
                [value] => self.terms.get(value.bytes()),
                values => {
                    let values: Vec<&[u8]> = values.iter().map(Value::bytes).collect();
                    self.terms.get(&*Self::key(&values))
                }
            };
            found.map(|(index, terms)| (*index, terms))
        };
        let index_of = |(index, _): &(u32, &Terms)| *index;
        if let [dimension] = &*self.attributes {
            return attempt
                .values(&dimension.attribute)
                .filter_map(|value| find_terms(&[dimension.value(value)]))
                .min_by_key(index_of);
        }
        let mut combinations: Vec<Vec<Value<'_>>> = vec![Vec::new()];
        for dimension in &self.attributes {
            let longer = combinations.iter().flat_map(|values| {
                attempt.values(&dimension.attribute).map(|value| {
                    let mut values = values.clone();
                    values.push(dimension.value(value));
                    values
                })
            });
            combinations = longer.take(COMBINATIONS_MAX).collect();
        }
        combinations
            .iter()
            .filter_map(|values| find_terms(values))
            .min_by_key(index_of)
    }
}

impl Rule {
    /// The cost that an attempt is charged by this rule.
    pub fn charged_cost(&self, attempt: &Attempt<'_>) -> Cost {
        self.cost(attempt).0
    }

    /// Returns the cost of an attempt, and whether its cost attribute was valid.
    #[inline]
    pub(crate) fn cost(&self, attempt: &Attempt<'_>) -> (Cost, CostValidity) {
        self.cost_source.resolve(attempt)
    }
}

impl CostSource {
    /// Returns the cost of an attempt, and whether its cost attribute was valid.
    #[inline]
    pub(crate) fn resolve(&self, attempt: &Attempt<'_>) -> (Cost, CostValidity) {
        let times = attempt.cost.get();
        match self {
            Self::Attempt => (attempt.cost, CostValidity::Valid),
            Self::Fixed(cost) => (cost.times(times), CostValidity::Valid),
            Self::Attribute { name, default } => match attempt.value(name) {
                None => (default.times(times), CostValidity::Valid),
                Some(text) => match parse_cost(text) {
                    Some(units) => (Cost::ONE.times(units).times(times), CostValidity::Valid),
                    None => (default.times(times), CostValidity::Invalid),
                },
            },
            Self::Cases(list) => list.select(attempt).0.resolve(attempt),
        }
    }
}

/// Validity of a cost attribute: a whole number, or missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CostValidity {
    Valid,
    Invalid,
}

/// Parses digits and nothing else, saturating.
fn parse_cost(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0_u64, |number, byte| {
        byte.is_ascii_digit()
            .then(|| number.saturating_mul(10).saturating_add(u64::from(byte - b'0')))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::Attribute;

    #[test]
    fn a_price_is_a_whole_number_or_the_default() {
        let source = CostSource::Attribute {
            name: "points".into(),
            default: Cost::new(3).expect("in range"),
        };
        let too_much = Cost::MAX.get() + 1;
        for (points, times, expected) in [
            (Some("7"), 1, (7, CostValidity::Valid)),
            (Some("007"), 2, (14, CostValidity::Valid)),
            (Some("0"), 5, (0, CostValidity::Valid)),
            (Some("7"), 0, (0, CostValidity::Valid)),
            (None, 2, (6, CostValidity::Valid)),
            (Some("-7"), 2, (6, CostValidity::Invalid)),
            (Some("7.5"), 1, (3, CostValidity::Invalid)),
            (Some("1e3"), 1, (3, CostValidity::Invalid)),
            (Some("+7"), 1, (3, CostValidity::Invalid)),
            (Some(" 7"), 1, (3, CostValidity::Invalid)),
            (Some(""), 1, (3, CostValidity::Invalid)),
            (Some("999999999999999"), 1, (Cost::MAX.get(), CostValidity::Valid)),
            (Some("999999999999999"), 2, (too_much, CostValidity::Valid)),
            (Some("99999999999999999999999999"), 1, (too_much, CostValidity::Valid)),
            (Some("99999999999999999999999999"), 0, (0, CostValidity::Valid)),
        ] {
            let attributes = points.map(|points| Attribute {
                name: "points",
                value: points.as_bytes(),
            });
            let attempt = Attempt {
                domain: Attempt::DOMAIN,
                attributes: attributes.as_slice(),
                cost: Cost::new(times).expect("in range"),
            };
            let (cost, validity) = source.resolve(&attempt);
            assert_eq!((cost.get(), validity), expected, "{points:?} times {times}");
        }
    }
}
