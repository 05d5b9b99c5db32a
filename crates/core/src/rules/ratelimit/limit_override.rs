//! A limit sent with a request, in a domain of descriptor files.

use super::file::Unit;
use crate::algorithm::fixed_window::FixedWindow;
use crate::limit::Limit;
use crate::rules::attempt::Attempt;
use crate::rules::model::{CounterId, Counting, RuleSet, Terms};
use crate::settle::Policy;
use crate::units::rate::Rate;

/// A window and its capacity, which replace the limit of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitOverride {
    requests: u32,
    unit: Unit,
    counting: Counting,
}

impl LimitOverride {
    /// Returns an override; `strict` is the setting of all descriptors.
    pub const fn new(requests: u32, unit: Unit, strict: bool) -> Self {
        let counting = match strict {
            true => Counting::OnAllow,
            false => Counting::Always { capacity: requests },
        };
        Self {
            requests,
            unit,
            counting,
        }
    }

    /// The capacity of a window.
    pub const fn requests(&self) -> u32 {
        self.requests
    }

    /// The length of the window.
    pub const fn unit(&self) -> Unit {
        self.unit
    }

    /// The attempts it counts.
    pub const fn counting(&self) -> Counting {
        self.counting
    }

    /// The limit to charge in the store.
    pub fn charged_limit(&self) -> Limit {
        let rate = Rate::for_hits(self.requests.into(), self.unit.period());
        self.counting.charged_limit(&Limit::FixedWindow(FixedWindow::new(rate)))
    }

    /// The policy of its charge. It is never a shadow and never a quota.
    pub const fn policy(&self) -> Policy {
        match self.counting {
            Counting::OnAllow => Policy::Enforce,
            Counting::Always { .. } => Policy::Count,
        }
    }
}

impl RuleSet {
    /// Returns the counter of the file's limit for an attempt if that limit has windows of the same length: an override
    /// is counted there too. A counter shared by all values of a pattern is not used.
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
