//! The failure policy: what happens to a charge that the shared store could not decide.
//!
//! A pure function of the charge, the mode of the store and the share of this instance. Stores act on the answer; they
//! do not decide it again.

use super::charge::{Charge, OnStoreFailure, Policy};
use super::source::Source;
use crate::algorithm::token_bucket::TokenBucket;
use crate::limit::Limit;
use std::num::NonZeroU64;

/// The part of the system that decides: the `store.mode` setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreMode {
    /// The shared store decides; this instance while the store is unavailable.
    #[default]
    Auto,
    /// Only the shared store decides. While it is unavailable, rules with `on_store_failure: local` deny.
    SharedOnly,
    /// Only this instance decides, by its share of each limit, whatever the rules say. The shared store is not called.
    LocalOnly,
}

/// The share of each limit that one instance enforces, as a fraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortionRatio {
    /// The parts this instance has.
    pub numerator: NonZeroU64,
    /// The parts there are.
    pub denominator: NonZeroU64,
}

/// The action for a charge that the shared store could not decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureAction {
    /// Allow it without counting it.
    Allow,
    /// Decide it by this cap, which each instance has for itself.
    Cap(Limit),
    /// Decide it by this share of its limit.
    Share(Limit),
    /// Deny it.
    Deny,
}

/// Returns what to do with a charge that the shared store could not decide.
///
/// ```
/// use tollgate_core::{Charge, Cost, FailureAction, Micros, OnStoreFailure, Policy, PortionRatio, Rate, StoreMode};
/// use tollgate_core::{TokenBucket, failure_policy};
///
/// let charge = Charge {
///     key: (),
///     limit: TokenBucket::new(Rate::new(100, Micros::from_secs(1))?).into(),
///     cost: Cost::ONE,
///     policy: Policy::Enforce,
///     on_failure: OnStoreFailure::Local,
/// };
/// // 80 % of each limit, spread over four instances.
/// let share = PortionRatio::new(800_000, 4);
/// let FailureAction::Share(limit) = failure_policy(&charge, StoreMode::Auto, share) else { unreachable!() };
/// assert_eq!(limit.capacity(), 20);
/// assert_eq!(failure_policy(&charge, StoreMode::SharedOnly, share), FailureAction::Deny);
/// # Ok::<(), tollgate_core::LimitError>(())
/// ```
pub fn failure_policy<K>(charge: &Charge<K>, mode: StoreMode, share: PortionRatio) -> FailureAction {
    failure_policy_with(charge, mode, |limit| share.apply(limit))
}

/// The same with a function that computes the share of a limit, for callers that cache shares.
#[inline]
pub fn failure_policy_with<K>(
    charge: &Charge<K>,
    mode: StoreMode,
    share: impl FnOnce(&Limit) -> Limit,
) -> FailureAction {
    match (mode, charge.on_failure) {
        (StoreMode::LocalOnly, _) | (StoreMode::Auto, OnStoreFailure::Local) => {
            FailureAction::Share(share(&charge.limit))
        }
        (_, OnStoreFailure::Open { cap: Some(cap) }) => FailureAction::Cap(TokenBucket::new(cap).into()),
        (_, OnStoreFailure::Open { cap: None }) => FailureAction::Allow,
        // A shadow rule denies nothing, with or without the store.
        _ if charge.policy == Policy::Shadow => FailureAction::Allow,
        (_, OnStoreFailure::Local | OnStoreFailure::Closed) => FailureAction::Deny,
    }
}

/// The source of a charge that neither the shared store nor this instance decided: closed if the failure policy denies
/// it, else open. A share that was not decided denies: where no instance decides by it, only the store does.
pub fn undecided_source<K>(charge: &Charge<K>) -> Source {
    match failure_policy_with(charge, StoreMode::SharedOnly, |limit| *limit).is_deny() {
        true => Source::Closed,
        false => Source::Open,
    }
}

impl StoreMode {
    /// All modes, by the names that settings and replies use.
    pub const NAMES: [(&str, Self); 3] = [
        ("auto", Self::Auto),
        ("shared_only", Self::SharedOnly),
        ("local_only", Self::LocalOnly),
    ];

    /// The name that settings and replies use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::SharedOnly => "shared_only",
            Self::LocalOnly => "local_only",
        }
    }
}

impl PortionRatio {
    /// `share_millionths` of each limit, spread over `instances`; zero counts as one.
    pub fn new(share_millionths: u64, instances: u32) -> Self {
        let at_least_one = |number| NonZeroU64::new(number).unwrap_or(NonZeroU64::MIN);
        Self {
            numerator: at_least_one(share_millionths),
            denominator: at_least_one(1_000_000 * u64::from(instances)),
        }
    }

    /// This share of a limit. See [`Limit::portion`].
    pub fn apply(self, limit: &Limit) -> Limit {
        limit.portion(self.numerator, self.denominator)
    }
}

