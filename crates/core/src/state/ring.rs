//! A packed ring of runs: the state of the sliding log.
//!
//! A run is a time and the cumulative count of units up to and including it. So the units between two runs are one
//! subtraction, and a run is found by binary search. Times and counts are stored modulo a power of two just above the
//! window and the limit: five bytes per run for 100 per minute, eight for nearly all limits, nine at most.

use crate::state::packed;
use crate::units::time::{Micros, Now, Timestamp};

/// The runs of one key, oldest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ring {
    bytes: Box<[u8]>,
    shape: Shape,
    capacity: usize,
    head: usize,
    len: usize,
    /// The time of the last run, on the ring's own clock, which is never set back.
    newest: u64,
    /// The time by which the ring's clock is ahead of the store's, after the store's was set back.
    ahead: u64,
    /// Units counted up to the last run.
    total: u64,
    /// Units counted up to here are gone: expired or refunded.
    base: u64,
    /// The time of the last write.
    at: Timestamp,
}

/// The packing of a run: its time and its count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    time_bits: u32,
    total_bits: u32,
    /// Bytes of a run.
    stride: usize,
}

/// One run, unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) time: Timestamp,
    pub(crate) total: u64,
}

/// The change a step makes to a ring, in this order. Small, since every step carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edit {
    /// The time of the write.
    pub(crate) at: Timestamp,
    /// The time by which the clock was set back.
    pub(crate) back: Micros,
    /// Units to remove from one run.
    pub(crate) cut: Cut,
    /// The number of runs to drop at the front.
    pub(crate) drop: u32,
    /// The count up to which units are gone.
    pub(crate) base: u64,
    /// Units to add.
    pub(crate) add: Add,
}

/// Removes `units` from the run at `index`, and the run if none are left. With zero units nothing happens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) index: u32,
    pub(crate) units: u32,
}

/// Adds a run of `units` at `time`. With zero units nothing happens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Add {
    pub(crate) time: Timestamp,
    pub(crate) units: u32,
}

/// A ring at the moment of a decision, when the clock may have been set back since the last write.
#[derive(Clone, Copy)]
pub(crate) struct RingView<'a> {
    ring: Option<&'a Ring>,
    back: Micros,
}

/// The runs that have not expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LiveRuns {
    /// The first of them.
    pub(crate) first: usize,
    /// The count before them.
    pub(crate) base: u64,
    /// Their units.
    pub(crate) used: u64,
}

impl Edit {
    /// Its numbers: the time, the time by which the clock was set back, index and units of a cut, runs to drop, the count
    /// up to which units are gone, time and units of an addition.
    pub fn numbers(&self) -> [u64; 8] {
        [
            self.at.as_micros(),
            self.back.get(),
            self.cut.index.into(),
            self.cut.units.into(),
            self.drop.into(),
            self.base,
            self.add.time.as_micros(),
            self.add.units.into(),
        ]
    }
}

impl<'a> RingView<'a> {
    pub(crate) fn new(ring: Option<&'a Ring>, back: Micros) -> Self {
        Self { ring, back }
    }

    /// The time of the last run, which the ring stores on its own.
    pub(crate) fn last(&self) -> Option<Timestamp> {
        self.ring
            .filter(|ring| ring.len > 0)
            .map(|ring| ring.newest() - self.back)
    }

    pub(crate) fn get(&self, index: usize) -> Option<Run> {
        let run = self.ring?.get(index)?;
        Some(Run {
            time: run.time - self.back,
            ..run
        })
    }

