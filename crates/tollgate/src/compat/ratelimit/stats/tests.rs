//! Statistics of descriptors, and their names.

use crate::compat::ratelimit::CompatModes;
use crate::server::gate::Gate;
use crate::server::telemetry::Protocol;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use tollgate_limiter::core::Cost;
use tollgate_limiter::core::rules::ratelimit::{LimitOverride, RatelimitOptions, Unit};
use tollgate_limiter::core::rules::{Attempt, Attribute, ParserOptions, RulesParser};
use tollgate_limiter::core::testing::rules::{attributes, descriptor_rules, strict};
use tollgate_limiter::store::memory::Memory;
use tollgate_limiter::{AttemptItem, Direction, InlineLimit};
use tollgate_test_kit::table::assert_contains;

const FILE: &str = include_str!("descriptors.yaml");

fn gate(options: RatelimitOptions) -> Gate {
    Gate::new(descriptor_rules(FILE, options), Arc::new(Memory::default()))
}

fn poll_ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => unreachable!("the embedded store never waits"),
    }
}

/// Asks for descriptors of one entry each, and says whether they pass.
fn check(gate: &Gate, domain: &str, way: Direction, descriptors: &[(&str, u64)]) -> bool {
    let entries: Vec<_> = descriptors.iter().map(|(entry, _)| attributes(&[entry])).collect();
    let mut items: Vec<AttemptItem<'_>> = Vec::new();
    for (attributes, (_, hits)) in entries.iter().zip(descriptors) {
        items.push(AttemptItem {
            attempt: Attempt {
                domain,
                attributes,
                cost: Cost::new(*hits).expect("in range"),
            },
            direction: way,
            inline_limit: None,
        });
    }
    poll_ready(gate.snapshot(Protocol::Grpc).check_all(&items)).allowed
}

/// The statistics of one name that are not zero.
fn stats_of(gate: &Gate, path: &str) -> Vec<String> {
    let prefix = format!("ratelimit.service.rate_limit.{path}.");
    let text = gate.ratelimit_stats();
    let lines = text.lines().filter_map(|line| line.strip_prefix(&prefix));
    lines.filter(|line| !line.ends_with(": 0")).map(str::to_owned).collect()
}

#[track_caller]
fn assert_stats(gate: &Gate, path: &str, expected: &str) {
    assert_eq!(stats_of(gate, path).join(", "), expected, "{path}");
}

#[test]
fn hits_are_counted_by_how_near_the_limit_they_were() {
    let gate = gate(RatelimitOptions::default());
    assert!(check(&gate, "shop", Direction::Consume, &[("user=a", 7)]));
    assert_stats(&gate, "shop.user", "total_hits: 7, within_limit: 7");
    assert!(check(&gate, "shop", Direction::Consume, &[("user=a", 2)]));
    assert_stats(&gate, "shop.user", "near_limit: 1, total_hits: 9, within_limit: 9");
    // One is within and near, three are beyond.
    assert!(!check(&gate, "shop", Direction::Consume, &[("user=a", 4)]));
    assert_stats(
        &gate,
        "shop.user",
        "near_limit: 2, over_limit: 3, total_hits: 13, within_limit: 9",
    );
    assert!(!check(&gate, "shop", Direction::Consume, &[("user=a", 5)]));
    assert_stats(
        &gate,
        "shop.user",
        "near_limit: 2, over_limit: 8, total_hits: 18, within_limit: 9",
    );
}

#[test]
fn the_share_that_is_near_can_be_set() {
    let gate = gate(RatelimitOptions {
        near_share: 0.5,
        ..RatelimitOptions::default()
    });
    check(&gate, "shop", Direction::Consume, &[("user=a", 7)]);
    assert_stats(&gate, "shop.user", "near_limit: 2, total_hits: 7, within_limit: 7");
}

#[test]
fn strictly_all_that_is_refused_is_beyond_the_limit() {
    let gate = gate(strict());
    assert!(check(&gate, "shop", Direction::Consume, &[("user=a", 9)]));
    assert!(!check(
        &gate,
        "shop",
        Direction::Consume,
        &[("user=a", 4), ("user=vip", 9)]
    ));
    assert_stats(
        &gate,
        "shop.user",
        "near_limit: 1, over_limit: 4, total_hits: 13, within_limit: 9",
    );
    // Would have passed, and was not taken.
    assert_stats(&gate, "shop.user_vip", "near_limit: 1, total_hits: 9, within_limit: 9");
    assert!(!check(&gate, "shop", Direction::Consume, &[("banned=x", 2)]));
    assert_stats(&gate, "shop.banned", "over_limit: 2, total_hits: 2");
}

