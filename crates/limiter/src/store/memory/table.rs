//! A hash table of fingerprints and states, sorted by fingerprint with gaps: a lookup touches one spot of memory.
//!
//! Fingerprints are uniformly distributed, so each determines its home slot: `home = number * homes / 2^64`. An entry is in
//! its home slot or right after its smaller neighbours. Growing keeps the order, so it is one pass over both tables, and by
//! a fifth instead of doubling: memory per key stays within a sixth of the optimum.

use crate::fingerprint::Fingerprint;
use tollgate_core::Timestamp;

/// An entry of a table, which knows when it is fresh.
pub(crate) trait Entry {
    fn fresh_at(&self) -> Timestamp;

    /// Its bytes outside the table.
    fn heap_bytes(&self) -> usize {
        0
    }
}

#[derive(Debug)]
pub(crate) struct Table<E> {
    slots: Vec<Option<Slot<E>>>,
    /// The number of home slots: all slots but a tail for the last run.
    homes: usize,
    len: usize,
    /// The slot at which the next sweep starts.
    swept_to: usize,
    /// The number of home slots after the first growth: not equal for all tables, or all would grow at one time.
    first: usize,
}

#[derive(Debug)]
struct Slot<E> {
    print: Fingerprint,
    entry: E,
}

/// The slot of a fingerprint, or the slot it would be inserted at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    Found(usize),
    Vacant(usize),
}

/// The slots swept per new key: more than one, so that sweeping outpaces growth.
pub(crate) const SWEEP: usize = 8;

/// The smallest number of home slots.
const SLOTS_MIN: usize = 8;

