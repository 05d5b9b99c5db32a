//! Capacity for new keys: tables grow within the budget, and idle keys are swept.

use super::Memory;
use super::table::{Entry, Lookup, SWEEP, SweepStats, Table};
use crate::fingerprint::Fingerprint;
use std::sync::atomic::Ordering;
use tollgate_core::Now;

/// The slots swept at the cap, before a new key is sent to the overflow counter.
const SWEEP_AT_CAP: usize = 64;

impl Memory {
    /// True if there is an overflow counter at `key`, or capacity for one.
    pub(super) fn has_overflow_counter<E: Entry>(&self, table: &mut Table<E>, key: Fingerprint, now: Now) -> bool {
        if !self.overflow.is_shared() {
            return false;
        }
        if matches!(table.find(key), Lookup::Found(_)) || self.ensure_capacity(table, 1, now) {
            return true;
        }
        let may_create = self.overflow.may_create(key);
        if may_create && table.is_full_for(1) {
            self.grow_over_cap(table);
        }
        may_create
    }

    /// Sweeps a few slots, and grows the table for so many new keys. False if the budget does not allow it.
    pub(super) fn ensure_capacity<E: Entry>(&self, table: &mut Table<E>, additional: usize, now: Now) -> bool {
        self.record_sweep(table.sweep(SWEEP, now.at()));
        // Over the cap, a free slot is not for new keys.
        if self.budget.is_exceeded() {
            return false;
        }
        while table.is_full_for(additional) {
            // Both tables exist while the entries move.
            let (old, new) = (table.bytes(), table.bytes_grown());
            if !self.budget.try_reserve(new) {
                self.record_sweep(table.sweep(SWEEP_AT_CAP, now.at()));
                return !table.is_full_for(additional);
            }
            table.grow();
            // A table may take slightly more than estimated.
            self.budget.reserve(table.bytes().saturating_sub(new));
            self.budget.release(old);
        }
        true
    }

    /// Grows a table whatever the budget says: for entries that must be kept.
    pub(super) fn grow_over_cap<E: Entry>(&self, table: &mut Table<E>) {
        let old = table.bytes();
        table.grow();
        self.budget.reserve(table.bytes());
        self.budget.release(old);
    }

    pub(super) fn record_sweep(&self, stats: SweepStats) {
        if stats.keys > 0 {
            self.swept.fetch_add(stats.keys as u64, Ordering::Relaxed);
            self.budget.release(stats.heap_bytes);
        }
    }

    /// Inserts a key of a snapshot, whatever the budget says.
    pub(super) fn restore_key<E: Entry>(&self, table: &mut Table<E>, key: Fingerprint, entry: E) {
        if let Some(existing) = table.get_mut(table.find(key)) {
            *existing = entry;
            return;
        }
        if table.is_full_for(1) {
            self.grow_over_cap(table);
        }
        self.budget.reserve(entry.heap_bytes());
        table.insert(key, entry);
    }
}
