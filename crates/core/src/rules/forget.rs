//! Which counters a subject has, whatever it attempts.

use super::attempt::Attempt;
use super::rule::{CounterId, Rule, RuleSet};
use crate::limit::Limit;

impl RuleSet {
    /// All counters of the subject that `attempt` names, on both sides of experiments.
    ///
    /// A rule counts for it if all its `per` attributes are given and no condition is contradicted by what is given. Rules
    /// without `per` count for everybody, so one is meant only if it is named. With a name no other rule is.
    pub fn counters_of<'r, K>(
        &'r self,
        attempt: &Attempt<'_>,
        named: Option<&str>,
        mut key: impl FnMut(CounterId, &[&[u8]]) -> K,
    ) -> Vec<(K, &'r Limit)> {
        let is_meant = |rule: &Rule| {
            *rule.domain == *attempt.domain
                && named.map_or(!rule.per.is_empty(), |named| *rule.id == *named)
                && !rule.is_contradicted_by(attempt)
        };
        let mut found = Vec::new();
        for (counter, place) in self.counters.iter().zip(0..) {
            let rule = self.rules.get(counter.rule as usize).filter(|rule| is_meant(rule));
            if let Some(subject) = rule.and_then(|rule| rule.subject(attempt)) {
                found.push((key(CounterId(place), subject.parts().as_slice()), &counter.limit));
            }
        }
        found
    }
}

impl Rule {
    /// Whether something that is known of the attempt keeps it from ever meeting this rule.
    fn is_contradicted_by(&self, attempt: &Attempt<'_>) -> bool {
        let is_given = |attribute: &str| attempt.value(attribute).is_some();
        self.when
            .iter()
            .any(|condition| is_given(&condition.attribute) && !condition.holds(attempt))
    }
}
