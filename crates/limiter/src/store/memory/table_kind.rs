//! The algorithms as the memory store keeps them: which table, and what stands in a slot.

use super::budget::Budget;
use super::shards::Shards;
use super::table::{Entry, Table};
use crate::fingerprint::Fingerprint;
use crate::sync::Guard;
use tollgate_core::{
    Algorithm, Cell, Change, Charge, Concurrency, Cost, Debt, Decision, FixedWindow, Gcra, LeakyBucket, LeaseId,
    LeaseTable, Limit, Mark, NanoFraction, Now, PackedDebt, Ring, SlidingCounter, SlidingLog, StateNumbers, Step,
    TimeFraction, Timestamp, TokenBucket, UnitFraction, algorithm,
};

/// The tables of every algorithm.
#[derive(Debug)]
pub(crate) struct Tables {
    token_bucket: Shards<PackedDebt>,
    gcra: Shards<Debt<TimeFraction>>,
    fixed_window: Shards<Timed<algorithm::fixed_window::State>>,
    sliding_counter: Shards<Timed<algorithm::sliding_counter::State>>,
    sliding_log: Shards<Timed<Ring>>,
    leaky_bucket: Shards<PackedDebt>,
    concurrency: Shards<Timed<LeaseTable>>,
    cell: Shards<Debt<NanoFraction>>,
}

/// A state that does not know by itself when it is as good as none.
#[derive(Debug)]
pub(crate) struct Timed<S> {
    fresh_at: Timestamp,
    state: S,
}

/// An algorithm with a place in the tables.
pub(crate) trait Kind: Algorithm {
    type Entry: Entry + 'static;

    /// The order in which tables are locked, so that no two settlements wait for each other.
    const ORDER: usize;

    fn shards(tables: &Tables) -> &Shards<Self::Entry>;

    /// Asks something of the state that an entry holds, if there is one.
    fn with_state<T>(entry: Option<&Self::Entry>, ask: impl FnOnce(Option<&Self::State>) -> T) -> T;

    /// A new entry; what it takes outside the table is taken from the budget.
    fn begin_entry(&self, change: Self::Change, lease: LeaseId, budget: &Budget) -> Self::Entry;

    fn edit_entry(&self, entry: &mut Self::Entry, change: Self::Change, lease: LeaseId, budget: &Budget);

    /// See [`Algorithm::take_one`].
    #[inline(always)]
    fn take_one_of(&self, entry: &mut Self::Entry, now: Now) -> Option<(Decision, Mark)> {
        let _ = (entry, now);
        None
    }

    fn own_change(&self, change: Change) -> Option<Self::Change>;

    fn any_change(change: Self::Change) -> Change;

    fn held<'h, 'a>(held: &'h Held<'a>) -> &'h [(usize, Guard<'a, Table<Self::Entry>>)];

    fn held_mut<'h, 'a>(held: &'h mut Held<'a>) -> &'h mut Vec<(usize, Guard<'a, Table<Self::Entry>>)>;
}

