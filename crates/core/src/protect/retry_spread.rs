//! Spreading of `Retry-After`: each denied caller of a shared limit gets a return time of its own.
//!
//! A limit that many callers share has one wait, of milliseconds, for all of them, and the header has whole seconds: all
//! come back at once, jitter or not. Here the denied callers of a counter form a virtual queue that drains at the rate of
//! the limit. Only the extra wait is decided here; the wait itself, its jitter and its rounding belong to the writer of
//! the header.

use crate::units::muldiv::muldiv;
use crate::units::time::Micros;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::num::NonZeroU64;

/// The virtual queues of all counters that deny, in a fixed size. Only denials use it.
#[derive(Debug)]
pub struct RetrySpread {
    queues: QueueTable,
    callers: Box<[[ReturnTime; WAYS]]>,
}

/// A denial by a limit that callers share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryDenial {
    /// The counter that denied, as a keyed hash.
    pub counter: u64,
    /// The caller, as a keyed hash: counters and callers are chosen by attackers.
    pub caller: u64,
    /// The exact wait until the cost would pass.
    pub wait: Micros,
    /// The distance to the next caller in the queue: [`return_interval`].
    pub interval: Micros,
    /// The most that may be added to the wait.
    pub extra_max: Micros,
    /// A random number, for the part of a queue that is longer than `extra_max`.
    pub draw: u32,
}

/// The queues by counter.
#[derive(Debug, Default)]
struct QueueTable {
    by_counter: HashMap<u64, VirtualQueue, BuildHasherDefault<KeyedHasher>>,
    /// The counters, in no order.
    counters: Vec<u64>,
    /// The index of the counters that are looked at next when the table is full.
    hand: usize,
}

/// The queue of one counter.
#[derive(Clone, Copy, Debug, Default)]
struct VirtualQueue {
    /// The return time of the next caller.
    tail: Micros,
    /// The tail before the last caller.
    before: Micros,
    last_denial: Micros,
    last_caller: Option<u64>,
}

/// The return time of one caller at one counter. A vacant entry has an `at` of zero.
#[derive(Clone, Copy, Debug, Default)]
struct ReturnTime {
    /// A hash of counter and caller.
    key: u64,
    at: Micros,
}

/// The distance between two callers in a queue: `min(cost, mean admitted cost) × instances / rate`, rounded up.
///
/// `units` per `period` is the rate of the limit, and `instances` share it. `mean_cost_milli` is the mean cost of what
/// was admitted, in thousandths: one large cost then moves the tail no further than a mean one.
pub fn return_interval(
    cost: u64,
    mean_cost_milli: u64,
    instances: NonZeroU64,
    units: NonZeroU64,
    period: Micros,
) -> Micros {
    let cost_milli = cost.saturating_mul(1_000).min(mean_cost_milli).max(1);
    let (quotient, remainder) = muldiv(cost_milli, period.get().saturating_mul(instances.get()), units);
    // What the division left counts as one more thousandth.
    let milli = quotient.saturating_add(u64::from(remainder > 0));
    Micros::new(milli.div_ceil(1_000))
}

/// The value of `Retry-After` in seconds: `ceil((wait + extra) × (1 + draw/2^32 × jitter))`, at least 1. Zero would invite
/// a busy loop.
pub fn retry_after_s(wait: Micros, extra: Micros, jitter_ppm: u32, draw: u32) -> u64 {
    const WHOLE: u128 = 1_000_000 << 32;
    let factor = WHOLE + u128::from(jitter_ppm) * u128::from(draw);
    let stretched = (u128::from(plus(wait, extra).get()) * factor).div_ceil(WHOLE * 1_000_000);
    u64::try_from(stretched).unwrap_or(u64::MAX).max(1)
}

impl Default for RetrySpread {
    fn default() -> Self {
        Self {
            queues: QueueTable::default(),
            callers: vec![[ReturnTime::default(); WAYS]; CALLERS_MAX / WAYS].into(),
        }
    }
}

