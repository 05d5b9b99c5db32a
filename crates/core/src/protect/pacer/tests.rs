//! The keys that are kept while others come.

use super::*;
use crate::units::rate::Rate;

fn denial(retry_after: Option<Micros>) -> ResponseSummary {
    ResponseSummary {
        sent_at: Micros::ZERO,
        attempt: 1,
        outcome: ExchangeOutcome::Throttled,
        repeatability: Repeatability::Never,
        retry_after,
        policies: Vec::new(),
    }
}

/// Sends one request to each of as many other keys as are known, after `now`.
fn crowd(pacer: &mut Pacer, now: Micros) {
    for key in 0..Pacer::KEYS_MAX as u64 {
        pacer.before(plus(now, Micros::new(key)), 1_000_000 + key);
    }
}

#[test]
fn a_closed_key_is_not_forgotten_for_others() {
    let mut pacer = Pacer::new(PacerConfig::default());
    let start = Micros::from_secs(1);
    assert_eq!(pacer.before(start, 7), Clearance::Send);
    pacer.after(start, 7, denial(Some(Micros::from_secs(20))), 0);
    crowd(&mut pacer, Micros::from_secs(2));
    assert_eq!(pacer.keys(), Pacer::KEYS_MAX);
    let clearance = pacer.clearance(Micros::from_secs(3), 7);
    assert_eq!(clearance, Clearance::Wait(Micros::from_secs(18)));
    // Once it is open it is one of them.
    crowd(&mut pacer, Micros::from_secs(60));
    assert_eq!(pacer.interval(7), None);
}

#[test]
fn a_key_that_a_request_waits_for_is_not_forgotten_for_others() {
    let rate = Rate::new(1, Micros::from_secs(20)).expect("in range");
    let mut pacer = Pacer::new(PacerConfig {
        limit: Some(PaceLimit::new(rate, 1)),
        ..PacerConfig::default()
    });
    let start = Micros::from_secs(1);
    assert_eq!(pacer.before(start, 7), Clearance::Send);
    // Half of the others, the question, and the other half: it is not the one unused for longest.
    let half = Pacer::KEYS_MAX as u64 / 2;
    for key in 0..half {
        pacer.before(Micros::new(2_000_000 + key), 1_000_000 + key);
    }
    assert_ne!(pacer.clearance(Micros::from_secs(3), 7), Clearance::Send);
    for key in half..2 * half {
        pacer.before(Micros::new(4_000_000 + key), 1_000_000 + key);
    }
    assert_ne!(pacer.clearance(Micros::from_secs(5), 7), Clearance::Send);
}

#[test]
fn a_request_that_asks_all_the_time_still_gives_up_lost_answers() {
    let mut pacer = Pacer::new(PacerConfig::default());
    let start = Micros::from_secs(1);
    assert_eq!(pacer.before(start, 7), Clearance::Send);
    pacer.after(start, 7, denial(None), 0);
    assert_eq!(pacer.before(start, 7), Clearance::Send);
    for second in 2..60 {
        let clearance = pacer.before(Micros::from_secs(second), 7);
        assert!(matches!(clearance, Clearance::Wait(_)), "{clearance:?}");
    }
    assert_eq!(pacer.before(Micros::from_secs(62), 7), Clearance::Send);
}
