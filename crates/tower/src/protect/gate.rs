//! The gate in front of the service: shedder, then slots.

use super::{PriorityClass, Protection, SlotWaiter};
use crate::admission::denial::Denial;
use crate::extract::{KeyExtractor, RequestKey};
use http::request::Parts;
use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;
use tollgate_limiter::clock::{StartTime, Stopwatch};
use tollgate_limiter::core::Micros;
use tollgate_limiter::core::protect::{
    HoldTimes, LoadShedder, LoadSignals, QueueEntry, QueuePosition, SlotDecision, SlotQueue, SlotQueueConfig, WaiterId,
};

/// The gate of one layer. All clones are one.
#[derive(Clone)]
pub(crate) struct ProtectionGate(Arc<Shared>);

struct Shared {
    state: Mutex<GateState>,
    stopwatch: Stopwatch,
    started: StartTime,
    hash: RandomState,
    caller: Option<Arc<dyn KeyExtractor>>,
    wait_max: Duration,
    has_shedder: bool,
}

struct GateState {
    queue: SlotQueue,
    shedder: Option<LoadShedder>,
    hold_times: HoldTimes,
    waiters: HashMap<WaiterId, WaiterState>,
    shed: u64,
}

/// The state of a request in the queue.
#[derive(Debug)]
pub(super) enum WaiterState {
    /// It waits; this wakes it.
    Waiting(Option<Waker>),
    /// It has a slot.
    Granted,
    /// A request of a better class took its position.
    Displaced,
}

/// A slot. Dropping it gives it to the next request.
pub(crate) struct SlotGuard {
    gate: ProtectionGate,
    class: PriorityClass,
    taken_at: Micros,
}

/// The state of a protection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtectionStatus {
    /// Requests in flight.
    pub in_flight: u64,
    /// Requests that wait for a slot.
    pub waiting: usize,
    /// The share of requests that is shed, in millionths.
    pub level_ppm: u64,
    /// Requests that were shed.
    pub shed: u64,
}

impl ProtectionGate {
    /// A gate with these numbers. Those of the shedder that are out of range are an error.
    pub(crate) fn new(protection: &Protection) -> Result<Self, tollgate_limiter::core::protect::ShedderConfigError> {
        let stopwatch = Stopwatch::new();
        let started = stopwatch.start();
        let config = SlotQueueConfig {
            limit: protection.limit,
            reserve_ppm: u64::from(protection.reserve.millionths()),
            queue_max: protection.queue_max,
            wait_max: protection.wait_max.into(),
        };
        let shedder = protection
            .shedder
            .map(|config| LoadShedder::new(config, Micros::ZERO))
            .transpose()?;
        Ok(Self(Arc::new(Shared {
            state: Mutex::new(GateState {
                queue: SlotQueue::new(config, Micros::ZERO),
                shedder,
                hold_times: HoldTimes::default(),
                waiters: HashMap::new(),
                shed: 0,
            }),
            stopwatch,
            started,
            hash: RandomState::new(),
            caller: protection.caller.clone(),
            wait_max: protection.wait_max,
            has_shedder: protection.shedder.is_some(),
        })))
    }

    /// Asks for a slot: it is free, or the request waits, or it is denied.
    pub(crate) fn enter(
        &self,
        head: &Parts,
        peer: Option<IpAddr>,
        class: PriorityClass,
    ) -> Result<Result<SlotGuard, SlotWaiter>, Box<Denial>> {
        // Before the lock: the extractor is not ours.
        let caller = self.0.has_shedder.then(|| self.caller_hash(head, peer));
        let now = self.now();
        let mut state = self.lock();
        if let Some(caller) = caller
            && state.sheds(now, class, caller)
        {
            return Err(Denial::reduced("protect.shed", "The service is overloaded."));
        }
        let entry = QueueEntry {
            class,
            position: QueuePosition::Back,
        };
        self.enter_queue(state, now, entry)
    }

    /// Asks for a slot for a request that was held, at the head of its class.
    pub(crate) fn enter_again(&self, head: &Parts) -> Result<Result<SlotGuard, SlotWaiter>, Box<Denial>> {
        let entry = QueueEntry {
            class: head.extensions.get::<PriorityClass>().copied().unwrap_or_default(),
            position: QueuePosition::Front,
        };
        self.enter_queue(self.lock(), self.now(), entry)
    }

    fn enter_queue(
        &self,
        mut state: MutexGuard<'_, GateState>,
        now: Micros,
        entry: QueueEntry,
    ) -> Result<Result<SlotGuard, SlotWaiter>, Box<Denial>> {
        match state.queue.enter(now, entry) {
            SlotDecision::Allow => Ok(Ok(self.slot(entry.class, now))),
            SlotDecision::Wait { waiter, displaced } => {
                state.waiters.insert(waiter, WaiterState::Waiting(None));
                let displaced = displaced.and_then(|displaced| state.change(displaced, WaiterState::Displaced));
                drop(state);
                wake(displaced);
                Ok(Err(SlotWaiter::new(self.clone(), waiter, entry.class, self.0.wait_max)))
            }
            SlotDecision::Deny => Err(Self::full()),
        }
    }

