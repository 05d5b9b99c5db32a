//! The algorithms in the memory store: their table, and the entry of a slot.

use super::budget::Budget;
use super::shards::Shards;
use super::table::{Entry, Table};
use crate::fingerprint::Fingerprint;
use crate::sync::Guard;
use tollgate_core::algorithm::cell::State as CellState;
use tollgate_core::algorithm::sliding_counter::PackedCounters;
use tollgate_core::{
    Algorithm, Cell, Change, Charge, Concurrency, Cost, Debt, Decision, FixedWindow, Gcra, LeakyBucket, LeaseId,
    LeaseTable, Limit, Mark, Now, PackedDebt, Ring, SlidingCounter, SlidingLog, StateNumbers, Step, TimeFraction,
    Timestamp, TokenBucket, UnitFraction, algorithm,
};

/// The tables of every algorithm.
#[derive(Debug)]
pub(crate) struct Tables {
    token_bucket: Shards<PackedDebt>,
    gcra: Shards<Debt<TimeFraction>>,
    fixed_window: Shards<TimedEntry<algorithm::fixed_window::State>>,
    sliding_counter: Shards<PackedCounters>,
    sliding_log: Shards<TimedEntry<Ring>>,
    leaky_bucket: Shards<PackedDebt>,
    concurrency: Shards<TimedEntry<LeaseTable>>,
    cell: Shards<CellState>,
}

/// A state with the instant at which it is fresh, for states that do not know it themselves.
#[derive(Debug)]
pub(crate) struct TimedEntry<S> {
    fresh_at: Timestamp,
    state: S,
}

/// An algorithm with a table.
pub(crate) trait TableKind: Algorithm {
    type Entry: Entry + 'static;

    /// The position in the locking order, which prevents deadlocks between settlements.
    const ORDER: usize;

    fn shards(tables: &Tables) -> &Shards<Self::Entry>;

    /// Reads the state of an entry, if there is one.
    fn with_state<T>(entry: Option<&Self::Entry>, read: impl FnOnce(Option<&Self::State>) -> T) -> T;

    /// Creates an entry, and reserves its bytes outside the table.
    fn new_entry(&self, change: Self::Change, lease: LeaseId, budget: &Budget) -> Self::Entry;

    fn edit_entry(&self, entry: &mut Self::Entry, change: Self::Change, lease: LeaseId, budget: &Budget);

    /// See [`Algorithm::take_one`].
    #[inline(always)]
    fn take_one_of(&self, entry: &mut Self::Entry, now: Now) -> Option<(Decision, Mark)> {
        let _ = (entry, now);
        None
    }

    fn unwrap_change(&self, change: Change) -> Option<Self::Change>;

    fn wrap_change(change: Self::Change) -> Change;

    fn locked<'h, 'a>(locked: &'h LockedShards<'a>) -> &'h [(usize, Guard<'a, Table<Self::Entry>>)];

    fn locked_mut<'h, 'a>(locked: &'h mut LockedShards<'a>) -> &'h mut Vec<(usize, Guard<'a, Table<Self::Entry>>)>;
}

