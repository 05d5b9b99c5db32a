//! A packed ring of runs: what the sliding log and the concurrency limit remember.
//!
//! A run is a moment and the units counted up to and including it, so the units between any two places are one
//! subtraction away and a place is found by halving. Moments and counts are kept modulo a power of two just above the
//! window and the limit: five bytes a run for 100 per minute, eight for nearly all limits, nine at the far end.

use crate::algorithm::LeaseId;
use crate::time::{Micros, Timestamp};

/// The runs of one key, oldest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ring {
    bytes: Box<[u8]>,
    shape: Shape,
    head: usize,
    len: usize,
    /// The moment of the last run, on the ring's own clock, which is never set back.
    newest: u64,
    /// How far the ring's clock is ahead of the store's, after the store's was set back.
    ahead: u64,
    /// Units counted up to the last run.
    total: u64,
    /// Units counted up to here are gone: expired, or given back.
    base: u64,
    /// The time of the last write.
    at: Timestamp,
}

/// How a run is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    time_bits: u32,
    total_bits: u32,
    /// Whether each run carries the id of a lease.
    leased: bool,
}

/// One run, unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) time: Timestamp,
    pub(crate) total: u64,
    pub(crate) lease: LeaseId,
}

/// What a step does to a ring, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edit {
    /// The time of the write.
    pub(crate) at: Timestamp,
    /// By how much the clock was set back.
    pub(crate) back: Micros,
    /// Units of this run are taken out.
    pub(crate) cut: Option<Cut>,
    /// So many runs in front go.
    pub(crate) drop: usize,
    /// And all units up to this count.
    pub(crate) base: u64,
    /// Units are added.
    pub(crate) add: Option<Add>,
}

/// Takes `units` out of the run at `index`, and the run with them if none are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) index: usize,
    pub(crate) units: u64,
}

/// Adds a run of `units` at `time`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Add {
    pub(crate) time: Timestamp,
    pub(crate) units: u64,
}

/// A ring as it stands when the clock may have been set back since its last write.
#[derive(Clone, Copy)]
pub(crate) struct Runs<'a> {
    ring: Option<&'a Ring>,
    back: Micros,
}

/// What of a ring still counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Live {
    /// The first run that counts.
    pub(crate) first: usize,
    /// Units counted up to here do not.
    pub(crate) base: u64,
    /// Units that do.
    pub(crate) used: u64,
}

impl<'a> Runs<'a> {
    pub(crate) fn new(ring: Option<&'a Ring>, back: Micros) -> Self {
        Self { ring, back }
    }

    pub(crate) fn last(&self) -> Option<Run> {
        self.len().checked_sub(1).and_then(|last| self.get(last))
    }

    pub(crate) fn get(&self, index: usize) -> Option<Run> {
        let run = self.ring?.get(index)?;
        Some(Run {
            time: run.time - self.back,
            ..run
        })
    }

    /// The index of the first run for which `before` does not hold. It must hold for a front part of the ring only.
    ///
    /// Looks at the front first: mostly nothing there has passed.
    pub(crate) fn find(&self, before: impl Fn(&Run) -> bool) -> usize {
        if self.get(0).is_some_and(|run| before(&run)) {
            self.halve(before)
        } else {
            0
        }
    }

    /// The same for what is mostly at the back.
    fn rfind(&self, before: impl Fn(&Run) -> bool) -> usize {
        if self.last().is_some_and(|run| before(&run)) {
            self.len()
        } else {
            self.halve(before)
        }
    }

    fn halve(&self, before: impl Fn(&Run) -> bool) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            if self.get(middle).is_some_and(|run| before(&run)) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    pub(crate) fn len(&self) -> usize {
        self.ring.map_or(0, |ring| ring.len)
    }

