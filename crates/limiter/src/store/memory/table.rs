//! A table of fingerprints and states, sorted by fingerprint with gaps: one look-up is one place in memory.
//!
//! Fingerprints are evenly spread numbers, so a number tells its place: `home = number * homes / 2^64`. Each entry lies
//! at its home or right behind its smaller neighbours. Growing keeps the order, so it is one pass over both tables, and
//! by a fifth at a time rather than by doubling: memory per key stays within a sixth of the best.

use crate::fingerprint::Fingerprint;
use tollgate_core::Timestamp;

/// What a table can keep: it knows from when on it is as good as nothing.
pub(crate) trait Entry {
    fn fresh_at(&self) -> Timestamp;

    /// Bytes held outside the table.
    fn heap_bytes(&self) -> usize {
        0
    }
}

#[derive(Debug)]
pub(crate) struct Table<E> {
    slots: Vec<Option<Slot<E>>>,
    /// Where entries may be at home: the slots less a tail for the last of them to spill into.
    homes: usize,
    len: usize,
    /// Where the sweep goes on.
    swept_to: usize,
    /// How many homes it has when it first grows: not the same for all, or all tables would grow at one time.
    first: usize,
}

#[derive(Debug)]
struct Slot<E> {
    print: Fingerprint,
    entry: E,
}

/// Where a fingerprint is, or would be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    Found(usize),
    Vacant(usize),
}

/// The slots looked at behind a new key: more than one, so that sweeping outruns growing.
pub(crate) const SWEEP: usize = 8;

/// The fewest homes a table starts with.
const SLOTS_MIN: usize = 8;

impl<E: Entry> Table<E> {
    /// An empty table, one of several: `number` says which.
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

    /// Bytes of the slots if it grew once more.
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

    /// The entry of a fingerprint, if it is there: [`Table::find`] and [`Table::get_mut`] in one go.
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

    /// Whether so many new entries would need a larger table.
    pub(crate) fn is_full_for(&self, more: usize) -> bool {
        // Three quarters full, or nothing left behind the last entry.
        (self.len + more) * 4 > self.homes * 3 + 3 || self.slots.last().is_none_or(Option::is_some)
    }

    /// Puts a new entry where [`Table::find`] missed it. The table must not be full.
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

    /// Asks memory for the place of a fingerprint and the ones right behind, where it mostly is, without waiting for them.
    #[inline(always)]
    pub(crate) fn prefetch(&self, print: Fingerprint) {
        let home = self.home(print);
        for index in [home, home + 1, home + 3] {
            prefetch_index::prefetch_index(&self.slots, index);
        }
    }

    /// Takes the entry at `index` out and moves its neighbours up, each no further than its home.
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

    /// Looks at the next `count` slots and takes out what is as good as new at `now`. Says how many went, and how many
    /// bytes outside the table with them.
    pub(crate) fn sweep(&mut self, count: usize, now: Timestamp) -> SweepStats {
        let mut stats = SweepStats::default();
        let (mut checks, mut removals) = (count.min(self.slots.len()), count);
        while checks > 0 && removals > 0 {
            if self.swept_to >= self.slots.len() {
                self.swept_to = 0;
            }
            let stale = matches!(self.slots.get(self.swept_to), Some(Some(slot)) if slot.entry.fresh_at() <= now);
            // What moves up into the gap is looked at next.
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

    /// A fifth larger.
    pub(crate) fn grow(&mut self) {
        self.resize(self.homes_grown());
    }

    /// Smaller, if most of it is empty.
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
        // A gap is left at the end, however far the last ones have spilled.
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

    /// Homes, and room behind them for a run of neighbours.
    fn slots_for(homes: usize) -> usize {
        homes + 8 + homes / 64
    }

    #[inline]
    fn home(&self, print: Fingerprint) -> usize {
        ((u128::from(print.high) * self.homes as u128) >> 64) as usize
    }
}

/// What a sweep took out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SweepStats {
    pub(crate) keys: usize,
    pub(crate) heap_bytes: usize,
}

#[cfg(test)]
mod tests;