/// The shards that one settlement has locked, by their index.
pub(crate) struct Held<'a> {
    tables: &'a Tables,
    token_bucket: Vec<(usize, Guard<'a, Table<PackedDebt>>)>,
    gcra: Vec<(usize, Guard<'a, Table<Debt<TimeFraction>>>)>,
    fixed_window: Vec<(usize, Guard<'a, Table<Timed<algorithm::fixed_window::State>>>)>,
    sliding_counter: Vec<(usize, Guard<'a, Table<Timed<algorithm::sliding_counter::State>>>)>,
    sliding_log: Vec<(usize, Guard<'a, Table<Timed<Ring>>>)>,
    leaky_bucket: Vec<(usize, Guard<'a, Table<PackedDebt>>)>,
    concurrency: Vec<(usize, Guard<'a, Table<Timed<LeaseTable>>>)>,
    cell: Vec<(usize, Guard<'a, Table<Debt<NanoFraction>>>)>,
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

/// Runs `$body` for each of the tables in the order they are locked in.
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

    /// Sweeps `slots` of every shard, and gives back what is then mostly empty.
    pub(crate) fn sweep(&self, slots: usize, now: Timestamp, budget: &Budget) -> usize {
        let mut keys = 0;
        each_table!(self, shards => for index in 0..shards.created() {
            let mut table = shards.lock(index);
            let stats = table.sweep(slots, now);
            budget.give_back(stats.heap_bytes);
            keys += stats.keys;
            let before = table.bytes();
            table.shrink();
            budget.give_back(before.saturating_sub(table.bytes()));
        });
        keys
    }

    pub(crate) fn forget<A: Kind>(&self, _: &A, key: Fingerprint, budget: &Budget) -> bool {
        let shards = A::shards(self);
        let removed = shards.lock(shards.index_of(key)).remove(key);
        budget.give_back(removed.as_ref().map_or(0, Entry::heap_bytes));
        removed.is_some()
    }

    /// Locks all shards that the charges need, in one order for everybody.
    pub(crate) fn lock_all(&self, charges: &[Charge<Fingerprint>]) -> Held<'_> {
        let shard_of = |charge: &Charge<Fingerprint>| with_kind!(&charge.limit, kind => order(self, kind, charge.key));
        let mut shards: Vec<(usize, usize, Limit)> = charges
            .iter()
            .map(|charge| (shard_of(charge).0, shard_of(charge).1, charge.limit))
            .collect();
        shards.sort_unstable_by_key(|&(order, index, _)| (order, index));
        shards.dedup_by_key(|&mut (order, index, _)| (order, index));
        let mut held = Held::new(self);
        for (_, index, limit) in shards {
            with_kind!(&limit, kind => lock_one(self, kind, index, &mut held));
        }
        held
    }
}

pub(crate) fn order<A: Kind>(tables: &Tables, _: &A, key: Fingerprint) -> (usize, usize) {
    (A::ORDER, A::shards(tables).index_of(key))
}

fn lock_one<'a, A: Kind>(tables: &'a Tables, _: &A, index: usize, held: &mut Held<'a>) {
    let guard = A::shards(tables).lock(index);
    A::held_mut(held).push((index, guard));
}

/// The shards of an algorithm that is known only by a value of it.
pub(crate) fn shards_of<'t, A: Kind>(_: &A, tables: &'t Tables) -> &'t Shards<A::Entry> {
    A::shards(tables)
}

/// Decides for a key in a table, in the words of all limits.
pub(crate) fn decide<A: Kind>(
    kind: &A,
    table: &Table<A::Entry>,
    key: Fingerprint,
    cost: Cost,
    now: Now,
) -> Step<Change> {
    let step = A::with_state(table.get(table.find(key)), |state| kind.decide(state, cost, now));
    Step {
        decision: step.decision,
        next: step.next.map(A::any_change),
        repair: step.repair.map(A::any_change),
        fresh_at: step.fresh_at,
        mark: step.mark,
    }
}

impl<'a> Held<'a> {
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

    pub(crate) fn table<A: Kind>(&self, _: &A, key: Fingerprint) -> &Table<A::Entry> {
        let index = A::shards(self.tables).index_of(key);
        let held = A::held(self).iter().find(|(at, _)| *at == index);
        held.map(|(_, table)| &**table)
            .expect("the shards of all charges are locked")
    }

    pub(crate) fn table_mut<A: Kind>(&mut self, _: &A, key: Fingerprint) -> &mut Table<A::Entry> {
        let index = A::shards(self.tables).index_of(key);
        let held = A::held_mut(self).iter_mut().find(|(at, _)| *at == index);
        held.map(|(_, table)| &mut **table)
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

impl Entry for Debt<NanoFraction> {
    #[inline]
    fn fresh_at(&self) -> Timestamp {
        Self::fresh_at(self)
    }
}

impl Entry for Timed<Ring> {
    fn fresh_at(&self) -> Timestamp {
        self.fresh_at
    }

    fn heap_bytes(&self) -> usize {
        self.state.heap_bytes()
    }
}

impl Entry for Timed<LeaseTable> {
    fn fresh_at(&self) -> Timestamp {
        self.fresh_at
    }

    fn heap_bytes(&self) -> usize {
        self.state.heap_bytes()
    }
}

impl Entry for Timed<algorithm::fixed_window::State> {
    fn fresh_at(&self) -> Timestamp {
        self.fresh_at
    }
}

impl Entry for Timed<algorithm::sliding_counter::State> {
    fn fresh_at(&self) -> Timestamp {
        self.fresh_at
    }
}

impl<S: StateNumbers> StateNumbers for Timed<S> {
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

/// The lines that only name things.
macro_rules! kind {
    ($algorithm:ident, $field:ident, $order:literal, $entry:ty, { $($body:item)* }) => {
        impl Kind for $algorithm {
            type Entry = $entry;
            const ORDER: usize = $order;

            #[inline]
            fn shards(tables: &Tables) -> &Shards<$entry> {
                &tables.$field
            }

            fn own_change(&self, change: Change) -> Option<Self::Change> {
                match change {
                    Change::$algorithm(change) => Some(change),
                    _ => None,
                }
            }

            fn any_change(change: Self::Change) -> Change {
                Change::$algorithm(change)
            }

            fn held<'h, 'a>(held: &'h Held<'a>) -> &'h [(usize, Guard<'a, Table<$entry>>)] {
                &held.$field
            }

            fn held_mut<'h, 'a>(held: &'h mut Held<'a>) -> &'h mut Vec<(usize, Guard<'a, Table<$entry>>)> {
                &mut held.$field
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
            fn with_state<T>(entry: Option<&$state>, ask: impl FnOnce(Option<&$state>) -> T) -> T {
                ask(entry)
            }

            #[inline(always)]
            fn begin_entry(&self, change: $state, _: LeaseId, _: &Budget) -> $state {
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

/// A state that is kept in fewer bytes than it is read in.
macro_rules! packed {
    ($algorithm:ident, $field:ident, $order:literal, $state:ty, $packed:ty) => {
        kind!($algorithm, $field, $order, $packed, {
            #[inline(always)]
            fn with_state<T>(entry: Option<&$packed>, ask: impl FnOnce(Option<&$state>) -> T) -> T {
                ask(entry.map(|&entry| entry.into()).as_ref())
            }

            #[inline(always)]
            fn begin_entry(&self, change: $state, _: LeaseId, _: &Budget) -> $packed {
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

/// A state that needs its time written beside it.
macro_rules! timed {
    ($algorithm:ident, $field:ident, $order:literal, $state:ty, $heap:expr) => {
        kind!($algorithm, $field, $order, Timed<$state>, {
            #[inline]
            fn with_state<T>(entry: Option<&Timed<$state>>, ask: impl FnOnce(Option<&$state>) -> T) -> T {
                ask(entry.map(|entry| &entry.state))
            }

            fn begin_entry(&self, change: Self::Change, lease: LeaseId, budget: &Budget) -> Timed<$state> {
                let state = self.start(change, lease);
                let heap: fn(&$state) -> usize = $heap;
                budget.take(heap(&state));
                Timed {
                    fresh_at: self.fresh_at(&state),
                    state,
                }
            }

            #[inline]
            fn edit_entry(&self, entry: &mut Timed<$state>, change: Self::Change, lease: LeaseId, budget: &Budget) {
                let heap: fn(&$state) -> usize = $heap;
                let before = heap(&entry.state);
                self.edit(&mut entry.state, change, lease);
                entry.fresh_at = self.fresh_at(&entry.state);
                let after = heap(&entry.state);
                if after != before {
                    budget.take(after);
                    budget.give_back(before);
                }
            }
        });
    };
}

packed!(TokenBucket, token_bucket, 0, Debt<UnitFraction>, PackedDebt);
bare!(Gcra, gcra, 1, Debt<TimeFraction>);
timed!(FixedWindow, fixed_window, 2, algorithm::fixed_window::State, |_| 0);
timed!(
    SlidingCounter,
    sliding_counter,
    3,
    algorithm::sliding_counter::State,
    |_| 0
);
timed!(SlidingLog, sliding_log, 4, Ring, Ring::heap_bytes);
packed!(LeakyBucket, leaky_bucket, 5, Debt<UnitFraction>, PackedDebt);
timed!(Concurrency, concurrency, 6, LeaseTable, LeaseTable::heap_bytes);
bare!(Cell, cell, 7, Debt<NanoFraction>);
