//! The worked examples and the laws of the pacer and of the retry budget.

use crate::examples::{check, time};
use proptest::prelude::*;
use tollgate_core::protect::{
    AdaptiveThrottle, Clearance, ExchangeOutcome, LocalRejection, PaceLimit, Pacer, PacerConfig, PolicyReport,
    PolicySource, Repeatability, ResponseSummary, RetryBudget, RetryDecision,
};
use tollgate_core::{Cost, Gcra, Limit, Micros, Now, Rate, Timestamp};

fn period(text: &str) -> Micros {
    match text {
        "s" => Micros::from_secs(1),
        "min" => Micros::from_secs(60),
        "h" => Micros::from_secs(3_600),
        other => time(other),
    }
}

fn span(text: &str) -> Micros {
    text.strip_suffix('h').map_or_else(
        || time(text),
        |hours| Micros::from_secs(3_600 * hours.parse::<u64>().expect("hours")),
    )
}

fn draw(text: &str) -> u32 {
    let percent: u64 = text.strip_suffix('%').expect("a share").parse().expect("a number");
    u32::try_from((percent << 32) / 100).unwrap_or(u32::MAX)
}

/// A client, as the examples write one.
struct Client {
    pacer: Pacer,
    last_sent: Micros,
}

impl Client {
    fn new(words: &[&str]) -> Self {
        let limit = match words {
            ["learn"] => None,
            [rate, "burst", burst] => {
                let (units, per) = rate.split_once('/').expect("a rate");
                let rate = Rate::new(units.parse().expect("units"), period(per)).expect("in range");
                Some(PaceLimit::new(rate, burst.parse().expect("a burst")))
            }
            other => panic!("unknown settings {other:?}"),
        };
        let config = PacerConfig {
            limit,
            policies: if limit.is_none() {
                PolicySource::Learned
            } else {
                PolicySource::Configured
            },
            ..PacerConfig::default()
        };
        Self {
            pacer: Pacer::new(config),
            last_sent: Micros::ZERO,
        }
    }

    fn step(&mut self, words: &[&str]) -> String {
        let [at, step, words @ ..] = words else {
            panic!("a time and a step")
        };
        let now = time(at);
        match *step {
            "before" => match self.pacer.before(now, 1) {
                Clearance::Send => {
                    self.last_sent = now;
                    "send".into()
                }
                Clearance::Wait(wait) => format!("wait {wait}"),
                Clearance::TooLong(wait) => format!("too-long {wait}"),
            },
            "cancel" => {
                self.pacer.cancel(now, 1, self.last_sent);
                "-".into()
            }
            "after" => {
                let (response, draw) = self.response(words);
                match self.pacer.after(now, 1, response, draw) {
                    RetryDecision::Done => "done".into(),
                    RetryDecision::Retry(wait) => format!("retry {wait}"),
                    RetryDecision::GiveUp => "give-up".into(),
                }
            }
            other => panic!("unknown step {other}"),
        }
    }

    fn response(&self, words: &[&str]) -> (ResponseSummary, u32) {
        let [status, words @ ..] = words else {
            panic!("a status")
        };
        let mut response = summary(match *status {
            "429" => ExchangeOutcome::Throttled,
            "503" => ExchangeOutcome::Unavailable,
            "502" | "504" => ExchangeOutcome::GatewayFailed,
            "lost" => ExchangeOutcome::Lost,
            _ => ExchangeOutcome::Answered,
        });
        response.sent_at = self.last_sent;
        let mut number = 1 << 31;
        let mut report = PolicyReport::default();
        let mut words = words.iter();
        while let Some(name) = words.next() {
            let mut value = || words.next().expect("a value");
            match *name {
                "post" => response.repeatability = Repeatability::Unexecuted,
                "sent" => response.sent_at = time(value()),
                "attempt" => response.attempt = value().parse().expect("a number"),
                "asks" => response.retry_after = Some(span(value())),
                "draw" => number = draw(value()),
                "q" => report.quota = Some(value().parse().expect("a quota")),
                "r" => report.remaining = Some(value().parse().expect("a number")),
                "w" => report.window = Some(time(value())),
                "t" => report.reset = Some(time(value())),
                other => panic!("unknown word {other}"),
            }
        }
        response.policies.push(report);
        (response, number)
    }
}

