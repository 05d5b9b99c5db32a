//! Round trips to one server, from replies that arrive anyway, compared with the deadline of a call.
//!
//! The median of recent ones counts: one slow reply of a busy machine does not. A call that is given up has no reply, but
//! its connection is closed, and the handshake of the next one measures without the deadline.

use crate::store::RoundTripStatus;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tollgate_core::{Micros, Timestamp};

/// The round trips that count, and how many are needed for a judgement.
const SAMPLES: usize = 15;
const SAMPLES_MIN: usize = 3;

/// The interval between two replies that count, once there are enough.
const SAMPLE_INTERVAL: Micros = Micros::from_millis(100);

/// A call may wait for another one: less than two round trips are too short a deadline. It fits again with three.
const TOO_SHORT_FACTOR: u64 = 2;
const FITTING_FACTOR: u64 = 3;

/// The recent round trips to one server.
#[derive(Debug)]
pub(crate) struct RoundTrips {
    deadline: Micros,
    /// The local time, in microseconds, from which another reply counts.
    next_sample_at: AtomicU64,
    samples: Mutex<Samples>,
}

#[derive(Debug, Default)]
struct Samples {
    recent: [u64; SAMPLES],
    recorded: usize,
    /// True if the deadline was too short when it was last judged.
    is_deadline_short: bool,
}

impl RoundTrips {
    pub(crate) fn new(deadline: Duration) -> Self {
        Self {
            deadline: deadline.into(),
            next_sample_at: AtomicU64::new(0),
            samples: Mutex::default(),
        }
    }

    /// Records the reply to a call. Most replies are passed over once the round trip is known.
    pub(crate) fn record_reply(&self, sent: Timestamp, received: Timestamp) {
        if received.as_micros() >= self.next_sample_at.load(Ordering::Relaxed) {
            self.record(sent, received);
        }
    }

    /// Records one round trip.
    pub(crate) fn record(&self, sent: Timestamp, received: Timestamp) {
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        samples.record(received.since(sent).get(), self.deadline.get());
        if samples.recorded >= SAMPLES {
            let next = received + SAMPLE_INTERVAL;
            self.next_sample_at.store(next.as_micros(), Ordering::Relaxed);
        }
    }

    /// The round trip. `None` before enough are measured.
    pub(crate) fn status(&self) -> Option<RoundTripStatus> {
        let samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        let median = samples.median()?;
        let needed = || Micros::new((median * FITTING_FACTOR).div_ceil(1_000) * 1_000);
        Some(RoundTripStatus {
            median: Micros::new(median),
            deadline: self.deadline,
            deadline_needed: samples.is_deadline_short.then(needed),
        })
    }
}

impl Samples {
    fn record(&mut self, us: u64, deadline: u64) {
        if let Some(sample) = self.recent.get_mut(self.recorded % SAMPLES) {
            *sample = us;
        }
        self.recorded += 1;
        if let Some(median) = self.median() {
            let factor = match self.is_deadline_short {
                true => FITTING_FACTOR,
                false => TOO_SHORT_FACTOR,
            };
            self.is_deadline_short = median.saturating_mul(factor) > deadline;
        }
    }

    fn median(&self) -> Option<u64> {
        let mut sorted = self.recent;
        let known = sorted.get_mut(..self.recorded.min(SAMPLES))?;
        if known.len() < SAMPLES_MIN {
            return None;
        }
        known.sort_unstable();
        known.get(known.len() / 2).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEADLINE: Duration = Duration::from_millis(10);

    fn at(us: u64) -> Timestamp {
        Timestamp::from_micros(1_000_000 + us)
    }

    fn needed(round_trips: &RoundTrips) -> Option<u64> {
        let status = round_trips.status().expect("enough samples");
        status.deadline_needed.map(Micros::get)
    }

    /// Records this round trip many times, once in a while.
    fn record_many(round_trips: &RoundTrips, us: u64) {
        for sample in 0..SAMPLES as u64 {
            round_trips.record(at(sample * 200_000), at(sample * 200_000 + us));
        }
    }

    #[test]
    fn the_median_counts_and_one_slow_reply_does_not() {
        let round_trips = RoundTrips::new(DEADLINE);
        round_trips.record(at(0), at(90_000));
        round_trips.record(at(0), at(300));
        assert_eq!(round_trips.status(), None);
        round_trips.record(at(0), at(400));
        let status = round_trips.status().expect("enough samples");
        assert_eq!((status.median.get(), status.deadline_needed), (400, None));
        assert_eq!(status.warning(), None);
    }

    #[test]
    fn a_deadline_below_two_round_trips_is_too_short_until_three_fit() {
        let round_trips = RoundTrips::new(DEADLINE);
        record_many(&round_trips, 4_900);
        assert_eq!(needed(&round_trips), None);
        record_many(&round_trips, 5_100);
        assert_eq!(needed(&round_trips), Some(16_000));
        record_many(&round_trips, 4_000);
        assert_eq!(needed(&round_trips), Some(12_000));
        record_many(&round_trips, 3_000);
        assert_eq!(needed(&round_trips), None);
    }

    #[test]
    fn the_warning_has_the_number_to_set() {
        let round_trips = RoundTrips::new(DEADLINE);
        record_many(&round_trips, 12_310);
        let warning = round_trips.status().and_then(|status| status.warning());
        let warning = warning.expect("too short");
        for part in ["takes 12.4ms", "deadline` is 10ms", "calls time out", "to 37ms or more"] {
            assert!(warning.contains(part), "{part}: {warning}");
        }
    }

    #[test]
    fn a_busy_store_is_measured_ten_times_a_second() {
        let round_trips = RoundTrips::new(DEADLINE);
        record_many(&round_trips, 300);
        for _ in 0..SAMPLES {
            round_trips.record_reply(at(0), at(9_000));
        }
        let status = round_trips.status().expect("enough samples");
        assert_eq!(status.median.get(), 300);
    }
}