    /// What is left when runs whose moment has `passed` are gone.
    pub(crate) fn live(&self, passed: impl Fn(Timestamp) -> bool) -> Live {
        let Some(ring) = self.ring else {
            return Live {
                first: 0,
                base: 0,
                used: 0,
            };
        };
        let first = self.find(|run| passed(run.time) || run.total <= ring.base);
        let base = first
            .checked_sub(1)
            .and_then(|dead| self.get(dead))
            .map_or(ring.base, |run| run.total.max(ring.base));
        Live {
            first,
            base,
            used: ring.total - base,
        }
    }

    /// The run with this lease: a scan, since leases are looked up by their end only when they expire.
    pub(crate) fn of_lease(&self, lease: LeaseId) -> Option<usize> {
        (0..self.len()).find(|&index| self.get(index).is_some_and(|run| run.lease == lease))
    }

    /// The units of the run at `index` alone.
    pub(crate) fn units(&self, index: usize) -> u64 {
        let base = self.ring.map_or(0, |ring| ring.base);
        let up_to = |index| self.get(index).map_or(base, |run: Run| run.total.max(base));
        up_to(index) - index.checked_sub(1).map_or(base, up_to)
    }
}

impl Shape {
    /// For moments within `window` of each other and counts within `limit`.
    pub(crate) fn new(window: Micros, limit: u64, leased: bool) -> Self {
        Self {
            time_bits: bits(window.get()),
            total_bits: bits(limit),
            leased,
        }
    }

    /// Bytes of the packed moment and count.
    fn packed(self) -> usize {
        (self.time_bits + self.total_bits).div_ceil(8) as usize
    }

    /// Bytes of a run.
    fn stride(self) -> usize {
        self.packed() + if self.leased { size_of::<u64>() } else { 0 }
    }
}

impl Ring {
    pub(crate) fn new(shape: Shape, at: Timestamp) -> Self {
        Self {
            bytes: Box::default(),
            shape,
            head: 0,
            len: 0,
            newest: 0,
            ahead: 0,
            total: 0,
            base: 0,
            at,
        }
    }

    /// The time of the last write.
    pub(crate) fn at(&self) -> Timestamp {
        self.at
    }

    /// The moment of the last run, or of the last write if there is none.
    pub(crate) fn newest(&self) -> Timestamp {
        if self.len > 0 {
            Timestamp::from_micros(self.newest.saturating_sub(self.ahead))
        } else {
            self.at
        }
    }

    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// How many runs it holds.
    pub fn runs(&self) -> usize {
        self.len
    }

    /// Carries out an edit under a limit of `limit` units.
    pub(crate) fn apply(&mut self, edit: Edit, limit: u64, lease: LeaseId) {
        self.at = edit.at;
        self.ahead += edit.back.get();
        if let Some(cut) = edit.cut {
            self.cut(cut);
        }
        self.drop_front(edit.drop);
        self.base = self.base.max(edit.base);
        self.total = self.total.max(self.base);
        if let Some(add) = edit.add {
            self.add(add, limit, lease);
        }
    }

    fn get(&self, index: usize) -> Option<Run> {
        if index >= self.len {
            return None;
        }
        let start = self.offset(index);
        let (packed, rest) = self.bytes.get(start..)?.split_at_checked(self.shape.packed())?;
        let mut word = [0; 16];
        word.get_mut(..packed.len())?.copy_from_slice(packed);
        let word = u128::from_le_bytes(word);
        let time = nearest_below(self.newest, word as u64, self.shape.time_bits);
        let total = nearest_below(self.total, (word >> self.shape.time_bits) as u64, self.shape.total_bits);
        let lease = if self.shape.leased {
            rest.first_chunk().map_or(0, |id| u64::from_le_bytes(*id))
        } else {
            0
        };
        Some(Run {
            time: Timestamp::from_micros(time.saturating_sub(self.ahead)),
            total,
            lease: LeaseId(lease),
        })
    }

