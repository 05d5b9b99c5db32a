//! A client that learns from responses, against simulated servers of every algorithm.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use tollgate_core::protect::{
    Clearance, ExchangeOutcome, Pacer, PacerConfig, PolicyReport, PolicySource, Repeatability, ResponseSummary,
    RetryDecision,
};
use tollgate_core::{
    Cost, Decision, FixedWindow, Gcra, LeaseId, Limit, Micros, Now, Rate, Retry, SlidingCounter, SlidingLog, State,
    Timestamp, TokenBucket,
};

/// The numbers that a server sends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Headers {
    /// `q`, `w`, `r`, `t`.
    Policy,
    /// `X-RateLimit-Limit`, `-Remaining`, `-Reset`: no window.
    Plain,
    /// `Retry-After` alone.
    None,
}

/// The step of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Try { attempt: u32 },
    Arrive { attempt: u32, sent: u64 },
    Receive { attempt: u32, sent: u64, reply: Reply },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Reply {
    denied: bool,
    asks_s: Option<u64>,
    remaining: u64,
    reset_s: u64,
}

/// The responses after the first ten seconds.
struct Counts {
    passed: u64,
    denied: u64,
}

fn rate(units: u64, seconds: u64) -> Rate {
    Rate::new(units, Micros::from_secs(seconds)).expect("in range")
}

fn random(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    *seed >> 33
}

/// Sixty-four tasks that send all the time for a minute and ten seconds. A request is 0.5 to 20 ms on its way.
fn run(server: Limit, headers: Headers, tasks: u64) -> Counts {
    let mut pacer = Pacer::new(PacerConfig {
        policies: PolicySource::Learned,
        ..PacerConfig::default()
    });
    let mut state: Option<State> = None;
    let mut seed = 9;
    let mut latency = || 500 + random(&mut seed) % 19_500;
    let mut counts = Counts { passed: 0, denied: 0 };
    let start = 1_000_000_u64;
    let mut events: BinaryHeap<Reverse<(u64, u64, Step)>> = (0..tasks)
        .map(|task| Reverse((start, task, Step::Try { attempt: 1 })))
        .collect();
    while let Some(Reverse((now, task, step))) = events.pop() {
        if now > start + 70_000_000 {
            break;
        }
        let at = Micros::new(now);
        let next = match step {
            Step::Try { attempt } => match pacer.before(at, 1) {
                Clearance::Send => (now + latency(), Step::Arrive { attempt, sent: now }),
                Clearance::Wait(wait) => (now + wait.get(), step),
                // The caller gives up, and has another request a second later.
                Clearance::TooLong(_) => (now + 1_000_000, Step::Try { attempt: 1 }),
            },
            Step::Arrive { attempt, sent } => {
                let decided = server.decide(state.as_ref(), Cost::ONE, Now::new(Timestamp::from_micros(now)));
                if let Some(change) = decided.next {
                    server.keep(&mut state, change, LeaseId::default());
                }
                let standing = *decided.decision.standing();
                let wait = match decided.decision {
                    Decision::Allow { .. } => None,
                    Decision::Deny {
                        retry: Retry::After(wait),
                        ..
                    } => Some(wait),
                    Decision::Deny { .. } => panic!("a cost of one passes some time"),
                };
                let reply = Reply {
                    denied: wait.is_some(),
                    asks_s: wait.map(|wait| wait.get().div_ceil(1_000_000).max(1)),
                    remaining: standing.remaining,
                    reset_s: wait.unwrap_or(standing.reset_after).get().div_ceil(1_000_000),
                };
                if now > start + 10_000_000 {
                    counts.denied += u64::from(reply.denied);
                    counts.passed += u64::from(!reply.denied);
                }
                (now + latency(), Step::Receive { attempt, sent, reply })
            }
            Step::Receive { attempt, sent, reply } => {
                let window = server
                    .fill()
                    .map(|fill| Micros::from_secs(fill.get().div_ceil(1_000_000)));
                let report = PolicyReport {
                    id: 1,
                    quota: Some(server.capacity()),
                    window: window.filter(|_| headers == Headers::Policy),
                    remaining: Some(reply.remaining),
                    reset: Some(Micros::from_secs(reply.reset_s)),
                };
                let response = ResponseSummary {
                    sent_at: Micros::new(sent),
                    attempt,
                    outcome: if reply.denied {
                        ExchangeOutcome::Throttled
                    } else {
                        ExchangeOutcome::Answered
                    },
                    repeatability: Repeatability::Always,
                    retry_after: reply.asks_s.map(Micros::from_secs),
                    policies: if headers == Headers::None {
                        Vec::new()
                    } else {
                        vec![report]
                    },
                };
                let draw = (now as u32).wrapping_mul(0x9e37_79b9);
                match pacer.after(at, 1, response, draw) {
                    RetryDecision::Retry(wait) => (now + wait.get(), Step::Try { attempt: attempt + 1 }),
                    RetryDecision::Done | RetryDecision::GiveUp => (now, Step::Try { attempt: 1 }),
                }
            }
        };
        events.push(Reverse((next.0, task, next.1)));
    }
    counts
}

#[test]
fn a_client_that_learns_is_hardly_ever_denied_whatever_the_algorithm_of_the_server() {
    let gcra = |rate, burst| Limit::from(Gcra::new(rate).with_burst(burst).expect("in range"));
    // The least that pass in a minute, with and without a window in the headers. A burst shorter than a second has a
    // window that is rounded up to one, and a window without its length is used up and then waited for.
    let servers: [(&str, Limit, [u64; 2]); 8] = [
        ("gcra 50/s burst 10", gcra(rate(50, 1), 10), [550, 500]),
        ("gcra 50/s burst 100", gcra(rate(50, 1), 100), [2_900, 2_000]),
        (
            "token bucket 500/min",
            TokenBucket::new(rate(500, 60)).into(),
            [450, 450],
        ),
        (
            "fixed window 50/s",
            FixedWindow::new(rate(50, 1)).into(),
            [1_900, 2_300],
        ),
        (
            "fixed window 100 per 10s",
            FixedWindow::new(rate(100, 10)).into(),
            [500, 400],
        ),
        (
            "fixed window 600/min",
            FixedWindow::new(rate(600, 60)).into(),
            [300, 500],
        ),
        (
            "sliding counter 50/s",
            SlidingCounter::new(rate(50, 1)).into(),
            [2_200, 1_000],
        ),
        (
            "sliding log 200 per 10s",
            SlidingLog::new(rate(200, 10)).expect("in range").into(),
            [750, 850],
        ),
    ];
    let mut failures = Vec::new();
    for (index, headers) in [Headers::Policy, Headers::Plain, Headers::None].into_iter().enumerate() {
        for (name, server, passed_min) in servers {
            let counts = run(server, headers, 64);
            let all = counts.passed + counts.denied;
            // Without headers every time of recovery ends with denials: about one round of answers in four.
            let denied_max_percent = if headers == Headers::None { 30 } else { 1 };
            let passed_min = passed_min.get(index).copied().unwrap_or(400);
            if counts.denied * 100 > all * denied_max_percent || counts.passed < passed_min {
                failures.push(format!(
                    "{headers:?}, {name}: {} passed, {} denied",
                    counts.passed, counts.denied
                ));
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}