    /// The index of the first run for which `before` is false. It must be true for a front part of the ring only.
    ///
    /// An exponential search from the front, where usually few runs have expired.
    pub(crate) fn find(&self, before: impl Fn(&Run) -> bool) -> usize {
        let holds = |index| self.get(index).is_some_and(|run| before(&run));
        let (mut low, mut high, mut stride) = (0, 0, 1);
        while holds(high) {
            low = high + 1;
            high += stride;
            stride *= 2;
        }
        high = high.min(self.len());
        while low < high {
            let middle = low.midpoint(high);
            if holds(middle) {
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

    /// The runs that remain without those whose time has `passed`.
    pub(crate) fn live(&self, passed: impl Fn(Timestamp) -> bool) -> LiveRuns {
        let Some(ring) = self.ring else {
            return LiveRuns {
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
        LiveRuns {
            first,
            base,
            used: ring.total - base,
        }
    }

    /// The units of the run at `index`.
    pub(crate) fn units(&self, index: usize) -> u64 {
        let base = self.ring.map_or(0, |ring| ring.base);
        let up_to = |index| self.get(index).map_or(base, |run: Run| run.total.max(base));
        up_to(index) - index.checked_sub(1).map_or(base, up_to)
    }
}

impl Shape {
    /// The shape for times within `window` of each other and counts within `limit`.
    pub(crate) fn within(window: Micros, limit: u64) -> Self {
        Self::new(bits(window.get()), bits(limit))
    }

    fn new(time_bits: u32, total_bits: u32) -> Self {
        Self {
            time_bits,
            total_bits,
            stride: (time_bits + total_bits).div_ceil(8) as usize,
        }
    }

    /// Bits of times and bits of counts.
    pub(crate) fn numbers(self) -> (u32, u32) {
        (self.time_bits, self.total_bits)
    }

    /// The shape of numbers read from outside, if they are in range.
    pub(crate) fn from_numbers(time_bits: u8, total_bits: u8) -> Option<Self> {
        let in_range = (1..=53).contains(&time_bits) && (1..=32).contains(&total_bits);
        in_range.then(|| Self::new(time_bits.into(), total_bits.into()))
    }

    fn with_total(self, total: u64) -> Self {
        Self::new(self.time_bits, bits(total))
    }
}

impl Ring {
    pub(crate) fn new(shape: Shape, at: Timestamp) -> Self {
        Self {
            bytes: Box::default(),
            shape,
            capacity: 0,
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

    /// The time of the last run, or of the last write of an empty ring.
    pub(crate) fn newest(&self) -> Timestamp {
        if self.len > 0 {
            Timestamp::from_micros(self.newest.saturating_sub(self.ahead))
        } else {
            self.at
        }
    }

    /// The ring of runs read from outside, if they are in order and fit its shape.
    pub(crate) fn from_runs(shape: Shape, at: Timestamp, total: u64, runs: Vec<Run>) -> Option<Self> {
        let newest = runs.last().map_or(Timestamp::EPOCH, |run| run.time);
        let fits = |run: &Run| {
            low(newest.since(run.time).get(), shape.time_bits) == newest.since(run.time).get()
                && run.total <= total
                && low(total, shape.total_bits) == total
        };
        let in_order = runs.is_sorted_by_key(|run| (run.time, run.total)) && runs.is_sorted_by_key(|run| run.total);
        if !in_order || !runs.iter().all(fits) || runs.last().map_or(0, |run| run.total) != total {
            return None;
        }
        let mut ring = Self::new(shape, at);
        ring.reserve(runs.len());
        for run in runs {
            ring.push(run);
        }
        Some(ring)
    }

    /// Appends its bytes in a shared store: a header of numbers, then the slots.
    pub(crate) fn write_packed(&self, bytes: &mut Vec<u8>) {
        let (time_bits, total_bits) = self.shape.numbers();
        let shape = [time_bits.into(), total_bits.into(), RESERVED];
        packed::push_all(bytes, shape, SHAPE_WIDTHS);
        let slots = [self.capacity, self.head, self.len].map(|number| number as u64);
        packed::push_all(bytes, slots, SLOTS_WIDTHS);
        let counts = [self.newest, self.ahead, self.total, self.base, self.at.as_micros()];
        packed::push_all(bytes, counts, COUNTS_WIDTHS);
        bytes.extend(self.bytes.iter().take(self.capacity * self.shape.stride));
    }

    /// Reads a ring. None if no limit wrote these bytes.
    pub(crate) fn read_packed(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let [time_bits, total_bits, reserved] = packed::pull_all(&mut rest, SHAPE_WIDTHS)?;
        let slots = packed::pull_all(&mut rest, SLOTS_WIDTHS)?;
        let [newest, ahead, total, base, at] = packed::pull_all(&mut rest, COUNTS_WIDTHS)?;
        let shape = Shape::from_numbers(u8::try_from(time_bits).ok()?, u8::try_from(total_bits).ok()?)?;
        let [capacity, head, len] = slots.map(|number| number as usize);
        let is_ring = reserved == RESERVED
            && capacity.checked_mul(shape.stride) == Some(rest.len())
            && len <= capacity
            && (head < capacity || head == 0)
            && base <= total
            && total.max(ahead) <= 2 * REBASE_AT
            && newest <= Timestamp::MAX.as_micros()
            && at <= Now::MAX.as_micros();
        if !is_ring {
            return None;
        }
        let ring = Self {
            // A ring that never had a run has no capacity.
            bytes: match capacity {
                0 => Box::default(),
                _ => [rest, &[0; READ_BYTES]].concat().into_boxed_slice(),
            },
            shape,
            capacity,
            head,
            len,
            newest,
            ahead,
            total,
            base,
            at: Timestamp::from_micros(at),
        };
        let in_order = ring.iter().is_sorted_by_key(|run| run.time) && ring.iter().is_sorted_by_key(|run| run.total);
        let end_matches = ring
            .get(len.wrapping_sub(1))
            .is_none_or(|last| last.time == ring.newest() && last.total == total);
        (in_order && end_matches).then_some(ring)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Run> + '_ {
        (0..self.len).filter_map(|index| self.get(index))
    }

    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The number of runs.
    pub fn run_count(&self) -> usize {
        self.len
    }

    /// Applies an edit under a limit of `limit` units.
    pub(crate) fn apply(&mut self, edit: Edit, limit: u64) {
        self.at = edit.at;
        self.ahead += edit.back.get();
        if edit.cut.units > 0 {
            self.cut(edit.cut.index as usize, edit.cut.units.into());
        }
        self.drop_front(edit.drop as usize);
        self.base = self.base.max(edit.base);
        self.total = self.total.max(self.base);
        if self.len == 0 {
            (self.ahead, self.total, self.base) = (0, 0, 0);
        } else if self.ahead.max(self.total) > REBASE_AT || self.starts_before_epoch() {
            *self = self.rebuild(self.shape, self.capacity);
        }
        if edit.add.units > 0 {
            self.add(edit.add.time, edit.add.units.into(), limit);
        }
    }

    /// True if the clock was set back so far that the first run counts as of the epoch. By the ring's own clock that run
    /// is older, and would be kept until its time is ambiguous.
    fn starts_before_epoch(&self) -> bool {
        self.ahead > 0 && self.get(0).is_some_and(|run| run.time == Timestamp::EPOCH)
    }

    #[inline]
    fn get(&self, index: usize) -> Option<Run> {
        if index >= self.len {
            return None;
        }
        let slot = self.bytes.get(self.offset(index)..)?;
        let word = u128::from_le_bytes(*slot.first_chunk()?);
        let time = nearest_below(self.newest, word as u64, self.shape.time_bits);
        let total = nearest_below(self.total, (word >> self.shape.time_bits) as u64, self.shape.total_bits);
        Some(Run {
            time: Timestamp::from_micros(time.saturating_sub(self.ahead)),
            total,
        })
    }

    /// Writes a run. Leaves `newest` and `total` alone: the other runs are still read relative to them.
    fn set(&mut self, index: usize, run: Run) {
        let Shape {
            time_bits,
            total_bits,
            stride,
        } = self.shape;
        let time = run.time.as_micros() + self.ahead;
        let word = u128::from(low(time, time_bits)) | u128::from(low(run.total, total_bits)) << time_bits;
        let start = self.offset(index);
        let slot = self.bytes.get_mut(start..start + stride);
        let bytes = word.to_le_bytes();
        slot.expect("a run is written within the capacity")
            .copy_from_slice(bytes.get(..stride).expect("a run packs into 16 bytes"));
    }

    #[inline]
    fn offset(&self, index: usize) -> usize {
        let slot = self.head + index;
        let slot = if slot < self.capacity {
            slot
        } else {
            slot - self.capacity
        };
        slot * self.shape.stride
    }

    fn drop_front(&mut self, count: usize) {
        let count = count.min(self.len);
        self.head += count;
        if self.head >= self.capacity {
            self.head -= self.capacity;
        }
        self.len -= count;
    }

    /// Removes units from one run, and so from every count behind it; a run left empty is removed.
    fn cut(&mut self, index: usize, units: u64) {
        let run_units = RingView::new(Some(self), Micros::ZERO).units(index);
        let units = units.min(run_units);
        let emptied = usize::from(units == run_units);
        let last = self.get(self.len.saturating_sub(2));
        for from in index + emptied..self.len {
            self.move_run(from, from - emptied, units.wrapping_neg());
        }
        if emptied > 0 && index + 1 == self.len {
            self.newest = last.map_or(0, |run| run.time.as_micros() + self.ahead);
        }
        self.len -= emptied;
        self.total -= units;
    }

    /// Copies the run at `from` to `to`, with `units` added to its count.
    fn move_run(&mut self, from: usize, to: usize, units: u64) {
        let Shape {
            time_bits,
            total_bits,
            stride,
        } = self.shape;
        let (from, to) = (self.offset(from), self.offset(to));
        let Some(word) = self.bytes.get(from..).and_then(|run| run.first_chunk()) else {
            return;
        };
        let word = u128::from_le_bytes(*word);
        let total = low(((word >> time_bits) as u64).wrapping_add(units), total_bits);
        let word = low(word as u64, time_bits) as u128 | u128::from(total) << time_bits;
        let run = self.bytes.get_mut(to..to + stride);
        if let (Some(run), Some(word)) = (run, word.to_le_bytes().get(..stride)) {
            run.copy_from_slice(word);
        }
    }

    fn add(&mut self, time: Timestamp, units: u64, limit: u64) {
        self.ensure_capacity(self.total + units - self.base, limit);
        let newest = self.newest();
        let total = self.total + units;
        if self.len == 0 || time > newest {
            self.push(Run { time, total });
        } else {
            // Requests of one instant share a run.
            self.len -= 1;
            self.push(Run { time: newest, total });
        }
    }

    /// Appends a run, for which there is capacity.
    fn push(&mut self, run: Run) {
        self.len += 1;
        self.set(self.len - 1, run);
        self.newest = run.time.as_micros() + self.ahead;
        self.total = run.total;
    }

    /// Grows for one more run and for counts `span` apart: half as much again, but no more than the limit needs.
    fn ensure_capacity(&mut self, span: u64, limit: u64) {
        let wide_enough = bits(span) <= self.shape.total_bits;
        let needed = self.len + 1;
        if wide_enough && needed <= self.capacity {
            return;
        }
        let max = usize::try_from(limit).unwrap_or(usize::MAX);
        let capacity = (needed + needed / 2).min(max).max(needed);
        if wide_enough {
            self.grow(capacity);
        } else {
            *self = self.rebuild(self.shape.with_total(span.max(limit)), capacity);
        }
    }

    /// Moves the runs to a larger ring.
    fn grow(&mut self, capacity: usize) {
        let stride = self.shape.stride;
        let mut bytes = Vec::with_capacity(capacity * stride + READ_BYTES);
        let upper = self.len.min(self.capacity - self.head);
        for (first, count) in [(self.head, upper), (0, self.len - upper)] {
            let slots = self.bytes.get(first * stride..(first + count) * stride);
            bytes.extend_from_slice(slots.expect("runs lie within the capacity"));
        }
        bytes.resize(capacity * stride + READ_BYTES, 0);
        self.bytes = bytes.into_boxed_slice();
        (self.capacity, self.head) = (capacity, 0);
    }

    /// The same runs in another shape, on the store's clock and counted from zero.
    fn rebuild(&self, shape: Shape, capacity: usize) -> Self {
        let mut ring = Self::new(shape, self.at);
        ring.reserve(capacity);
        for run in self.iter() {
            ring.push(Run {
                total: run.total.saturating_sub(self.base),
                ..run
            });
        }
        ring
    }

    /// Gives an empty ring a capacity.
    fn reserve(&mut self, capacity: usize) {
        self.bytes = vec![0; capacity * self.shape.stride + READ_BYTES].into_boxed_slice();
        self.capacity = capacity;
    }
}

/// A ring's own clock and count are rebased from here on, long before they would leave the range of a double.
const REBASE_AT: u64 = 1 << 51;

/// Bytes of the numbers in the header of a stored ring: of its shape, its slots, and its times and counts.
const SHAPE_WIDTHS: [usize; 3] = [1; 3];
const SLOTS_WIDTHS: [usize; 3] = [4; 3];
const COUNTS_WIDTHS: [usize; 5] = [7; 5];

/// The third number of a stored ring, which has no use yet.
const RESERVED: u64 = 0;

/// Bytes read at once, and so the padding after the last run.
const READ_BYTES: usize = size_of::<u128>();

/// Bits that numbers up to `max` need.
const fn bits(max: u64) -> u32 {
    if max == 0 { 1 } else { u64::BITS - max.leading_zeros() }
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
    reference.wrapping_sub(low(reference.wrapping_sub(packed), bits))
}
