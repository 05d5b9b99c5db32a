//! The leases of one key: what the concurrency limit remembers.
//!
//! A table of slots with two ways through it: a doubly linked list in the order in which leases end, and hash chains by
//! lease id. Acquire, release and renew touch a few slots each, however many leases are held; only a clock that was set
//! back rewrites all of them. The hash table grows by linear hashing, one bucket with each new slot, so no operation has
//! to rehash.

use crate::algorithm::LeaseId;
use crate::state::packed;
use crate::units::time::{Micros, Now, Timestamp};

/// The leases of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseTable {
    slots: Vec<Slot>,
    /// The first slot of each hash chain, newest lease first. As many buckets as slots.
    buckets: Vec<SlotRef>,
    len: u16,
    /// Units of all leases, expired ones included until they are dropped.
    used: u16,
    /// The lease that ends first.
    head: SlotRef,
    /// The lease that ends last.
    tail: SlotRef,
    /// The first free slot; free slots are linked by `next`.
    free: SlotRef,
    /// The time of the last write.
    at: Timestamp,
}

/// A slot by its number, from one; zero for no slot.
type SlotRef = u16;

/// One lease, or a free slot, which is all zeros but for `next`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Slot {
    end_us: u64,
    id: u64,
    units: u16,
    prev: SlotRef,
    next: SlotRef,
    /// The next slot of its hash chain.
    chain: SlotRef,
}

/// The change a step makes to a table of leases, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseEdit {
    /// The time of the write.
    pub(crate) at: Timestamp,
    /// The time by which the clock was set back: all ends move by as much.
    pub(crate) back: Micros,
    /// The slot of a lease to remove; zero for no lease.
    pub(crate) release: SlotRef,
    /// The number of leases to remove of those that end first.
    pub(crate) drop: u16,
    /// Units to take from the lease that ends first after that.
    pub(crate) trim: u16,
    /// A lease to add; none if it has no units.
    pub(crate) add: NewLease,
}

/// A lease to add.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NewLease {
    pub(crate) end: Timestamp,
    pub(crate) units: u16,
}

/// Leases at the front of the list: how many, and their units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Front {
    pub(crate) len: u16,
    pub(crate) units: u16,
}

impl LeaseEdit {
    /// Its numbers: the time, the time by which the clock was set back, the slot to release, the leases to drop, the units to
    /// trim, end and units of the lease to add.
    pub fn numbers(&self) -> [u64; 7] {
        [
            self.at.as_micros(),
            self.back.get(),
            self.release.into(),
            self.drop.into(),
            self.trim.into(),
            self.add.end.as_micros(),
            self.add.units.into(),
        ]
    }
}

impl LeaseTable {
    pub(crate) const fn new(at: Timestamp) -> Self {
        Self {
            slots: Vec::new(),
            buckets: Vec::new(),
            len: 0,
            used: 0,
            head: 0,
            tail: 0,
            free: 0,
            at,
        }
    }

    /// The time of the last write.
    pub(crate) const fn at(&self) -> Timestamp {
        self.at
    }

    /// Units of all leases, expired ones included.
    pub(crate) const fn used(&self) -> u16 {
        self.used
    }

    /// The end of the lease that ends last, or the time of the last write of an empty table.
    pub(crate) fn last_end(&self) -> Timestamp {
        self.slot(self.tail).map_or(self.at, |slot| slot.end(Micros::ZERO))
    }

    /// The number of leases.
    pub fn len(&self) -> usize {
        self.len.into()
    }

