//! The policies in front of the service: ours, and those that others have published.

mod codel;
mod controllers;
mod dagor;
mod limits;

pub use limits::{AimdLimit, Gradient2Limit, LimitAlgorithm, LimitSample, VegasLimit};

use codel::CodelPolicy;
use controllers::{ControllerPolicy, LimitSource};
use dagor::DagorPolicy;
use limits::{FixedLimit, LimitPolicy, Windowed};
use tollgate_core::Micros;
use tollgate_core::protect::PriorityClass;

pub use codel::ControlledDelay;
pub use dagor::AdmissionLevels;

/// A policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyKind {
    /// No protection.
    None,
    /// A bound on requests in flight.
    Fixed,
    /// CoDel on the queue of the service (RFC 8289).
    Codel,
    /// Gradient2 of Netflix's concurrency-limits.
    Gradient2,
    /// Vegas of the same library.
    Vegas,
    /// AIMD of the same library.
    Aimd,
    /// A load shedder with the ramp that Stripe published.
    Stripe,
    /// DAGOR of WeChat: admission levels of priorities, by queueing time.
    Dagor,
    /// Slot queue and load shedder.
    Ours,
    /// The same, with as many slots as the adaptive limit says.
    OursAuto,
}

/// A request that arrives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) id: usize,
    pub(super) class: PriorityClass,
    /// A hash of the caller.
    pub(super) caller: u64,
    pub(super) draw: u32,
}

/// An answer of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// To the service.
    Dispatch(usize),
    /// Turned away.
    Deny(usize),
    /// Turned away by a load shedder.
    Shed(usize),
    /// `expire` is to be called then.
    WakeAt(Micros),
}

/// A policy in front of the service.
pub(super) trait Policy {
    /// Decides an arrival.
    fn arrive(&mut self, now: Micros, arrival: &Arrival, actions: &mut Vec<Action>);

    /// Learns of a response, `held` after its request was dispatched.
    fn done(&mut self, now: Micros, class: PriorityClass, held: Micros, actions: &mut Vec<Action>);

    /// Ends waits that have lasted too long.
    fn expire(&mut self, _now: Micros, _actions: &mut Vec<Action>) {}

    /// True if a worker takes a request that waited for one; false drops it.
    fn takes(&mut self, _now: Micros, _waited: Micros) -> bool {
        true
    }

    /// The level of its load shedder.
    fn level_ppm(&self) -> u64 {
        0
    }

    /// Its present limit, if it has one.
    fn limit(&self) -> Option<u64> {
        None
    }
}

impl PolicyKind {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::None,
        Self::Fixed,
        Self::Codel,
        Self::Gradient2,
        Self::Vegas,
        Self::Aimd,
        Self::Stripe,
        Self::Dagor,
        Self::Ours,
        Self::OursAuto,
    ];

    /// Its name in reports and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Fixed => "fixed",
            Self::Codel => "codel",
            Self::Gradient2 => "gradient2",
            Self::Vegas => "vegas",
            Self::Aimd => "aimd",
            Self::Stripe => "stripe",
            Self::Dagor => "dagor",
            Self::Ours => "ours",
            Self::OursAuto => "ours-auto",
        }
    }

    /// The policy of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == name)
    }

    /// True if others have published it.
    pub const fn is_published(self) -> bool {
        !matches!(self, Self::None | Self::Ours | Self::OursAuto)
    }

    /// The parameters that are tried, by name; the published ones first.
    pub const fn grid(self) -> &'static [&'static str] {
        match self {
            Self::None | Self::Ours | Self::OursAuto => &["default"],
            Self::Fixed => &["limit 100", "limit 120", "limit 150", "limit 200", "limit 400"],
            Self::Codel => &[
                "target 5ms, interval 100ms",
                "target 20ms, interval 100ms",
                "target 20ms, interval 20ms",
                "target 100ms, interval 100ms",
                "bounded: target 5ms, interval 100ms",
            ],
            Self::Gradient2 => &[
                "start 20, queue 4, max 200, smoothing 0.2",
                "start 100, queue 4, max 200, smoothing 0.2",
                "start 100, queue 4, max 1000, smoothing 0.2",
                "start 100, queue 10, max 200, smoothing 0.2",
                "start 100, queue 4, max 200, smoothing 0.5",
            ],
            Self::Vegas => &[
                "start 20, probe 30",
                "start 100, probe 30",
                "start 100, probe 100",
                "start 100, probe 10",
            ],
            Self::Aimd => &[
                "timeout 5s, backoff 0.9",
                "timeout 500ms, backoff 0.9",
                "timeout 250ms, backoff 0.9",
                "timeout 250ms, backoff 0.98",
            ],
            Self::Stripe => &["ramp 28s + 120s", "ramp 2.8s + 12s", "ramp 0.3s + 2s"],
            Self::Dagor => &[
                "20ms, alpha 5%, beta 1%, window 1s",
                "20ms, alpha 5%, beta 1%, window 250ms",
                "20ms, alpha 5%, beta 5%, window 250ms",
                "50ms, alpha 20%, beta 5%, window 250ms",
            ],
        }
    }
}