/// The shards that one settlement has locked, by their index.
pub(crate) struct LockedShards<'a> {
    tables: &'a Tables,
    token_bucket: Vec<(usize, Guard<'a, Table<PackedDebt>>)>,
    gcra: Vec<(usize, Guard<'a, Table<Debt<TimeFraction>>>)>,
    fixed_window: Vec<(usize, Guard<'a, Table<TimedEntry<algorithm::fixed_window::State>>>)>,
    sliding_counter: Vec<(usize, Guard<'a, Table<PackedCounters>>)>,
    sliding_log: Vec<(usize, Guard<'a, Table<TimedEntry<Ring>>>)>,
    leaky_bucket: Vec<(usize, Guard<'a, Table<PackedDebt>>)>,
    concurrency: Vec<(usize, Guard<'a, Table<TimedEntry<LeaseTable>>>)>,
    cell: Vec<(usize, Guard<'a, Table<CellState>>)>,
}

/// Runs `$body` with the algorithm of a limit as `$kind`.
macro_rules! with_kind {
    ($limit:expr, $kind:ident => $body:expr) => {
        match $limit {
            tollgate_core::Limit::TokenBucket($kind) => $body,
            tollgate_core::Limit::Gcra($kind) => $body,
            tollgate_core::Limit::FixedWindow($kind) => $body,
            tollgate_core::Limit::SlidingCounter($kind) => $body,
            tollgate_core::Limit::SlidingLog($kind) => $body,
            tollgate_core::Limit::LeakyBucket($kind) => $body,
            tollgate_core::Limit::Concurrency($kind) => $body,
            tollgate_core::Limit::Cell($kind) => $body,
        }
    };
}
pub(crate) use with_kind;

/// Runs `$body` for each of the tables in locking order.
macro_rules! each_table {
    ($tables:expr, $shards:ident => $body:expr) => {{
        let tables: &Tables = $tables;
        each_table!(@ tables, $shards => $body; token_bucket gcra fixed_window sliding_counter sliding_log leaky_bucket
            concurrency cell);
    }};
    (@ $tables:ident, $shards:ident => $body:expr; $($field:ident)*) => {
        $({ let $shards = &$tables.$field; $body })*
    };
}

impl Tables {
    pub(crate) fn new(shards: usize) -> Self {
        Self {
            token_bucket: Shards::new(shards),
            gcra: Shards::new(shards),
            fixed_window: Shards::new(shards),
            sliding_counter: Shards::new(shards),
            sliding_log: Shards::new(shards),
            leaky_bucket: Shards::new(shards),
            concurrency: Shards::new(shards),
            cell: Shards::new(shards),
        }
    }

    pub(crate) fn keys(&self) -> usize {
        let mut keys = 0;
        each_table!(self, shards => keys += (0..shards.created()).map(|index| shards.lock(index).len()).sum::<usize>());
        keys
    }

    /// Sweeps `slots` of every shard, and shrinks tables that are mostly empty.
    pub(crate) fn sweep(&self, slots: usize, now: Timestamp, budget: &Budget) -> usize {
        let mut keys = 0;
        each_table!(self, shards => for index in 0..shards.created() {
            let mut table = shards.lock(index);
            let stats = table.sweep(slots, now);
            budget.release(stats.heap_bytes);
            keys += stats.keys;
            let before = table.bytes();
            table.shrink();
            budget.release(before.saturating_sub(table.bytes()));
        });
        keys
    }

    pub(crate) fn forget<A: TableKind>(&self, _: &A, key: Fingerprint, budget: &Budget) -> bool {
        let shards = A::shards(self);
        let removed = shards.lock(shards.index_of(key)).remove(key);
        budget.release(removed.as_ref().map_or(0, Entry::heap_bytes));
        removed.is_some()
    }

    /// Locks all shards that the charges need, in the one order.
    pub(crate) fn lock_all(&self, charges: &[Charge<Fingerprint>]) -> LockedShards<'_> {
        let shard_of = |charge: &Charge<Fingerprint>| with_kind!(&charge.limit, kind => order(self, kind, charge.key));
        let mut shards: Vec<(usize, usize, Limit)> = charges
            .iter()
            .map(|charge| (shard_of(charge).0, shard_of(charge).1, charge.limit))
            .collect();
        shards.sort_unstable_by_key(|&(order, index, _)| (order, index));
        shards.dedup_by_key(|&mut (order, index, _)| (order, index));
        let mut locked = LockedShards::new(self);
        for (_, index, limit) in shards {
            with_kind!(&limit, kind => lock_one(self, kind, index, &mut locked));
        }
        locked
    }
}

pub(crate) fn order<A: TableKind>(tables: &Tables, _: &A, key: Fingerprint) -> (usize, usize) {
    (A::ORDER, A::shards(tables).index_of(key))
}

fn lock_one<'a, A: TableKind>(tables: &'a Tables, _: &A, index: usize, locked: &mut LockedShards<'a>) {
    let guard = A::shards(tables).lock(index);
    A::locked_mut(locked).push((index, guard));
}

/// The shards of the algorithm of a value.
pub(crate) fn shards_of<'t, A: TableKind>(_: &A, tables: &'t Tables) -> &'t Shards<A::Entry> {
    A::shards(tables)
}

/// Decides for a key in a table, with the change type of all limits.
pub(crate) fn decide<A: TableKind>(
    kind: &A,
    table: &Table<A::Entry>,
    key: Fingerprint,
    cost: Cost,
    now: Now,
) -> Step<Change> {
    let step = A::with_state(table.get(table.find(key)), |state| kind.decide(state, cost, now));
    Step {
        decision: step.decision,
        next: step.next.map(A::wrap_change),
        repair: step.repair.map(A::wrap_change),
        fresh_at: step.fresh_at,
        mark: step.mark,
    }
}

impl<'a> LockedShards<'a> {
    fn new(tables: &'a Tables) -> Self {
        Self {
            tables,
            token_bucket: Vec::new(),
            gcra: Vec::new(),
            fixed_window: Vec::new(),
            sliding_counter: Vec::new(),
            sliding_log: Vec::new(),
            leaky_bucket: Vec::new(),
            concurrency: Vec::new(),
            cell: Vec::new(),
        }
    }

    pub(crate) fn table<A: TableKind>(&self, _: &A, key: Fingerprint) -> &Table<A::Entry> {
        let index = A::shards(self.tables).index_of(key);
        let locked = A::locked(self).iter().find(|(at, _)| *at == index);
        locked
            .map(|(_, table)| &**table)
            .expect("the shards of all charges are locked")
    }

    pub(crate) fn table_mut<A: TableKind>(&mut self, _: &A, key: Fingerprint) -> &mut Table<A::Entry> {
        let index = A::shards(self.tables).index_of(key);
        let locked = A::locked_mut(self).iter_mut().find(|(at, _)| *at == index);
        locked
            .map(|(_, table)| &mut **table)
            .expect("the shards of all charges are locked")
    }
}

impl Entry for PackedDebt {
    #[inline]
    fn fresh_at(&self) -> Timestamp {
        Self::fresh_at(*self)
    }
}

impl Entry for Debt<TimeFraction> {
    #[inline]
    fn fresh_at(&self) -> Timestamp {
        Self::fresh_at(self)
    }
}

impl Entry for CellState {
    #[inline]
    fn fresh_at(&self) -> Timestamp {
        Self::fresh_at(self)
    }

    fn heap_bytes(&self) -> usize {
        Self::heap_bytes(self)
    }
}

impl Entry for TimedEntry<Ring> {
    fn fresh_at(&self) -> Timestamp {
        self.fresh_at
    }

    fn heap_bytes(&self) -> usize {
        self.state.heap_bytes()
    }
}

impl Entry for TimedEntry<LeaseTable> {
    fn fresh_at(&self) -> Timestamp {
        self.fresh_at
    }

    fn heap_bytes(&self) -> usize {
        self.state.heap_bytes()
    }
}

impl Entry for TimedEntry<algorithm::fixed_window::State> {
    fn fresh_at(&self) -> Timestamp {
        self.fresh_at
    }
}

impl Entry for PackedCounters {
    #[inline]
    fn fresh_at(&self) -> Timestamp {
        Self::fresh_at(self)
    }
}

impl<S: StateNumbers> StateNumbers for TimedEntry<S> {
    fn write_numbers(&self, numbers: &mut Vec<u64>) {
        numbers.push(self.fresh_at.as_micros());
        self.state.write_numbers(numbers);
    }

    fn from_numbers(numbers: &[u64]) -> Option<Self> {
        let (&fresh_at, numbers) = numbers.split_first()?;
        Some(Self {
            fresh_at: Timestamp::from_micros(fresh_at),
            state: S::from_numbers(numbers)?,
        })
    }
}

/// The items that every algorithm implements alike.
macro_rules! kind {
    ($algorithm:ident, $field:ident, $order:literal, $entry:ty, { $($body:item)* }) => {
        impl TableKind for $algorithm {
            type Entry = $entry;
            const ORDER: usize = $order;

            #[inline]
            fn shards(tables: &Tables) -> &Shards<$entry> {
                &tables.$field
            }

            fn unwrap_change(&self, change: Change) -> Option<Self::Change> {
                match change {
                    Change::$algorithm(change) => Some(change),
                    _ => None,
                }
            }

            fn wrap_change(change: Self::Change) -> Change {
                Change::$algorithm(change)
            }

            fn locked<'h, 'a>(locked: &'h LockedShards<'a>) -> &'h [(usize, Guard<'a, Table<$entry>>)] {
                &locked.$field
            }

            fn locked_mut<'h, 'a>(locked: &'h mut LockedShards<'a>) -> &'h mut Vec<(usize, Guard<'a, Table<$entry>>)> {
                &mut locked.$field
            }

            $($body)*
        }
    };
}

