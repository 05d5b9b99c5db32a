//! The course of an adaptive limit under steady overload.

use super::{OverloadCell, Pattern, PolicyKind, SERVICE_MEAN, WORKERS, policies};
use crate::workload::Draws;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use tollgate_core::Micros;
use tollgate_core::protect::PriorityClass;

/// A run of one adaptive limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdaptiveRun {
    /// The policy.
    pub policy: PolicyKind,
    /// The slots it started with.
    pub start: u64,
    /// The slots every ten seconds. The service has half of its workers in the last ten.
    pub limits: Vec<u64>,
    /// The mean of the second minute, and that of the last one before the workers are halved.
    pub drift: (u64, u64),
    /// The limit ten seconds after half of the workers are gone.
    pub after_halving: u64,
}

/// Runs an adaptive limit for `seconds` under 120 % of the capacity, and then ten seconds with half of the workers.
///
/// The right limit is the number of workers: with fewer slots some idle, with more requests wait behind it.
pub fn run_adaptive(policy: PolicyKind, start: u64, seconds: u64, seed: u64) -> AdaptiveRun {
    let mut limit = match policy {
        PolicyKind::Gradient2 => policies::build_gradient2(start),
        _ => policies::build_adaptive(start),
    };
    let mut draws = Draws::new(seed);
    let mut service = Service::default();
    let mut next_us = 0;
    let mut limits = Vec::new();
    let mut samples: Vec<u64> = Vec::new();
    let end_us = (seconds + 10) * 1_000_000;
    let mean_gap_ns = SERVICE_MEAN.get() * 1_000 * 100 / WORKERS / 120;
    let mut actions = Vec::new();
    let mut requests: Vec<u64> = Vec::new();
    let mut free: Vec<usize> = Vec::new();
    while next_us < end_us {
        let second = usize::try_from(next_us / 1_000_000).unwrap_or(0);
        while samples.len() <= second {
            samples.push(limit.limit().unwrap_or(0));
        }
        service.workers = if next_us < seconds * 1_000_000 {
            WORKERS
        } else {
            WORKERS / 2
        };
        let done_at = service.next_end();
        if done_at.is_some_and(|at| at <= next_us) {
            if let Some(Reverse((now, id))) = service.running.pop() {
                let held = requests.get(id).map_or(0, |dispatched| now - dispatched);
                limit.done(Micros::new(now), PriorityClass::Normal, Micros::new(held), &mut actions);
                free.push(id);
                service.apply(now, &mut actions, &mut requests, &mut free, &mut draws);
            }
            continue;
        }
        let id = free.pop().unwrap_or_else(|| {
            requests.push(0);
            requests.len() - 1
        });
        let arrival = policies::Arrival {
            id,
            class: PriorityClass::Normal,
            caller: draws.bits() >> 8,
            draw: draws.draw(),
        };
        limit.expire(Micros::new(next_us), &mut actions);
        limit.arrive(Micros::new(next_us), &arrival, &mut actions);
        service.apply(next_us, &mut actions, &mut requests, &mut free, &mut draws);
        next_us += draws.exponential(mean_gap_ns).div_ceil(1_000);
    }
    let mean = |samples: &[u64]| samples.iter().sum::<u64>() / (samples.len() as u64).max(1);
    let full = usize::try_from(seconds).unwrap_or(0);
    let part = |from: usize, to: usize| mean(samples.get(from..to).unwrap_or_default());
    limits.extend(samples.iter().step_by(10));
    AdaptiveRun {
        policy,
        start,
        drift: (
            part(60.min(full / 2), 120.min(full)),
            part(full.saturating_sub(60), full),
        ),
        after_halving: samples.last().copied().unwrap_or(0),
        limits,
    }
}

/// The workers and their queue.
#[derive(Default)]
struct Service {
    workers: u64,
    running: BinaryHeap<Reverse<(u64, usize)>>,
    backlog: VecDeque<usize>,
}

impl Service {
    fn next_end(&self) -> Option<u64> {
        self.running.peek().map(|Reverse((at, _))| *at)
    }

    fn apply(
        &mut self,
        now: u64,
        actions: &mut Vec<policies::Action>,
        requests: &mut [u64],
        free: &mut Vec<usize>,
        draws: &mut Draws,
    ) {
        for action in actions.drain(..) {
            match action {
                policies::Action::Dispatch(id) => {
                    if let Some(dispatched) = requests.get_mut(id) {
                        *dispatched = now;
                    }
                    self.backlog.push_back(id);
                }
                policies::Action::Deny(id) | policies::Action::Shed(id) => free.push(id),
                policies::Action::WakeAt(_) => {}
            }
        }
        while (self.running.len() as u64) < self.workers
            && let Some(id) = self.backlog.pop_front()
        {
            let work = draws.log_normal(SERVICE_MEAN.get());
            self.running.push(Reverse((now + work, id)));
        }
    }
}

/// The cell of a policy under steady load, for callers that run single cells.
impl OverloadCell {
    /// A policy with its first parameters.
    pub const fn steady(policy: PolicyKind, load_percent: u64) -> Self {
        Self {
            policy,
            parameters: 0,
            pattern: Pattern::Steady,
            load_percent,
        }
    }
}
