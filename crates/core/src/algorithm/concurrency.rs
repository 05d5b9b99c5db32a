//! Concurrency: at most so many in flight. An admitted request holds its slots until it gives them back, or until its
//! lease runs out because it was lost.

use super::{Algorithm, LeaseId, Mark, Receipt, Step};
use crate::decision::{Cost, Decision, Retry, Standing};
use crate::state::ring::{Add, Cut, Edit, LiveRuns, Ring, RingView, Shape};
use crate::units::rate::{LimitError, PERIOD_MAX, PERIOD_MIN};
use crate::units::time::{ClockReading, Micros, Now, Timestamp};

/// A concurrency limit.
///
/// When a refused request would pass depends on others being done, so its wait is [`Retry::Unknown`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Concurrency {
    slots: u64,
    lease_ttl: Micros,
}

/// The leases at the moment of a decision.
struct Leases<'a> {
    runs: RingView<'a>,
    now: Timestamp,
    live: LiveRuns,
    /// Drops what has run out and changes nothing else: what every edit starts from.
    edit: Edit,
    repair: Option<Edit>,
}

impl Concurrency {
    /// The most slots there can be.
    pub const SLOTS_MAX: u64 = 10_000;

    /// At most `slots` in flight, each for at most `lease_ttl` unless renewed.
    ///
    /// # Errors
    /// Slots outside 1 to [`Concurrency::MOST`], or a lease outside 1 ms to 366 days.
    pub const fn new(slots: u64, lease_ttl: Micros) -> Result<Self, LimitError> {
        if slots == 0 || slots > Self::SLOTS_MAX {
            return Err(LimitError::Units {
                given: slots,
                max: Self::SLOTS_MAX,
            });
        }
        if lease_ttl.get() < PERIOD_MIN.get() || lease_ttl.get() > PERIOD_MAX.get() {
            return Err(LimitError::LeaseTtl { given: lease_ttl });
        }
        Ok(Self { slots, lease_ttl })
    }

    /// The most in flight.
    pub const fn slots(&self) -> u64 {
        self.slots
    }

    /// How long a lease lasts if it is neither released nor renewed.
    pub const fn lease_ttl(&self) -> Micros {
        self.lease_ttl
    }

    /// Gives the slots of a lease back at once. Nothing if it is not held any more: releasing twice is releasing once.
    pub fn release(&self, state: &Ring, lease: LeaseId, now: Now) -> Option<Edit> {
        let leases = self.read(Some(state), now);
        let index = leases.find_live(lease)?;
        Some(Edit {
            cut: leases.cut_lease(index),
            ..leases.edit
        })
    }

    /// Lets a lease that is still held last a whole `lease_ttl` from now. The store must keep the edit under the same
    /// lease.
    pub fn renew(&self, state: &Ring, lease: LeaseId, now: Now) -> Option<Edit> {
        let leases = self.read(Some(state), now);
        let index = leases.find_live(lease)?;
        let add = Add {
            time: leases.now + self.lease_ttl,
            units: leases.cut_lease(index).units,
        };
        Some(Edit {
            cut: leases.cut_lease(index),
            add,
            ..leases.edit
        })
    }

    fn read<'a>(&self, ring: Option<&'a Ring>, now: Now) -> Leases<'a> {
        let ClockReading { now, back } = now.reconcile(ring.map(Ring::at));
        let runs = RingView::new(ring, back);
        let live = runs.live(|end| end <= now);
        let edit = Edit {
            at: now,
            back,
            cut: Cut::default(),
            drop: live.first as u32,
            base: live.base,
            add: Add::default(),
        };
        Leases {
            runs,
            now,
            live,
            edit,
            repair: (back > Micros::ZERO).then_some(edit),
        }
    }
}

impl Leases<'_> {
    /// The place of a lease that has not run out.
    fn find_live(&self, lease: LeaseId) -> Option<usize> {
        self.runs.find_lease(lease, self.live.first)
    }

    /// Takes out all of one lease.
    fn cut_lease(&self, index: usize) -> Cut {
        Cut {
            index: index as u32,
            units: self.runs.units(index) as u32,
        }
    }

    /// When the last lease runs out.
    fn fresh_at(&self) -> Timestamp {
        self.runs.last().filter(|_| self.live.used > 0).unwrap_or(self.now)
    }
}

impl Algorithm for Concurrency {
    const NAME: &'static str = "concurrency";
    type State = Ring;
    type Change = Edit;

    fn decide(&self, state: Option<&Ring>, cost: Cost, now: Now) -> Step<Edit> {
        let leases = self.read(state, now);
        let (now, limit, cost) = (leases.now, self.slots, cost.get());
        let free = limit.saturating_sub(leases.live.used);
        let allowed = cost <= free || cost == 0;
        let ends = now + self.lease_ttl;
        let taken = if allowed { cost } else { 0 };
        let fresh_at = if taken > 0 {
            leases.fresh_at().max(ends)
        } else {
            leases.fresh_at()
        };
        let standing = Standing {
            limit,
            remaining: free - taken,
            reset_after: fresh_at.since(now),
        };
        let decision = if allowed {
            Decision::allow(standing)
        } else {
            let retry = if cost > limit { Retry::Never } else { Retry::Unknown };
            Decision::Deny { standing, retry }
        };
        // A refused request holds nothing that could be counted: nobody would ever give it back.
        let next = (taken > 0).then_some(Edit {
            add: Add {
                time: ends,
                units: taken as u32,
            },
            ..leases.edit
        });
        Step {
            decision,
            next,
            repair: leases.repair,
            fresh_at,
            mark: Mark {
                at: ends,
                frac: 0,
                taken_at: now,
            },
        }
    }

    /// Gives back slots of the leases that end first. To give back one's own, release.
    fn refund(&self, state: &Ring, cost: Cost, now: Now) -> Option<Edit> {
        let leases = self.read(Some(state), now);
        if leases.live.used == 0 {
            return None;
        }
        let base = leases.live.base + cost.get().min(leases.live.used);
        Some(Edit {
            drop: leases.runs.find(|run| run.total <= base) as u32,
            base,
            ..leases.edit
        })
    }

    fn undo(&self, state: &Ring, receipt: &Receipt, now: Now) -> Option<Edit> {
        self.release(state, receipt.lease, now)
    }

    fn start(&self, edit: Edit, lease: LeaseId) -> Ring {
        let mut ring = Ring::new(Shape::leased(PERIOD_MAX, self.slots), edit.at);
        ring.apply(edit, self.slots, lease);
        ring
    }

    fn edit(&self, state: &mut Ring, edit: Edit, lease: LeaseId) {
        state.apply(edit, self.slots, lease);
    }

    fn fresh_at(&self, state: &Ring) -> Timestamp {
        state.newest()
    }
}
