//! One key under one limit, and the limits and requests the laws are tried on.

use proptest::prelude::*;
use tollgate_core::{
    Cell, Change, Concurrency, Cost, Decision, FixedWindow, Gcra, LeakyBucket, LeaseId, Limit, Micros, Now, Rate,
    Receipt, Retry, SlidingCounter, SlidingLog, State, Step, Timestamp, TokenBucket,
};

/// Long after the epoch and on a boundary of most windows.
pub(crate) const START: u64 = 1_700_006_400_000_000;

/// What a store does with one key: keeps what is allowed, and repairs.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    pub(crate) limit: Limit,
    pub(crate) state: Option<State>,
    pub(crate) leases: u64,
}

impl Key {
    pub(crate) fn new(limit: Limit) -> Self {
        Self {
            limit,
            state: None,
            leases: 0,
        }
    }

    /// Decides and keeps nothing.
    pub(crate) fn peek(&self, cost: u64, us: u64) -> Step<Change> {
        self.limit.decide(self.state.as_ref(), units(cost), now(us))
    }

    /// Decides, and keeps what passes.
    pub(crate) fn take(&mut self, cost: u64, us: u64) -> Decision {
        self.charge(cost, us).0
    }

    /// The same, with what it takes to undo a charge that passed.
    pub(crate) fn charge(&mut self, cost: u64, us: u64) -> (Decision, Option<Receipt>) {
        let step = self.peek(cost, us);
        self.leases += 1;
        let lease = LeaseId(self.leases);
        let passed = step.decision.is_allow();
        let change = if passed { step.next.or(step.repair) } else { step.repair };
        self.keep(change, lease);
        (
            step.decision,
            passed.then_some(Receipt {
                cost: units(cost),
                mark: step.mark,
                lease,
            }),
        )
    }

    pub(crate) fn refund(&mut self, cost: u64, us: u64) {
        let change = self.limit.refund(self.state.as_ref(), units(cost), now(us));
        self.keep(change, LeaseId(0));
    }

    pub(crate) fn undo(&mut self, receipt: &Receipt, us: u64) {
        let change = self.limit.undo(self.state.as_ref(), receipt, now(us));
        self.keep(change, receipt.lease);
    }

    pub(crate) fn remaining(&self, us: u64) -> u64 {
        self.peek(0, us).decision.standing().remaining
    }

    fn keep(&mut self, change: Option<Change>, lease: LeaseId) {
        if let Some(change) = change {
            self.limit.keep(&mut self.state, change, lease);
        }
    }
}

pub(crate) fn units(cost: u64) -> Cost {
    Cost::new(cost).expect("laws ask for costs in range")
}

pub(crate) fn now(us: u64) -> Now {
    Now::new(Timestamp::from_micros(us))
}

pub(crate) fn wait(decision: &Decision) -> Option<u64> {
    match decision.retry() {
        Some(Retry::After(wait)) => Some(wait.get()),
        _ => None,
    }
}

/// A request: so long after the one before, at this cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) gap_us: u64,
    pub(crate) cost: u64,
}

/// Requests around the limit's own pace: bursts of one instant, steady traffic and long pauses.
pub(crate) fn requests(limit: Limit, count: usize) -> impl Strategy<Value = Vec<Request>> {
    let cost_max = capacity(&limit);
    let period = span(&limit);
    let gap = prop_oneof![
        3 => Just(0),
        1 => Just(1),
        4 => 0..=period / cost_max.max(1) * 2,
        2 => 0..=period,
        1 => 0..=period * 3,
    ];
    let cost = prop_oneof![4 => Just(1), 3 => 1..=cost_max.min(5), 1 => 1..=cost_max + 1, 1 => Just(0)];
    proptest::collection::vec(
        (gap, cost).prop_map(|(gap_us, cost)| Request { gap_us, cost }),
        1..count,
    )
}

/// The most units a limit holds.
pub(crate) fn capacity(limit: &Limit) -> u64 {
    limit.decide(None, Cost::ZERO, now(START)).decision.standing().limit
}

