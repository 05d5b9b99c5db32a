//! The embedded store: exact under threads, bounded in memory, one place in memory per key.
//!
//! Keys stand as 96-bit fingerprints beside their states in sharded tables, one set of tables per algorithm so that
//! each slot is as small as its state. A settlement locks the shards it needs in one fixed order, so it is one moment
//! and cannot deadlock. Idle keys are swept out a few slots at a time behind new keys.

mod budget;
mod give_back;
mod kinds;
mod overflow;
mod shards;
mod snapshot;
mod table;
mod told;

use self::budget::Budget;
use self::kinds::{Kind, Tables, with_kind};
use self::overflow::{Spill, refusal};
use self::table::{Place, SWEEP, Table};
use self::told::Told;
use super::{Outcome, Settled, Source, Store, StoreError};
use crate::clock::Clock;
use crate::fingerprint::{Fingerprint, Secret, Subjects};
use crate::sync::Guard;
use std::sync::atomic::{AtomicU64, Ordering};
use tollgate_core::{
    Algorithm, Charge, Cost, Counter, Decision, LeaseId, Limit, Mark, Micros, Now, Policy, Receipt, Standing,
    Timestamp, settle,
};

pub use self::overflow::Overflow;
pub use self::snapshot::SnapshotError;

/// The embedded store.
#[derive(Debug)]
pub struct Memory {
    secret: Secret,
    clock: Clock,
    tables: Tables,
    budget: Budget,
    spill: Spill,
    swept: AtomicU64,
}

/// How a memory store is to be. Start from [`Memory::options`].
#[derive(Clone, Debug)]
pub struct Options {
    max_memory: usize,
    overflow: Overflow,
    shards: usize,
    clock: Clock,
    secret: Secret,
}

/// What a memory store holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Live keys.
    pub keys: usize,
    /// Bytes of the tables and of the states outside them.
    pub bytes: usize,
    /// Idle keys that were swept out since the start.
    pub swept: u64,
    /// Charges that met the shared coarse counter, because their key was new and there was no room for it.
    pub overflowed: u64,
}

impl Options {
    /// The most bytes of keys and states. The tables never grow past it; only the logs and leases of keys that are
    /// there already may. 1 GiB unless said.
    pub fn max_memory(self, bytes: usize) -> Self {
        Self {
            max_memory: bytes,
            ..self
        }
    }

    /// What a new key meets when there is no room for it.
    pub fn overflow(self, overflow: Overflow) -> Self {
        Self { overflow, ..self }
    }

    /// Over how many locks the keys of an algorithm are spread, rounded up to a power of two. 256 unless said.
    pub fn shards(self, shards: usize) -> Self {
        Self {
            shards: shards.clamp(1, 1 << 16).next_power_of_two(),
            ..self
        }
    }

    /// The clock it runs on: for tests and simulations.
    pub fn clock(self, clock: Clock) -> Self {
        Self { clock, ..self }
    }

    /// An empty store.
    pub fn build(self) -> Memory {
        Memory {
            secret: self.secret,
            clock: self.clock,
            tables: Tables::new(self.shards),
            budget: Budget::new(self.max_memory),
            spill: Spill::new(self.overflow),
            swept: AtomicU64::new(0),
        }
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::options().build()
    }
}

impl Memory {
    /// How many keys of a batch are settled at a time.
    pub(crate) const CHUNK: usize = 16;

    /// The defaults: 1 GiB, a shared coarse counter when that is full, a secret of its own, the machine's clock.
    pub fn options() -> Options {
        Options {
            max_memory: 1 << 30,
            overflow: Overflow::Share,
            shards: 256,
            clock: Clock::start(Timestamp::EPOCH),
            secret: Secret::random(),
        }
    }

    /// The time on its clock.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The moment of a settlement. The clock never steps, so a time before a key's last write is one that was read
    /// earlier, by a thread that had to wait for its lock, however long: it counts as the time of that write.
    #[inline]
    fn moment(&self) -> Now {
        Now::new(self.clock.now()).with_slack(Micros::MAX)
    }