    /// True if there is no lease.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Slot>() + self.buckets.capacity() * size_of::<SlotRef>()
    }

    /// The leases in the order in which they end: end, units and id.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Timestamp, u16, LeaseId)> + '_ {
        let next = |slot: &&Slot| self.slot(slot.next);
        std::iter::successors(self.slot(self.head), next)
            .map(|slot| (slot.end(Micros::ZERO), slot.units, LeaseId(slot.id)))
    }

    /// The leases that have ended at `now`, for a clock that was set back by `back`.
    pub(crate) fn expired(&self, now: Timestamp, back: Micros) -> Front {
        let has_ended = |slot: &Slot| slot.end(back) <= now;
        if self.slot(self.tail).is_none_or(has_ended) {
            return Front {
                len: self.len,
                units: self.used,
            };
        }
        let mut front = Front::default();
        let mut next = self.slot(self.head);
        while let Some(slot) = next.filter(|slot| has_ended(slot)) {
            front.len += 1;
            front.units += slot.units;
            next = self.slot(slot.next);
        }
        front
    }

    /// The leases behind `expired` that hold `units` together, and the units of the next one that are missing to that.
    pub(crate) fn front_of(&self, expired: Front, mut units: u16) -> (u16, u16) {
        let mut len = expired.len;
        for (_, held, _) in self.iter().skip(expired.len.into()) {
            if held > units {
                break;
            }
            units -= held;
            len += 1;
        }
        (len, units)
    }

    /// The slot and the units of a lease that has not ended. Of several with one id the oldest.
    pub(crate) fn find(&self, lease: LeaseId, now: Timestamp, back: Micros) -> Option<(SlotRef, u16)> {
        let mut found = None;
        let mut at = self.bucket(lease.0).copied().unwrap_or(0);
        while let Some(slot) = self.slot(at) {
            if slot.id == lease.0 && slot.end(back) > now {
                found = Some((at, slot.units));
            }
            at = slot.chain;
        }
        found
    }

    /// Applies an edit under a limit of `limit` units.
    pub(crate) fn apply(&mut self, edit: LeaseEdit, limit: u64, lease: LeaseId) {
        self.at = edit.at;
        if edit.back > Micros::ZERO {
            for slot in &mut self.slots {
                slot.end_us = slot.end(edit.back).as_micros();
            }
        }
        self.remove(edit.release);
        if edit.drop == self.len {
            *self = Self::cleared(
                std::mem::take(&mut self.slots),
                std::mem::take(&mut self.buckets),
                edit.at,
            );
        }
        for _ in 0..edit.drop.min(self.len) {
            self.remove(self.head);
        }
        let head = self.head;
        if let Some(slot) = self.slot_mut(head) {
            let trim = edit.trim.min(slot.units.saturating_sub(1));
            slot.units -= trim;
            self.used -= trim;
        }
        if edit.add.units > 0 {
            self.add(edit.add, limit, lease);
        }
    }

    /// An empty table that keeps its memory.
    fn cleared(mut slots: Vec<Slot>, mut buckets: Vec<SlotRef>, at: Timestamp) -> Self {
        slots.clear();
        buckets.clear();
        Self {
            slots,
            buckets,
            ..Self::new(at)
        }
    }

    fn add(&mut self, NewLease { end, units }: NewLease, limit: u64, lease: LeaseId) {
        let at = self.allocate(limit);
        // Leases end in the order they were taken, unless the limit's lease time was shortened.
        let mut prev = self.tail;
        while let Some(slot) = self.slot(prev).filter(|slot| slot.end_us > end.as_micros()) {
            prev = slot.prev;
        }
        let next = self.slot(prev).map_or(self.head, |slot| slot.next);
        let bucket = bucket_of(lease.0, self.buckets.len());
        let chain = self
            .buckets
            .get_mut(bucket)
            .map_or(0, |first| std::mem::replace(first, at));
        if let Some(slot) = self.slot_mut(at) {
            *slot = Slot {
                end_us: end.as_micros(),
                id: lease.0,
                units,
                prev,
                next,
                chain,
            };
        }
        self.link(prev, at, Link::Next);
        self.link(next, at, Link::Prev);
        self.len += 1;
        self.used += units;
    }

    /// Removes a lease and frees its slot. A table that is left empty has no slots.
    fn remove(&mut self, at: SlotRef) {
        let Some(&removed) = self.slot(at) else { return };
        if self.len == 1 {
            let (slots, buckets) = (std::mem::take(&mut self.slots), std::mem::take(&mut self.buckets));
            *self = Self::cleared(slots, buckets, self.at);
            return;
        }
        self.link(removed.prev, removed.next, Link::Next);
        self.link(removed.next, removed.prev, Link::Prev);
        self.unchain(at, removed);
        let free = std::mem::replace(&mut self.free, at);
        if let Some(slot) = self.slot_mut(at) {
            *slot = Slot {
                next: free,
                ..Slot::default()
            };
        }
        self.len -= 1;
        self.used -= removed.units;
    }

    /// Sets the link of a slot to the next or the previous one; of no slot, that is head or tail.
    fn link(&mut self, at: SlotRef, to: SlotRef, link: Link) {
        match (self.slot_mut(at), link) {
            (Some(slot), Link::Next) => slot.next = to,
            (Some(slot), Link::Prev) => slot.prev = to,
            (None, Link::Next) => self.head = to,
            (None, Link::Prev) => self.tail = to,
        }
    }

    /// Takes a slot out of its hash chain.
    fn unchain(&mut self, at: SlotRef, removed: Slot) {
        let bucket = bucket_of(removed.id, self.buckets.len());
        let mut before = self.buckets.get(bucket).copied().unwrap_or(0);
        if before == at {
            if let Some(first) = self.buckets.get_mut(bucket) {
                *first = removed.chain;
            }
            return;
        }
        while let Some(slot) = self.slot_mut(before) {
            if slot.chain == at {
                slot.chain = removed.chain;
                return;
            }
            before = slot.chain;
        }
    }

    /// A free slot, or a new one.
    fn allocate(&mut self, limit: u64) -> SlotRef {
        if let Some(&Slot { next, .. }) = self.slot(self.free) {
            return std::mem::replace(&mut self.free, next);
        }
        self.reserve(limit);
        self.slots.push(Slot::default());
        self.split();
        self.slots.len() as SlotRef
    }

    /// Reserves memory for one more slot: half as much again, but no more than the limit needs.
    fn reserve(&mut self, limit: u64) {
        let len = self.slots.len();
        if len == self.slots.capacity() || len == self.buckets.capacity() {
            let max = usize::try_from(limit).unwrap_or(usize::MAX).max(len + 1);
            let capacity = (len + len / 2 + 1).min(max);
            self.slots.reserve_exact(capacity - len);
            self.buckets.reserve_exact(capacity - self.buckets.len());
        }
    }

    /// Adds a bucket, and moves the leases to it that belong there.
    fn split(&mut self) {
        let new = self.buckets.len();
        self.buckets.push(0);
        let Some(half) = new.checked_ilog2().map(|bits| 1 << bits) else {
            return;
        };
        // Both chains keep their order. A slot is linked to the end of its chain, which is a bucket or another slot.
        let mut ends = [ChainEnd::Bucket(new - half), ChainEnd::Bucket(new)];
        let mut at = self.buckets.get(new - half).copied().unwrap_or(0);
        while let Some(&slot) = self.slot(at) {
            let moves = usize::from(slot.id % (2 * half as u64) == new as u64);
            if let Some(end) = ends.get_mut(moves) {
                let last = std::mem::replace(end, ChainEnd::Slot(at));
                self.set_chain_end(last, at);
            }
            at = slot.chain;
        }
        for end in ends {
            self.set_chain_end(end, 0);
        }
    }

    fn set_chain_end(&mut self, end: ChainEnd, to: SlotRef) {
        let link = match end {
            ChainEnd::Bucket(bucket) => self.buckets.get_mut(bucket),
            ChainEnd::Slot(at) => self.slot_mut(at).map(|slot| &mut slot.chain),
        };
        if let Some(link) = link {
            *link = to;
        }
    }

    fn bucket(&self, id: u64) -> Option<&SlotRef> {
        self.buckets.get(bucket_of(id, self.buckets.len()))
    }

    #[inline]
    fn slot(&self, at: SlotRef) -> Option<&Slot> {
        self.slots.get(usize::from(at).wrapping_sub(1))
    }

    #[inline]
    fn slot_mut(&mut self, at: SlotRef) -> Option<&mut Slot> {
        self.slots.get_mut(usize::from(at).wrapping_sub(1))
    }
}

