//! Laws of the slot queue.

use proptest::prelude::*;
use std::collections::BTreeMap;
use tollgate_core::Micros;
use tollgate_core::protect::{
    PriorityClass, QueueEntry, QueuePosition, SlotDecision, SlotQueue, SlotQueueConfig, WHOLE_PPM, WaiterId,
};

#[derive(Clone, Copy, Debug)]
enum Op {
    Enter(PriorityClass),
    Release(usize),
    Leave(usize),
    Wait(u64),
    Limit(u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => prop::sample::select(&PriorityClass::ALL).prop_map(Op::Enter),
        4 => any::<usize>().prop_map(Op::Release),
        1 => any::<usize>().prop_map(Op::Leave),
        3 => (0..30_000_u64).prop_map(Op::Wait),
        1 => (1..12_u64).prop_map(Op::Limit),
    ]
}

/// A queue and what its owner knows.
struct Owner {
    queue: SlotQueue,
    config: SlotQueueConfig,
    now: Micros,
    holders: Vec<PriorityClass>,
    waiters: BTreeMap<WaiterId, (PriorityClass, Micros)>,
    slot_time: u64,
    ordinary_time: u64,
}

impl Owner {
    fn step(&mut self, op: Op) -> Result<(), TestCaseError> {
        match op {
            Op::Enter(class) => {
                let could = self.may_take(class);
                let full = self.waiters.len() >= self.config.queue_max;
                let entry = QueueEntry {
                    class,
                    position: QueuePosition::Back,
                };
                match self.queue.enter(self.now, entry) {
                    SlotDecision::Allow => {
                        prop_assert!(could);
                        self.holders.push(class);
                    }
                    SlotDecision::Wait { waiter, displaced } => {
                        prop_assert!(!could, "a slot was free");
                        if let Some(displaced) = displaced {
                            prop_assert!(full);
                            let (worse, _) = self.waiters.remove(&displaced).expect("it waited");
                            prop_assert!(worse > class);
                            prop_assert!(self.waiters.values().all(|(other, _)| *other <= worse));
                        }
                        prop_assert!(self.waiters.insert(waiter, (class, self.now)).is_none());
                    }
                    SlotDecision::Deny => {
                        prop_assert!(full && !could);
                        prop_assert!(self.waiters.values().all(|(other, _)| *other <= class));
                    }
                }
            }
            Op::Release(index) if !self.holders.is_empty() => {
                let class = self.holders.swap_remove(index % self.holders.len());
                self.queue.release(self.now, class);
            }
            Op::Leave(index) if !self.waiters.is_empty() => {
                let id = *self.waiters.keys().nth(index % self.waiters.len()).expect("in range");
                prop_assert!(self.queue.leave(self.now, id));
                self.waiters.remove(&id);
            }
            Op::Release(_) | Op::Leave(_) => {}
            Op::Wait(span) => {
                self.slot_time += span * self.holders.len() as u64;
                self.ordinary_time += span * self.ordinary();
                self.now = Micros::new(self.now.get() + span);
                while let Some(id) = self.queue.expire(self.now) {
                    let (_, since) = self.waiters.remove(&id).expect("it waited");
                    prop_assert!(self.now.get() - since.get() >= self.config.wait_max.get());
                }
                let is_late = |since: &Micros| self.now.get() - since.get() >= self.config.wait_max.get();
                prop_assert!(!self.waiters.values().any(|(_, since)| is_late(since)));
            }
            Op::Limit(limit) => {
                self.config.limit = limit;
                self.queue.set_limit(self.now, limit);
            }
        }
        while let Some(grant) = self.queue.grant(self.now) {
            let (class, since) = self.waiters.remove(&grant.waiter).expect("it waited");
            prop_assert_eq!(grant.class, class);
            prop_assert_eq!(grant.waited.get(), self.now.get() - since.get());
            // The best class that may take one, and the oldest of it.
            prop_assert!(self.waiters.iter().all(|(id, (other, _))| *other > class
                || *other == class && *id > grant.waiter
                || !self.may_take(*other)));
            prop_assert!(self.may_take(class));
            self.holders.push(class);
        }
        // No slot stays free while somebody waits who may take it.
        prop_assert!(!self.waiters.values().any(|(class, _)| self.may_take(*class)));
        prop_assert_eq!(self.queue.in_flight(), self.holders.len() as u64);
        prop_assert_eq!(self.queue.waiting(), self.waiters.len());
        prop_assert!(self.waiters.len() <= self.config.queue_max);
        Ok(())
    }