#[test]
fn each_kind_of_limit_is_counted_as_what_it_is() {
    let gate = gate(RatelimitOptions::default());
    for _ in 0..2 {
        let each = [("path=/a/1", 1), ("shadow=x", 1), ("free=x", 1), ("unknown=x", 1)];
        assert!(check(&gate, "shop", Direction::Consume, &each));
    }
    assert!(!check(&gate, "shop", Direction::Consume, &[("banned=x", 1)]));
    assert_stats(&gate, "shop.path_/a/*", "total_hits: 2, within_limit: 2");
    assert_eq!(
        stats_of(&gate, "shop.shadow"),
        [
            "near_limit: 1",
            "over_limit: 1",
            "shadow_mode: 1",
            "total_hits: 2",
            "within_limit: 1"
        ]
    );
    // Of four hits at once on a limit of one, three are beyond it.
    assert!(check(&gate, "shop", Direction::Consume, &[("shadow=y", 4)]));
    assert_eq!(
        stats_of(&gate, "shop.shadow"),
        [
            "near_limit: 2",
            "over_limit: 4",
            "shadow_mode: 4",
            "total_hits: 6",
            "within_limit: 1"
        ]
    );
    assert_stats(&gate, "shop.banned", "over_limit: 1, total_hits: 1");
    assert_stats(&gate, "shop.free", "");
    check(&gate, "shop", Direction::Refund, &[("path=/a/1", 2)]);
    assert_stats(
        &gate,
        "shop.path_/a/*",
        "total_hits: 2, total_negative_hits: 2, within_limit: 2",
    );
}

#[test]
fn what_is_given_back_is_counted_if_it_is_given() {
    for (options, given) in [
        (RatelimitOptions::default(), "total_negative_hits: 3"),
        (strict(), "total_negative_hits: 1"),
    ] {
        let gate = gate(options);
        let attributes = [Attribute {
            name: "path",
            value: b"/a/1",
        }];
        let attempt = |hits| Attempt {
            domain: "shop",
            attributes: &attributes,
            cost: Cost::new(hits).expect("in range"),
        };
        let item = |hits, way| AttemptItem {
            attempt: attempt(hits),
            direction: way,
            inline_limit: None,
        };
        // Eleven are beyond the limit, so that the request is refused.
        let items = [item(11, Direction::Consume), item(2, Direction::Refund)];
        assert!(!poll_ready(gate.snapshot(Protocol::Grpc).check_all(&items)).allowed);
        poll_ready(gate.snapshot(Protocol::Http).refund(&attempt(1)));
        let stats = stats_of(&gate, "shop.path_/a/*");
        assert!(stats.iter().any(|line| line == given), "{stats:?}");
    }
}

#[test]
fn limits_that_requests_bring_are_counted_with_every_value() {
    let gate = gate(RatelimitOptions::default());
    let attributes = attributes(&["user=vip"]);
    let item = |domain| AttemptItem {
        attempt: Attempt {
            domain,
            attributes: &attributes,
            cost: Cost::new(12).expect("in range"),
        },
        direction: Direction::Consume,
        inline_limit: Some(InlineLimit::Override(LimitOverride::new(10, Unit::Year, false))),
    };
    assert!(!poll_ready(gate.snapshot(Protocol::Grpc).check_all(&[item("shop")])).allowed);
    assert_stats(&gate, "shop.user_vip", "near_limit: 2, over_limit: 2, total_hits: 12");
}

#[test]
fn a_check_through_any_door_counts_once() {
    let gate = gate(RatelimitOptions::default());
    let attributes = attributes(&["user=a"]);
    let attempt = Attempt {
        domain: "shop",
        attributes: &attributes,
        cost: Cost::ONE,
    };
    poll_ready(gate.snapshot(Protocol::Http).check(&attempt));
    check(&gate, "shop", Direction::Consume, &[("user=a", 1)]);
    poll_ready(gate.snapshot(Protocol::Http).explain(&attempt));
    assert_stats(&gate, "shop.user", "total_hits: 2, within_limit: 2");
}

#[test]
fn values_that_came_stand_in_names_where_the_file_says_so() {
    let gate = gate(RatelimitOptions::default());
    check(
        &gate,
        "shop",
        Direction::Consume,
        &[("told=a|b", 1), ("ip=10.0.0.1", 1)],
    );
    assert_eq!(
        stats_of(&gate, "shop.told_a_b")[1..],
        ["total_hits: 1", "within_limit: 1"]
    );
    assert_eq!(
        stats_of(&gate, "shop.ip_10_0_0_1")[1..],
        ["total_hits: 1", "within_limit: 1"]
    );
}

