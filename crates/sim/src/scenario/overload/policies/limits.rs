//! Bounds on requests in flight: a fixed one, and those of Netflix's concurrency-limits, as its sources describe them.

use super::{Action, Arrival, Policy};
use tollgate_core::Micros;
use tollgate_core::protect::{PriorityClass, WHOLE_PPM};

/// A response, for an algorithm that moves a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitSample {
    /// The time of the response.
    pub now: Micros,
    /// The time since its request was dispatched.
    pub round_trip: Micros,
    /// Requests in flight, itself included.
    pub in_flight: u64,
}

/// An algorithm that moves a limit.
pub trait LimitAlgorithm {
    /// The limit.
    fn limit(&self) -> u64;

    /// Learns of a response.
    fn add(&mut self, sample: &LimitSample);
}

/// The same limit for ever.
pub(super) struct FixedLimit(pub(super) u64);

/// Gradient2: by the ratio of long-term and current round trips, and a steady addition for queueing.
#[derive(Clone, Debug)]
pub struct Gradient2Limit {
    limit_milli: u64,
    queue: u64,
    min: u64,
    max: u64,
    smoothing_ppm: u64,
    /// The long-term mean in nanoseconds, and the samples it has, up to ten.
    long_ns: u64,
    warm_up: u64,
}

/// Vegas: by the queue that the round trip implies, over the shortest one seen since the last probe.
#[derive(Clone, Debug)]
pub struct VegasLimit {
    limit: u64,
    max: u64,
    probe_multiplier: u64,
    shortest: Option<Micros>,
    since_probe: u64,
}

/// AIMD: grows by one, and shrinks by a part after a round trip longer than a timeout.
#[derive(Clone, Debug)]
pub struct AimdLimit {
    limit: u64,
    min: u64,
    max: u64,
    timeout: Micros,
    backoff_ppm: u64,
}

/// Hands an algorithm the mean round trip of a window: a second, and ten responses at least.
#[derive(Clone, Debug)]
pub(super) struct Windowed<L> {
    inner: L,
    ends: Micros,
    count: u64,
    sum_us: u64,
    in_flight_max: u64,
}

/// Denies what is above a limit.
pub(super) struct LimitPolicy<L> {
    algorithm: L,
    in_flight: u64,
}

impl LimitAlgorithm for FixedLimit {
    fn limit(&self) -> u64 {
        self.0
    }

    fn add(&mut self, _sample: &LimitSample) {}
}

impl Gradient2Limit {
    /// From `start`, between `min` and `max`; `queue` is added in every window.
    pub const fn new(start: u64, queue: u64, min: u64, max: u64, smoothing_ppm: u64) -> Self {
        Self {
            limit_milli: start * 1_000,
            queue,
            min,
            max,
            smoothing_ppm,
            long_ns: 0,
            warm_up: 0,
        }
    }

    /// The long-term mean: of the first ten samples their mean, then a moving one over 600.
    fn note(&mut self, round_trip_ns: u64) {
        if self.warm_up < 10 {
            let sum = self.long_ns * self.warm_up + round_trip_ns;
            self.warm_up += 1;
            self.long_ns = sum / self.warm_up;
        } else {
            // 2/(600 + 1)
            self.long_ns = (self.long_ns * 599 + round_trip_ns * 2) / 601;
        }
    }
}

impl LimitAlgorithm for Gradient2Limit {
    fn limit(&self) -> u64 {
        self.limit_milli / 1_000
    }

    fn add(&mut self, sample: &LimitSample) {
        let short_ns = sample.round_trip.get().max(1) * 1_000;
        self.note(short_ns);
        let long_ns = self.long_ns;
        if long_ns / 2 > short_ns {
            self.long_ns = long_ns / 10 * 9;
        }
        if sample.in_flight * 2_000 < self.limit_milli {
            return;
        }
        let gradient_ppm =
            (u128::from(long_ns) * u128::from(WHOLE_PPM) / u128::from(short_ns)).clamp(500_000, 1_000_000);
        let gradient_ppm = u64::try_from(gradient_ppm).unwrap_or(WHOLE_PPM);
        let next = self.limit_milli * gradient_ppm / WHOLE_PPM + self.queue * 1_000;
        let next = (self.limit_milli * (WHOLE_PPM - self.smoothing_ppm) + next * self.smoothing_ppm) / WHOLE_PPM;
        self.limit_milli = next.clamp(self.min * 1_000, self.max * 1_000);
    }
}

impl VegasLimit {
    /// From `start`, up to `max`. A probe for the shortest round trip comes after three quarters of `probe_multiplier` times
    /// the limit responses; the original draws the part, which has this mean.
    pub const fn new(start: u64, max: u64, probe_multiplier: u64) -> Self {
        Self {
            limit: start,
            max,
            probe_multiplier,
            shortest: None,
            since_probe: 0,
        }
    }
}

impl LimitAlgorithm for VegasLimit {
    fn limit(&self) -> u64 {
        self.limit
    }

    fn add(&mut self, sample: &LimitSample) {
        self.since_probe += 1;
        let round_trip = sample.round_trip.max(Micros::ONE);
        let probes = self.since_probe * 4 >= self.probe_multiplier * self.limit * 3;
        let shortest = match self.shortest {
            Some(shortest) if !probes && round_trip >= shortest => shortest,
            _ => {
                if probes {
                    self.since_probe = 0;
                }
                self.shortest = Some(round_trip);
                return;
            }
        };
        if sample.in_flight * 2 < self.limit {
            return;
        }
        let queue = (self.limit * (round_trip.get() - shortest.get())).div_ceil(round_trip.get());
        let step = u64::from(self.limit.max(1).ilog10()).max(1);
        let next = if queue <= step {
            self.limit + 6 * step
        } else if queue < 3 * step {
            self.limit + step
        } else if queue > 6 * step {
            self.limit.saturating_sub(step)
        } else {
            self.limit
        };
        self.limit = next.clamp(1, self.max);
    }
}

