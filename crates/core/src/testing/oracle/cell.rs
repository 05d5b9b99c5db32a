//! The oracle of `Cell`: the documented arithmetic of `CL.THROTTLE`, in signed nanoseconds.

use super::work::{MeterCharge, Work};
use super::{Held, Oracle, OracleDecision, OracleKey, UndoScope, narrow, retry_after};
use crate::algorithm::LeaseId;
use crate::decision::Retry;

/// `CL.THROTTLE`: the arrival time in whole nanoseconds, with the names of its documentation.
pub(super) type CellOracle = OracleKey<Work<i128>>;

impl CellOracle {
    /// The emission interval and how far ahead the arrival time may be.
    fn interval(&self) -> (i128, i128) {
        let t = i128::from(self.numbers.period) * 1_000 / i128::from(self.numbers.units);
        (t, t * i128::from(self.numbers.burst))
    }

    fn tat(&self, now_ns: i128) -> i128 {
        self.held.map_or(now_ns, |held| held.end)
    }
}

fn nanos(us: u64) -> i128 {
    i128::from(us) * 1_000
}

/// Whole seconds, and one more if what is over is at least a millisecond.
fn seconds(ns: i128) -> u64 {
    let extra = i128::from(ns % 1_000_000_000 >= 1_000_000);
    u64::try_from(ns / 1_000_000_000 + extra).expect("no wait is negative")
}

fn micros_up(ns: i128) -> u128 {
    u128::try_from(ns).map_or(0, |ns| ns.div_ceil(1_000))
}

impl Held for Work<i128> {
    fn written_at(&self) -> u64 {
        self.written_at
    }

    fn step_back(&mut self, by: u64) {
        self.written_at -= by;
        self.move_ends(nanos(by));
    }
}

impl Oracle for CellOracle {
    type ChargeRef = MeterCharge<i128>;
    const UNDO: UndoScope = UndoScope::InTurn;

    fn decide(&self, cost: u64, now: u64) -> OracleDecision {
        let (t, tau) = self.interval();
        let now_ns = nanos(now);
        let tat = self.tat(now_ns).max(now_ns);
        let new = tat + t * i128::from(cost);
        let diff = now_ns - (new - tau);
        // A call for nothing always passes, even with nothing left.
        let limited = diff < 0 && cost > 0;
        let ttl = if limited { tat - now_ns } else { new - now_ns };
        let denied = limited.then(|| {
            if t * i128::from(cost) > tau {
                Retry::Never
            } else {
                retry_after(micros_up(-diff))
            }
        });
        let remaining = u128::try_from((tau - ttl).div_euclid(t)).unwrap_or(0);
        let standing = (self.numbers.burst, remaining, micros_up(ttl));
        OracleDecision::new(standing, denied, cost > 0 && (!limited || tat < now_ns + tau), now)
    }

    fn take(&mut self, cost: u64, now: u64, id: LeaseId) -> MeterCharge<i128> {
        let (t, tau) = self.interval();
        let now_ns = nanos(now);
        let before = self.tat(now_ns).max(now_ns);
        let duration = t * i128::from(cost);
        let tat = (before + duration).min(before.max(now_ns + tau));
        self.held = Some(Work::charged(self.held, tat, (id, before), now));
        MeterCharge::new(id, before, duration, now)
    }

    fn refund(&mut self, cost: u64, now: u64) -> bool {
        let held = self.held.filter(|held| held.end > nanos(now));
        let returned = self.interval().0 * i128::from(cost);
        self.replace(held.map(|held| held.returned((held.end - returned).max(nanos(now)))))
    }

    fn undo(&mut self, work: MeterCharge<i128>, now: u64) -> bool {
        let held = self.held.filter(|held| held.end > nanos(now));
        self.replace(held.and_then(|held| {
            let tat = held.without(&work, nanos(work.taken_at), nanos(now))?;
            Some(held.returned(tat.max(nanos(now))))
        }))
    }

    /// A peek is limited too if the debt is above the limit.
    fn reply(&self, cost: u64, taken: bool, now: u64) -> Option<(bool, Option<u64>, u64)> {
        let (t, tau) = self.interval();
        let now_ns = nanos(now);
        let tat = self.tat(now_ns).max(now_ns);
        let wanted = t * i128::from(cost);
        let diff = now_ns - (tat + wanted - tau);
        let limited = !taken && diff < 0;
        let retry = (limited && wanted <= tau).then(|| seconds(-diff));
        Some((limited, retry, seconds(tat - now_ns)))
    }

    fn fresh_at(&self) -> Option<u64> {
        self.held.map(|held| narrow(micros_up(held.end)))
    }
}
