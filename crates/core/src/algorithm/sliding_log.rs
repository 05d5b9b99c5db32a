//! Sliding log: records every admitted request, so the rolling window is exact.

use super::{Algorithm, LeaseId, Mark, Receipt, Step};
use crate::decision::{Cost, Decision, Standing};
use crate::state::ring::{Add, Cut, Edit, LiveRuns, Ring, RingView, Run, Shape};
use crate::units::rate::{LimitError, Rate};
use crate::units::time::{ClockReading, Micros, Now, Timestamp};

/// A sliding window log.
///
/// At most `units` are admitted in any window `(now - period, now]`; requests of one instant count one by one, and
/// denied ones are not logged. With a `min_interval` two admitted requests are at least that far apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingLog {
    rate: Rate,
    min_interval: Micros,
}

/// A log at the moment of a decision.
struct Log<'a> {
    runs: RingView<'a>,
    now: Timestamp,
    live: LiveRuns,
    /// Changes nothing but the time: the start of every edit.
    edit: Edit,
    repair: Option<Edit>,
}

impl SlidingLog {
    /// The most units a log can hold.
    pub const UNITS_MAX: u64 = 1_000_000;

    /// `units` in any `period`.
    ///
    /// # Errors
    /// More than [`SlidingLog::UNITS_MAX`] units.
    pub const fn new(rate: Rate) -> Result<Self, LimitError> {
        match rate.at_most(Self::UNITS_MAX) {
            Ok(rate) => Ok(Self {
                rate,
                min_interval: Micros::ZERO,
            }),
            Err(error) => Err(error),
        }
    }

    /// The same with at least `min_interval` between two admitted requests.
    ///
    /// # Errors
    /// An interval longer than the period.
    pub fn with_min_interval(self, min_interval: Micros) -> Result<Self, LimitError> {
        if min_interval > self.rate.period() {
            return Err(LimitError::MinInterval {
                given: min_interval,
                period: self.rate.period(),
            });
        }
        Ok(Self { min_interval, ..self })
    }

    /// Units per rolling window.
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// The least time between two admitted requests.
    pub const fn min_interval(&self) -> Micros {
        self.min_interval
    }

    fn read<'a>(&self, ring: Option<&'a Ring>, now: Now) -> Log<'a> {
        let ClockReading { now, back } = now.reconcile(ring.map(Ring::at));
        let ring = ring.filter(|ring| self.fresh_at(ring) - back > now);
        let runs = RingView::new(ring, back);
        let period = self.rate.period();
        let live = runs.live(|stamp| stamp + period <= now);
        let edit = Edit {
            at: now,
            back,
            cut: Cut::default(),
            drop: 0,
            base: 0,
            add: Add::default(),
        };
        Log {
            runs,
            now,
            live,
            edit,
            repair: (back > Micros::ZERO).then_some(edit),
        }
    }

    /// The time at which `cost`, which the limit can hold, passes: enough units have expired and `min_interval` is over.
    fn allowed_at(&self, log: &Log<'_>, cost: u64) -> Timestamp {
        let interval_end = self.interval_end(log);
        let excess = (log.live.used + cost).saturating_sub(self.rate.units());
        if excess == 0 {
            return interval_end;
        }
        let last_to_expire = log.runs.find(|run| run.total < log.live.base + excess);
        let free_at = log
            .runs
            .get(last_to_expire)
            .map_or(log.now, |run| run.time + self.rate.period());
        free_at.max(interval_end)
    }

    /// The time at which `min_interval` since the last admitted request is over.
    fn interval_end(&self, log: &Log<'_>) -> Timestamp {
        match log.runs.last() {
            Some(last) if self.min_interval > Micros::ZERO => last + self.min_interval,
            _ => log.now,
        }
    }
}

impl Algorithm for SlidingLog {
    const NAME: &'static str = "sliding_log";
    type State = Ring;
    type Change = Edit;

    fn decide(&self, state: Option<&Ring>, cost: Cost, now: Now) -> Step<Edit> {
        let log = self.read(state, now);
        let (limit, period, cost) = (self.rate.units(), self.rate.period(), cost.get());
        let (now, used) = (log.now, log.live.used);
        let interval_end = self.interval_end(&log);
        let free = limit.saturating_sub(used);
        let passable = if interval_end > now { 0 } else { free };
        let mark = Mark {
            at: now,
            frac: 0,
            taken_at: now,
        };

        let taken = cost.min(passable);
        let next = (taken > 0).then_some(Edit {
            drop: log.live.first as u32,
            base: log.live.base,
            add: Add {
                time: now,
                units: taken as u32,
            },
            ..log.edit
        });

        if cost <= passable && cost > 0 {
            let remaining = if self.min_interval > Micros::ZERO {
                0
            } else {
                free - cost
            };
            let standing = Standing {
                limit,
                remaining,
                reset_after: period,
            };
            return Step {
                decision: Decision::allow(standing),
                next,
                repair: log.repair,
                fresh_at: now + period,
                mark,
            };
        }
        let last = log.runs.last();
        let reset_at = match last {
            Some(last) if used > 0 => last + period,
            _ => interval_end.max(now),
        };
        let standing = Standing {
            limit,
            remaining: passable,
            reset_after: reset_at.since(now),
        };
        let wait = || self.allowed_at(&log, cost).since(now);
        let fresh_at = last.map_or(now, |last| last + period);
        Step {
            decision: Decision::new(standing, cost == 0, cost, wait),
            next,
            repair: log.repair,
            fresh_at,
            mark,
        }
    }

    /// Returns the oldest units. The last run stays even when empty: `min_interval` is counted from it.
    fn refund(&self, state: &Ring, cost: Cost, now: Now) -> Option<Edit> {
        let log = self.read(Some(state), now);
        if log.live.used == 0 {
            return None;
        }
        let base = log.live.base + cost.get().min(log.live.used);
        let dropped = log.runs.find(|run| run.total <= base).min(log.runs.len() - 1);
        Some(Edit {
            drop: dropped as u32,
            base,
            ..log.edit
        })
    }

    fn undo(&self, state: &Ring, receipt: &Receipt, now: Now) -> Option<Edit> {
        receipt.same_clock(state.at(), now)?;
        let log = self.read(Some(state), now);
        let stamp = receipt.mark.at;
        let index = log.runs.find(|run| run.time < stamp).max(log.live.first);
        let Run { time, .. } = log.runs.get(index)?;
        let cut = Cut {
            index: index as u32,
            units: u32::try_from(receipt.cost.get()).unwrap_or(u32::MAX),
        };
        (time == stamp).then_some(Edit { cut, ..log.edit })
    }

    fn start(&self, edit: Edit, _: LeaseId) -> Ring {
        let mut ring = Ring::new(Shape::within(self.rate.period(), self.rate.units()), edit.at);
        ring.apply(edit, self.rate.units());
        ring
    }

    fn edit(&self, state: &mut Ring, edit: Edit, lease: LeaseId) {
        // An expired log is replaced, not edited: its times may be ambiguous.
        if self.fresh_at(state) - edit.back <= edit.at {
            *state = self.start(edit, lease);
        } else {
            state.apply(edit, self.rate.units());
        }
    }

    fn fresh_at(&self, state: &Ring) -> Timestamp {
        if state.run_count() > 0 {
            state.newest() + self.rate.period()
        } else {
            state.at()
        }
    }
}
