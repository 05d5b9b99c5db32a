//! Costs and decisions: the input and the output of a limit.

use crate::units::time::Micros;
use std::fmt;

/// The units that one request consumes. A cost of zero peeks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cost(u64);

/// A cost above [`Cost::MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostTooLarge(pub u64);

/// The decision of one limit about one cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The cost passes; the standing is the one after it.
    Allow {
        /// The limit after the charge.
        standing: Standing,
        /// The time to hold the request before it proceeds. Zero except when shaping.
        delay: Micros,
    },
    /// The cost does not pass and nothing was taken.
    Deny {
        /// The limit as it was.
        standing: Standing,
        /// The wait until the same cost would pass.
        retry: Retry,
    },
}

/// The state of a limit as callers see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The capacity, in units.
    pub limit: u64,
    /// The largest cost that would pass now.
    pub remaining: u64,
    /// The time until the key equals a fresh one, if nothing else happens.
    pub reset_after: Micros,
}

/// The wait until a denied cost would pass, ordered by length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Retry {
    /// After exactly this long, if nothing else happens: one microsecond earlier it would still be denied.
    After(Micros),
    /// Until another holder finishes, at a time that is not known.
    Unknown,
    /// The cost is more than the limit can ever hold.
    Never,
}

impl Cost {
    /// A peek.
    pub const ZERO: Self = Self(0);
    /// The cost of a request unless a rule sets another.
    pub const ONE: Self = Self(1);
    /// The largest cost of one request.
    pub const MAX: Self = Self(999_999_999_999_999);

    /// A cost of `units`.
    ///
    /// # Errors
    /// [`CostTooLarge`] above [`Cost::MAX`].
    pub const fn new(units: u64) -> Result<Self, CostTooLarge> {
        if units <= Self::MAX.0 {
            Ok(Self(units))
        } else {
            Err(CostTooLarge(units))
        }
    }

    /// Hits as `ratelimit` counts them. Its limits and requests go up to 2^32 - 1; a larger number is capped
    /// there, which exhausts any of them.
    pub const fn from_hits(hits: u64) -> Self {
        const HITS_MAX: u64 = (1 << 32) - 1;
        Self(if hits < HITS_MAX { hits } else { HITS_MAX })
    }

    /// The quantity of a `CL.THROTTLE` call, which may be more than any other cost.
    pub const fn from_quantity(units: u64) -> Self {
        Self(units)
    }

    /// The number of units.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The cost multiplied. Above [`Cost::MAX`] it is one more than that, which no limit holds.
    pub(crate) fn times(self, factor: u64) -> Self {
        Self(self.0.saturating_mul(factor).min(Self::MAX.0 + 1))
    }

    /// The sum of two charges of one request. It may exceed [`Cost::MAX`], and is then more than any limit holds.
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Decision {
    pub(crate) const fn allow(standing: Standing) -> Self {
        Self::Allow {
            standing,
            delay: Micros::ZERO,
        }
    }

    /// The decision about a cost: allowed, or denied for good if the limit can never hold it, else until a wait is over.
    #[inline(always)]
    pub(crate) fn new(standing: Standing, allowed: bool, cost: u64, wait: impl FnOnce() -> Micros) -> Self {
        if allowed {
            return Self::allow(standing);
        }
        let retry = if cost > standing.limit {
            Retry::Never
        } else {
            Retry::After(wait())
        };
        Self::Deny { standing, retry }
    }

    /// The decision once its charge was kept: denied and counted even so, it leaves nothing.
    #[inline]
    pub const fn kept(self) -> Self {
        match self {
            Self::Deny { standing, retry } => Self::Deny {
                standing: Standing {
                    remaining: 0,
                    ..standing
                },
                retry,
            },
            Self::Allow { .. } => self,
        }
    }

    /// The decision of a ban, which is a limit of zero. A peek is allowed even so.
    pub const fn banned(cost: Cost) -> Self {
        let standing = Standing {
            limit: 0,
            remaining: 0,
            reset_after: Micros::ZERO,
        };
        if cost.get() == 0 {
            return Self::allow(standing);
        }
        Self::Deny {
            standing,
            retry: Retry::Never,
        }
    }

    /// The same standing as the decision about a peek, which is always allowed.
    pub const fn as_peek(self) -> Self {
        match self {
            Self::Deny { standing, .. } => Self::allow(standing),
            allow @ Self::Allow { .. } => allow,
        }
    }

    /// True if the cost passes.
    pub const fn is_allow(&self) -> bool {
        matches!(self, Self::Allow { .. })
    }

    /// The standing of the limit after this decision.
    pub const fn standing(&self) -> &Standing {
        match self {
            Self::Allow { standing, .. } | Self::Deny { standing, .. } => standing,
        }
    }

    /// The wait until a denied cost would pass; none on allow.
    pub const fn retry(&self) -> Option<Retry> {
        match self {
            Self::Allow { .. } => None,
            Self::Deny { retry, .. } => Some(*retry),
        }
    }
}

impl fmt::Display for CostTooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a cost of {} is more than one request may take: at most {}",
            self.0,
            Cost::MAX.0
        )
    }
}

impl std::error::Error for CostTooLarge {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_is_longer_than_unknown_and_unknown_longer_than_any_time() {
        assert!(Retry::Never > Retry::Unknown);
        assert!(Retry::Unknown > Retry::After(Micros::MAX));
        assert!(Retry::After(Micros::ONE) > Retry::After(Micros::ZERO));
    }

    #[test]
    fn a_cost_has_at_most_fifteen_digits() {
        assert_eq!(Cost::new(999_999_999_999_999), Ok(Cost::MAX));
        assert_eq!(Cost::from_hits(4_294_967_294).get(), 4_294_967_294);
        assert_eq!(Cost::from_hits(u64::MAX).get(), 4_294_967_295);
        let error = Cost::new(1_000_000_000_000_000).expect_err("one too many");
        assert_eq!(
            error.to_string(),
            "a cost of 1000000000000000 is more than one request may take: at most 999999999999999"
        );
    }
}
