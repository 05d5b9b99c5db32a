//! The ways to choose `Retry-After`.

use super::case::Population;
use crate::workload::Draws;
use std::collections::VecDeque;
use std::num::NonZeroU64;
use tollgate_core::Micros;
use tollgate_core::protect::{RetryDenial, RetrySpread, retry_after_s, return_interval};

/// A way to choose `Retry-After`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// The exact wait and 10 % jitter.
    Jitter,
    /// A random time within that which the denials of the last second need: `wait + u × denials / rate`.
    DenialRate,
    /// A queue of return times that does not know callers: each denial is one more.
    AnonymousQueue,
    /// Spreading.
    Spread,
}

impl Strategy {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Jitter, Self::DenialRate, Self::AnonymousQueue, Self::Spread];

    /// Its name in reports and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Jitter => "jitter",
            Self::DenialRate => "rate",
            Self::AnonymousQueue => "queue",
            Self::Spread => "spread",
        }
    }

    /// The strategy of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|strategy| strategy.name() == name)
    }
}

/// Writes the headers of one instance.
#[derive(Debug)]
pub(super) struct HeaderWriter {
    strategy: Strategy,
    spread: RetrySpread,
    interval: Micros,
    extra_max: Micros,
    /// Denials of the last second.
    denials: VecDeque<u64>,
    /// The number of denials, which stands for the caller where callers are unknown.
    count: u64,
}

impl HeaderWriter {
    pub(super) fn new(strategy: Strategy, population: &Population) -> Self {
        let number = |number: u64| NonZeroU64::new(number).unwrap_or(NonZeroU64::MIN);
        let instances = number(population.instance_weights.len() as u64);
        let rate = population.rate;
        Self {
            strategy,
            spread: RetrySpread::default(),
            interval: return_interval(1, 1_000, instances, number(rate.units()), rate.period()),
            extra_max: population.extra_max,
            denials: VecDeque::new(),
            count: 0,
        }
    }

    /// The header of a denial, in seconds.
    pub(super) fn write(&mut self, now: u64, caller: u64, wait: Micros, draws: &mut Draws) -> u64 {
        self.count += 1;
        let extra = match self.strategy {
            Strategy::Jitter => Micros::ZERO,
            Strategy::DenialRate => self.by_denials(now, draws),
            Strategy::AnonymousQueue => self.by_queue(now, self.count, wait, draws),
            Strategy::Spread => self.by_queue(now, caller, wait, draws),
        };
        retry_after_s(wait, extra, JITTER_PPM, draws.draw())
    }

    fn by_denials(&mut self, now: u64, draws: &mut Draws) -> Micros {
        self.denials.push_back(now);
        while self.denials.front().is_some_and(|first| now - first > 1_000_000) {
            self.denials.pop_front();
        }
        let needed = self.interval.get() * self.denials.len() as u64;
        Micros::new(draws.below(needed.min(self.extra_max.get())))
    }

    fn by_queue(&mut self, now: u64, caller: u64, wait: Micros, draws: &mut Draws) -> Micros {
        let denial = RetryDenial {
            counter: 1,
            // As a keyed hash would spread them.
            caller: Draws::new(caller).bits(),
            wait,
            interval: self.interval,
            extra_max: self.extra_max,
            draw: draws.draw(),
        };
        self.spread.extra(Micros::new(now), &denial)
    }
}

const JITTER_PPM: u32 = 100_000;