impl FailureAction {
    /// The limit that this instance decides by, if it decides.
    pub const fn limit(&self) -> Option<&Limit> {
        match self {
            Self::Cap(limit) | Self::Share(limit) => Some(limit),
            Self::Allow | Self::Deny => None,
        }
    }

    /// The source of an outcome that came of this action.
    pub const fn source(&self) -> Source {
        match self {
            Self::Share(_) => Source::Local,
            Self::Allow | Self::Cap(_) => Source::Open,
            Self::Deny => Source::Closed,
        }
    }

    /// True if units that this action allows are charged to the shared store afterwards.
    ///
    /// A cap is not the rule's limit, and leases are released where they were taken.
    pub const fn is_repaid(&self) -> bool {
        match self {
            Self::Share(limit) => !matches!(limit, Limit::Concurrency(_)),
            Self::Allow | Self::Cap(_) | Self::Deny => false,
        }
    }

    /// True if the charge denies its request.
    pub const fn is_deny(&self) -> bool {
        matches!(self, Self::Deny)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Concurrency, Cost, Micros, Rate};

    fn rate(units: u64) -> Rate {
        Rate::new(units, Micros::from_secs(1)).expect("in range")
    }

    fn charge(on_failure: OnStoreFailure, policy: Policy) -> Charge<()> {
        Charge {
            key: (),
            limit: TokenBucket::new(rate(100)).into(),
            cost: Cost::ONE,
            policy,
            on_failure,
        }
    }

    #[test]
    fn the_mode_and_the_rule_choose_the_action() {
        use FailureAction::{Allow, Deny};
        use OnStoreFailure::{Closed, Local};
        use Policy::{Count, Enforce, Shadow};
        use StoreMode::{Auto, LocalOnly, SharedOnly};
        let open = OnStoreFailure::Open { cap: None };
        let capped = OnStoreFailure::Open { cap: Some(rate(7)) };
        let share = FailureAction::Share(PortionRatio::new(500_000, 2).apply(&TokenBucket::new(rate(100)).into()));
        let cap = FailureAction::Cap(TokenBucket::new(rate(7)).into());
        for (mode, on_failure, policy, action) in [
            (Auto, Local, Enforce, share),
            (Auto, Local, Shadow, share),
            (Auto, Local, Count, share),
            (Auto, open, Enforce, Allow),
            (Auto, open, Shadow, Allow),
            (Auto, capped, Enforce, cap),
            (Auto, capped, Shadow, cap),
            (Auto, Closed, Enforce, Deny),
            (Auto, Closed, Count, Deny),
            (Auto, Closed, Shadow, Allow),
            (SharedOnly, Local, Enforce, Deny),
            (SharedOnly, Local, Count, Deny),
            (SharedOnly, Local, Shadow, Allow),
            (SharedOnly, open, Enforce, Allow),
            (SharedOnly, capped, Enforce, cap),
            (SharedOnly, Closed, Enforce, Deny),
            (SharedOnly, Closed, Shadow, Allow),
            (LocalOnly, Local, Enforce, share),
            (LocalOnly, open, Enforce, share),
            (LocalOnly, capped, Enforce, share),
            (LocalOnly, Closed, Enforce, share),
            (LocalOnly, Closed, Shadow, share),
        ] {
            let ratio = PortionRatio::new(500_000, 2);
            let found = failure_policy(&charge(on_failure, policy), mode, ratio);
            assert_eq!(found, action, "{mode:?}, {on_failure:?}, {policy:?}");
        }
    }

    #[test]
    fn each_action_has_a_source_and_only_a_share_of_units_is_repaid() {
        let bucket = TokenBucket::new(rate(5)).into();
        let leases = Concurrency::new(5, Micros::from_secs(60)).expect("in range").into();
        for (action, source, limit, is_repaid) in [
            (FailureAction::Allow, Source::Open, None, false),
            (FailureAction::Cap(bucket), Source::Open, Some(bucket), false),
            (FailureAction::Share(bucket), Source::Local, Some(bucket), true),
            (FailureAction::Share(leases), Source::Local, Some(leases), false),
            (FailureAction::Deny, Source::Closed, None, false),
        ] {
            assert_eq!(action.source(), source);
            assert_eq!(action.limit().copied(), limit);
            assert_eq!(action.is_repaid(), is_repaid);
            assert_eq!(action.is_deny(), source == Source::Closed);
        }
    }

    #[test]
    fn a_share_of_nothing_is_one_part_and_no_instance_is_one() {
        let smallest = PortionRatio::new(0, 0);
        assert_eq!((smallest.numerator.get(), smallest.denominator.get()), (1, 1));
        assert_eq!(
            PortionRatio::new(1_000_000, 4)
                .apply(&TokenBucket::new(rate(100)).into())
                .capacity(),
            25
        );
    }
}