    /// What it holds now. Visits every shard, one after the other.
    pub fn usage(&self) -> Usage {
        Usage {
            keys: self.tables.keys(),
            bytes: self.budget.taken(),
            swept: self.swept.load(Ordering::Relaxed),
            overflowed: self.spill.charges(),
        }
    }

    /// Looks at up to `slots` slots of every shard and takes out keys that are as good as new. A program whose keys
    /// come and go needs no call: new keys sweep. One that wants memory back while nothing comes may call it from time
    /// to time.
    pub fn sweep(&self, slots: usize) -> usize {
        let swept = self.tables.sweep(slots, self.clock.now(), &self.budget);
        self.swept.fetch_add(swept as u64, Ordering::Relaxed);
        swept
    }

    /// Settles one charge: the usual case, without a list.
    #[inline(always)]
    pub(crate) fn settle_one<T: Told>(&self, key: Fingerprint, limit: &Limit, how: How) -> T {
        with_kind!(limit, kind => {
            let shards = kinds::shards_of(kind, &self.tables);
            let table = shards.lock(shards.index_of(key));
            // The clock is read while memory answers.
            table.fetch(key);
            self.settle_locked((kind, limit), table, key, how, self.moment())
        })
    }

    /// The same out of line, for those who seldom ask: it is large, and should be inlined in one place only.
    #[inline(never)]
    pub(crate) fn settle_seldom(&self, key: Fingerprint, limit: &Limit, how: How) -> Decision {
        self.settle_one(key, limit, how)
    }

    /// Clears a counter. False if there was nothing to clear.
    pub(crate) fn forget_key(&self, key: Fingerprint, limit: &Limit) -> bool {
        with_kind!(limit, kind => self.tables.forget(kind, key, &self.budget))
    }

    /// Settles the charge of a request that has no other: nothing is gathered, and one lock is enough.
    pub(crate) fn settle_alone(&self, charge: &Charge<Fingerprint>, lease: LeaseId) -> Settled {
        let how = How {
            cost: charge.cost,
            policy: charge.policy,
            lease,
        };
        let (outcome, now): (Outcome, Timestamp) = self.settle_one(charge.key, &charge.limit, how);
        Settled {
            passes: charge.policy == Policy::Shadow || outcome.decision.is_allow(),
            now,
            outcomes: vec![Ok(outcome)],
        }
    }

    /// Settles one charge for each of the keys, each on its own but all of a chunk at one moment, and tells their
    /// outcomes in order.
    pub(crate) fn settle_each(&self, limit: &Limit, keys: &[Fingerprint], how: How, mut told: impl FnMut(Decision)) {
        for keys in keys.chunks(Self::CHUNK) {
            let now = self.moment();
            with_kind!(limit, kind => {
                // Only asks for the places of all, and then waits for memory once and not for each key.
                let shards = kinds::shards_of(kind, &self.tables);
                for &key in keys {
                    shards.lock(shards.index_of(key)).fetch(key);
                }
                for &key in keys {
                    told(self.settle_locked((kind, limit), shards.lock(shards.index_of(key)), key, how, now));
                }
            });
        }
    }

    /// Settles charges each on its own, all of a chunk at one moment, and tells their outcomes in order.
    #[inline(never)]
    pub(crate) fn settle_apart(&self, charges: &[Charge<Fingerprint>], mut told: impl FnMut(Outcome)) {
        for charges in charges.chunks(Self::CHUNK) {
            if charges.len() > 1 {
                for Charge { key, limit, .. } in charges {
                    with_kind!(limit, kind => {
                        let shards = kinds::shards_of(kind, &self.tables);
                        shards.lock(shards.index_of(*key)).fetch(*key);
                    });
                }
            }
            let now = self.moment();
            for charge in charges {
                let how = How {
                    cost: charge.cost,
                    policy: charge.policy,
                    lease: LeaseId::default(),
                };
                let limit = &charge.limit;
                told(with_kind!(limit, kind => {
                    let shards = kinds::shards_of(kind, &self.tables);
                    let table = shards.lock(shards.index_of(charge.key));
                    self.settle_locked((kind, limit), table, charge.key, how, now)
                }));
            }
        }
    }

