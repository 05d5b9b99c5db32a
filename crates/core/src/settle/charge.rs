//! One limit that applies to a request, what it costs there, and what a denial means.

use crate::algorithm::Step;
use crate::decision::Cost;
use crate::limit::{Change, Limit};
use crate::units::rate::Rate;

/// One limit that applies to a request, and the cost charged to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge<K> {
    /// The key of the counter.
    pub key: K,
    /// The limit the counter is held against.
    pub limit: Limit,
    /// The units consumed.
    pub cost: Cost,
    /// The consequence of a denial by this limit.
    pub policy: Policy,
    /// The rule's choice for the time that the store is unavailable.
    pub on_failure: OnStoreFailure,
}

/// The `on_store_failure` setting of a rule: what it does while the store is unavailable.
///
/// [`failure_policy`](super::failure_policy()) turns it into an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnStoreFailure {
    /// Each instance enforces its share of the limit.
    Local,
    /// Requests pass, at most at the rate of the cap if there is one.
    Open {
        /// The cap of each instance.
        cap: Option<Rate>,
    },
    /// Requests are denied.
    Closed,
}

/// The consequence of a denial, and when a charge is kept. Charges of one key come from one rule and so share a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// A denial denies the request; charged if the request passes.
    Enforce,
    /// Never denies; charged if the request passes and this limit would have allowed it.
    Shadow,
    /// A denial denies the request; charged in any case.
    Count,
}

impl<K: Copy> Charge<K> {
    /// The same charge with a cost of zero.
    pub fn as_peek(&self) -> Self {
        Self {
            cost: Cost::ZERO,
            ..*self
        }
    }
}

impl<K> Charge<K> {
    /// True if later charges of the same key add to this one.
    pub(super) fn counts_toward_key(&self, step: &Step<Change>) -> bool {
        match self.policy {
            Policy::Enforce | Policy::Count => true,
            Policy::Shadow => step.decision.is_allow(),
        }
    }
}