fn summary(outcome: ExchangeOutcome) -> ResponseSummary {
    ResponseSummary {
        sent_at: Micros::ZERO,
        attempt: 1,
        outcome,
        repeatability: Repeatability::Always,
        retry_after: None,
        policies: Vec::new(),
    }
}

#[test]
fn pacer_obeys_its_examples() {
    let text = include_str!("../../src/protect/pacer.txt");
    check(text, 80, Client::new, |client, words| {
        let arrow = words.iter().position(|word| *word == "->").expect("an answer");
        let answer = match &words[arrow + 1..] {
            [kind, wait] => format!("{kind} {}", time(wait)),
            words => words.join(" "),
        };
        (answer, client.step(&words[..arrow]))
    });
}

#[test]
fn retry_budget_obeys_its_examples() {
    let text = include_str!("../../src/protect/retry_budget.txt");
    let start = |words: &[&str]| RetryBudget::new(words[1].parse().expect("retries"));
    check(text, 13, start, |budget, words| {
        let [steps, kind, expected, balance] = words else {
            panic!("four columns: {words:?}")
        };
        let mut result = "-";
        for _ in 0..steps.parse().expect("a number") {
            result = match *kind {
                "request" => {
                    budget.deposit();
                    "-"
                }
                _ if budget.withdraw() => "yes",
                _ => "no",
            };
        }
        (
            format!("{expected} {balance}"),
            format!("{result} {}", budget.balance()),
        )
    });
}

