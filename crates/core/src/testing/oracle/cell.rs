//! The oracle of `Cell`: the documented arithmetic of `CL.THROTTLE`, in signed nanoseconds.

use super::{LimitNumbers, MeterCharge, Oracle, OracleDecision, UndoScope, narrow, retry_after};
use crate::algorithm::LeaseId;
use crate::decision::Retry;

/// `CL.THROTTLE`: the arrival time in whole nanoseconds, with the names of its documentation.
#[derive(Clone, Copy, Debug)]
pub(super) struct CellOracle {
    numbers: LimitNumbers,
    held: Option<Tat>,
}

#[derive(Clone, Copy, Debug)]
struct Tat {
    tat: i128,
    /// The last charge, and the time without it.
    last: Option<(LeaseId, i128)>,
    /// Units were refunded: the position of each charge is then unknown.
    has_refund: bool,
    written_at: u64,
}

impl CellOracle {
    /// The emission interval and how far ahead the arrival time may be.
    fn interval(&self) -> (i128, i128) {
        let t = i128::from(self.numbers.period) * 1_000 / i128::from(self.numbers.units);
        (t, t * i128::from(self.numbers.burst))
    }

    fn tat(&self, now_ns: i128) -> i128 {
        self.held.map_or(now_ns, |held| held.tat)
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

impl Oracle for CellOracle {
    type ChargeRef = MeterCharge<i128>;
    const UNDO: UndoScope = UndoScope::InTurn;

    fn new(numbers: LimitNumbers) -> Self {
        Self { numbers, held: None }
    }

    fn edit(&mut self, numbers: LimitNumbers) {
        self.numbers = numbers;
    }

    fn written_at(&self) -> Option<u64> {
        self.held.map(|held| held.written_at)
    }

    fn step_back(&mut self, by: u64) {
        if let Some(held) = &mut self.held {
            held.written_at -= by;
            held.tat -= nanos(by);
            if let Some((_, without)) = &mut held.last {
                *without -= nanos(by);
            }
        }
    }

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
        self.held = Some(Tat {
            tat: (before + duration).min(before.max(now_ns + tau)),
            last: Some((id, before)),
            has_refund: self.held.is_some_and(|held| held.has_refund),
            written_at: now,
        });
        MeterCharge {
            starts_at: before,
            duration,
            taken_at: now,
            id,
        }
    }

    fn refund(&mut self, cost: u64, now: u64) -> bool {
        let Some(held) = self.held.filter(|held| held.tat > nanos(now)) else {
            return false;
        };
        let tat = (held.tat - self.interval().0 * i128::from(cost)).max(nanos(now));
        self.held = Some(Tat {
            tat,
            last: None,
            has_refund: true,
            ..held
        });
        true
    }

    fn undo(&mut self, work: MeterCharge<i128>, now: u64) -> bool {
        let Some(held) = self.held.filter(|held| held.tat > nanos(now)) else {
            return false;
        };
        let tat = match held.last {
            Some((id, without)) if id == work.id => without.max(nanos(now)),
            _ => {
                let starts_at = if held.has_refund {
                    nanos(work.taken_at)
                } else {
                    work.starts_at
                };
                let undone = (starts_at + work.duration - nanos(now)).min(work.duration);
                if undone <= 0 {
                    return false;
                }
                (held.tat - undone).max(nanos(now))
            }
        };
        self.held = Some(Tat {
            tat,
            last: None,
            has_refund: true,
            ..held
        });
        true
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
        self.held.map(|held| narrow(micros_up(held.tat)))
    }
}