    /// The usual case of the usual case, one unit of a key that is there, is all in one piece: what is told is written
    /// once, and nothing is handed on.
    #[inline(always)]
    fn settle_locked<A: Kind, T: Told>(
        &self,
        (kind, limit): (&A, &Limit),
        mut table: Guard<'_, Table<A::Entry>>,
        key: Fingerprint,
        how: How,
        now: Now,
    ) -> T {
        if how.cost == Cost::ONE
            && how.policy != Policy::Count
            && let Some(entry) = table.entry_mut(key)
            && let Some((decision, mark)) = kind.take_one_of(entry, now)
        {
            return T::tell(decision, how.receipt(mark), Source::Memory, now);
        }
        self.settle_any((kind, limit), table, key, how, now)
    }

    /// The same for any key and any charge.
    #[inline(never)]
    fn settle_any<A: Kind, T: Told>(
        &self,
        (kind, limit): (&A, &Limit),
        mut table: Guard<'_, Table<A::Entry>>,
        key: Fingerprint,
        how: How,
        now: Now,
    ) -> T {
        let mut place = table.find(key);
        if matches!(place, Place::Missing(_)) && how.cost > Cost::ZERO {
            if !self.make_room(&mut table, 1, now) {
                // With the shard free again: the shared counter is in any of them.
                drop(table);
                return self.settle_shared(kind, limit, how, now);
            }
            place = table.find(key);
        }
        self.settle_at(kind, &mut table, (key, place), how, now)
    }

    /// The same where the place of the key is known, or there is room for it.
    #[inline(always)]
    fn settle_at<A: Kind, T: Told>(
        &self,
        kind: &A,
        table: &mut Table<A::Entry>,
        place: (Fingerprint, Place),
        how: How,
        now: Now,
    ) -> T {
        let step = A::with_state(table.get(place.1), |state| kind.decide(state, how.cost, now));
        let is_kept = step.decision.is_allow() || how.policy == Policy::Count;
        if let (true, Some(change)) = (is_kept, step.next) {
            self.keep(kind, table, place, change, how.lease);
        } else if let Some(change) = step.repair {
            self.keep(kind, table, place, change, how.lease);
        }
        let decision = match step.decision {
            // Counted all the same: all that was left is taken.
            Decision::Deny { standing, retry } if is_kept => Decision::Deny {
                standing: Standing {
                    remaining: 0,
                    ..standing
                },
                retry,
            },
            decision => decision,
        };
        T::tell(decision, how.receipt(step.mark), Source::Memory, now)
    }

    /// Settles a charge that found no room, on the counter that all such keys of its limit share.
    #[cold]
    fn settle_shared<A: Kind, T: Told>(&self, kind: &A, limit: &Limit, how: How, now: Now) -> T {
        self.spill.count(1);
        let key = self.secret.shared(limit);
        let shards = A::shards(&self.tables);
        let mut table = shards.lock(shards.index_of(key));
        if self.has_shared(&mut table, key, now) {
            let place = table.find(key);
            let Outcome { decision, receipt, .. } = self.settle_at(kind, &mut table, (key, place), how, now);
            return T::tell(decision, receipt, Source::Overflow, now);
        }
        let receipt = Receipt {
            cost: Cost::ZERO,
            mark: Mark::default(),
            lease: how.lease,
        };
        T::tell(refusal(limit, now), receipt, Source::Overflow, now)
    }

