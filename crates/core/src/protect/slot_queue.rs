//! The slot queue: a bound on requests in flight, with bounded waiting by priority class.
//!
//! The fast loop of protection: under overload the best classes wait least, and what cannot be served in time is turned
//! away early, before it has consumed anything. It holds no requests: a waiter is a number, and the owner wakes it.

use crate::protect::{PriorityClass, WHOLE_PPM};
use crate::units::time::Micros;
use std::collections::VecDeque;

/// The numbers of a slot queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotQueueConfig {
    /// The slots.
    pub limit: u64,
    /// The share of the slots that only critical requests may take, in ppm; rounded up to whole slots.
    pub reserve_ppm: u64,
    /// The most requests that may wait, of all classes.
    pub queue_max: usize,
    /// The longest time a request may wait.
    pub wait_max: Micros,
}

/// Slots in flight, and a queue of waiters for each class.
#[derive(Clone, Debug)]
pub struct SlotQueue {
    config: SlotQueueConfig,
    in_flight: u64,
    /// Those of all classes but `critical`.
    ordinary: u64,
    waiters: [ClassQueue; 4],
    next_id: u64,
    meter: UsageMeter,
}

/// The number of a waiter, never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaiterId(u64);

/// The end of the queue at which a request waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueuePosition {
    /// Behind its class: a new request.
    #[default]
    Back,
    /// Before its class: a held request that gave its slot back and has waited already.
    Front,
}

/// A request that asks for a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueEntry {
    /// Its class.
    pub class: PriorityClass,
    /// Its end of the queue.
    pub position: QueuePosition,
}

/// The answer to a request for a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotDecision {
    /// It has a slot.
    Allow,
    /// It waits.
    Wait {
        /// Its number.
        waiter: WaiterId,
        /// The waiter of a worse class that lost its turn to it, and is denied now.
        displaced: Option<WaiterId>,
    },
    /// The queue is full of requests that are not worse.
    Deny,
}

/// A waiter that has a slot now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotGrant {
    /// Its number.
    pub waiter: WaiterId,
    /// Its class, which [`SlotQueue::release`] needs.
    pub class: PriorityClass,
    /// The time it waited.
    pub waited: Micros,
}

/// The use of the slots since the last reading: input of the load shedder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotUsage {
    /// Mean slots in flight over the limit, in ppm. With a reserve, that of ordinary requests over the slots that they may
    /// take, if it is more: the reserve is free while they wait.
    pub in_flight_ppm: u64,
    /// The shortest age of the oldest waiter: a burst that drained meanwhile is not overload.
    pub wait_min: Micros,
}

/// The waiters of one class: first the returned ones, the newest first, then the others, the oldest first.
#[derive(Clone, Debug, Default)]
struct ClassQueue {
    waiters: VecDeque<Waiter>,
    /// Those that returned.
    returned: usize,
}

#[derive(Clone, Copy, Debug)]
struct Waiter {
    id: WaiterId,
    since: Micros,
}

/// Sums between two readings.
#[derive(Clone, Copy, Debug, Default)]
struct UsageMeter {
    read_at: Micros,
    updated_at: Micros,
    /// Slots times microseconds.
    slot_time: u128,
    /// Those of all classes but `critical`.
    ordinary_time: u128,
    wait_min: Option<Micros>,
}

impl SlotQueue {
    /// An empty queue. `now` is the time on the monotonic clock of this instance.
    pub fn new(config: SlotQueueConfig, now: Micros) -> Self {
        Self {
            config,
            in_flight: 0,
            ordinary: 0,
            waiters: Default::default(),
            next_id: 0,
            meter: UsageMeter {
                read_at: now,
                updated_at: now,
                ..UsageMeter::default()
            },
        }
    }

