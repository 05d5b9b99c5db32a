//! Room for new keys: tables grow within the budget, and what is idle makes way.

use super::Memory;
use super::table::{Entry, Place, SWEEP, Swept, Table};
use crate::fingerprint::Fingerprint;
use std::sync::atomic::Ordering;
use tollgate_core::Now;

/// The slots looked at when there is no room left, before a new key is turned to the shared counter.
const SWEEP_AT_CAP: usize = 64;

impl Memory {
    /// Whether there is a shared counter at `key`, or room for one.
    pub(super) fn has_shared<E: Entry>(&self, table: &mut Table<E>, key: Fingerprint, now: Now) -> bool {
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
    pub(super) fn make_room<E: Entry>(&self, table: &mut Table<E>, more: usize, now: Now) -> bool {
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
    pub(super) fn grow_past_the_cap<E: Entry>(&self, table: &mut Table<E>) {
        let old = table.bytes();
        table.grow();
        self.budget.take(table.bytes());
        self.budget.give_back(old);
    }

    pub(super) fn swept_out(&self, swept: Swept) {
        if swept.keys > 0 {
            self.swept.fetch_add(swept.keys as u64, Ordering::Relaxed);
            self.budget.give_back(swept.heap_bytes);
        }
    }

    /// Takes over a key from elsewhere, whether there is room for it or not.
    pub(super) fn adopt<E: Entry>(&self, table: &mut Table<E>, key: Fingerprint, entry: E) {
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
}