/// A time in which much happens to a limit.
pub(crate) fn span(limit: &Limit) -> u64 {
    match limit {
        Limit::TokenBucket(it) => it.rate().period().get(),
        Limit::Gcra(it) => it.rate().period().get(),
        Limit::LeakyBucket(it) => it.rate().period().get(),
        Limit::FixedWindow(it) => it.rate().period().get(),
        Limit::SlidingCounter(it) => it.rate().period().get(),
        Limit::SlidingLog(it) => it.rate().period().get(),
        Limit::Concurrency(it) => it.lease_ttl().get(),
        Limit::Cell(_) => 2_000_000,
    }
}

/// Up to 36 days, so that no law runs into the end of the clock; the comparison with the oracles goes further.
pub(crate) fn any_rate() -> impl Strategy<Value = Rate> {
    let period = prop_oneof![
        Just(1_000),
        Just(1_000_000),
        Just(420_000_000),
        Just(3_162_240_000_000),
        1_000u64..10_000_000,
        1_000u64..=3_162_240_000_000,
    ];
    let units = prop_oneof![Just(1), Just(3), Just(7), 1u64..50, 1u64..5_000];
    (units, period).prop_map(|(units, period)| Rate::new(units, Micros::new(period)).expect("in range"))
}

fn any_burst() -> impl Strategy<Value = u64> {
    prop_oneof![Just(1), 1u64..20, 1u64..300]
}

/// Every limit that counts in units and gives its delays away: all but shaping.
pub(crate) fn any_limit() -> impl Strategy<Value = Limit> {
    prop_oneof![
        any_bucket(),
        any_window(),
        any_log(),
        any_spaced_log(),
        any_concurrency(),
        any_cell()
    ]
}

/// Limits for which several units at once are the same as one by one.
pub(crate) fn any_divisible() -> impl Strategy<Value = Limit> {
    prop_oneof![any_bucket(), any_window(), any_log(), any_concurrency(), any_cell()]
}

/// Token bucket, GCRA and leaky bucket.
pub(crate) fn any_bucket() -> impl Strategy<Value = Limit> {
    (any_rate(), any_burst(), 0..3).prop_filter_map("fills too slowly", |(rate, burst, kind)| {
        let limit = match kind {
            0 => TokenBucket::new(rate).with_burst(burst).map(Limit::from),
            1 => Gcra::new(rate).with_burst(burst).map(Limit::from),
            _ => LeakyBucket::new(rate).with_depth(burst).map(Limit::from),
        };
        limit.ok()
    })
}

/// A leaky bucket as a queue.
pub(crate) fn any_queue() -> impl Strategy<Value = LeakyBucket> {
    (any_rate(), any_burst()).prop_filter_map("fills too slowly", |(rate, depth)| {
        LeakyBucket::new(rate).with_depth(depth).ok().map(LeakyBucket::shaping)
    })
}

pub(crate) fn any_window() -> impl Strategy<Value = Limit> {
    prop_oneof![
        any_rate().prop_map(|rate| FixedWindow::new(rate).into()),
        any_rate().prop_map(|rate| SlidingCounter::new(rate).into()),
    ]
}

pub(crate) fn any_log() -> impl Strategy<Value = Limit> {
    any_rate().prop_map(|rate| SlidingLog::new(rate).expect("few enough").into())
}

pub(crate) fn any_spaced_log() -> impl Strategy<Value = Limit> {
    (any_rate(), 1u64..=100).prop_map(|(rate, percent)| {
        let min_interval = Micros::new((rate.period().get() / 100 * percent).max(1));
        SlidingLog::new(rate)
            .and_then(|log| log.with_min_interval(min_interval))
            .expect("in range")
            .into()
    })
}

pub(crate) fn any_concurrency() -> impl Strategy<Value = Limit> {
    (1u64..50, 1_000u64..100_000_000)
        .prop_map(|(slots, ttl)| Concurrency::new(slots, Micros::new(ttl)).expect("in range").into())
}

pub(crate) fn any_cell() -> impl Strategy<Value = Limit> {
    (
        0u64..100,
        prop_oneof![1u64..100, 1u64..2_000_000],
        prop_oneof![1u64..10, 1u64..100_000],
    )
        .prop_map(|(burst, count, period)| Cell::new(burst, count, period).expect("in range").into())
}