    /// Writes the run at `index`, whose moment is on the ring's clock.
    fn set(&mut self, index: usize, time: u64, total: u64, lease: LeaseId) {
        let Shape {
            time_bits,
            total_bits,
            leased,
        } = self.shape;
        let word = u128::from(low(time, time_bits)) | u128::from(low(total, total_bits)) << time_bits;
        let (start, packed) = (self.offset(index), self.shape.packed());
        let places = self
            .bytes
            .get_mut(start..)
            .and_then(|slot| slot.split_at_mut_checked(packed));
        let (slot, rest) = places.expect("a run is written within the capacity");
        slot.copy_from_slice(word.to_le_bytes().get(..packed).expect("a run packs into 16 bytes"));
        if leased {
            *rest.first_chunk_mut().expect("a leased run has room for its id") = lease.0.to_le_bytes();
        }
    }

    fn offset(&self, index: usize) -> usize {
        let capacity = self.capacity().max(1);
        (self.head + index) % capacity * self.shape.stride()
    }

    fn capacity(&self) -> usize {
        self.bytes.len() / self.shape.stride()
    }

    fn drop_front(&mut self, count: usize) {
        let count = count.min(self.len);
        self.head = (self.head + count) % self.capacity().max(1);
        self.len -= count;
    }

    fn cut(&mut self, Cut { index, units }: Cut) {
        let own = Runs::new(Some(self), Micros::ZERO).units(index);
        let tail = self.split_off(if units < own { index } else { index + 1 });
        if units >= own {
            self.split_off(index);
        }
        let units = units.min(own);
        for run in tail {
            self.push(run.time, run.total - units, run.lease);
        }
    }

    fn add(&mut self, Add { time, units }: Add, limit: u64, lease: LeaseId) {
        self.make_room(self.total + units - self.base, limit);
        let from = Runs::new(Some(self), Micros::ZERO).rfind(|run| run.time <= time);
        let later = self.split_off(from);
        let total = self.total + units;
        if !self.shape.leased && self.newest() == time && self.len > 0 {
            self.split_off(self.len - 1);
        }
        self.push(time, total, lease);
        for run in later {
            self.push(run.time, run.total + units, run.lease);
        }
    }

    /// The runs from `index` on, taken out.
    fn split_off(&mut self, index: usize) -> Vec<Run> {
        let tail: Vec<Run> = (index..self.len).filter_map(|index| self.get(index)).collect();
        let last = index.checked_sub(1).and_then(|last| self.get(last));
        self.len = self.len.min(index);
        self.total = last.map_or(self.base, |run| run.total);
        self.newest = last.map_or(0, |run| run.time.as_micros() + self.ahead);
        tail
    }

    /// Appends a run; there must be room.
    fn push(&mut self, time: Timestamp, total: u64, lease: LeaseId) {
        self.newest = time.as_micros() + self.ahead;
        self.total = total;
        self.len += 1;
        self.set(self.len - 1, self.newest, total, lease);
    }

    /// Makes room for one more run and for counts `span` apart: half as much again, but no more than the limit asks for.
    fn make_room(&mut self, span: u64, limit: u64) {
        let wide_enough = bits(span) <= self.shape.total_bits;
        let needed = self.len + 1;
        if wide_enough && needed <= self.capacity() {
            return;
        }
        let runs = self.split_off(0);
        if !wide_enough {
            self.shape.total_bits = bits(span.max(limit));
        }
        let most = usize::try_from(limit).unwrap_or(usize::MAX);
        let capacity = (needed + needed / 2).min(most).max(needed);
        self.bytes = vec![0; capacity * self.shape.stride()].into_boxed_slice();
        self.head = 0;
        for run in runs {
            self.push(run.time, run.total, run.lease);
        }
    }
}

/// Bits that tell `0..=most` apart.
const fn bits(most: u64) -> u32 {
    if most == 0 { 1 } else { u64::BITS - most.leading_zeros() }
}

/// The low bits of a number.
const fn low(number: u64, bits: u32) -> u64 {
    if bits < u64::BITS {
        number & ((1 << bits) - 1)
    } else {
        number
    }
}

/// The largest number not above `reference` whose low bits are those of `packed`.
const fn nearest_below(reference: u64, packed: u64, bits: u32) -> u64 {
    reference - low(reference.wrapping_sub(packed), bits)
}