#[test]
fn names_that_come_with_requests_are_bounded() {
    let gate = gate(RatelimitOptions::default());
    let max = super::PATHS_MAX;
    for number in 0..max + 5 {
        check(&gate, "shop", Direction::Consume, &[(&format!("told={number}"), 1)]);
    }
    let long = "x".repeat(super::NAME_BYTES_MAX);
    check(&gate, "shop", Direction::Consume, &[(&format!("told={long}"), 1)]);
    assert_eq!(
        stats_of(&gate, "shop.__other__")[1..],
        ["total_hits: 6", "within_limit: 6"]
    );
    let text = gate.ratelimit_stats();
    assert_eq!(text.matches("shop.told_").count(), max * super::STATS.len());
    // One that is known goes on, and the names of the file have their own places.
    check(&gate, "shop", Direction::Consume, &[("told=1", 1), ("user=a", 1)]);
    assert_eq!(stats_of(&gate, "shop.told_1")[2], "total_hits: 2");
    assert_stats(&gate, "shop.user", "total_hits: 1, within_limit: 1");
    // After other rules as well.
    gate.install_rules(descriptor_rules(FILE, RatelimitOptions::default()));
    check(&gate, "shop", Direction::Consume, &[("told=new", 1), ("user=a", 1)]);
    assert_eq!(
        stats_of(&gate, "shop.__other__")[1..],
        ["total_hits: 7", "within_limit: 7"]
    );
    assert_stats(&gate, "shop.user", "total_hits: 2, within_limit: 2");
}

#[test]
fn domains_that_are_not_there_are_counted_and_bounded() {
    let gate = gate(RatelimitOptions::default());
    for number in 0..super::DOMAINS_MAX + 9 {
        check(
            &gate,
            &format!("no-{number}"),
            Direction::Consume,
            &[("user=a", 1), ("user=b", 1)],
        );
    }
    let text = gate.ratelimit_stats();
    for (domain, count) in [("no-0", 2), ("__other__", 18)] {
        let line = format!("ratelimit.service.rate_limit.{domain}.domain_not_found: {count}\n");
        assert!(text.contains(&line), "{text}");
    }
}

#[test]
fn the_same_figures_are_series() {
    let gate = gate(RatelimitOptions::default());
    check(&gate, "shop", Direction::Consume, &[("user=a", 7), ("path=/a/1", 1)]);
    check(&gate, "nowhere", Direction::Consume, &[("user=a", 7)]);
    let text = gate.metrics_text();
    assert_contains(
        &text,
        &[
            "tollgate_ratelimit_total_hits_total{domain=\"shop\",path=\"user\"} 7\n",
            "tollgate_ratelimit_within_limit_total{domain=\"shop\",path=\"path_/a/*\"} 1\n",
            "tollgate_ratelimit_over_limit_total{domain=\"shop\",path=\"user\"} 0\n",
            "tollgate_ratelimit_domain_not_found_total{domain=\"nowhere\"} 1\n",
        ],
    );
    let native = Gate::new(
        RulesParser::new(ParserOptions::default())
            .finish()
            .expect("no rules")
            .rules,
        Arc::new(Memory::default()),
    );
    assert!(!native.metrics_text().contains("tollgate_envoy"));
}

#[test]
fn they_have_the_names_of_envoyproxy_ratelimit_too_if_that_is_asked() {
    let file = "
domain: a.shop
descriptors:
- key: user
  rate_limit: { unit: year, requests_per_unit: 10 }
- key: plan
  descriptors:
  - key: user
    rate_limit: { unit: year, requests_per_unit: 10 }
    descriptors:
    - key: path
      rate_limit: { unit: year, requests_per_unit: 10 }
";
    let gate = Gate::new(
        descriptor_rules(file, RatelimitOptions::default()),
        Arc::new(Memory::default()),
    );
    for (names, hits) in [
        (&["user"][..], 11),
        (&["plan", "user"], 2),
        (&["plan", "user", "path"], 3),
    ] {
        let attributes: Vec<Attribute<'_>> = names.iter().map(|name| Attribute { name, value: b"x" }).collect();
        poll_ready(gate.snapshot(Protocol::Http).check(&Attempt {
            domain: "a.shop",
            attributes: &attributes,
            cost: Cost::new(hits).expect("in range"),
        }));
    }
    assert!(!gate.metrics_text().contains("\nratelimit_service"));
    gate.record_reload_failure("no such file");
    gate.compat().set_modes(CompatModes {
        prometheus_names: true,
        ..CompatModes::default()
    });
    let text = gate.metrics_text();
    for line in [
        "ratelimit_service_rate_limit_total_hits{domain=\"a.shop\",key1=\"user\"} 11\n",
        "ratelimit_service_rate_limit_over_limit{domain=\"a.shop\",key1=\"user\"} 1\n",
        "ratelimit_service_rate_limit_near_limit{domain=\"a.shop\",key1=\"user\"} 2\n",
        // What lies deeper counts for the second level.
        "ratelimit_service_rate_limit_within_limit{domain=\"a.shop\",key1=\"plan\",key2=\"user\"} 5\n",
        "ratelimit_service_rate_limit_shadow_mode{domain=\"a.shop\",key1=\"plan\",key2=\"user\"} 0\n",
        "ratelimit_service_should_rate_limit_error{err_type=\"redis_error\"} 0\n",
        "ratelimit_service_total_requests{grpc_method=\"ShouldRateLimit\"} 0\n",
        "ratelimit_service_config_load_success 1\n",
        "ratelimit_service_config_load_error 1\n",
    ] {
        assert!(text.contains(line), "{line} {text}");
    }
    assert!(text.contains("tollgate_ratelimit_total_hits_total{") && text.ends_with("# EOF\n"));
}