    /// Whether there is a shared counter at `key`, or room for one.
    fn has_shared<E: table::Entry>(&self, table: &mut Table<E>, key: Fingerprint, now: Now) -> bool {
        if !self.spill.is_shared() {
            return false;
        }
        if matches!(table.find(key), Place::Found(_)) || self.make_room(table, 1, now) {
            return true;
        }
        let may_begin = self.spill.may_begin(key);
        if may_begin && table.is_full_for(1) {
            self.grow_past_the_cap(table);
        }
        may_begin
    }

    /// Sweeps a little, and makes room for so many new keys. False if there is none to be had.
    fn make_room<E: table::Entry>(&self, table: &mut Table<E>, more: usize, now: Now) -> bool {
        self.swept_out(table.sweep(SWEEP, now.at()));
        // Past the cap a place that happens to be free is not for new keys.
        if self.budget.is_overdrawn() {
            return false;
        }
        while table.is_full_for(more) {
            // Both tables are there while one is moved to the other.
            let (old, new) = (table.bytes(), table.bytes_grown());
            if !self.budget.try_take(new) {
                self.swept_out(table.sweep(SWEEP_AT_CAP, now.at()));
                return !table.is_full_for(more);
            }
            table.grow();
            // A table may take a little more than was foreseen.
            self.budget.take(table.bytes().saturating_sub(new));
            self.budget.give_back(old);
        }
        true
    }

    /// For what must be kept whether there is room or not.
    fn grow_past_the_cap<E: table::Entry>(&self, table: &mut Table<E>) {
        let old = table.bytes();
        table.grow();
        self.budget.take(table.bytes());
        self.budget.give_back(old);
    }

    fn swept_out(&self, swept: table::Swept) {
        if swept.keys > 0 {
            self.swept.fetch_add(swept.keys as u64, Ordering::Relaxed);
            self.budget.give_back(swept.heap_bytes);
        }
    }

    /// Carries out a change on a key whose place was found, or has room made for it.
    #[inline(always)]
    fn keep<A: Kind>(
        &self,
        kind: &A,
        table: &mut Table<A::Entry>,
        (key, place): (Fingerprint, Place),
        change: A::Change,
        lease: LeaseId,
    ) {
        if let Some(entry) = table.get_mut(place) {
            kind.edit_entry(entry, change, lease, &self.budget);
            return;
        }
        if table.is_full_for(1) {
            // Room was made, but the last of its neighbours lie at the table's very end.
            self.grow_past_the_cap(table);
        }
        table.insert(key, kind.begin_entry(change, lease, &self.budget));
    }

    /// Takes over a key from elsewhere, whether there is room for it or not.
    fn adopt<E: table::Entry>(&self, table: &mut Table<E>, key: Fingerprint, entry: E) {
        if let Some(held) = table.get_mut(table.find(key)) {
            *held = entry;
            return;
        }
        if table.is_full_for(1) {
            self.grow_past_the_cap(table);
        }
        self.budget.take(entry.heap_bytes());
        table.insert(key, entry);
    }

    /// Settles several charges at one moment, or looks at how they would be.
    pub(crate) fn settle_all(&self, charges: &[Charge<Fingerprint>], aim: Aim, lease: LeaseId) -> Settled {
        let mut held = self.tables.lock_all(charges);
        let spilled = if aim == Aim::Keep {
            self.spilled(charges, &mut held)
        } else {
            Vec::new()
        };
        if spilled.contains(&true) {
            // On the counters that new keys share, which may be in other shards: all are locked anew, in order.
            drop(held);
            return self.settle_spilled(charges, &spilled, lease);
        }
        self.settle_held(charges, &mut held, aim, lease)
    }

