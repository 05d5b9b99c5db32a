//! A limit that a request brings along, in a domain of these files.

use super::compile::{apply_limit, counting_limit};
use super::file::Unit;
use crate::algorithm::fixed_window::FixedWindow;
use crate::decision::Decision;
use crate::limit::Limit;
use crate::rules::attempt::Attempt;
use crate::rules::model::{CounterId, RuleSet, Terms};
use crate::settle::Policy;
use crate::units::rate::Rate;

/// So much passes in a window, whatever the file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitOverride {
    requests: u32,
    unit: Unit,
    /// Nothing is taken of what is refused.
    strict: bool,
}

impl LimitOverride {
    /// As the settings have it for all descriptors.
    pub const fn new(requests: u32, unit: Unit, strict: bool) -> Self {
        Self { requests, unit, strict }
    }

    /// How much passes in a window.
    pub const fn requests(&self) -> u32 {
        self.requests
    }

    /// The length of the window.
    pub const fn unit(&self) -> Unit {
        self.unit
    }

    /// What is held against the store.
    pub fn counting_limit(&self) -> Limit {
        let window = Limit::FixedWindow(FixedWindow::new(Rate::for_hits(
            self.requests.into(),
            self.unit.period(),
        )));
        if self.strict { window } else { counting_limit(&window) }
    }

    /// What a refusal by it means. It is never a shadow and never a quota.
    pub const fn policy(&self) -> Policy {
        if self.strict { Policy::Enforce } else { Policy::Count }
    }

    /// What the store's decision comes to, and where what is refused is counted too, the count.
    pub fn apply_limit(&self, decision: Decision) -> (Decision, Option<u64>) {
        if self.strict {
            return (decision, None);
        }
        let (decision, counted) = apply_limit(self.requests, decision);
        (decision, Some(counted))
    }
}

impl RuleSet {
    /// The counter of the limit that a file has for an attempt, if that has windows of this length: one that is brought
    /// along is counted there too. Where all values of a pattern are counted together it is not.
    pub fn counter_for_override<K>(
        &self,
        attempt: &Attempt<'_>,
        unit: Unit,
        key: impl FnOnce(CounterId, &[&[u8]]) -> K,
    ) -> Option<K> {
        let (rule, found) = self.match_descriptor(attempt)?;
        let Terms::Limited(windows) = &rule.selector.limit else {
            return None;
        };
        let [window] = windows.as_slice() else { return None };
        if found.is_shared()
            || !matches!(&*window.limit, Limit::FixedWindow(fixed) if fixed.rate().period() == unit.period())
        {
            return None;
        }
        Some(key(
            window.counter,
            &found.key_parts(attempt, &found.counter_name(attempt)),
        ))
    }
}