    /// Asks for a slot.
    pub fn enter(&mut self, now: Micros, entry: QueueEntry) -> SlotDecision {
        self.advance(now);
        let class = entry.class;
        if self.may_take(class) && !self.is_behind(class) {
            self.take(class);
            return SlotDecision::Allow;
        }
        let mut displaced = None;
        if self.waiting() >= self.config.queue_max {
            displaced = self.displace(class);
            if displaced.is_none() {
                return SlotDecision::Deny;
            }
        }
        let waiter = WaiterId(self.next_id);
        self.next_id += 1;
        if let Some(queue) = self.waiters.get_mut(class.rank()) {
            queue.push(Waiter { id: waiter, since: now }, entry.position);
        }
        self.note_wait(now);
        SlotDecision::Wait { waiter, displaced }
    }

    /// Gives a slot back. Call [`SlotQueue::grant`] next.
    pub fn release(&mut self, now: Micros, class: PriorityClass) {
        self.advance(now);
        self.in_flight = self.in_flight.saturating_sub(1);
        if class != PriorityClass::Critical {
            self.ordinary = self.ordinary.saturating_sub(1);
        }
    }

    /// Gives a free slot to the next waiter, the best class first. To be called until it returns none.
    pub fn grant(&mut self, now: Micros) -> Option<SlotGrant> {
        self.advance(now);
        let class = PriorityClass::ALL.into_iter().find(|class| {
            let queue = self.waiters.get(class.rank());
            queue.is_some_and(|queue| !queue.is_empty()) && self.may_take(*class)
        })?;
        let waiter = self.waiters.get_mut(class.rank())?.remove(0)?;
        self.take(class);
        self.note_wait(now);
        Some(SlotGrant {
            waiter: waiter.id,
            class,
            waited: Micros::new(now.get().saturating_sub(waiter.since.get())),
        })
    }

    /// Ends the wait of the next waiter that has waited for `wait_max`. To be called until it returns none.
    pub fn expire(&mut self, now: Micros) -> Option<WaiterId> {
        self.advance(now);
        let wait_max = self.config.wait_max.get();
        let is_due = |waiter: &Waiter| now.get().saturating_sub(waiter.since.get()) >= wait_max;
        let expired = self.waiters.iter_mut().find_map(|queue| {
            let index = queue.position(is_due)?;
            queue.remove(index)
        })?;
        self.note_wait(now);
        Some(expired.id)
    }

    /// Ends the wait of a request whose caller left. False if it does not wait.
    pub fn leave(&mut self, now: Micros, waiter: WaiterId) -> bool {
        self.advance(now);
        let left = self.waiters.iter_mut().find_map(|queue| {
            let index = queue.waiters.iter().position(|waiting| waiting.id == waiter)?;
            queue.remove(index)
        });
        self.note_wait(now);
        left.is_some()
    }

    /// Changes the number of slots. Requests in flight keep theirs; call [`SlotQueue::grant`] next.
    pub fn set_limit(&mut self, now: Micros, limit: u64) {
        self.advance(now);
        self.config.limit = limit.max(1);
    }

    /// The use since the last reading.
    pub fn read_usage(&mut self, now: Micros) -> SlotUsage {
        self.advance(now);
        let elapsed = u128::from(now.get().saturating_sub(self.meter.read_at.get()));
        let share = |slot_time: u128, in_flight: u64, slots: u64| {
            if slots == 0 {
                return 0;
            }
            let whole = u128::from(WHOLE_PPM);
            let mean = (slot_time * whole).checked_div(elapsed * u128::from(slots));
            mean.unwrap_or_else(|| u128::from(in_flight) * whole / u128::from(slots))
        };
        let all = share(self.meter.slot_time, self.in_flight, self.config.limit.max(1));
        let ordinary = share(self.meter.ordinary_time, self.ordinary, self.ordinary_limit());
        let usage = SlotUsage {
            in_flight_ppm: u64::try_from(all.max(ordinary)).unwrap_or(u64::MAX),
            wait_min: self
                .meter
                .wait_min
                .unwrap_or_else(|| self.oldest_age(now))
                .min(self.oldest_age(now)),
        };
        self.meter = UsageMeter {
            read_at: now,
            updated_at: now,
            slot_time: 0,
            ordinary_time: 0,
            wait_min: Some(self.oldest_age(now)),
        };
        usage
    }

    /// Slots in use.
    pub const fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// The slots.
    pub const fn limit(&self) -> u64 {
        self.config.limit
    }