/// A policy with the parameters at this index of its grid.
pub(super) fn build(kind: PolicyKind, parameters: usize) -> Box<dyn Policy> {
    let ms = Micros::from_millis;
    match (kind, parameters) {
        (PolicyKind::None, _) => Box::new(LimitPolicy::new(FixedLimit(u64::MAX))),
        (PolicyKind::Fixed, index) => {
            let limits = [100, 120, 150, 200, 400];
            Box::new(LimitPolicy::new(FixedLimit(limits.get(index).copied().unwrap_or(100))))
        }
        (PolicyKind::Codel, 1) => Box::new(CodelPolicy::new(ms(20), ms(100), usize::MAX)),
        (PolicyKind::Codel, 2) => Box::new(CodelPolicy::new(ms(20), ms(20), usize::MAX)),
        (PolicyKind::Codel, 3) => Box::new(CodelPolicy::new(ms(100), ms(100), usize::MAX)),
        (PolicyKind::Codel, 4) => Box::new(CodelPolicy::new(ms(5), ms(100), 100)),
        (PolicyKind::Codel, _) => Box::new(CodelPolicy::new(ms(5), ms(100), usize::MAX)),
        (PolicyKind::Gradient2, index) => {
            let (start, queue, max, smoothing_ppm) = match index {
                1 => (100, 4, 200, 200_000),
                2 => (100, 4, 1_000, 200_000),
                3 => (100, 10, 200, 200_000),
                4 => (100, 4, 200, 500_000),
                _ => (20, 4, 200, 200_000),
            };
            let limit = Gradient2Limit::new(start, queue, 20, max, smoothing_ppm);
            Box::new(LimitPolicy::new(Windowed::new(limit)))
        }
        (PolicyKind::Vegas, index) => {
            let (start, probe) = match index {
                1 => (100, 30),
                2 => (100, 100),
                3 => (100, 10),
                _ => (20, 30),
            };
            Box::new(LimitPolicy::new(Windowed::new(VegasLimit::new(start, 1_000, probe))))
        }
        (PolicyKind::Aimd, index) => {
            let (timeout, backoff_ppm) = match index {
                1 => (ms(500), 900_000),
                2 => (ms(250), 900_000),
                3 => (ms(250), 980_000),
                _ => (ms(5_000), 900_000),
            };
            Box::new(LimitPolicy::new(AimdLimit::new(20, 20, 200, timeout, backoff_ppm)))
        }
        (PolicyKind::Stripe, index) => Box::new(ControllerPolicy::stripe(index)),
        (PolicyKind::Dagor, index) => {
            let (target, alpha_ppm, beta_ppm, window) = match index {
                1 => (ms(20), 50_000, 10_000, ms(250)),
                2 => (ms(20), 50_000, 50_000, ms(250)),
                3 => (ms(50), 200_000, 50_000, ms(250)),
                _ => (ms(20), 50_000, 10_000, ms(1_000)),
            };
            Box::new(DagorPolicy::new(
                target,
                window,
                AdmissionLevels::new(alpha_ppm, beta_ppm),
            ))
        }
        (PolicyKind::Ours, _) => Box::new(ControllerPolicy::new(LimitSource::Fixed)),
        // The root of its bounds, 10 and 1,000.
        (PolicyKind::OursAuto, _) => Box::new(ControllerPolicy::new(LimitSource::Adaptive { start: 100 })),
    }
}

/// Our policy with an adaptive limit that starts at `start` slots.
pub(super) fn build_adaptive(start: u64) -> Box<dyn Policy> {
    Box::new(ControllerPolicy::new(LimitSource::Adaptive { start }))
}

/// Gradient2 with its published parameters that starts at `start`.
pub(super) fn build_gradient2(start: u64) -> Box<dyn Policy> {
    let limit = Gradient2Limit::new(start, 4, 10, 1_000, 200_000);
    Box::new(LimitPolicy::new(Windowed::new(limit)))
}
