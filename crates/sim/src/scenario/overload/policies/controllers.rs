//! Our controllers as a policy: load shedder, slot queue, and optionally the adaptive limit.

use super::{Action, Arrival, Policy};
use crate::scenario::overload::WORKERS;
use std::collections::BTreeMap;
use tollgate_core::Micros;
use tollgate_core::protect::{
    AdaptiveAlgorithm, AdaptiveConfig, AdaptiveLimit, HoldTimes, LoadShedder, LoadSignals, PriorityClass, QueueEntry,
    ResponseOutcome, ResponseSample, ShedderConfig, SlotDecision, SlotQueue, SlotQueueConfig, WaiterId,
};

/// The source of the number of slots.
#[derive(Clone, Copy, Debug)]
pub(super) enum LimitSource {
    /// As many as workers.
    Fixed,
    /// The adaptive limit, from 10 to 1,000.
    Adaptive { start: u64 },
}

/// Load shedder and slot queue, as a proxy would run them.
pub(super) struct ControllerPolicy {
    shedder: LoadShedder,
    queue: SlotQueue,
    adaptive: Option<AdaptiveLimit>,
    hold_times: HoldTimes,
    waiters: BTreeMap<WaiterId, usize>,
    wait_max: Micros,
}

impl ControllerPolicy {
    pub(super) fn new(source: LimitSource) -> Self {
        let adaptive = match source {
            LimitSource::Fixed => None,
            LimitSource::Adaptive { start } => {
                let config = AdaptiveConfig {
                    algorithm: AdaptiveAlgorithm::Gradient,
                    min: 10,
                    max: 1_000,
                };
                Some(AdaptiveLimit::new(config, start, Micros::ZERO))
            }
        };
        let limit = adaptive.as_ref().map_or(WORKERS, AdaptiveLimit::limit);
        Self::with(ShedderConfig::default(), adaptive, limit, 100, Micros::from_millis(50))
    }

    /// Stripe's: its ramp over the workers, which have a queue of requests that wait for a second. No bound by class.
    pub(super) fn stripe(parameters: usize) -> Self {
        let published = ShedderConfig::stripe();
        let (hold_off, up) = match parameters {
            1 => (Micros::from_millis(2_800), Micros::from_secs(12)),
            2 => (Micros::from_millis(300), Micros::from_secs(2)),
            _ => (published.hold_off, published.up),
        };
        let config = ShedderConfig {
            hold_off,
            up,
            down: up,
            ..published
        };
        Self::with(config, None, WORKERS, 100_000, Micros::from_secs(1))
    }

    fn with(
        shedder: ShedderConfig,
        adaptive: Option<AdaptiveLimit>,
        limit: u64,
        queue_max: usize,
        wait_max: Micros,
    ) -> Self {
        let slots = SlotQueueConfig {
            limit,
            reserve_ppm: 0,
            queue_max,
            wait_max,
        };
        Self {
            shedder: LoadShedder::new(shedder, Micros::ZERO).expect("numbers in range"),
            queue: SlotQueue::new(slots, Micros::ZERO),
            adaptive,
            hold_times: HoldTimes::default(),
            waiters: BTreeMap::new(),
            wait_max,
        }
    }

    fn grant(&mut self, now: Micros, actions: &mut Vec<Action>) {
        while let Some(grant) = self.queue.grant(now) {
            actions.extend(self.waiters.remove(&grant.waiter).map(Action::Dispatch));
        }
    }
}

impl Policy for ControllerPolicy {
    fn arrive(&mut self, now: Micros, arrival: &Arrival, actions: &mut Vec<Action>) {
        if self.shedder.is_due(now) {
            let signals = LoadSignals {
                usage: self.queue.read_usage(now),
                other_ppm: 0,
                capacity_per_s: self.hold_times.capacity_per_s(now, self.queue.limit()),
            };
            self.shedder.evaluate(now, &signals);
        }
        if self.shedder.sheds(now, arrival.class, arrival.caller, arrival.draw) {
            actions.push(Action::Shed(arrival.id));
            return;
        }
        let entry = QueueEntry {
            class: arrival.class,
            ..QueueEntry::default()
        };
        match self.queue.enter(now, entry) {
            SlotDecision::Allow => actions.push(Action::Dispatch(arrival.id)),
            SlotDecision::Deny => actions.push(Action::Deny(arrival.id)),
            SlotDecision::Wait { waiter, displaced } => {
                self.waiters.insert(waiter, arrival.id);
                actions.push(Action::WakeAt(Micros::new(now.get() + self.wait_max.get())));
                let displaced = displaced.and_then(|displaced| self.waiters.remove(&displaced));
                actions.extend(displaced.map(Action::Deny));
            }
        }
    }

    fn done(&mut self, now: Micros, class: PriorityClass, held: Micros, actions: &mut Vec<Action>) {
        self.hold_times.record(now, held);
        if let Some(adaptive) = &mut self.adaptive {
            let sample = ResponseSample {
                route: 0,
                latency: held,
                outcome: ResponseOutcome::Answered,
                in_flight: self.queue.in_flight(),
            };
            if let Some(limit) = adaptive.record(now, &sample) {
                self.queue.set_limit(now, limit);
            }
        }
        self.queue.release(now, class);
        self.grant(now, actions);
    }

    fn expire(&mut self, now: Micros, actions: &mut Vec<Action>) {
        while let Some(waiter) = self.queue.expire(now) {
            actions.extend(self.waiters.remove(&waiter).map(Action::Deny));
        }
    }

    fn level_ppm(&self) -> u64 {
        self.shedder.level_ppm()
    }

    fn limit(&self) -> Option<u64> {
        Some(self.queue.limit())
    }
}