/// A state that is its own entry.
macro_rules! bare {
    ($algorithm:ident, $field:ident, $order:literal, $state:ty) => {
        kind!($algorithm, $field, $order, $state, {
            #[inline(always)]
            fn with_state<T>(entry: Option<&$state>, read: impl FnOnce(Option<&$state>) -> T) -> T {
                read(entry)
            }

            #[inline(always)]
            fn new_entry(&self, change: $state, _: LeaseId, _: &Budget) -> $state {
                change
            }

            #[inline(always)]
            fn edit_entry(&self, entry: &mut $state, change: $state, _: LeaseId, _: &Budget) {
                *entry = change;
            }

            #[inline(always)]
            fn take_one_of(&self, entry: &mut $state, now: Now) -> Option<(Decision, Mark)> {
                self.take_one(entry, now)
            }
        });
    };
}

/// A state that is stored packed.
macro_rules! packed {
    ($algorithm:ident, $field:ident, $order:literal, $state:ty, $packed:ty) => {
        kind!($algorithm, $field, $order, $packed, {
            #[inline(always)]
            fn with_state<T>(entry: Option<&$packed>, read: impl FnOnce(Option<&$state>) -> T) -> T {
                read(entry.map(|&entry| entry.into()).as_ref())
            }

            #[inline(always)]
            fn new_entry(&self, change: $state, _: LeaseId, _: &Budget) -> $packed {
                change.into()
            }

            #[inline(always)]
            fn edit_entry(&self, entry: &mut $packed, change: $state, _: LeaseId, _: &Budget) {
                *entry = change.into();
            }

            #[inline(always)]
            fn take_one_of(&self, entry: &mut $packed, now: Now) -> Option<(Decision, Mark)> {
                let mut state: $state = (*entry).into();
                let taken = self.take_one(&mut state, now)?;
                if taken.0.is_allow() {
                    *entry = state.into();
                }
                Some(taken)
            }
        });
    };
}

