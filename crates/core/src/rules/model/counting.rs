//! Counting of denied attempts, and the relation of rules that one request matches.

use crate::algorithm::fixed_window::FixedWindow;
use crate::decision::{Decision, Retry, Standing};
use crate::limit::Limit;
use crate::units::muldiv::muldiv;
use crate::units::rate::Rate;
use std::num::NonZeroU64;

/// The attempts that the limits of a rule count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counting {
    /// Allowed attempts: a denied one consumes nothing.
    OnAllow,
    /// All attempts. The store charges a window that never denies, and the decision follows from its count.
    Always {
        /// The capacity of the window that decides.
        capacity: u32,
    },
}

/// The relation of a rule to the other rules of one request.
#[derive(Debug)]
pub struct Group {
    /// The name by which other rules replace it; empty if it has none.
    pub(crate) name: Box<str>,
    /// The names of the rules that do not apply where it does.
    pub(crate) replaces: Box<[Box<str>]>,
    /// It denies only if all quotas of a request deny. Unlimited rules are never quotas: they would always have
    /// capacity left.
    pub(crate) is_quota: bool,
}

/// More attempts than are ever counted, and still within the range of a store reply: a window of this capacity never
/// denies, so it counts every attempt.
const UNCAPPED: u64 = (1 << 32) - 1;
const UNCAPPED_DIVISOR: NonZeroU64 = NonZeroU64::new(UNCAPPED).expect("more than nothing");

impl Counting {
    /// Returns the limit to charge in the store.
    pub(crate) const fn charged_limit(self, limit: &Limit) -> Limit {
        match (self, limit) {
            (Self::Always { .. }, Limit::FixedWindow(window)) => {
                Limit::FixedWindow(FixedWindow::new(Rate::for_hits(UNCAPPED, window.rate().period())))
            }
            _ => *limit,
        }
    }

    /// Returns the rule's decision for the decision of the charged limit, and the window's count if all attempts are
    /// counted. Attempts above the capacity are denied.
    #[inline]
    pub fn decide(self, decision: Decision) -> (Decision, Option<u64>) {
        match self {
            Self::OnAllow => (decision, None),
            Self::Always { capacity } => decide_by_count(capacity, decision),
        }
    }
}

fn decide_by_count(capacity: u32, decision: Decision) -> (Decision, Option<u64>) {
    let capacity = u64::from(capacity);
    let counted = *decision.standing();
    let used = counted.limit.saturating_sub(counted.remaining);
    // A store that holds a share of the window compares with the same share of the capacity.
    let share = match counted.limit {
        UNCAPPED => capacity,
        part => muldiv(capacity, part, UNCAPPED_DIVISOR).0.max(capacity.min(1)),
    };
    let standing = Standing {
        limit: capacity,
        remaining: share.saturating_sub(used),
        ..counted
    };
    // The count as if other instances had used up their shares.
    let count = Some((capacity - share).saturating_add(used));
    if used > share || !decision.is_allow() {
        let retry = Retry::After(standing.reset_after);
        return (Decision::Deny { standing, retry }, count);
    }
    (Decision::allow(standing), count)
}
