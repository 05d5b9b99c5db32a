//! Concurrency: at most so many requests in flight. An admitted request holds its slots under a lease until it releases
//! them, or until the lease expires because its holder was lost.

use super::{Algorithm, LeaseId, Mark, Receipt, Step};
use crate::decision::{Cost, Decision, Retry, Standing};
use crate::state::leases::{Front, LeaseEdit, LeaseTable, NewLease};
use crate::units::rate::{LimitError, checked_units, is_period};
use crate::units::time::{ClockReading, Micros, Now, Timestamp};

/// A concurrency limit.
///
/// When a denied request would pass depends on other requests finishing, so its wait is [`Retry::Unknown`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Concurrency {
    slots: u64,
    lease_ttl: Micros,
}

/// The leases at the moment of a decision.
struct CurrentLeases<'a> {
    table: Option<&'a LeaseTable>,
    now: Timestamp,
    back: Micros,
    expired: Front,
    /// Units of the leases that have not expired.
    used: u16,
    /// Drops expired leases and changes nothing else: the start of every edit.
    edit: LeaseEdit,
}

impl Concurrency {
    /// The most slots a limit can have.
    pub const SLOTS_MAX: u64 = 10_000;

    /// At most `slots` in flight, each for at most `lease_ttl` unless renewed.
    ///
    /// # Errors
    /// Slots outside 1 to [`Concurrency::SLOTS_MAX`], or a lease outside 1 ms to 366 days.
    pub const fn new(slots: u64, lease_ttl: Micros) -> Result<Self, LimitError> {
        match checked_units(slots, Self::SLOTS_MAX) {
            Ok(_) if !is_period(lease_ttl) => Err(LimitError::LeaseTtl { given: lease_ttl }),
            Ok(slots) => Ok(Self { slots, lease_ttl }),
            Err(error) => Err(error),
        }
    }

    /// The most in flight.
    pub const fn slots(&self) -> u64 {
        self.slots
    }

    /// The time a lease lasts if it is neither released nor renewed.
    pub const fn lease_ttl(&self) -> Micros {
        self.lease_ttl
    }

    /// Releases the slots of a lease. Returns nothing if it is not held any more: releasing twice is releasing once.
    pub fn release(&self, state: &LeaseTable, lease: LeaseId, now: Now) -> Option<LeaseEdit> {
        let leases = CurrentLeases::new(Some(state), now);
        let (release, _) = leases.find(lease)?;
        Some(LeaseEdit { release, ..leases.edit })
    }

    /// Extends a lease that is still held to a whole `lease_ttl` from now. The store must keep the edit under the same
    /// lease.
    pub fn renew(&self, state: &LeaseTable, lease: LeaseId, now: Now) -> Option<LeaseEdit> {
        let leases = CurrentLeases::new(Some(state), now);
        let (release, units) = leases.find(lease)?;
        let end = leases.now + self.lease_ttl;
        Some(LeaseEdit {
            release,
            add: NewLease { end, units },
            ..leases.edit
        })
    }
}

impl<'a> CurrentLeases<'a> {
    fn new(table: Option<&'a LeaseTable>, now: Now) -> Self {
        let ClockReading { now, back } = now.reconcile(table.map(LeaseTable::at));
        let expired = table.map_or(Front::default(), |table| table.expired(now, back));
        let edit = LeaseEdit {
            at: now,
            back,
            release: 0,
            drop: expired.len,
            trim: 0,
            add: NewLease::default(),
        };
        Self {
            table,
            now,
            back,
            expired,
            used: table.map_or(0, |table| table.used() - expired.units),
            edit,
        }
    }

    /// The slot and the units of a lease that has not expired.
    fn find(&self, lease: LeaseId) -> Option<(u16, u16)> {
        self.table?.find(lease, self.now, self.back)
    }

    fn repair(&self) -> Option<LeaseEdit> {
        (self.back > Micros::ZERO).then_some(self.edit)
    }

    /// When the last lease expires.
    fn fresh_at(&self) -> Timestamp {
        match self.table {
            Some(table) if self.used > 0 => table.last_end() - self.back,
            _ => self.now,
        }
    }
}

impl Algorithm for Concurrency {
    const NAME: &'static str = "concurrency";
    type State = LeaseTable;
    type Change = LeaseEdit;

    fn decide(&self, state: Option<&LeaseTable>, cost: Cost, now: Now) -> Step<LeaseEdit> {
        let leases = CurrentLeases::new(state, now);
        let (now, limit, cost) = (leases.now, self.slots, cost.get());
        let free = limit.saturating_sub(leases.used.into());
        let allowed = cost <= free || cost == 0;
        let end = now + self.lease_ttl;
        let taken = if allowed { cost } else { 0 };
        let fresh_at = if taken > 0 {
            leases.fresh_at().max(end)
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
        // A denied request holds nothing that could be counted: it would never be released.
        let units = u16::try_from(taken).expect("a limit has at most 10^4 slots");
        let next = (units > 0).then_some(LeaseEdit {
            add: NewLease { end, units },
            ..leases.edit
        });
        Step {
            decision,
            next,
            repair: leases.repair(),
            fresh_at,
            mark: Mark {
                at: end,
                frac: 0,
                taken_at: now,
            },
        }
    }

    /// Returns slots of the leases that end first. A holder releases its own lease instead.
    fn refund(&self, state: &LeaseTable, cost: Cost, now: Now) -> Option<LeaseEdit> {
        let leases = CurrentLeases::new(Some(state), now);
        if leases.used == 0 {
            return None;
        }
        let units = u16::try_from(cost.get()).unwrap_or(u16::MAX).min(leases.used);
        let (drop, trim) = state.front_of(leases.expired, units);
        Some(LeaseEdit {
            drop,
            trim,
            ..leases.edit
        })
    }

    fn undo(&self, state: &LeaseTable, receipt: &Receipt, now: Now) -> Option<LeaseEdit> {
        self.release(state, receipt.lease, now)
    }

    fn start(&self, edit: LeaseEdit, lease: LeaseId) -> LeaseTable {
        let mut table = LeaseTable::new(edit.at);
        table.apply(edit, self.slots, lease);
        table
    }

    fn edit(&self, state: &mut LeaseTable, edit: LeaseEdit, lease: LeaseId) {
        state.apply(edit, self.slots, lease);
    }

    fn fresh_at(&self, state: &LeaseTable) -> Timestamp {
        state.last_end()
    }
}