    fn may_take(&self, class: PriorityClass) -> bool {
        let reserved = (self.config.limit * self.config.reserve_ppm).div_ceil(WHOLE_PPM);
        let is_critical = class == PriorityClass::Critical;
        (self.holders.len() as u64) < self.config.limit
            && (is_critical || self.ordinary() + reserved < self.config.limit)
    }

    fn ordinary(&self) -> u64 {
        let ordinary = |class: &&PriorityClass| **class != PriorityClass::Critical;
        self.holders.iter().filter(ordinary).count() as u64
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn slots_and_queue_are_bounded_and_every_waiter_ends_once(
        limit in 1..12_u64, reserve_ppm in 0..=WHOLE_PPM, queue_max in 0..8_usize, wait_us in 1..50_000_u64,
        ops in prop::collection::vec(op(), 1..80),
    ) {
        let config = SlotQueueConfig { limit, reserve_ppm, queue_max, wait_max: Micros::new(wait_us) };
        let mut owner = Owner {
            queue: SlotQueue::new(config, Micros::ZERO),
            config,
            now: Micros::ZERO,
            holders: Vec::new(),
            waiters: BTreeMap::new(),
            slot_time: 0,
            ordinary_time: 0,
        };
        for op in ops {
            owner.step(op)?;
        }
        if owner.now > Micros::ZERO {
            let usage = owner.queue.read_usage(owner.now);
            let share = |slot_time: u64, slots| (slot_time * WHOLE_PPM / owner.now.get()).checked_div(slots).unwrap_or(0);
            let reserved = (owner.config.limit * owner.config.reserve_ppm).div_ceil(WHOLE_PPM);
            let ordinary = share(owner.ordinary_time, owner.config.limit - reserved);
            prop_assert_eq!(usage.in_flight_ppm, share(owner.slot_time, owner.config.limit).max(ordinary));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn the_oldest_waiter_is_found_wherever_it_waits(
        steps in prop::collection::vec((0..4_u8, prop::sample::select(&PriorityClass::ALL), 0..10_000_u64), 1..60),
    ) {
        let wait_max = Micros::new(20_000);
        let config = SlotQueueConfig { limit: 1, reserve_ppm: 0, queue_max: 12, wait_max };
        let mut queue = SlotQueue::new(config, Micros::ZERO);
        let mut holder = PriorityClass::Normal;
        queue.enter(Micros::ZERO, QueueEntry::default());
        let mut now = Micros::ZERO;
        let mut waiting: BTreeMap<WaiterId, Micros> = BTreeMap::new();
        for (action, class, gap) in steps {
            now = Micros::new(now.get() + gap);
            let position = if action == 0 { QueuePosition::Front } else { QueuePosition::Back };
            match action {
                0 | 1 => if let SlotDecision::Wait { waiter, displaced } = queue.enter(now, QueueEntry { class, position }) {
                    displaced.map(|displaced| waiting.remove(&displaced));
                    waiting.insert(waiter, now);
                }
                2 => if let Some(first) = waiting.keys().next().copied() {
                    prop_assert!(queue.leave(now, first));
                    waiting.remove(&first);
                }
                _ => {
                    queue.release(now, holder);
                    if let Some(grant) = queue.grant(now) {
                        holder = grant.class;
                        prop_assert_eq!(waiting.remove(&grant.waiter), Some(Micros::new(now.get() - grant.waited.get())));
                    } else {
                        holder = PriorityClass::Normal;
                        queue.enter(now, QueueEntry::default());
                    }
                }
            }
            while let Some(expired) = queue.expire(now) {
                let since = waiting.remove(&expired).expect("it waited");
                prop_assert!(now.get() - since.get() >= wait_max.get());
            }
            let age = waiting.values().map(|since| now.get() - since.get()).max().unwrap_or(0);
            prop_assert!(age < wait_max.get());
            // The first reading ends a tick, so that the second is of this moment.
            queue.read_usage(now);
            prop_assert_eq!(queue.read_usage(now).wait_min, Micros::new(age));
        }
    }
}

#[test]
fn the_shortest_age_of_the_oldest_waiter_tells_a_burst_from_overload() {
    let config = SlotQueueConfig {
        limit: 1,
        reserve_ppm: 0,
        queue_max: 10,
        wait_max: Micros::from_secs(1),
    };
    let mut queue = SlotQueue::new(config, Micros::ZERO);
    let ms = Micros::from_millis;
    let enter = |queue: &mut SlotQueue, at| queue.enter(ms(at), QueueEntry::default());
    assert_eq!(enter(&mut queue, 0), SlotDecision::Allow);
    for at in [10, 20, 30] {
        enter(&mut queue, at);
    }
    // In the first tick nothing waited at first.
    assert_eq!(queue.read_usage(ms(100)).wait_min, Micros::ZERO);
    // One is served at 150 ms; the oldest then waits since 20 ms. At 100 ms it was 90 ms.
    queue.release(ms(150), PriorityClass::Normal);
    assert!(queue.grant(ms(150)).is_some());
    assert_eq!(queue.read_usage(ms(200)).wait_min, ms(90));
    // Both are served, and nothing waits for a moment.
    for at in [210, 220] {
        queue.release(ms(at), PriorityClass::Normal);
        assert!(queue.grant(ms(at)).is_some());
    }
    enter(&mut queue, 230);
    assert_eq!(queue.read_usage(ms(300)).wait_min, Micros::ZERO);
    assert_eq!(queue.read_usage(ms(400)).wait_min, ms(70));
    assert_eq!(queue.read_usage(ms(400)).in_flight_ppm, WHOLE_PPM);
}

/// The slots of a queue of ten with this reserve: eight ordinary requests for one tick, then two critical ones as well.
fn usage_with_reserve(reserve_ppm: u64) -> [(u64, u64); 2] {
    let config = SlotQueueConfig {
        limit: 10,
        reserve_ppm,
        queue_max: 0,
        wait_max: Micros::from_secs(1),
    };
    let mut queue = SlotQueue::new(config, Micros::ZERO);
    let ms = Micros::from_millis;
    for _ in 0..8 {
        assert_eq!(queue.enter(Micros::ZERO, QueueEntry::default()), SlotDecision::Allow);
    }
    let ordinary = (queue.read_usage(ms(100)).in_flight_ppm, queue.usable());
    for _ in 0..2 {
        let critical = QueueEntry {
            class: PriorityClass::Critical,
            position: QueuePosition::Back,
        };
        assert_eq!(queue.enter(ms(100), critical), SlotDecision::Allow);
    }
    [ordinary, (queue.read_usage(ms(200)).in_flight_ppm, queue.usable())]
}

#[test]
fn ordinary_requests_that_fill_their_slots_are_full_use() {
    assert_eq!(usage_with_reserve(200_000), [(WHOLE_PPM, 8), (WHOLE_PPM, 10)]);
    assert_eq!(usage_with_reserve(100_000), [(888_888, 9), (WHOLE_PPM, 10)]);
    assert_eq!(usage_with_reserve(0), [(800_000, 10), (WHOLE_PPM, 10)]);
}

#[test]
fn a_reserve_of_all_slots_leaves_the_use_of_critical_requests() {
    let config = SlotQueueConfig {
        limit: 4,
        reserve_ppm: WHOLE_PPM,
        queue_max: 0,
        wait_max: Micros::from_secs(1),
    };
    let mut queue = SlotQueue::new(config, Micros::ZERO);
    assert_eq!(queue.read_usage(Micros::ZERO).in_flight_ppm, 0);
    assert_eq!(queue.enter(Micros::ZERO, QueueEntry::default()), SlotDecision::Deny);
    let critical = QueueEntry {
        class: PriorityClass::Critical,
        position: QueuePosition::Back,
    };
    assert_eq!(queue.enter(Micros::ZERO, critical), SlotDecision::Allow);
    assert_eq!(queue.read_usage(Micros::from_millis(100)).in_flight_ppm, 250_000);
}
