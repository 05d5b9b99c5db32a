//! The memory store: exact under threads, bounded in memory, one cache miss per key.
//!
//! Keys are 96-bit fingerprints, stored with their states in sharded tables, one set of tables per algorithm so that
//! each slot is as small as its state. A settlement locks the shards it needs in one fixed order, so it takes place at one
//! instant and cannot deadlock. Each new key sweeps a few slots for idle keys.

mod budget;
mod capacity;
mod modify;
mod options;
mod output;
mod overflow;
mod shards;
mod snapshot;
mod table;
mod table_kind;
mod transaction;

use self::budget::Budget;
use self::output::SettleOutput;
use self::overflow::{OverflowCounters, denial};
use self::table::{Lookup, Table};
use self::table_kind::{TableKind, Tables, with_kind};
use super::{CounterStore, Keyspace, Outcome, Settlement, Source, Store, StoreError, StoreStatus};
use crate::clock::Clock;
use crate::fingerprint::{Fingerprint, HashSecret, MemoryKeyTemplate};
use crate::sync::Guard;
use std::sync::atomic::{AtomicU64, Ordering};
use tollgate_core::{
    Algorithm, Charge, Cost, Counter, Decision, LeaseId, Limit, Mark, Micros, Now, Policy, Receipt, Timestamp,
};

pub use self::options::{MemoryOptions, MemoryUsage};
pub use self::overflow::Overflow;
pub use self::snapshot::SnapshotError;
pub(crate) use self::transaction::Commit;

/// The store in this process.
#[derive(Debug)]
pub struct Memory {
    secret: HashSecret,
    clock: Clock,
    tables: Tables,
    budget: Budget,
    overflow: OverflowCounters,
    swept: AtomicU64,
}

impl Default for Memory {
    fn default() -> Self {
        Self::options().build()
    }
}

impl Memory {
    /// The number of keys of a batch that are settled at a time.
    pub(crate) const CHUNK: usize = 16;

    /// The default options: 1 GiB, overflow counters when that is full, a random secret, the machine's clock.
    pub fn options() -> MemoryOptions {
        MemoryOptions {
            max_memory: 1 << 30,
            overflow: Overflow::Share,
            shards: 256,
            clock: Clock::start(Timestamp::EPOCH),
            secret: HashSecret::random(),
        }
    }

    /// The time on its clock.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The instant of a settlement. The clock never steps, so a time before a key's last write was read by a thread that
    /// then waited for the lock, however long: it counts as the time of that write.
    #[inline]
    fn instant(&self) -> Now {
        Now::new(self.clock.now()).with_slack(Micros::MAX)
    }

    /// Returns the keys and bytes it holds now. Visits every shard, one after the other.
    pub fn usage(&self) -> MemoryUsage {
        MemoryUsage {
            keys: self.tables.keys(),
            bytes: self.budget.reserved(),
            swept: self.swept.load(Ordering::Relaxed),
            overflowed: self.overflow.charges(),
        }
    }

    /// Removes fresh keys among the next `slots` slots of every shard, and returns how many. New keys sweep by
    /// themselves; only a program that wants its memory back while no key arrives needs to call this.
    pub fn sweep(&self, slots: usize) -> usize {
        let swept = self.tables.sweep(slots, self.clock.now(), &self.budget);
        self.swept.fetch_add(swept as u64, Ordering::Relaxed);
        swept
    }

    /// Settles one charge: the usual case, without a list.
    #[inline(always)]
    pub(crate) fn settle_one<T: SettleOutput>(&self, key: Fingerprint, limit: &Limit, options: ChargeOptions) -> T {
        with_kind!(limit, kind => {
            let shards = table_kind::shards_of(kind, &self.tables);
            let table = shards.lock(shards.index_of(key));
            // The clock is read while the slot is fetched.
            table.prefetch(key);
            self.settle_locked((kind, limit), table, key, options, self.instant())
        })
    }

    /// Settles one charge out of line, for rare callers: the code is large and should be inlined in one place only.
    #[inline(never)]
    pub(crate) fn settle_cold(&self, key: Fingerprint, limit: &Limit, options: ChargeOptions) -> Decision {
        self.settle_one(key, limit, options)
    }

    /// Clears a counter. False if there was nothing to clear.
    pub(crate) fn forget_key(&self, key: Fingerprint, limit: &Limit) -> bool {
        with_kind!(limit, kind => self.tables.forget(kind, key, &self.budget))
    }

    /// Settles the only charge of a request: no list of locks, and one lock is enough.
    pub(crate) fn settle_single(&self, charge: &Charge<Fingerprint>, lease: LeaseId) -> Settlement {
        let options = ChargeOptions {
            cost: charge.cost,
            policy: charge.policy,
            lease,
        };
        let (outcome, now): (Outcome, Timestamp) = self.settle_one(charge.key, &charge.limit, options);
        Settlement {
            allowed: charge.policy == Policy::Shadow || outcome.decision.is_allow(),
            now,
            outcomes: vec![Ok(outcome)],
        }
    }

