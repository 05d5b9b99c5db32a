//! The adaptive limit: moves the number of slots with the latency of responses.
//!
//! It moves a limit of this instance only, never a shared rule. Latency is compared with a baseline of the same route, so
//! that a change of the mix is not a change of the load.

use crate::protect::WHOLE_PPM;
use crate::protect::baseline::Baselines;
use crate::units::time::Micros;

/// The algorithm of an adaptive limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AdaptiveAlgorithm {
    /// By latency: grows while it is near the baseline, and shrinks in proportion otherwise. Without the steady addition
    /// for queueing that Gradient2 has: that one drifts upwards.
    #[default]
    Gradient,
    /// By failures: grows by one, and shrinks by a tenth.
    Aimd,
}

/// The numbers of an adaptive limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdaptiveConfig {
    /// The algorithm.
    pub algorithm: AdaptiveAlgorithm,
    /// The fewest slots.
    pub min: u64,
    /// The most slots.
    pub max: u64,
}

/// The end of a request, for the adaptive limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseOutcome {
    /// A response, whatever its status but 503.
    Answered,
    /// A timeout, a refused connection, or a 503 of the upstream.
    Failed,
}

/// A response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseSample {
    /// A hash of its route. Beyond 64 routes, all others count as one.
    pub route: u64,
    /// The time to its first byte.
    pub latency: Micros,
    /// Its end.
    pub outcome: ResponseOutcome,
    /// Requests in flight, itself included.
    pub in_flight: u64,
}

/// A limit that follows latency or failures. A response moves it at the end of a window: at least 250 ms and 32
/// responses.
#[derive(Clone, Debug)]
pub struct AdaptiveLimit {
    config: AdaptiveConfig,
    limit_milli: u64,
    window: SampleWindow,
    baselines: Baselines,
}

/// The responses since the last change.
#[derive(Clone, Debug)]
struct SampleWindow {
    started_at: Micros,
    responses: u64,
    failures: u64,
    in_flight_max: u64,
    in_flight_sum: u64,
    /// Routes and latencies: all of them, or every `stride`-th.
    samples: Vec<(usize, Micros)>,
    stride: u64,
}

impl AdaptiveLimit {
    /// A limit that starts at `start` slots. `now` is the time on the monotonic clock of this instance.
    pub fn new(config: AdaptiveConfig, start: u64, now: Micros) -> Self {
        let min = config.min.clamp(1, LIMIT_MAX);
        let config = AdaptiveConfig {
            min,
            max: config.max.clamp(min, LIMIT_MAX),
            ..config
        };
        Self {
            config,
            limit_milli: start.clamp(config.min, config.max) * 1_000,
            window: SampleWindow::new(now),
            baselines: Baselines::new(now),
        }
    }

    /// Records a response; returns the number of slots if it has changed.
    pub fn record(&mut self, now: Micros, sample: &ResponseSample) -> Option<u64> {
        let route = self.baselines.route_index(sample.route);
        self.window.add(route, sample);
        let elapsed = now.get().saturating_sub(self.window.started_at.get());
        if elapsed < WINDOW.get() || self.window.responses < RESPONSES_MIN {
            return None;
        }
        let before = self.limit();
        let window = std::mem::replace(&mut self.window, SampleWindow::new(now));
        let throughput = window.responses.saturating_mul(1_000_000) / elapsed;
        let in_flight = window.in_flight_sum / window.responses.max(1);
        self.baselines.note_load(in_flight, throughput);
        let median_ppm = self.baselines.compare(now, &window.samples);
        self.limit_milli = self.next_limit_milli(&window, median_ppm);
        let after = self.limit();
        (after != before).then_some(after)
    }

    /// The number of slots.
    pub const fn limit(&self) -> u64 {
        self.limit_milli / 1_000
    }

    fn next_limit_milli(&self, window: &SampleWindow, median_ppm: Option<u64>) -> u64 {
        let limit = self.limit_milli;
        let is_failing = window.failures.saturating_mul(100) > window.responses;
        let is_busy = window.in_flight_max.saturating_mul(2_000) >= limit;
        let next = match (self.config.algorithm, median_ppm) {
            // Failures of a few requests tell nothing of a limit that is far away.
            _ if !is_busy => limit,
            _ if is_failing => limit * 9 / 10,
            (AdaptiveAlgorithm::Aimd, _) => limit + 1_000,
            (AdaptiveAlgorithm::Gradient, None) => limit,
            (AdaptiveAlgorithm::Gradient, Some(median_ppm)) => {
                let gradient = (TOLERANCE_PPM * WHOLE_PPM / median_ppm.max(1)).clamp(WHOLE_PPM / 2, WHOLE_PPM);
                if gradient == WHOLE_PPM {
                    // The square root of thousandths is that of units times the root of a thousand.
                    limit + ((limit * 1_000).isqrt() / 4).max(1_000)
                } else {
                    limit * (8 * WHOLE_PPM / 10 + gradient / 5) / WHOLE_PPM
                }
            }
        };
        next.clamp(self.config.min * 1_000, self.config.max * 1_000)
    }
}

impl SampleWindow {
    fn new(now: Micros) -> Self {
        Self {
            started_at: now,
            responses: 0,
            failures: 0,
            in_flight_max: 0,
            in_flight_sum: 0,
            samples: Vec::new(),
            stride: 1,
        }
    }

    fn add(&mut self, route: usize, sample: &ResponseSample) {
        self.responses += 1;
        self.in_flight_max = self.in_flight_max.max(sample.in_flight);
        self.in_flight_sum = self.in_flight_sum.saturating_add(sample.in_flight);
        match sample.outcome {
            ResponseOutcome::Failed => self.failures += 1,
            ResponseOutcome::Answered if self.responses.is_multiple_of(self.stride) => {
                if self.samples.len() >= SAMPLES_MAX {
                    let mut index = 0;
                    self.samples.retain(|_| {
                        index += 1;
                        index % 2 == 0
                    });
                    self.stride *= 2;
                }
                self.samples.push((route, sample.latency));
            }
            ResponseOutcome::Answered => {}
        }
    }
}

/// The shortest window.
const WINDOW: Micros = Micros::from_millis(250);
/// The fewest responses of a window.
const RESPONSES_MIN: u64 = 32;
/// Latencies kept of a window: of a busier one every second, fourth, … response.
const SAMPLES_MAX: usize = 1_024;
/// The median over the baseline up to which the limit grows.
const TOLERANCE_PPM: u64 = 1_500_000;
/// The most slots a limit can have.
const LIMIT_MAX: u64 = 1_000_000;
