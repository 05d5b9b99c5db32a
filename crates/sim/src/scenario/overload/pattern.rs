//! The course of a load, and the kinds of requests in it.

use super::{SERVICE_MEAN, WORKERS};
use crate::workload::Draws;
use tollgate_core::protect::PriorityClass;

/// The course of a load. Overload lasts 15 s; before and after it the load is 70 % of the capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// From the start.
    Steady,
    /// After five quiet seconds.
    Step,
    /// Two seconds of overload and two quiet ones, in turn.
    Sawtooth,
    /// The service has half of its workers in the second half of the overload.
    Halved,
    /// One request in twenty takes ten times as long as the others.
    Bimodal,
    /// Callers that got no response return, three times at most.
    Retrying,
}

impl Pattern {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Steady,
        Self::Step,
        Self::Sawtooth,
        Self::Halved,
        Self::Bimodal,
        Self::Retrying,
    ];

    /// Its name in reports and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Steady => "steady",
            Self::Step => "step",
            Self::Sawtooth => "sawtooth",
            Self::Halved => "halved",
            Self::Bimodal => "bimodal",
            Self::Retrying => "retrying",
        }
    }

    /// The pattern of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|pattern| pattern.name() == name)
    }

    /// The start and the end of the overload, in microseconds.
    pub(super) const fn overload_us(self) -> (u64, u64) {
        match self {
            Self::Steady => (0, OVERLOAD_US),
            _ => (QUIET_BEFORE_US, QUIET_BEFORE_US + OVERLOAD_US),
        }
    }

    /// The end of all arrivals.
    pub(super) const fn end_us(self) -> u64 {
        self.overload_us().1 + QUIET_AFTER_US
    }

    /// The load over the capacity of all workers at a time, in percent.
    pub(super) const fn load_percent(self, now_us: u64, overload_percent: u64) -> u64 {
        let (start, end) = self.overload_us();
        if now_us < start || now_us >= end {
            return QUIET_PERCENT;
        }
        match self {
            Self::Sawtooth if (now_us - start) / TOOTH_US % 2 == 1 => QUIET_PERCENT,
            _ => overload_percent,
        }
    }

    /// The workers at a time.
    pub(super) const fn workers(self, now_us: u64) -> u64 {
        let (start, end) = self.overload_us();
        match self {
            Self::Halved if now_us >= start + OVERLOAD_US / 2 && now_us < end => WORKERS / 2,
            _ => WORKERS,
        }
    }

    /// The time a worker takes for a request.
    pub(super) fn work_us(self, draws: &mut Draws) -> u64 {
        let mean = SERVICE_MEAN.get();
        match self {
            Self::Bimodal if draws.below(20) == 0 => draws.log_normal(mean * 200 / 29),
            // 0.95 x 20/29 + 0.05 x 200/29 is one.
            Self::Bimodal => draws.log_normal(mean * 20 / 29),
            _ => draws.log_normal(mean),
        }
    }

    /// The number of times that a caller returns which got no response.
    pub(super) const fn retries(self) -> u8 {
        match self {
            Self::Retrying => 3,
            _ => 0,
        }
    }
}

/// The class of a request: 5 % critical, 20 % high, 50 % normal, 25 % low. A tenth would be the whole capacity at ten times
/// the load.
pub(super) fn class(draws: &mut Draws) -> PriorityClass {
    match draws.below(20) {
        0 => PriorityClass::Critical,
        1..=4 => PriorityClass::High,
        5..=14 => PriorityClass::Normal,
        _ => PriorityClass::Low,
    }
}

const OVERLOAD_US: u64 = 15_000_000;
const QUIET_BEFORE_US: u64 = 5_000_000;
const QUIET_AFTER_US: u64 = 10_000_000;
const QUIET_PERCENT: u64 = 70;
const TOOTH_US: u64 = 2_000_000;