    pub(super) fn full() -> Box<Denial> {
        Denial::reduced("protect.in_flight", "Too many requests are in flight.")
    }

    pub(super) fn slot(&self, class: PriorityClass, now: Micros) -> SlotGuard {
        SlotGuard {
            gate: self.clone(),
            class,
            taken_at: now,
        }
    }

    /// The slot of a waiter, if it has one now; an error if it will have none. While it waits, `waker` is kept.
    pub(super) fn poll_waiter(
        &self,
        waiter: WaiterId,
        class: PriorityClass,
        waker: &Waker,
    ) -> Option<Option<SlotGuard>> {
        let mut state = self.lock();
        if let Some(WaiterState::Waiting(kept)) = state.waiters.get_mut(&waiter) {
            match kept {
                Some(kept) => kept.clone_from(waker),
                None => *kept = Some(waker.clone()),
            }
            return None;
        }
        match state.waiters.remove(&waiter) {
            Some(WaiterState::Granted) => Some(Some(self.slot(class, self.now()))),
            _ => Some(None),
        }
    }

    /// Ends the wait of a request. Its slot, if it got one meanwhile.
    pub(super) fn leave(&self, waiter: WaiterId, class: PriorityClass) -> Option<SlotGuard> {
        let now = self.now();
        let mut state = self.lock();
        state.queue.leave(now, waiter);
        let left = state.waiters.remove(&waiter);
        // The caller behind it may be next.
        let wakers = state.grant(now);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        matches!(left, Some(WaiterState::Granted)).then(|| self.slot(class, now))
    }

    pub(crate) fn status(&self) -> ProtectionStatus {
        let state = self.lock();
        ProtectionStatus {
            in_flight: state.queue.in_flight(),
            waiting: state.queue.waiting(),
            level_ppm: state.shedder.as_ref().map_or(0, LoadShedder::level_ppm),
            shed: state.shed,
        }
    }

    /// The keyed hash of the caller and the hour, so that no caller can look for a cohort that is served.
    fn caller_hash(&self, head: &Parts, peer: Option<IpAddr>) -> u64 {
        let hour = self.now().get() / HOUR_US;
        let peer_key = || peer.map(|peer| RequestKey::from_address(peer, IPV6_PREFIX_BITS));
        let key = match &self.0.caller {
            Some(caller) => caller.key(head, peer).or_else(peer_key),
            None => peer_key(),
        };
        match key {
            Some(key) => self.0.hash.hash_one((key.as_bytes(), hour)),
            None => fastrand::u64(..),
        }
    }

    fn now(&self) -> Micros {
        Micros::new(self.0.stopwatch.elapsed_ns(self.0.started) / 1_000)
    }

    /// True while the lock is held.
    #[cfg(test)]
    pub(super) fn is_locked(&self) -> bool {
        self.0.state.try_lock().is_err()
    }

    fn lock(&self) -> MutexGuard<'_, GateState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl GateState {
    /// True if the shedder drops a request. The first one after a tick computes the level.
    fn sheds(&mut self, now: Micros, class: PriorityClass, caller: u64) -> bool {
        let Some(shedder) = &mut self.shedder else {
            return false;
        };
        if shedder.is_due(now) {
            let signals = LoadSignals {
                usage: self.queue.read_usage(now),
                other_ppm: 0,
                capacity_per_s: self.hold_times.capacity_per_s(now, self.queue.usable()),
            };
            shedder.evaluate(now, &signals);
        }
        let is_shed = shedder.sheds(now, class, caller, fastrand::u32(..));
        self.shed += u64::from(is_shed);
        is_shed
    }

    /// Gives free slots to those who wait, and returns their wakers.
    fn grant(&mut self, now: Micros) -> Vec<Waker> {
        let mut wakers = Vec::new();
        while let Some(grant) = self.queue.grant(now) {
            wakers.extend(self.change(grant.waiter, WaiterState::Granted));
        }
        wakers
    }

    /// Changes the state of a waiter, and returns its waker.
    fn change(&mut self, waiter: WaiterId, next: WaiterState) -> Option<Waker> {
        match std::mem::replace(self.waiters.get_mut(&waiter)?, next) {
            WaiterState::Waiting(waker) => waker,
            WaiterState::Granted | WaiterState::Displaced => None,
        }
    }
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        let now = self.gate.now();
        let mut state = self.gate.lock();
        state.queue.release(now, self.class);
        let held = now.get().saturating_sub(self.taken_at.get());
        state.hold_times.record(now, Micros::new(held));
        let wakers = state.grant(now);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl fmt::Debug for SlotGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlotGuard")
            .field("class", &self.class)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ProtectionGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ProtectionGate").field(&self.status()).finish()
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

const HOUR_US: u64 = 3_600_000_000;
/// The part of an IPv6 address that is one caller.
const IPV6_PREFIX_BITS: u8 = 64;