/// The table of leases read from outside, if they are in order and no more than a limit holds.
pub(crate) fn from_leases(at: Timestamp, leases: &[(Timestamp, u16, LeaseId)], limit: u64) -> Option<LeaseTable> {
    let units = leases.iter().map(|(_, units, _)| u64::from(*units)).sum::<u64>();
    let in_order = leases.is_sorted_by_key(|(end, ..)| *end) && leases.iter().all(|(_, units, _)| *units > 0);
    if !in_order || units > limit {
        return None;
    }
    let mut table = LeaseTable::new(at);
    for &(end, units, lease) in leases {
        table.add(NewLease { end, units }, limit, lease);
    }
    Some(table)
}

impl LeaseTable {
    /// Appends its bytes in a shared store: a header of numbers, then the slots with their buckets.
    pub(crate) fn write_packed(&self, bytes: &mut Vec<u8>) {
        let numbers = [
            FORMAT,
            self.at.as_micros(),
            self.used.into(),
            self.len.into(),
            self.head.into(),
            self.tail.into(),
            self.free.into(),
            self.slots.len() as u64,
        ];
        packed::push_all(bytes, numbers, HEADER_WIDTHS);
        for (slot, bucket) in self.slots.iter().zip(&self.buckets) {
            let [units, prev, next, chain, bucket] =
                [slot.units, slot.prev, slot.next, slot.chain, *bucket].map(u64::from);
            let numbers = [slot.end_us, units, slot.id, prev, next, chain, bucket];
            packed::push_all(bytes, numbers, SLOT_WIDTHS);
        }
    }

