//! The pace of one limit as its client keeps to it: a GCRA that charges each request at the latest time at which the
//! server can have counted it.
//!
//! A client that charges when it sends is early: of two requests the first may take longer to arrive, and then they are
//! closer to each other at the server than at the client. Charged late, and with those in transit counted in full, a
//! request that passes here passes there, whatever the delays.

use crate::limit::Limit;
use crate::units::rate::Rate;
use crate::units::time::Micros;

/// A rate and a burst that a client keeps to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PaceLimit {
    rate: Rate,
    burst: u64,
}

/// The state of one limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    limit: PaceLimit,
    interval_ns: u64,
    /// The time at which everything charged so far will have been refilled, in nanoseconds.
    refilled_ns: u64,
}

impl PaceLimit {
    /// At most `burst` requests at once, and this rate in the long run.
    pub fn new(rate: Rate, burst: u64) -> Self {
        let most = FILL_MAX_NS / interval_ns(rate);
        Self {
            rate,
            burst: burst.clamp(1, most.max(1)),
        }
    }

    /// The rate and the capacity of a limit. None for one without a rate.
    pub fn from_limit(limit: &Limit) -> Option<Self> {
        Some(Self::new(limit.rate()?, limit.capacity()))
    }

    /// The rate.
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// The most requests at once.
    pub const fn burst(&self) -> u64 {
        self.burst
    }

    /// The time between two requests at this rate, rounded up.
    pub fn interval(&self) -> Micros {
        Micros::new(interval_ns(self.rate).div_ceil(1_000))
    }
}

impl Pace {
    pub(super) fn new(limit: PaceLimit) -> Self {
        Self {
            limit,
            interval_ns: interval_ns(limit.rate),
            refilled_ns: 0,
        }
    }

    pub(super) const fn limit(&self) -> PaceLimit {
        self.limit
    }

    /// The wait until one more request is certain to find a unit, with this many others still in transit.
    pub(super) fn wait(&self, now: Micros, in_transit: u64) -> Micros {
        let now = nanos(now);
        let charged = in_transit.saturating_add(1).saturating_mul(self.interval_ns);
        let needed = self.refilled_ns.max(now).saturating_add(charged);
        let allowed = now.saturating_add(self.capacity_ns());
        Micros::new(needed.saturating_sub(allowed).div_ceil(1_000))
    }

    /// Charges requests that the server has counted at `at` or before.
    pub(super) fn charge(&mut self, at: Micros, count: u64) {
        let units = count.saturating_mul(self.interval_ns);
        self.refilled_ns = self.refilled_ns.max(nanos(at)).saturating_add(units);
    }

    /// Lowers the estimate to what the server reports as remaining; never raises it.
    pub(super) fn lower(&mut self, now: Micros, remaining: u64) {
        let missing = self.limit.burst.saturating_sub(remaining);
        let refilled = nanos(now).saturating_add(missing.saturating_mul(self.interval_ns));
        self.refilled_ns = self.refilled_ns.max(refilled);
    }

    /// Leaves one unit at `at`: from then on one request at a time passes.
    pub(super) fn restart(&mut self, at: Micros) {
        self.lower(at, 1);
    }

    /// The same estimate under other numbers.
    pub(super) fn with_limit(self, limit: PaceLimit) -> Self {
        Self {
            refilled_ns: self.refilled_ns,
            ..Self::new(limit)
        }
    }

    const fn capacity_ns(&self) -> u64 {
        self.limit.burst.saturating_mul(self.interval_ns)
    }
}

/// Rounded up, so that the client is never faster; at least a nanosecond.
fn interval_ns(rate: Rate) -> u64 {
    nanos(rate.period()).div_ceil(rate.units()).max(1)
}

const fn nanos(time: Micros) -> u64 {
    time.get().saturating_mul(1_000)
}

/// The longest time a burst takes to refill: 2^52 µs. With any time below 2^53 µs the sum fits.
const FILL_MAX_NS: u64 = (1 << 52) * 1_000;
