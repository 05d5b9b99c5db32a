//! Callers that a limit denied, and the moments at which they return.
//!
//! The limit is a token bucket of the core, and `Retry-After` is written as the server writes it. Compared are the ways to
//! choose it: the exact wait with jitter, an estimate by the rate of denials, a queue that does not know callers, and
//! spreading as it is.

mod case;
mod headers;

pub use case::StormCase;
pub use headers::Strategy;

use self::case::{Honest, Population};
use self::headers::HeaderWriter;
use crate::workload::Draws;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use tollgate_core::{Cost, LeaseId, Limit, Micros, Now, Retry, State, Timestamp};

/// The storms to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StormPlan {
    /// The seed of all draws.
    pub seed: u64,
    /// The cases.
    pub cases: Vec<StormCase>,
    /// The ways to choose `Retry-After`.
    pub strategies: Vec<Strategy>,
}

/// The result of one storm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StormResult {
    /// The case.
    pub case: StormCase,
    /// The way to choose `Retry-After`.
    pub strategy: Strategy,
    /// All requests of honest callers.
    pub requests: u64,
    /// Their number if each caller were denied once at most.
    pub ideal: Option<u64>,
    /// The most requests of honest callers in 100 ms, after the first half second.
    pub peak: u64,
    /// The time the last caller was served, in milliseconds.
    pub last_served_ms: u64,
    /// Percentiles of the time from the first request of a caller to its success, in milliseconds.
    pub p50_ms: u64,
    /// The 99th percentile.
    pub p99_ms: u64,
    /// The longest time that a header was beyond the exact wait, in milliseconds.
    pub beyond_ms: u64,
}

impl Default for StormPlan {
    fn default() -> Self {
        Self {
            seed: 1,
            cases: StormCase::ALL.to_vec(),
            strategies: Strategy::ALL.to_vec(),
        }
    }
}

/// Runs all storms, case by case.
pub fn run(plan: &StormPlan) -> Vec<StormResult> {
    let storms = plan
        .cases
        .iter()
        .flat_map(|case| plan.strategies.iter().map(|strategy| (*case, *strategy)));
    storms
        .map(|(case, strategy)| Storm::new(case, strategy, plan.seed).run())
        .collect()
}

/// One run.
struct Storm {
    case: StormCase,
    strategy: Strategy,
    population: Population,
    limit: Limit,
    state: Option<State>,
    /// One for each instance.
    writers: Vec<HeaderWriter>,
    draws: Draws,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    sequence: u64,
    callers: Vec<Caller>,
    measure: StormMeasure,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A caller sends its request, for the first time or again.
    Honest(usize),
    /// The attacker sends its request with this number.
    Attack(u64),
}

#[derive(Clone, Copy, Debug)]
struct Caller {
    first_us: u64,
    /// True if it returns after a denial.
    returns: bool,
    instance: usize,
}

#[derive(Debug, Default)]
struct StormMeasure {
    requests: u64,
    peak: u64,
    recent: VecDeque<u64>,
    last_served_us: u64,
    waits_us: Vec<u64>,
    beyond_us: u64,
}

impl Storm {
    fn new(case: StormCase, strategy: Strategy, seed: u64) -> Self {
        let population = case.population();
        let mut storm = Self {
            case,
            strategy,
            limit: population.limit,
            state: None,
            writers: population
                .instance_weights
                .iter()
                .map(|_| HeaderWriter::new(strategy, &population))
                .collect(),
            population,
            draws: Draws::new(seed),
            events: BinaryHeap::new(),
            sequence: 0,
            callers: Vec::new(),
            measure: StormMeasure::default(),
        };
        storm.arrive();
        storm
    }

    /// Schedules the first request of every caller.
    fn arrive(&mut self) {
        let Honest {
            callers,
            within,
            quitters_percent,
        } = self.population.honest;
        for index in 0..callers {
            let first_us = self.draws.below(within.get().max(1));
            let returns = self.draws.below(100) >= quitters_percent;
            let instance = self.instance();
            self.callers.push(Caller {
                first_us,
                returns,
                instance,
            });
            self.schedule(first_us, Event::Honest(index));
        }
        if self.population.attack.is_some() {
            self.schedule(0, Event::Attack(0));
        }
    }

    /// An instance by its weight.
    fn instance(&mut self) -> usize {
        let mut draw = self.draws.below(100);
        for (index, weight) in self.population.instance_weights.iter().enumerate() {
            match draw.checked_sub(*weight) {
                None => return index,
                Some(rest) => draw = rest,
            }
        }
        0
    }