    /// Reads a table. None if no limit wrote these bytes.
    pub(crate) fn read_packed(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let [format, at, used, len, head, tail, free, slots] = packed::pull_all(&mut rest, HEADER_WIDTHS)?;
        if format != FORMAT || at > Now::MAX.as_micros() {
            return None;
        }
        let mut table = Self {
            len: len as u16,
            used: used as u16,
            head: head as SlotRef,
            tail: tail as SlotRef,
            free: free as SlotRef,
            ..Self::new(Timestamp::from_micros(at))
        };
        for _ in 0..slots {
            let [end_us, units, id, prev, next, chain, bucket] = packed::pull_all(&mut rest, SLOT_WIDTHS)?;
            let [units, prev, next, chain, bucket] = [units, prev, next, chain, bucket].map(|number| number as u16);
            table.slots.push(Slot {
                end_us,
                id,
                units,
                prev,
                next,
                chain,
            });
            table.buckets.push(bucket);
        }
        (rest.is_empty() && table.is_consistent()).then_some(table)
    }

    /// True if every slot is in the list and in its hash chain, or free.
    fn is_consistent(&self) -> bool {
        let slots = self.slots.len();
        let walk = |first: SlotRef, next: fn(&Slot) -> SlotRef| {
            let refs = std::iter::successors(Some(first), move |at| self.slot(*at).map(next));
            refs.take_while(|at| *at != 0).take(slots + 1)
        };
        let (mut before, mut units, mut len, mut end_us) = (0, 0_u64, 0, 0);
        for at in walk(self.head, |slot| slot.next) {
            let Some(slot) = self.slot(at) else { return false };
            if slot.prev != before || slot.units == 0 || slot.end_us < end_us {
                return false;
            }
            (before, end_us) = (at, slot.end_us);
            units += u64::from(slot.units);
            len += 1;
        }
        let is_free = |at: SlotRef| {
            let free = |slot: &Slot| {
                *slot
                    == Slot {
                        next: slot.next,
                        ..Slot::default()
                    }
            };
            self.slot(at).is_some_and(free)
        };
        let free: Vec<SlotRef> = walk(self.free, |slot| slot.next).collect();
        let mut chained = 0;
        for (bucket, &first) in self.buckets.iter().enumerate() {
            for at in walk(first, |slot| slot.chain) {
                let in_bucket = |slot: &Slot| slot.units > 0 && bucket_of(slot.id, slots) == bucket;
                chained += 1;
                if chained > slots || !self.slot(at).is_some_and(in_bucket) {
                    return false;
                }
            }
        }
        before == self.tail
            && len == usize::from(self.len)
            && units == u64::from(self.used)
            && end_us <= Timestamp::MAX.as_micros()
            && (len > 0 || slots == 0)
            && len + free.len() == slots
            && free.into_iter().all(is_free)
            && chained == len
    }
}

impl Slot {
    /// The end of the lease, for a clock that was set back by `back`.
    #[inline]
    fn end(&self, back: Micros) -> Timestamp {
        Timestamp::from_micros(self.end_us) - back
    }
}

/// A direction of the list.
#[derive(Clone, Copy)]
enum Link {
    Next,
    Prev,
}

/// The link that a slot is appended to in a hash chain.
#[derive(Clone, Copy)]
enum ChainEnd {
    Bucket(usize),
    Slot(SlotRef),
}

/// The bucket of a lease id among `buckets`, by linear hashing: ids are random, so their low bits are a hash.
#[inline]
fn bucket_of(id: u64, buckets: usize) -> usize {
    let Some(bits) = buckets.checked_ilog2() else { return 0 };
    let bucket = (id % (2 << bits)) as usize;
    if bucket < buckets { bucket } else { bucket - (1 << bits) }
}

/// The first byte of a stored table. Rings, which held leases before, begin with another.
const FORMAT: u64 = 1;

/// Bytes of the numbers in the header of a stored table.
const HEADER_WIDTHS: [usize; 8] = [1, 7, 2, 2, 2, 2, 2, 2];

/// Bytes of the numbers of a slot: end, units, id, `prev`, `next`, `chain`, and the bucket of the same number.
const SLOT_WIDTHS: [usize; 7] = [7, 2, 8, 2, 2, 2, 2];

#[cfg(test)]
mod tests;