    /// For each charge whether its key is new and there is no room for it.
    fn spilled(&self, charges: &[Charge<Fingerprint>], held: &mut kinds::Held<'_>) -> Vec<bool> {
        let now = self.moment();
        let mut new: Vec<(usize, usize, Fingerprint)> = Vec::new();
        let mut spilled = Vec::with_capacity(charges.len());
        for charge in charges {
            let is_spilled = with_kind!(&charge.limit, kind => {
                let (order, index) = kinds::order(&self.tables, kind, charge.key);
                let table = held.table_mut(kind, charge.key);
                let is_new = matches!(table.find(charge.key), Place::Missing(_)) && charge.cost > Cost::ZERO;
                if is_new && !new.contains(&(order, index, charge.key)) {
                    new.push((order, index, charge.key));
                }
                let more = new.iter().filter(|(at, shard, _)| (*at, *shard) == (order, index)).count();
                is_new && !self.make_room(table, more, now)
            });
            spilled.push(is_spilled);
        }
        spilled
    }

    /// Settles charges of which some found no room.
    #[cold]
    fn settle_spilled(&self, charges: &[Charge<Fingerprint>], spilled: &[bool], lease: LeaseId) -> Settled {
        self.spill.count(spilled.iter().filter(|&&spilled| spilled).count());
        let is_spilled = |key| {
            charges
                .iter()
                .zip(spilled)
                .any(|(charge, &spilled)| spilled && charge.key == key)
        };
        let shared: Vec<Charge<Fingerprint>> = charges
            .iter()
            .map(|charge| match is_spilled(charge.key) {
                true => Charge {
                    key: self.secret.shared(&charge.limit),
                    ..*charge
                },
                false => *charge,
            })
            .collect();
        let mut held = self.tables.lock_all(&shared);
        let now = self.moment();
        let has_room = |charge: &Charge<Fingerprint>, held: &mut kinds::Held<'_>| with_kind!(&charge.limit, kind => self.has_shared(held.table_mut(kind, charge.key), charge.key, now));
        let moved = || {
            charges
                .iter()
                .zip(&shared)
                .map(|(charge, shared)| charge.key != shared.key)
        };
        let fits: Vec<bool> = shared
            .iter()
            .zip(moved())
            .map(|(charge, moved)| !moved || has_room(charge, &mut held))
            .collect();
        let (roomy, others): (Vec<_>, Vec<_>) = shared.iter().zip(&fits).partition(|(_, fits)| **fits);
        // One that binds and has no room refuses the request, and the others are only looked at; a shadow does not bind.
        let is_refused = others.iter().any(|(charge, _)| charge.policy != Policy::Shadow);
        let roomy: Vec<Charge<Fingerprint>> = roomy.into_iter().map(|(charge, _)| *charge).collect();
        let aim = if is_refused { Aim::Look } else { Aim::Keep };
        let mut settled = self.settle_held(&roomy, &mut held, aim, lease);
        settled.passes &= !is_refused;
        for (place, charge) in shared
            .iter()
            .enumerate()
            .filter(|(place, _)| fits.get(*place) == Some(&false))
        {
            let refused = Outcome {
                decision: refusal(&charge.limit, now),
                receipt: Receipt {
                    cost: Cost::ZERO,
                    mark: Mark::default(),
                    lease,
                },
                source: Source::Memory,
            };
            settled.outcomes.insert(place, Ok(refused));
        }
        for (outcome, moved) in settled.outcomes.iter_mut().zip(moved()) {
            if let (Ok(outcome), true) = (outcome, moved) {
                outcome.source = Source::Overflow;
            }
        }
        settled
    }