    /// Settles one charge for each of the keys independently, all of a chunk at one instant, and reports the decisions
    /// in order.
    pub(crate) fn settle_keys(
        &self,
        limit: &Limit,
        keys: &[Fingerprint],
        options: ChargeOptions,
        mut on_outcome: impl FnMut(Decision),
    ) {
        for keys in keys.chunks(Self::CHUNK) {
            let now = self.instant();
            with_kind!(limit, kind => {
                // Prefetches all slots first, so that memory is waited for once and not for each key.
                let shards = table_kind::shards_of(kind, &self.tables);
                for &key in keys {
                    shards.lock(shards.index_of(key)).prefetch(key);
                }
                for &key in keys {
                    on_outcome(self.settle_locked((kind, limit), shards.lock(shards.index_of(key)), key, options, now));
                }
            });
        }
    }

    /// Settles charges independently, all of a chunk at one instant, and reports their outcomes in order.
    #[inline(never)]
    pub(crate) fn settle_independent(&self, charges: &[Charge<Fingerprint>], mut on_outcome: impl FnMut(Outcome)) {
        for charges in charges.chunks(Self::CHUNK) {
            if charges.len() > 1 {
                for Charge { key, limit, .. } in charges {
                    with_kind!(limit, kind => {
                        let shards = table_kind::shards_of(kind, &self.tables);
                        shards.lock(shards.index_of(*key)).prefetch(*key);
                    });
                }
            }
            let now = self.instant();
            for charge in charges {
                let options = ChargeOptions {
                    cost: charge.cost,
                    policy: charge.policy,
                    lease: LeaseId::default(),
                };
                let limit = &charge.limit;
                on_outcome(with_kind!(limit, kind => {
                    let shards = table_kind::shards_of(kind, &self.tables);
                    let table = shards.lock(shards.index_of(charge.key));
                    self.settle_locked((kind, limit), table, charge.key, options, now)
                }));
            }
        }
    }

    /// The most frequent case, one unit of an existing key, in one piece: the output is written once and not copied.
    #[inline(always)]
    fn settle_locked<A: TableKind, T: SettleOutput>(
        &self,
        (kind, limit): (&A, &Limit),
        mut table: Guard<'_, Table<A::Entry>>,
        key: Fingerprint,
        options: ChargeOptions,
        now: Now,
    ) -> T {
        if options.cost == Cost::ONE
            && options.policy != Policy::Count
            && let Some(entry) = table.entry_mut(key)
            && let Some((decision, mark)) = kind.take_one_of(entry, now)
        {
            return T::from_parts(decision, options.receipt(mark), Source::Memory, now);
        }
        self.settle_any((kind, limit), table, key, options, now)
    }

    /// Settles any charge of any key.
    #[inline(never)]
    fn settle_any<A: TableKind, T: SettleOutput>(
        &self,
        (kind, limit): (&A, &Limit),
        mut table: Guard<'_, Table<A::Entry>>,
        key: Fingerprint,
        options: ChargeOptions,
        now: Now,
    ) -> T {
        let mut lookup = table.find(key);
        if matches!(lookup, Lookup::Vacant(_)) && options.cost > Cost::ZERO {
            if !self.ensure_capacity(&mut table, 1, now) {
                // Unlocked first: the overflow counter may be in any shard.
                drop(table);
                return self.settle_overflow(kind, limit, options, now);
            }
            lookup = table.find(key);
        }
        self.settle_at(kind, &mut table, (key, lookup), options, now)
    }

    /// Settles a charge whose key was looked up, and has a slot or capacity for one.
    #[inline(always)]
    fn settle_at<A: TableKind, T: SettleOutput>(
        &self,
        kind: &A,
        table: &mut Table<A::Entry>,
        key_lookup: (Fingerprint, Lookup),
        options: ChargeOptions,
        now: Now,
    ) -> T {
        let step = A::with_state(table.get(key_lookup.1), |state| kind.decide(state, options.cost, now));
        let is_kept = step.decision.is_allow() || options.policy == Policy::Count;
        if let (true, Some(change)) = (is_kept, step.next) {
            self.keep(kind, table, key_lookup, change, options.lease);
        } else if let Some(change) = step.repair {
            self.keep(kind, table, key_lookup, change, options.lease);
        }
        let decision = if is_kept { step.decision.kept() } else { step.decision };
        T::from_parts(decision, options.receipt(step.mark), Source::Memory, now)
    }