    fn schedule(&mut self, at: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((at, self.sequence, event)));
    }

    fn run(mut self) -> StormResult {
        while let Some(Reverse((now, _, event))) = self.events.pop() {
            match event {
                Event::Honest(index) => self.honest(now, index),
                Event::Attack(number) => self.attack(now, number),
            }
        }
        self.measure.result(self.case, self.strategy, &self.population)
    }

    /// The wait of a denial; none if it is allowed.
    fn decide(&mut self, now: u64) -> Option<Micros> {
        let at = Now::new(Timestamp::from_micros(START_US + now));
        let step = self.limit.decide(self.state.as_ref(), Cost::ONE, at);
        match step.decision.retry() {
            None => {
                if let Some(next) = step.next {
                    self.limit.keep(&mut self.state, next, LeaseId::default());
                }
                None
            }
            Some(Retry::After(wait)) => Some(wait),
            // A bucket knows the time, and a cost of one always passes at last.
            Some(Retry::Unknown | Retry::Never) => Some(Micros::ZERO),
        }
    }

    fn honest(&mut self, now: u64, index: usize) {
        let Some(caller) = self.callers.get(index).copied() else {
            return;
        };
        self.measure.request(now);
        let Some(wait) = self.decide(now) else {
            match self.population.polls_every {
                // It has no success that it waits for.
                Some(period) => self.poll(now, index, period),
                None => self.measure.served(now, caller.first_us),
            }
            return;
        };
        let Some(writer) = self.writers.get_mut(caller.instance) else {
            return;
        };
        let header_s = writer.write(now, index as u64, wait, &mut self.draws);
        let beyond = (header_s * 1_000_000).saturating_sub(wait.get());
        self.measure.beyond_us = self.measure.beyond_us.max(beyond);
        if let Some(period) = self.population.polls_every {
            self.poll(now, index, period);
        } else if caller.returns {
            let jitter = self.draws.below(self.population.client_jitter.get().max(1));
            self.schedule(now + header_s * 1_000_000 + jitter, Event::Honest(index));
        }
    }

    /// A poller asks for ever, which here is five minutes.
    fn poll(&mut self, now: u64, index: usize, period: Micros) {
        if now < POLLING_US {
            self.schedule(now + period.get(), Event::Honest(index));
        }
    }

    fn attack(&mut self, now: u64, number: u64) {
        let Some(attack) = self.population.attack else {
            return;
        };
        if let Some(wait) = self.decide(now)
            && let Some(writer) = self.writers.first_mut()
        {
            let address = ATTACKERS + number % attack.addresses;
            writer.write(now, address, wait, &mut self.draws);
        }
        let next = (number + 1) * 1_000_000 / attack.per_second;
        if next < attack.lasts.get() {
            self.schedule(next, Event::Attack(number + 1));
        }
    }
}

impl StormMeasure {
    fn request(&mut self, now: u64) {
        self.requests += 1;
        if now < PEAK_FROM_US {
            return;
        }
        self.recent.push_back(now);
        while self.recent.front().is_some_and(|first| now - first >= PEAK_WINDOW_US) {
            self.recent.pop_front();
        }
        self.peak = self.peak.max(self.recent.len() as u64);
    }

    fn served(&mut self, now: u64, first_us: u64) {
        self.last_served_us = self.last_served_us.max(now);
        self.waits_us.push(now - first_us);
    }

    fn result(mut self, case: StormCase, strategy: Strategy, population: &Population) -> StormResult {
        let percentile = |values: &mut [u64], percent| super::overload::percentile(values, percent).div_ceil(1_000);
        StormResult {
            case,
            strategy,
            requests: self.requests,
            ideal: population.ideal_requests(),
            peak: self.peak,
            last_served_ms: self.last_served_us.div_ceil(1_000),
            p50_ms: percentile(&mut self.waits_us, 50),
            p99_ms: percentile(&mut self.waits_us, 99),
            beyond_ms: self.beyond_us.div_ceil(1_000),
        }
    }
}

/// An hour: a state needs a time before it that it is fresh at.
const START_US: u64 = 3_600_000_000;
const PEAK_FROM_US: u64 = 500_000;
const PEAK_WINDOW_US: u64 = 100_000;
const POLLING_US: u64 = 300_000_000;
/// Callers have lower numbers.
const ATTACKERS: u64 = 1 << 40;