impl<E: Entry> Table<E> {
    /// An empty table, the one with this number among several.
    pub(crate) fn new(number: usize) -> Self {
        Self {
            slots: Vec::new(),
            homes: 0,
            len: 0,
            swept_to: 0,
            first: SLOTS_MIN + number % SLOTS_MIN,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Bytes of the slots.
    pub(crate) fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Option<Slot<E>>>()
    }

    /// Bytes of the slots after the next growth.
    pub(crate) fn bytes_grown(&self) -> usize {
        Self::slots_for(self.homes_grown()) * size_of::<Option<Slot<E>>>()
    }

    #[inline]
    pub(crate) fn find(&self, print: Fingerprint) -> Lookup {
        let mut index = self.home(print);
        while let Some(Some(slot)) = self.slots.get(index) {
            if slot.print >= print {
                return if slot.print == print {
                    Lookup::Found(index)
                } else {
                    Lookup::Vacant(index)
                };
            }
            index += 1;
        }
        Lookup::Vacant(index)
    }

    /// The entry of a fingerprint: [`Table::find`] and [`Table::get_mut`] in one pass.
    #[inline(always)]
    pub(crate) fn entry_mut(&mut self, print: Fingerprint) -> Option<&mut E> {
        let home = self.home(print);
        for slot in self.slots.get_mut(home..)? {
            let slot = slot.as_mut()?;
            if slot.print == print {
                return Some(&mut slot.entry);
            }
            if slot.print > print {
                return None;
            }
        }
        None
    }

    #[inline]
    pub(crate) fn get(&self, lookup: Lookup) -> Option<&E> {
        let Lookup::Found(index) = lookup else { return None };
        self.slots.get(index)?.as_ref().map(|slot| &slot.entry)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, lookup: Lookup) -> Option<&mut E> {
        let Lookup::Found(index) = lookup else { return None };
        self.slots.get_mut(index)?.as_mut().map(|slot| &mut slot.entry)
    }

    /// True if so many new entries need a larger table.
    pub(crate) fn is_full_for(&self, more: usize) -> bool {
        // Three quarters full, or no gap after the last entry.
        (self.len + more) * 4 > self.homes * 3 + 3 || self.slots.last().is_none_or(Option::is_some)
    }

    /// Inserts a new entry at the vacant slot of [`Table::find`]. The table must not be full.
    pub(crate) fn insert(&mut self, print: Fingerprint, entry: E) {
        let (Lookup::Vacant(index) | Lookup::Found(index)) = self.find(print);
        let tail = self.slots.get_mut(index..).unwrap_or_default();
        let gap = tail
            .iter()
            .position(Option::is_none)
            .expect("a table that is not full has a gap at its end");
        if let Some(run) = tail.get_mut(..=gap) {
            run.rotate_right(1);
        }
        if let Some(slot) = tail.first_mut() {
            *slot = Some(Slot { print, entry });
            self.len += 1;
        }
    }

    /// Prefetches the home slot of a fingerprint and the slots after it, where the entry usually is.
    #[inline(always)]
    pub(crate) fn prefetch(&self, print: Fingerprint) {
        let home = self.home(print);
        for index in [home, home + 1, home + 3] {
            prefetch_index::prefetch_index(&self.slots, index);
        }
    }

    /// Removes the entry at `index` and moves its neighbours up, each no further than its home slot.
    fn remove_at(&mut self, index: usize) -> Option<E> {
        let slot = self.slots.get_mut(index)?.take()?;
        self.len -= 1;
        let mut gap = index;
        while let Some(Some(next)) = self.slots.get(gap + 1)
            && self.home(next.print) <= gap
        {
            self.slots.swap(gap, gap + 1);
            gap += 1;
        }
        Some(slot.entry)
    }

    pub(crate) fn remove(&mut self, print: Fingerprint) -> Option<E> {
        match self.find(print) {
            Lookup::Found(index) => self.remove_at(index),
            Lookup::Vacant(_) => None,
        }
    }

    /// Removes entries that are fresh at `now` among the next `count` slots.
    pub(crate) fn sweep(&mut self, count: usize, now: Timestamp) -> SweepStats {
        let mut stats = SweepStats::default();
        let (mut checks, mut removals) = (count.min(self.slots.len()), count);
        while checks > 0 && removals > 0 {
            if self.swept_to >= self.slots.len() {
                self.swept_to = 0;
            }
            let stale = matches!(self.slots.get(self.swept_to), Some(Some(slot)) if slot.entry.fresh_at() <= now);
            // The entry that moves into the gap is checked next.
            match stale.then(|| self.remove_at(self.swept_to)).flatten() {
                Some(entry) => {
                    stats.keys += 1;
                    stats.heap_bytes += entry.heap_bytes();
                    removals -= 1;
                }
                None => {
                    self.swept_to += 1;
                    checks -= 1;
                }
            }
        }
        stats
    }

    /// Grows by a fifth.
    pub(crate) fn grow(&mut self) {
        self.resize(self.homes_grown());
    }

    /// Shrinks, if most slots are empty.
    pub(crate) fn shrink(&mut self) {
        if self.homes > SLOTS_MIN && self.len * 4 < self.homes {
            self.resize((self.len * 3 / 2).max(SLOTS_MIN));
        }
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = (Fingerprint, &E)> {
        self.slots.iter().flatten().map(|slot| (slot.print, &slot.entry))
    }

    fn resize(&mut self, homes: usize) {
        let old = std::mem::take(&mut self.slots);
        let mut slots = Vec::with_capacity(Self::slots_for(homes));
        self.homes = homes;
        self.swept_to = 0;
        for slot in old.into_iter().flatten() {
            let home = self.home(slot.print);
            if home > slots.len() {
                slots.resize_with(home, || None);
            }
            slots.push(Some(slot));
        }
        // A gap stays at the end, however long the last run is.
        let end = Self::slots_for(homes).max(slots.len() + 1);
        slots.reserve_exact(end - slots.len());
        slots.resize_with(end, || None);
        self.slots = slots;
    }

    fn homes_grown(&self) -> usize {
        if self.homes == 0 {
            self.first
        } else {
            self.homes + (self.homes / 5).max(SLOTS_MIN / 2)
        }
    }

    /// Home slots, and a tail for a run of neighbours.
    fn slots_for(homes: usize) -> usize {
        homes + 8 + homes / 64
    }

    #[inline]
    fn home(&self, print: Fingerprint) -> usize {
        ((u128::from(print.high) * self.homes as u128) >> 64) as usize
    }
}

/// The entries a sweep removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SweepStats {
    pub(crate) keys: usize,
    pub(crate) heap_bytes: usize,
}

#[cfg(test)]
mod tests;
