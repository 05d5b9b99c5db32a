//! The event loop: arrivals, the policy, the service behind it.

use super::measure::{CellResult, End, Measure};
use super::pattern::class;
use super::policies::{Action, Arrival, Policy};
use super::{DENIAL_COST, OverloadCell, PATIENCE, SERVICE_MEAN, WORKERS};
use crate::workload::Draws;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use tollgate_core::Micros;
use tollgate_core::protect::PriorityClass;

/// One run.
pub(super) struct Engine<'c> {
    cell: &'c OverloadCell,
    policy: Box<dyn Policy>,
    /// Of arrivals and service times: equal for all policies.
    traffic: Draws,
    /// Of everything else.
    draws: Draws,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    /// Events with equal times are handled in the order they were made.
    sequence: u64,
    requests: Vec<Request>,
    busy: u64,
    /// Dispatched requests that wait for a worker.
    backlog: VecDeque<usize>,
    /// Worker time that denials have cost and no worker has paid yet.
    debt_us: u64,
    /// The time until which idle workers have paid.
    paid_at: u64,
    measure: Measure,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The next new request.
    Next,
    /// A caller returns with its request.
    Return(usize),
    /// A worker is done.
    Done(usize),
    /// A waiter may have waited for long enough.
    Expire,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    class: PriorityClass,
    caller: u64,
    arrived_us: u64,
    dispatched_us: u64,
    work_us: u64,
    retries_left: u8,
}

impl<'c> Engine<'c> {
    pub(super) fn new(cell: &'c OverloadCell, seed: u64, policy: Box<dyn Policy>) -> Self {
        let mut engine = Self {
            cell,
            policy,
            traffic: Draws::new(seed),
            draws: Draws::new(!seed),
            events: BinaryHeap::new(),
            sequence: 0,
            requests: Vec::new(),
            busy: 0,
            backlog: VecDeque::new(),
            debt_us: 0,
            paid_at: 0,
            measure: Measure::new(cell),
        };
        engine.schedule(0, Event::Next);
        engine
    }

    pub(super) fn run(mut self) -> CellResult {
        while let Some(Reverse((now, _, event))) = self.events.pop() {
            let idle = self.cell.pattern.workers(now).saturating_sub(self.busy);
            self.debt_us = self.debt_us.saturating_sub(idle * (now - self.paid_at));
            self.paid_at = now;
            match event {
                Event::Next => self.next_request(now),
                Event::Return(index) => self.arrive(now, index),
                Event::Done(index) => self.done(now, index),
                Event::Expire => {
                    let mut actions = Vec::new();
                    self.policy.expire(Micros::new(now), &mut actions);
                    self.apply(now, &actions);
                }
            }
        }
        self.measure.finish()
    }

    fn schedule(&mut self, at: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((at, self.sequence, event)));
    }

    fn next_request(&mut self, now: u64) {
        let pattern = self.cell.pattern;
        let load = pattern.load_percent(now, self.cell.load_percent);
        let mean_gap = SERVICE_MEAN.get() * 1_000 * 100 / WORKERS / load.max(1);
        // In nanoseconds, because at ten times the capacity the gaps are short.
        let gap = self.traffic.exponential(mean_gap).div_ceil(1_000);
        if now + gap < pattern.end_us() {
            self.schedule(now + gap, Event::Next);
        }
        let request = Request {
            class: class(&mut self.traffic),
            caller: self.traffic.below(CALLERS).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 8,
            arrived_us: now,
            dispatched_us: now,
            work_us: pattern.work_us(&mut self.traffic),
            retries_left: pattern.retries(),
        };
        self.requests.push(request);
        self.arrive(now, self.requests.len() - 1);
    }

    fn arrive(&mut self, now: u64, index: usize) {
        let Some(request) = self.requests.get_mut(index) else {
            return;
        };
        request.arrived_us = now;
        let arrival = Arrival {
            id: index,
            class: request.class,
            caller: request.caller,
            draw: self.draws.draw(),
        };
        let mut actions = Vec::new();
        self.policy.arrive(Micros::new(now), &arrival, &mut actions);
        self.measure.level(now, self.policy.level_ppm());
        self.apply(now, &actions);
    }

    fn apply(&mut self, now: u64, actions: &[Action]) {
        for action in actions {
            match *action {
                Action::Dispatch(index) => {
                    if let Some(request) = self.requests.get_mut(index) {
                        request.dispatched_us = now;
                        self.backlog.push_back(index);
                    }
                }
                Action::Deny(index) => self.end(now, index, End::Denied),
                Action::Shed(index) => self.end(now, index, End::Shed),
                Action::WakeAt(at) => self.schedule(at.get(), Event::Expire),
            }
        }
        self.start_work(now);
    }

    /// Gives free workers the requests that wait for one.
    fn start_work(&mut self, now: u64) {
        while self.busy < self.cell.pattern.workers(now) {
            let Some(index) = self.backlog.pop_front() else {
                return;
            };
            let Some(request) = self.requests.get(index).copied() else {
                continue;
            };
            let waited = Micros::new(now - request.dispatched_us);
            if self.policy.takes(Micros::new(now), waited) {
                self.busy += 1;
                let debt_us = std::mem::take(&mut self.debt_us);
                self.schedule(now + request.work_us + debt_us, Event::Done(index));
            } else {
                self.end(now, index, End::Denied);
            }
        }
    }

    fn done(&mut self, now: u64, index: usize) {
        self.busy -= 1;
        let Some(request) = self.requests.get(index).copied() else {
            return;
        };
        let end = if now - request.arrived_us <= PATIENCE.get() {
            End::Served
        } else {
            End::Late
        };
        self.end(now, index, end);
        let held = Micros::new(now - request.dispatched_us);
        let mut actions = Vec::new();
        self.policy.done(Micros::new(now), request.class, held, &mut actions);
        self.apply(now, &actions);
    }

    fn end(&mut self, now: u64, index: usize, end: End) {
        if matches!(end, End::Denied | End::Shed) {
            self.debt_us += DENIAL_COST.get();
        }
        let Some(request) = self.requests.get_mut(index) else {
            return;
        };
        self.measure.end(now, request.class, request.arrived_us, end);
        if end != End::Served && request.retries_left > 0 {
            request.retries_left -= 1;
            // A late response is one that the caller did not wait for.
            let from = if end == End::Late {
                request.arrived_us + PATIENCE.get()
            } else {
                now
            };
            let at = from.max(now) + 100_000 + self.draws.below(200_000);
            self.schedule(at, Event::Return(index));
        }
    }
}

const CALLERS: u64 = 10_000;
