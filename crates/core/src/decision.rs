//! What is asked of a limit and what it answers.

use crate::units::time::Micros;
use std::fmt;

/// How many units one request takes. Zero looks without taking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cost(u64);

/// A cost above [`Cost::MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostTooLarge(pub u64);

/// The answer of one limit to one cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The cost passes; the standing is the one after it was taken.
    Allow {
        /// The limit after the charge.
        standing: Standing,
        /// How long to hold the request before it goes on. Zero except when shaping.
        delay: Micros,
    },
    /// The cost does not pass and nothing was taken.
    Deny {
        /// The limit as it is.
        standing: Standing,
        /// When the same cost would pass.
        retry: Retry,
    },
}

/// Where a limit stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The most units it holds.
    pub limit: u64,
    /// The largest cost that would pass now.
    pub remaining: u64,
    /// Until the key equals one never seen, if nothing else happens.
    pub reset_after: Micros,
}

/// When a denied cost would pass, in the order of longer waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Retry {
    /// After exactly this long, if nothing else happens: one microsecond earlier it would still be denied.
    After(Micros),
    /// When somebody else is done, which nobody can know.
    Unknown,
    /// The cost is more than the limit can ever hold.
    Never,
}

impl Cost {
    /// Looks, takes nothing.
    pub const ZERO: Self = Self(0);
    /// What a request costs unless a rule says otherwise.
    pub const ONE: Self = Self(1);
    /// The largest cost of one request.
    pub const MAX: Self = Self(1_000_000_000);

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

    /// Hits as envoyproxy/ratelimit counts them: its limits hold up to 2^32 - 1, and so much may come at once. More than that
    /// is as much: it uses any of them up.
    pub const fn from_hits(hits: u64) -> Self {
        const HITS_MAX: u64 = (1 << 32) - 1;
        Self(if hits < HITS_MAX { hits } else { HITS_MAX })
    }

    /// The number of units.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// So many times this. Above [`Cost::MAX`] it is one more than that, which no limit holds.
    pub(crate) fn times(self, factor: u64) -> Self {
        Self(self.0.saturating_mul(factor).min(Self::MAX.0 + 1))
    }

    /// What two charges of one request take together. May exceed [`Cost::MAX`], and is then more than any limit holds.
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

    /// What a ban says: a limit of nothing. Looking is allowed even so.
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

    /// What it says of how things stand, to one who takes nothing: that is always allowed.
    pub const fn as_peek(self) -> Self {
        match self {
            Self::Deny { standing, .. } => Self::allow(standing),
            allow @ Self::Allow { .. } => allow,
        }
    }

    /// Whether the cost passes.
    pub const fn is_allow(&self) -> bool {
        matches!(self, Self::Allow { .. })
    }

    /// Where the limit stands after this decision.
    pub const fn standing(&self) -> &Standing {
        match self {
            Self::Allow { standing, .. } | Self::Deny { standing, .. } => standing,
        }
    }

    /// When a denied cost would pass; nothing on allow.
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
    fn a_cost_is_at_most_a_thousand_million() {
        assert_eq!(Cost::new(1_000_000_000), Ok(Cost::MAX));
        assert_eq!(Cost::from_hits(4_294_967_294).get(), 4_294_967_294);
        assert_eq!(Cost::from_hits(u64::MAX).get(), 4_294_967_295);
        let error = Cost::new(1_000_000_001).expect_err("one too many");
        assert_eq!(
            error.to_string(),
            "a cost of 1000000001 is more than one request may take: at most 1000000000"
        );
    }
}