/// A state stored with the instant at which it is fresh.
macro_rules! timed {
    ($algorithm:ident, $field:ident, $order:literal, $state:ty, $heap:expr) => {
        kind!($algorithm, $field, $order, TimedEntry<$state>, {
            #[inline]
            fn with_state<T>(entry: Option<&TimedEntry<$state>>, read: impl FnOnce(Option<&$state>) -> T) -> T {
                read(entry.map(|entry| &entry.state))
            }

            fn new_entry(&self, change: Self::Change, lease: LeaseId, budget: &Budget) -> TimedEntry<$state> {
                let state = self.start(change, lease);
                let heap: fn(&$state) -> usize = $heap;
                budget.reserve(heap(&state));
                TimedEntry {
                    fresh_at: self.fresh_at(&state),
                    state,
                }
            }

            #[inline]
            fn edit_entry(
                &self,
                entry: &mut TimedEntry<$state>,
                change: Self::Change,
                lease: LeaseId,
                budget: &Budget,
            ) {
                let heap: fn(&$state) -> usize = $heap;
                let before = heap(&entry.state);
                self.edit(&mut entry.state, change, lease);
                entry.fresh_at = self.fresh_at(&entry.state);
                let after = heap(&entry.state);
                if after != before {
                    budget.reserve(after);
                    budget.release(before);
                }
            }
        });
    };
}

packed!(TokenBucket, token_bucket, 0, Debt<UnitFraction>, PackedDebt);
bare!(Gcra, gcra, 1, Debt<TimeFraction>);
timed!(FixedWindow, fixed_window, 2, algorithm::fixed_window::State, |_| 0);
kind!(SlidingCounter, sliding_counter, 3, PackedCounters, {
    #[inline]
    fn with_state<T>(entry: Option<&PackedCounters>, read: impl FnOnce(Option<&Self::State>) -> T) -> T {
        read(entry.map(PackedCounters::state).as_ref())
    }

    #[inline]
    fn new_entry(&self, change: Self::Change, _: LeaseId, _: &Budget) -> PackedCounters {
        PackedCounters::new(&change, self.fresh_at(&change))
    }

    #[inline]
    fn edit_entry(&self, entry: &mut PackedCounters, change: Self::Change, lease: LeaseId, budget: &Budget) {
        *entry = self.new_entry(change, lease, budget);
    }
});
timed!(SlidingLog, sliding_log, 4, Ring, Ring::heap_bytes);
packed!(LeakyBucket, leaky_bucket, 5, Debt<UnitFraction>, PackedDebt);
timed!(Concurrency, concurrency, 6, LeaseTable, LeaseTable::heap_bytes);
kind!(Cell, cell, 7, CellState, {
    #[inline(always)]
    fn with_state<T>(entry: Option<&CellState>, read: impl FnOnce(Option<&CellState>) -> T) -> T {
        read(entry)
    }

    fn new_entry(&self, change: CellState, _: LeaseId, budget: &Budget) -> CellState {
        budget.reserve(change.heap_bytes());
        change
    }

    fn edit_entry(&self, entry: &mut CellState, change: CellState, _: LeaseId, budget: &Budget) {
        let (before, after) = (entry.heap_bytes(), change.heap_bytes());
        if before != after {
            budget.reserve(after);
            budget.release(before);
        }
        *entry = change;
    }

    #[inline(always)]
    fn take_one_of(&self, entry: &mut CellState, now: Now) -> Option<(Decision, Mark)> {
        self.take_one(entry, now)
    }
});