    /// Requests that wait, of all classes.
    pub fn waiting(&self) -> usize {
        self.waiters.iter().map(|queue| queue.waiters.len()).sum()
    }

    /// The slots that requests of other classes than `critical` may take.
    pub const fn ordinary_limit(&self) -> u64 {
        let reserved = self
            .config
            .limit
            .saturating_mul(self.config.reserve_ppm)
            .div_ceil(WHOLE_PPM);
        self.config.limit.saturating_sub(reserved)
    }

    /// The slots that the present requests can fill: those of ordinary ones, and those of the reserve in use. All of them
    /// without a reserve. The capacity of a service is that of these slots.
    pub fn usable(&self) -> u64 {
        let critical = self.in_flight.saturating_sub(self.ordinary);
        self.ordinary_limit().saturating_add(critical).min(self.config.limit)
    }

    const fn may_take(&self, class: PriorityClass) -> bool {
        let is_critical = matches!(class, PriorityClass::Critical);
        self.in_flight < self.config.limit && (is_critical || self.ordinary < self.ordinary_limit())
    }

    /// True if a request of this class or a better one waits, so that a newcomer must not pass it.
    fn is_behind(&self, class: PriorityClass) -> bool {
        let better = self.waiters.iter().take(class.rank() + 1);
        better.into_iter().any(|queue| !queue.is_empty())
    }

    fn take(&mut self, class: PriorityClass) {
        self.in_flight += 1;
        if class != PriorityClass::Critical {
            self.ordinary += 1;
        }
    }

    /// Removes the newest waiter of the worst class, if that is worse than `class`.
    fn displace(&mut self, class: PriorityClass) -> Option<WaiterId> {
        let worse = self.waiters.iter_mut().skip(class.rank() + 1).rev();
        let worst = worse.into_iter().find(|queue| !queue.is_empty())?;
        let newest = worst.waiters.len().checked_sub(1)?;
        worst.remove(newest).map(|waiter| waiter.id)
    }

    /// The age of the oldest waiter of any class; zero if nothing waits. Of any class, because better classes pass the
    /// others: the delay of what is served stays near zero under overload.
    fn oldest_age(&self, now: Micros) -> Micros {
        let oldest = self.waiters.iter().filter_map(ClassQueue::oldest).min();
        Micros::new(oldest.map_or(0, |since| now.get().saturating_sub(since.get())))
    }

    /// Adds the time since the last event to the sums.
    fn advance(&mut self, now: Micros) {
        let elapsed = now.get().saturating_sub(self.meter.updated_at.get());
        self.meter.slot_time += u128::from(elapsed) * u128::from(self.in_flight);
        self.meter.ordinary_time += u128::from(elapsed) * u128::from(self.ordinary);
        self.meter.updated_at = self.meter.updated_at.max(now);
    }

    /// Records the age of the oldest waiter after it changed.
    fn note_wait(&mut self, now: Micros) {
        let age = self.oldest_age(now);
        self.meter.wait_min = Some(self.meter.wait_min.map_or(age, |least| least.min(age)));
    }
}

impl ClassQueue {
    fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    fn push(&mut self, waiter: Waiter, position: QueuePosition) {
        match position {
            QueuePosition::Back => self.waiters.push_back(waiter),
            QueuePosition::Front => {
                self.waiters.push_front(waiter);
                self.returned += 1;
            }
        }
    }

    fn remove(&mut self, index: usize) -> Option<Waiter> {
        let waiter = self.waiters.remove(index)?;
        if index < self.returned {
            self.returned -= 1;
        }
        Some(waiter)
    }

    /// The first waiter that has waited for long enough. Behind the first one that did not return, none has waited longer.
    fn position(&self, is_due: impl Fn(&Waiter) -> bool) -> Option<usize> {
        self.waiters.iter().take(self.returned + 1).position(is_due)
    }

    /// The time since which the oldest one waits: the last of those that returned, or the first of the others.
    fn oldest(&self) -> Option<Micros> {
        let first = self.returned.saturating_sub(1);
        let oldest = self.waiters.range(first.min(self.waiters.len())..).take(2);
        oldest.map(|waiter| waiter.since).min()
    }
}