impl RetrySpread {
    /// The extra wait of a denied caller, at most `extra_max`. `now` is the time on the monotonic clock of this instance,
    /// which never goes back.
    ///
    /// A caller keeps its return time until that has passed, or the queue has emptied. The last caller in the queue is computed again instead: it
    /// may be alone, and a lone caller gets no extra wait, however its costs or the interval change meanwhile.
    pub fn extra(&mut self, now: Micros, denial: &RetryDenial) -> Micros {
        let key = mix(denial.counter, denial.caller);
        let queue = self.queues.queue(denial.counter, now);
        if now.get().saturating_sub(queue.last_denial.get()) > QUEUE_TTL.get() {
            *queue = VirtualQueue::default();
        }
        queue.last_denial = now;
        let due = plus(now, denial.wait);
        let index = usize::try_from(key % SETS).unwrap_or(0);
        let Some(set) = self.callers.get_mut(index) else {
            return Micros::ZERO;
        };
        // One beyond the tail was given by an earlier queue of this counter.
        let is_current = |entry: &ReturnTime| entry.key == key && now < entry.at && entry.at <= queue.tail;
        let kept = set.iter().find(|entry| is_current(entry)).map(|entry| entry.at);
        let is_last = queue.last_caller == Some(denial.caller);
        let at = match kept {
            Some(at) if !is_last => at,
            _ => {
                if is_last {
                    queue.tail = queue.before;
                }
                let at = queue.add(due, denial);
                // Its own entry, also one that was given by an earlier queue: that must not count again once the tail is beyond it.
                let own = set.iter().position(|entry| entry.key == key);
                // A return time that has passed is the earliest, and so goes first.
                let way = own.or_else(|| (0..WAYS).min_by_key(|way| set.get(*way).map(|entry| entry.at)));
                if let Some(entry) = way.and_then(|way| set.get_mut(way)) {
                    *entry = ReturnTime { key, at };
                }
                at
            }
        };
        Micros::new(at.get().saturating_sub(due.get())).min(denial.extra_max)
    }

    /// The length of the queue of a counter: the time until its last caller has returned.
    pub fn queue_length(&self, now: Micros, counter: u64) -> Micros {
        let queue = self.queues.by_counter.get(&counter);
        let live = queue.filter(|queue| now.get().saturating_sub(queue.last_denial.get()) <= QUEUE_TTL.get());
        Micros::new(live.map_or(0, |queue| queue.tail.get().saturating_sub(now.get())))
    }
}

impl VirtualQueue {
    /// The return time of a caller that is due at `due`: at the tail, which it moves. In a queue that is too long it is a
    /// random one, and the tail stays.
    fn add(&mut self, due: Micros, denial: &RetryDenial) -> Micros {
        let at = due.max(self.tail);
        if at.get() - due.get() <= denial.extra_max.get() {
            self.before = self.tail;
            self.tail = plus(at, denial.interval);
            self.last_caller = Some(denial.caller);
            return at;
        }
        let half = denial.extra_max.get() / 2;
        let drawn = (u128::from(half) * u128::from(denial.draw)) >> 32;
        plus(due, Micros::new(half + u64::try_from(drawn).unwrap_or(half)))
    }
}

impl QueueTable {
    /// The queue of a counter. In a full table it replaces an empty one, or the shortest, of the next few: a caller that chooses
    /// counters must not make every denial look at all of them.
    fn queue(&mut self, counter: u64, now: Micros) -> &mut VirtualQueue {
        if !self.by_counter.contains_key(&counter) {
            if self.counters.len() < QUEUES_MAX {
                self.counters.push(counter);
            } else {
                self.replace(counter, now);
            }
        }
        self.by_counter.entry(counter).or_default()
    }

    fn replace(&mut self, counter: u64, now: Micros) {
        let is_live = |queue: &VirtualQueue| now.get().saturating_sub(queue.last_denial.get()) <= QUEUE_TTL.get();
        let next = self.counters.iter_mut().skip(self.hand).take(EVICTION_SAMPLE);
        let shortest = next.min_by_key(|counter| {
            let queue = self.by_counter.get(counter);
            (queue.is_some_and(is_live), queue.map(|queue| queue.tail), **counter)
        });
        if let Some(shortest) = shortest {
            self.by_counter.remove(shortest);
            *shortest = counter;
        }
        self.hand = (self.hand + EVICTION_SAMPLE) % QUEUES_MAX;
    }
}

fn plus(at: Micros, span: Micros) -> Micros {
    Micros::new(at.get().saturating_add(span.get()))
}

/// One hash of two keyed hashes.
const fn mix(counter: u64, caller: u64) -> u64 {
    let mixed = (counter.rotate_left(32) ^ caller).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 29)
}

/// Passes keys on that are hashes already.
#[derive(Debug, Default)]
struct KeyedHasher(u64);

impl Hasher for KeyedHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

/// Without a denial for this long, a queue is empty.
const QUEUE_TTL: Micros = Micros::from_secs(5);
/// The counters that have a queue.
const QUEUES_MAX: usize = 1_024;
/// The queues that are compared when one is replaced.
const EVICTION_SAMPLE: usize = 16;
/// The callers that have a return time.
const CALLERS_MAX: usize = 16_384;
const WAYS: usize = 4;
const SETS: u64 = (CALLERS_MAX / WAYS) as u64;