/// A response with anything a server can say.
fn hostile() -> impl Strategy<Value = ResponseSummary> {
    let outcome = prop::sample::select(&[
        ExchangeOutcome::Answered,
        ExchangeOutcome::Throttled,
        ExchangeOutcome::Unavailable,
        ExchangeOutcome::GatewayFailed,
        ExchangeOutcome::Lost,
    ]);
    let number = || prop_oneof![Just(None), (0..200_u64).prop_map(Some), any::<u64>().prop_map(Some)];
    let report = (0..12_u64, number(), number(), number(), number());
    let reports = prop::collection::vec(report, 0..4);
    (outcome, number(), reports, 1..5_u32).prop_map(|(outcome, asks, reports, attempt)| ResponseSummary {
        attempt,
        retry_after: asks.map(Micros::new),
        policies: reports
            .into_iter()
            .map(|(id, quota, window, remaining, reset)| PolicyReport {
                id,
                quota,
                window: window.map(Micros::new),
                remaining,
                reset: reset.map(Micros::new),
            })
            .collect(),
        ..summary(outcome)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    /// Hostile headers: no wait is longer than it may be, and the state is bounded.
    #[test]
    fn no_response_makes_a_client_wait_longer_than_it_may(
        steps in prop::collection::vec((0..3_u64, 0..2_000_000_u64, hostile(), any::<u32>()), 1..30),
        wait_max_s in 0..100_u64,
    ) {
        let wait_max = Micros::from_secs(wait_max_s);
        let closed_max = wait_max_s * 1_000_000 + (wait_max_s * 100_000).max(1_000_000);
        let config = PacerConfig { wait_max, policies: PolicySource::Learned, ..PacerConfig::default() };
        let mut pacer = Pacer::new(config);
        let mut now = 0;
        for (key, gap, mut response, draw) in steps {
            now += gap;
            let at = Micros::new(now);
            if let Clearance::Wait(wait) = pacer.before(at, key) {
                prop_assert!(wait.get() <= closed_max && wait > Micros::ZERO, "{}", wait);
            }
            response.sent_at = at;
            let asked = response.retry_after;
            let attempt = response.attempt;
            let throttled = response.outcome == ExchangeOutcome::Throttled;
            if let RetryDecision::Retry(wait) = pacer.after(at, key, response, draw) {
                prop_assert!(attempt < 3);
                prop_assert!(wait.get() <= closed_max.max(4_000_000), "{}", wait);
                // Never early.
                if throttled && let Some(asked) = asked {
                    prop_assert!(wait >= asked, "{} before {}", wait, asked);
                }
            }
            // Ten minutes without a response, and everything it said is forgotten.
            let mut later = pacer.clone();
            let at = Micros::new(now + 601_000_000);
            prop_assert_eq!(later.before(at, key), Clearance::Send);
        }
    }

    /// After a denial with `Retry-After`, no request of any task passes before the key opens, and then one at a time.
    #[test]
    fn a_closed_key_is_closed_for_every_task_and_then_opens_one_request_at_a_time(
        asked_ms in 0..20_000_u64, draw: u32, units in 1..1_000_u64, burst in 1..50_u64,
        polls in prop::collection::vec(0..3_000_000_u64, 1..40),
    ) {
        let rate = Rate::new(units, Micros::from_secs(1)).expect("in range");
        let limit = PaceLimit::new(rate, burst);
        let mut pacer = Pacer::new(PacerConfig { limit: Some(limit), ..PacerConfig::default() });
        let start = Micros::from_secs(1);
        prop_assert_eq!(pacer.before(start, 1), Clearance::Send);
        let asked = Micros::from_millis(asked_ms);
        let denial = ResponseSummary { sent_at: start, retry_after: Some(asked), ..summary(ExchangeOutcome::Throttled) };
        let decision = pacer.after(start, 1, denial, draw);
        let RetryDecision::Retry(wait) = decision else { panic!("{decision:?}") };
        let opens_at = start.get() + wait.get();
        prop_assert!(opens_at >= start.get() + asked.get());
        let mut polls = polls;
        polls.sort_unstable();
        let mut sent = 0;
        for gap in polls {
            let now = start.get() + gap * 10;
            while pacer.before(Micros::new(now), 1) == Clearance::Send {
                sent += 1;
                prop_assert!(now >= opens_at, "sent {} us before", opens_at - now);
                // One at the opening, and then the rate.
                let refilled = (now - opens_at) * units / 1_000_000;
                prop_assert!(sent <= 1 + refilled, "{} at {} us", sent, now - opens_at);
            }
        }
    }

    /// A server with the same limit denies nothing, however long requests and responses take.
    #[test]
    fn a_client_that_keeps_to_a_limit_is_never_denied_by_it(
        units in 1..200_u64, burst in 1..20_u64,
        requests in prop::collection::vec((0..60_000_u64, 0..100_000_u64, 0..100_000_u64, any::<bool>()), 1..60),
    ) {
        let rate = Rate::new(units, Micros::from_secs(1)).expect("in range");
        let config = PacerConfig { limit: Some(PaceLimit::new(rate, burst)), ..PacerConfig::default() };
        let mut pacer = Pacer::new(config);
        let mut now = 1_000_000_u64;
        let mut arrivals = Vec::new();
        // (time of the response, time sent)
        let mut responses: Vec<(u64, u64)> = Vec::new();
        for (gap, to_server, back, answers) in requests {
            now += gap;
            loop {
                responses.sort_unstable_by(|one, other| other.cmp(one));
                while let Some((at, sent)) = responses.pop_if(|(at, _)| *at <= now) {
                    let response = ResponseSummary { sent_at: Micros::new(sent), ..summary(ExchangeOutcome::Answered) };
                    pacer.after(Micros::new(at), 1, response, 0);
                }
                match pacer.before(Micros::new(now), 1) {
                    Clearance::Send => break,
                    Clearance::Wait(wait) => now += wait.get(),
                    Clearance::TooLong(wait) => panic!("{wait}"),
                }
            }
            arrivals.push(now + to_server);
            if answers {
                responses.push((now + to_server + back, now));
            }
        }
        arrivals.sort_unstable();
        let server = Limit::Gcra(Gcra::new(rate).with_burst(burst).expect("in range"));
        let mut state = None;
        for at in arrivals {
            let step = server.decide(state.as_ref(), Cost::ONE, Now::new(Timestamp::from_micros(at)));
            prop_assert!(step.decision.is_allow(), "denied at {}", at);
            if let Some(change) = step.next {
                server.keep(&mut state, change, tollgate_core::LeaseId::default());
            }
        }
    }

    /// All attempts are at most 1.1 times the requests and a hundred.
    #[test]
    fn retries_are_a_tenth_of_the_requests(
        requests in prop::collection::vec((0..40_u64, hostile()), 1..400),
    ) {
        let mut pacer = Pacer::new(PacerConfig { retries: 5, ..PacerConfig::default() });
        let (mut first, mut retries) = (0, 0);
        for (key, response) in requests {
            for attempt in 1..=6 {
                first += u64::from(attempt == 1);
                let response = ResponseSummary { attempt, ..response.clone() };
                if !matches!(pacer.after(Micros::ZERO, key, response, 7), RetryDecision::Retry(_)) {
                    break;
                }
                retries += 1;
            }
            prop_assert!(retries <= 100 + first / 10, "{} after {}", retries, first);
        }
    }
}

#[test]
fn ten_thousand_requests_to_a_service_that_always_fails_are_at_most_1_11_times_as_many_attempts() {
    for outcome in [
        ExchangeOutcome::Lost,
        ExchangeOutcome::Unavailable,
        ExchangeOutcome::Throttled,
    ] {
        let mut pacer = Pacer::new(PacerConfig::default());
        let (mut now, mut attempts) = (1_000_000, 0_u64);
        for request in 0..10_000_u32 {
            for attempt in 1.. {
                attempts += 1;
                let draw = request.wrapping_mul(0x9e37_79b9).rotate_left(attempt);
                let sent_at = Micros::new(now);
                now += 1_000;
                let response = ResponseSummary {
                    attempt,
                    sent_at,
                    ..summary(outcome)
                };
                match pacer.after(Micros::new(now), 1, response, draw) {
                    RetryDecision::Retry(wait) => now += wait.get(),
                    RetryDecision::Done | RetryDecision::GiveUp => break,
                }
            }
        }
        // And not fewer: the budget is used.
        assert!(
            (11_000..=11_100).contains(&attempts),
            "{outcome:?}: {attempts} attempts"
        );
    }
}

#[test]
fn a_service_that_always_fails_is_hardly_sent_anything_with_the_adaptive_throttle() {
    let config = PacerConfig {
        rejection: LocalRejection::Adaptive,
        ..PacerConfig::default()
    };
    let mut pacer = Pacer::new(config);
    let mut sent = 0;
    for _ in 0..10_000 {
        match pacer.before(Micros::from_secs(5), 1) {
            Clearance::Send => {
                sent += 1;
                let failure = summary(ExchangeOutcome::Lost);
                pacer.after(Micros::from_secs(5), 1, failure, 0);
            }
            Clearance::TooLong(wait) => assert_eq!(wait, AdaptiveThrottle::SPAN),
            Clearance::Wait(wait) => panic!("a rejection is no wait: {wait}"),
        }
    }
    assert!((5..20).contains(&sent), "{sent} sent");
}

#[test]
fn keys_and_policies_are_bounded_and_the_one_unused_for_longest_goes() {
    let mut pacer = Pacer::new(PacerConfig {
        policies: PolicySource::Learned,
        ..PacerConfig::default()
    });
    let denial = ResponseSummary {
        retry_after: Some(Micros::from_secs(9)),
        ..summary(ExchangeOutcome::Throttled)
    };
    for key in 0..5_000 {
        pacer.after(Micros::new(key), key, denial.clone(), 0);
        assert!(pacer.keys() <= Pacer::KEYS_MAX);
    }
    let now = Micros::new(5_000);
    assert_eq!(pacer.clearance(now, 3_975), Clearance::Send, "forgotten");
    assert_ne!(pacer.clearance(now, 3_976), Clearance::Send, "still closed");
    for id in 0..100 {
        let report = PolicyReport {
            id,
            quota: Some(7),
            window: Some(Micros::from_secs(1)),
            ..PolicyReport::default()
        };
        pacer.learn(now, 4_999, report);
    }
    assert_eq!(pacer.learned(4_999).count(), 8);
}