    /// Settles charges whose shards are locked and have room for them.
    fn settle_held(
        &self,
        charges: &[Charge<Fingerprint>],
        held: &mut kinds::Held<'_>,
        aim: Aim,
        lease: LeaseId,
    ) -> Settled {
        // Read with all locks held: one moment for all, and none of them has been written later.
        let now = self.moment();
        let settlement = settle(
            charges,
            |charge, cost| with_kind!(&charge.limit, kind => kinds::decide(kind, held.table(kind, charge.key), charge.key, cost, now)),
        );
        let mut outcomes = Vec::with_capacity(charges.len());
        for (charge, outcome) in charges.iter().zip(settlement.outcomes) {
            if let (Aim::Keep, Some(change)) = (aim, outcome.change) {
                with_kind!(&charge.limit, kind => {
                    let table = held.table_mut(kind, charge.key);
                    let place = table.find(charge.key);
                    if let Some(change) = kind.own_change(change) {
                        self.keep(kind, table, (charge.key, place), change, lease);
                    }
                });
            }
            let receipt = Receipt {
                cost: charge.cost,
                mark: outcome.mark,
                lease,
            };
            outcomes.push(Ok(Outcome {
                decision: outcome.decision,
                receipt,
                source: Source::Memory,
            }));
        }
        Settled {
            passes: settlement.passes,
            now: now.at(),
            outcomes,
        }
    }
}

/// How one charge is to be settled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    pub(crate) cost: Cost,
    pub(crate) policy: Policy,
    pub(crate) lease: LeaseId,
}

impl How {
    #[inline(always)]
    fn receipt(self, mark: Mark) -> Receipt {
        Receipt {
            cost: self.cost,
            mark,
            lease: self.lease,
        }
    }
}

/// What several charges are settled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Aim {
    /// To be kept.
    Keep,
    /// To be looked at.
    Look,
}

/// The slots looked at when there is no room left, before a new key is turned to the shared counter.
const SWEEP_AT_CAP: usize = 64;

impl Store for Memory {
    type Key = Fingerprint;
    type Subjects = Subjects;

    fn subjects(&self, counter: &Counter<'_>) -> Subjects {
        self.secret.subjects(counter)
    }

    #[inline(always)]
    fn key(&self, subjects: &Subjects, per: &[&[u8]]) -> Fingerprint {
        subjects.of(per)
    }

    async fn settle(&self, charges: &[Charge<Fingerprint>], lease: LeaseId) -> Settled {
        match charges {
            [charge] => self.settle_alone(charge, lease),
            _ => self.settle_all(charges, Aim::Keep, lease),
        }
    }

    async fn peek(&self, charges: &[Charge<Fingerprint>]) -> Settled {
        self.settle_all(charges, Aim::Look, LeaseId::default())
    }

    async fn undo(&self, key: Fingerprint, limit: &Limit, receipt: &Receipt) -> Result<(), StoreError> {
        with_kind!(limit, kind => self.alter(kind, limit, key, receipt.lease, |kind, state, now| {
            (state.and_then(|state| kind.undo(state, receipt, now)), ())
        }));
        Ok(())
    }

    async fn refund(&self, charge: &Charge<Fingerprint>) -> Result<(Decision, Source), StoreError> {
        let (key, limit) = (charge.key, &charge.limit);
        // Not to the shared counter: a key that is not there may as well have filled up and gone, and what was not taken from
        // that counter would let others pass its limit.
        with_kind!(limit, kind => self.alter_own(kind, key, LeaseId::default(), |kind, state, now| {
            (state.and_then(|state| kind.refund(state, charge.cost, now)), ())
        }));
        let look = How {
            cost: Cost::ZERO,
            policy: Policy::Enforce,
            lease: LeaseId::default(),
        };
        Ok((self.settle_seldom(key, limit, look), Source::Memory))
    }

    async fn release(&self, key: Fingerprint, limit: &Limit, lease: LeaseId) -> Result<bool, StoreError> {
        Ok(self.release_lease(key, limit, lease))
    }

    async fn renew(&self, key: Fingerprint, limit: &Limit, lease: LeaseId) -> Result<Option<Micros>, StoreError> {
        Ok(self.renew_lease(key, limit, lease))
    }

    async fn forget(&self, key: Fingerprint, limit: &Limit) -> Result<bool, StoreError> {
        Ok(self.forget_key(key, limit))
    }
}

#[cfg(test)]
mod tests;
