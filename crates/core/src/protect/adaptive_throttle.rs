//! The adaptive throttle: a client stops sending part of what a service would not accept anyway.

use crate::protect::WHOLE_PPM;
use crate::units::time::Micros;

/// The requests to one service over the last two minutes, and how many of them it accepted. Above twice the accepted
/// number, requests are rejected here: with the share `(requests − 2 × accepted) / (requests + 1)`.
#[derive(Clone, Debug, Default)]
pub struct AdaptiveThrottle {
    slices: [ExchangeCounts; SLICES],
    /// The sum of the shares of past requests. A whole is one rejected request: no draw is needed.
    owed_ppm: u64,
}

/// The counts of ten seconds.
#[derive(Clone, Copy, Debug, Default)]
struct ExchangeCounts {
    number: u64,
    requests: u64,
    accepted: u64,
}

impl AdaptiveThrottle {
    /// The time that counts.
    pub const SPAN: Micros = Micros::from_secs(SLICES as u64 * SLICE_S);

    /// Counts a request. True if it is rejected here, and is not sent.
    pub fn rejects(&mut self, now: Micros) -> bool {
        self.owed_ppm += self.share_ppm(now);
        self.slice(now).requests += 1;
        if self.owed_ppm < WHOLE_PPM {
            return false;
        }
        self.owed_ppm -= WHOLE_PPM;
        true
    }

    /// Counts a response that shows that the service accepted the request.
    pub fn record_accepted(&mut self, now: Micros) {
        self.slice(now).accepted += 1;
    }

    /// The share of requests that are rejected here.
    pub fn share_ppm(&self, now: Micros) -> u64 {
        let current = number(now);
        let live = self
            .slices
            .iter()
            .filter(|slice| slice.number + SLICES as u64 > current);
        let (requests, accepted) = live.fold((0_u64, 0_u64), |(requests, accepted), slice| {
            (requests + slice.requests, accepted + slice.accepted)
        });
        requests.saturating_sub(accepted.saturating_mul(MULTIPLE)) * WHOLE_PPM / (requests + 1)
    }

    fn slice(&mut self, now: Micros) -> &mut ExchangeCounts {
        let number = number(now);
        let [first, rest @ ..] = &mut self.slices;
        let slice = match usize::try_from(number % SLICES as u64) {
            Ok(index) if index > 0 => rest.get_mut(index - 1).unwrap_or(first),
            _ => first,
        };
        if slice.number != number {
            *slice = ExchangeCounts {
                number,
                ..ExchangeCounts::default()
            };
        }
        slice
    }
}

/// The number of a slice; the first is 1, so that the default is an old one.
const fn number(now: Micros) -> u64 {
    now.get() / (SLICE_S * 1_000_000) + SLICES as u64
}

const SLICES: usize = 12;
const SLICE_S: u64 = 10;
/// The requests that are sent for each that is accepted: with 2, recovery is seen at once.
const MULTIPLE: u64 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_healthy_service_is_sent_everything() {
        let mut throttle = AdaptiveThrottle::default();
        for ms in 0..100_000 {
            let now = Micros::from_millis(ms);
            assert!(!throttle.rejects(now));
            // Half of them accepted is still healthy.
            if ms % 2 == 0 {
                throttle.record_accepted(now);
            }
        }
    }

    #[test]
    fn a_failing_service_is_sent_less_and_less_until_two_minutes_have_passed() {
        let mut throttle = AdaptiveThrottle::default();
        let sent = (0..10_000).filter(|_| !throttle.rejects(Micros::from_secs(5))).count();
        // 1 + 1/2 + 1/3 + …
        assert!((8..=12).contains(&sent), "{sent}");
        assert!(throttle.share_ppm(Micros::from_secs(119)) > 999_000);
        assert_eq!(throttle.share_ppm(Micros::from_secs(120)), 0);
        assert!(!throttle.rejects(Micros::from_secs(125)));
    }

    #[test]
    fn a_service_that_accepts_a_tenth_is_sent_twice_that() {
        let mut throttle = AdaptiveThrottle::default();
        let (mut sent, mut accepted) = (0_u64, 0_u64);
        for ms in 0..1_000_000 {
            let now = Micros::from_millis(ms);
            if !throttle.rejects(now) {
                sent += u64::from(ms > 200_000);
                // 100 a second.
                if accepted * 10 <= ms {
                    accepted += 1;
                    throttle.record_accepted(now);
                }
            }
        }
        let per_s = sent / 800;
        assert!((180..=220).contains(&per_s), "{per_s} a second");
    }
}