impl AimdLimit {
    /// From `start`, between `min` and `max`.
    pub const fn new(start: u64, min: u64, max: u64, timeout: Micros, backoff_ppm: u64) -> Self {
        Self {
            limit: start,
            min,
            max,
            timeout,
            backoff_ppm,
        }
    }
}

impl LimitAlgorithm for AimdLimit {
    fn limit(&self) -> u64 {
        self.limit
    }

    fn add(&mut self, sample: &LimitSample) {
        let next = if sample.round_trip > self.timeout {
            self.limit * self.backoff_ppm / WHOLE_PPM
        } else if sample.in_flight * 2 >= self.limit {
            self.limit + 1
        } else {
            self.limit
        };
        self.limit = next.clamp(self.min, self.max);
    }
}

impl<L> Windowed<L> {
    pub(super) const fn new(inner: L) -> Self {
        Self {
            inner,
            ends: Micros::from_secs(1),
            count: 0,
            sum_us: 0,
            in_flight_max: 0,
        }
    }
}

impl<L: LimitAlgorithm> LimitAlgorithm for Windowed<L> {
    fn limit(&self) -> u64 {
        self.inner.limit()
    }

    fn add(&mut self, sample: &LimitSample) {
        self.count += 1;
        self.sum_us += sample.round_trip.get();
        self.in_flight_max = self.in_flight_max.max(sample.in_flight);
        if sample.now < self.ends || self.count < 10 {
            return;
        }
        self.inner.add(&LimitSample {
            now: sample.now,
            round_trip: Micros::new(self.sum_us / self.count),
            in_flight: self.in_flight_max,
        });
        (self.count, self.sum_us, self.in_flight_max) = (0, 0, 0);
        self.ends = Micros::new(sample.now.get() + 1_000_000);
    }
}

impl<L> LimitPolicy<L> {
    pub(super) const fn new(algorithm: L) -> Self {
        Self {
            algorithm,
            in_flight: 0,
        }
    }
}

impl<L: LimitAlgorithm> Policy for LimitPolicy<L> {
    fn arrive(&mut self, _now: Micros, arrival: &Arrival, actions: &mut Vec<Action>) {
        if self.in_flight >= self.algorithm.limit() {
            actions.push(Action::Deny(arrival.id));
            return;
        }
        self.in_flight += 1;
        actions.push(Action::Dispatch(arrival.id));
    }

    fn done(&mut self, now: Micros, _class: PriorityClass, held: Micros, _actions: &mut Vec<Action>) {
        let sample = LimitSample {
            now,
            round_trip: held,
            in_flight: self.in_flight,
        };
        self.algorithm.add(&sample);
        self.in_flight -= 1;
    }

    fn limit(&self) -> Option<u64> {
        Some(self.algorithm.limit())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(algorithm: &mut impl LimitAlgorithm, round_trip_ms: u64, in_flight: u64) -> u64 {
        algorithm.add(&LimitSample {
            now: Micros::ZERO,
            round_trip: Micros::from_millis(round_trip_ms),
            in_flight,
        });
        algorithm.limit()
    }

    /// The cases of concurrency-limits' own test of Vegas: a limit of 10, at most 20, alpha 3, beta 6.
    #[test]
    fn vegas_reproduces_the_cases_of_its_own_test() {
        let mut grows = VegasLimit::new(10, 20, 30);
        assert_eq!(add(&mut grows, 10, 10), 10);
        assert_eq!(add(&mut grows, 10, 11), 16);
        let mut shrinks = VegasLimit::new(10, 20, 30);
        assert_eq!(add(&mut shrinks, 10, 10), 10);
        assert_eq!(add(&mut shrinks, 50, 11), 9);
        let mut stays = VegasLimit::new(10, 20, 30);
        assert_eq!(add(&mut stays, 10, 10), 10);
        assert_eq!(add(&mut stays, 14, 14), 10);
    }

    /// The cases of concurrency-limits' own test of AIMD.
    #[test]
    fn aimd_reproduces_the_cases_of_its_own_test() {
        let mut limit = AimdLimit::new(10, 1, 200, Micros::from_secs(5), 900_000);
        assert_eq!(limit.limit(), 10);
        assert_eq!(add(&mut limit, 1, 10), 11);
        let mut limit = AimdLimit::new(10, 1, 200, Micros::from_secs(5), 900_000);
        assert_eq!(add(&mut limit, 6_000, 0), 9);
    }

    /// The formula in its documentation: `limit × gradient + queue`, a fifth of the way, with a gradient from 0.5 to 1.
    #[test]
    fn gradient2_follows_the_formula_of_its_documentation() {
        let mut limit = Gradient2Limit::new(100, 4, 20, 200, 200_000);
        // No queueing: 4 x 0.2 more.
        limit.add(&LimitSample {
            now: Micros::ZERO,
            round_trip: Micros::from_millis(10),
            in_flight: 100,
        });
        assert_eq!(limit.limit_milli, 100_800);
        // The mean of 10 and 90 is 50; 50/90 is 0.5556: 100.8 x (0.8 + 0.2 x 0.5556) + 0.8.
        limit.add(&LimitSample {
            now: Micros::ZERO,
            round_trip: Micros::from_millis(90),
            in_flight: 100,
        });
        assert!(limit.limit_milli.abs_diff(92_640) <= 1, "{}", limit.limit_milli);
        // Below half of it in flight nothing changes.
        assert_eq!(add(&mut limit, 10, 40), 92);
    }
}
