//! Room for new keys: tables grow within the budget, and what is idle makes way.

use super::Memory;
use super::table::{Entry, Lookup, SWEEP, SweepStats, Table};
use crate::fingerprint::Fingerprint;
use std::sync::atomic::Ordering;
use tollgate_core::Now;

/// The slots looked at when there is no room left, before a new key is turned to the shared counter.
const SWEEP_AT_CAP: usize = 64;

impl Memory {
    /// Whether there is a shared counter at `key`, or room for one.
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

    /// Sweeps a little, and makes room for so many new keys. False if there is none to be had.
    pub(super) fn ensure_capacity<E: Entry>(&self, table: &mut Table<E>, additional: usize, now: Now) -> bool {
        self.record_sweep(table.sweep(SWEEP, now.at()));
        // Past the cap a place that happens to be free is not for new keys.
        if self.budget.is_exceeded() {
            return false;
        }
        while table.is_full_for(additional) {
            // Both tables are there while one is moved to the other.
            let (old, new) = (table.bytes(), table.bytes_grown());
            if !self.budget.try_reserve(new) {
                self.record_sweep(table.sweep(SWEEP_AT_CAP, now.at()));
                return !table.is_full_for(additional);
            }
            table.grow();
            // A table may take a little more than was foreseen.
            self.budget.take(table.bytes().saturating_sub(new));
            self.budget.give_back(old);
        }
        true
    }

    /// For what must be kept whether there is room or not.
    pub(super) fn grow_over_cap<E: Entry>(&self, table: &mut Table<E>) {
        let old = table.bytes();
        table.grow();
        self.budget.take(table.bytes());
        self.budget.give_back(old);
    }

    pub(super) fn record_sweep(&self, stats: SweepStats) {
        if stats.keys > 0 {
            self.swept.fetch_add(stats.keys as u64, Ordering::Relaxed);
            self.budget.give_back(stats.heap_bytes);
        }
    }

    /// Takes over a key from elsewhere, whether there is room for it or not.
    pub(super) fn restore_key<E: Entry>(&self, table: &mut Table<E>, key: Fingerprint, entry: E) {
        if let Some(existing) = table.get_mut(table.find(key)) {
            *existing = entry;
            return;
        }
        if table.is_full_for(1) {
            self.grow_over_cap(table);
        }
        self.budget.take(entry.heap_bytes());
        table.insert(key, entry);
    }
}