    /// Settles a charge without capacity for its key on the overflow counter of its limit.
    #[cold]
    fn settle_overflow<A: TableKind, T: SettleOutput>(
        &self,
        kind: &A,
        limit: &Limit,
        options: ChargeOptions,
        now: Now,
    ) -> T {
        self.overflow.count(1);
        let key = self.secret.overflow_key(limit);
        let shards = A::shards(&self.tables);
        let mut table = shards.lock(shards.index_of(key));
        if self.has_overflow_counter(&mut table, key, now) {
            let lookup = table.find(key);
            let Outcome { decision, receipt, .. } = self.settle_at(kind, &mut table, (key, lookup), options, now);
            return T::from_parts(decision, receipt, Source::Overflow, now);
        }
        let receipt = Receipt::without_mark(Cost::ZERO, options.lease);
        T::from_parts(denial(limit, now), receipt, Source::Overflow, now)
    }

    /// Applies a change to a key that was looked up, and has a slot or capacity for one.
    #[inline(always)]
    fn keep<A: TableKind>(
        &self,
        kind: &A,
        table: &mut Table<A::Entry>,
        (key, lookup): (Fingerprint, Lookup),
        change: A::Change,
        lease: LeaseId,
    ) {
        if let Some(entry) = table.get_mut(lookup) {
            kind.edit_entry(entry, change, lease, &self.budget);
            return;
        }
        if table.is_full_for(1) {
            // There is capacity, but the run of its neighbours ends at the table's very end.
            self.grow_over_cap(table);
        }
        table.insert(key, kind.new_entry(change, lease, &self.budget));
    }
}

/// The options of one charge.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChargeOptions {
    pub(crate) cost: Cost,
    pub(crate) policy: Policy,
    pub(crate) lease: LeaseId,
}

impl ChargeOptions {
    /// Decides about nothing: shows the standing.
    pub(crate) const PEEK: Self = Self {
        cost: Cost::ZERO,
        policy: Policy::Enforce,
        lease: LeaseId(0),
    };

    #[inline(always)]
    fn receipt(self, mark: Mark) -> Receipt {
        Receipt {
            cost: self.cost,
            mark,
            lease: self.lease,
        }
    }
}

impl Keyspace for Memory {
    type Key = Fingerprint;
    type Template = MemoryKeyTemplate;

    fn template(&self, counter: &Counter<'_>) -> MemoryKeyTemplate {
        self.secret.template(counter)
    }

    #[inline(always)]
    fn key(&self, template: &MemoryKeyTemplate, per: &[&[u8]]) -> Fingerprint {
        template.fingerprint(per)
    }
}

impl CounterStore for Memory {}

impl Store for Memory {
    const IS_IMMEDIATE: bool = true;

    #[inline]
    fn settle_now(&self, charge: &Charge<Fingerprint>) -> Option<Decision> {
        let options = ChargeOptions {
            cost: charge.cost,
            policy: charge.policy,
            lease: LeaseId::default(),
        };
        Some(self.settle_one(charge.key, &charge.limit, options))
    }

    async fn settle(&self, charges: &[Charge<Fingerprint>], lease: LeaseId) -> Settlement {
        match charges {
            [charge] => self.settle_single(charge, lease),
            _ => self.settle_all(charges, Commit::Keep, lease),
        }
    }

    async fn peek(&self, charges: &[Charge<Fingerprint>]) -> Settlement {
        self.settle_all(charges, Commit::DryRun, LeaseId::default())
    }

    async fn undo(&self, key: Fingerprint, limit: &Limit, receipt: &Receipt) -> Result<(), StoreError> {
        with_kind!(limit, kind => self.modify(kind, limit, key, receipt.lease, |kind, state, now| {
            (state.and_then(|state| kind.undo(state, receipt, now)), ())
        }));
        Ok(())
    }

    async fn refund(&self, charge: &Charge<Fingerprint>) -> Result<(Decision, Source), StoreError> {
        let (key, limit) = (charge.key, &charge.limit);
        // Not to the overflow counter: a missing key may have been fresh and swept, and units that counter did not lose
        // would let other keys pass its limit.
        with_kind!(limit, kind => self.modify_key(kind, key, LeaseId::default(), |kind, state, now| {
            (state.and_then(|state| kind.refund(state, charge.cost, now)), ())
        }));
        Ok((self.settle_cold(key, limit, ChargeOptions::PEEK), Source::Memory))
    }

    async fn release(&self, key: Fingerprint, limit: &Limit, lease: LeaseId) -> Result<bool, StoreError> {
        Ok(self.release_lease(key, limit, lease))
    }

    fn release_later(&self, key: Fingerprint, limit: &Limit, lease: LeaseId) {
        self.release_lease(key, limit, lease);
    }

    async fn renew(&self, key: Fingerprint, limit: &Limit, lease: LeaseId) -> Result<Option<Micros>, StoreError> {
        Ok(self.renew_lease(key, limit, lease))
    }

    async fn forget(&self, key: Fingerprint, limit: &Limit) -> Result<bool, StoreError> {
        Ok(self.forget_key(key, limit))
    }

    fn status(&self) -> StoreStatus {
        StoreStatus::in_process(self.usage().keys as u64)
    }
}

#[cfg(test)]
mod tests;
