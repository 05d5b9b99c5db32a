//! All protocols give the same verdicts for the same attempts, over memory and over Redis, and each verdict is counted
//! under its own protocol.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "all of it is a test, and the lints know only the functions that are marked as one"
)]

mod derived;
mod protocols;
mod reserve;
mod server;
mod zero_limits;

use protocols::{PROTOCOLS, TestAttempt, TestVerdict, check, forward, gateway_view};
use server::TestServer;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tollgate::server::store::AnyStore;
use tollgate_limiter::clock::Clock;
use tollgate_limiter::core::Timestamp;
use tollgate_limiter::store::fallback::Fallback;
use tollgate_limiter::store::memory::Memory;
use tollgate_limiter::store::redis::Redis;
use tollgate_limiter::testing::servers::{Server, ServerKind};

/// Every rule counts per protocol, so that protocols do not share counters. Less than one unit refills while the test runs.
const RULES: &str = "
- { id: plan, per: [protocol, user], limit: 10/day, by: { tier: { gold: 20/day, none: 0/day, free: unlimited } } }
- { id: charges, when: { path: '/v1/*' }, per: protocol, limit: 40/day, algorithm: gcra }
- { id: exact, per: [protocol, user], limit: 12/day, algorithm: sliding_log, when: { tier: silver } }
- { id: tried, per: protocol, limit: 5/day, mode: shadow }
- { id: priced, per: protocol, when: { points: { present: true } }, cost: { attribute: points, default: 3 }, limit: 60/day }
";

/// Attempts of several users, tiers, paths and costs, the same every time.
fn attempts() -> Vec<TestAttempt> {
    let mut state = 7_u64;
    let mut draw = |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let one = |_| {
        let mut attributes = vec![("user", format!("u{}", draw(4)))];
        let tier = ["gold", "silver", "none", "free", "other"][draw(5) as usize];
        attributes.push(("tier", tier.to_owned()));
        if draw(2) == 0 {
            attributes.push(("path", ["/v1/charges", "/v2/charges"][draw(2) as usize].to_owned()));
        }
        if draw(4) == 0 {
            attributes.push(("points", ["2", "many"][draw(2) as usize].to_owned()));
        }
        TestAttempt {
            attributes,
            cost: [1, 1, 1, 0, 3, 50][draw(6) as usize],
        }
    };
    (0..150).map(one).collect()
}

fn check_protocols_agree(store: impl FnOnce() -> AnyStore, source: &str) {
    let server = TestServer::start(RULES, store);
    let attempts = attempts();
    let all: Vec<(&str, Vec<TestVerdict>)> = PROTOCOLS
        .iter()
        .map(|(name, _, send)| (*name, send(&server, name, &attempts)))
        .collect();
    let (first, expected) = &all[0];
    assert!(expected.iter().any(|verdict| verdict.allowed) && expected.iter().any(|verdict| !verdict.allowed));
    for (name, verdicts) in &all[1..] {
        for (index, (verdict, expected)) in verdicts.iter().zip(expected).enumerate() {
            assert_eq!(verdict, expected, "{name} beside {first}: {:?}", attempts[index]);
        }
        assert_eq!(verdicts.len(), expected.len());
    }
    // Each verdict is counted under its protocol.
    let (mut counted, mut expected_counts) = (BTreeMap::new(), BTreeMap::new());
    for (name, protocol, _) in PROTOCOLS {
        let (_, verdicts) = all.iter().find(|(known, _)| known == name).unwrap();
        for verdict in verdicts {
            *expected_counts.entry((*protocol, verdict.allowed)).or_insert(0) += 1;
        }
    }
    for line in server
        .gate
        .metrics_text()
        .lines()
        .filter_map(|line| line.strip_prefix("tollgate_checks_total{"))
    {
        let (labels, count) = line.split_once("} ").unwrap();
        assert!(labels.contains(&format!("source=\"{source}\"")), "{labels}");
        let protocol = PROTOCOLS
            .iter()
            .map(|(_, protocol, _)| *protocol)
            .find(|protocol| labels.contains(&format!("protocol=\"{protocol}\"")));
        let entry = counted
            .entry((protocol.unwrap(), labels.contains("\"allow\"")))
            .or_insert(0);
        *entry += count.parse::<usize>().unwrap();
    }
    assert_eq!(counted, expected_counts);

    // A gateway cannot say what a request costs.
    let ones: Vec<TestAttempt> = attempts.into_iter().filter(|attempt| attempt.cost == 1).collect();
    let expected: Vec<TestVerdict> = check(&server, "ones", &ones).into_iter().map(gateway_view).collect();
    assert!(expected.iter().any(|verdict| verdict.allowed) && expected.iter().any(|verdict| !verdict.allowed));
    let verdicts = forward(&server, "forward", &ones);
    for (index, (verdict, expected)) in verdicts.iter().zip(&expected).enumerate() {
        assert_eq!(verdict, expected, "a gateway beside check: {:?}", ones[index]);
    }
    let denied = verdicts.iter().filter(|verdict| !verdict.allowed).count();
    let line = format!("tollgate_checks_total{{result=\"deny\",source=\"{source}\",protocol=\"forward\"}} {denied}\n");
    assert!(server.gate.metrics_text().contains(&line), "{line}");
}

#[test]
fn all_doors_say_the_same_over_memory() {
    let clock = Clock::manual(Timestamp::from_micros(1_794_782_045_000_000));
    check_protocols_agree(|| Arc::new(Memory::options().clock(clock).build()).into(), "memory");
}

#[test]
fn all_doors_say_the_same_over_redis() {
    let server = Server::start(ServerKind::Redis70);
    // A refusal that is known without asking may name fewer limits.
    let options = Redis::options(&server.url()).unwrap().near_cache(false);
    check_protocols_agree(
        || {
            let shared = Arc::new(options.deadline(Duration::from_secs(5)).open());
            Arc::new(Fallback::new(shared, Default::default())).into()
        },
        "shared",
    );
}
