//! Descriptors in a rule limiter: all attempts are counted, or allowed ones only.

use super::{attributes, render, stopped_store};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use tollgate_limiter::core::problem::Origin;
use tollgate_limiter::core::rules::ratelimit::{LimitOverride, RatelimitOptions, Unit};
use tollgate_limiter::core::rules::{Attempt, RulesParser};
use tollgate_limiter::core::testing::rules::{descriptor_parser, descriptors};
use tollgate_limiter::core::{Cost, Micros, yaml};
use tollgate_limiter::{AttemptItem, Direction, InlineLimit, ItemVerdict, RuleLimiter};

const FILE: &str = include_str!("ratelimit.yaml");

fn parser(strict: bool) -> RulesParser {
    parser_of(FILE, strict)
}

pub(super) fn parser_of(file: &str, strict: bool) -> RulesParser {
    let options = RatelimitOptions {
        strict,
        ..RatelimitOptions::default()
    };
    descriptor_parser(descriptors(file), options)
}

/// The answers to several attempts, one after the other, and a minute later to the last of them again.
fn check_sequence(strict: bool, attempts: &[(&[&str], u64)]) -> Vec<String> {
    let (store, clock) = stopped_store();
    let limiter = RuleLimiter::new(
        parser(strict).finish().expect("sound descriptors").rules,
        Arc::clone(&store),
    );
    let check = |(pairs, cost): &(&[&str], u64)| {
        let attempt = Attempt {
            domain: "shop",
            attributes: &attributes(pairs),
            cost: Cost::new(*cost).expect("in range"),
        };
        render(&limiter.check_now(&attempt).verdict)
    };
    let mut results: Vec<String> = attempts.iter().map(check).collect();
    clock.advance(Micros::from_secs(60));
    results.extend(attempts.last().map(check));
    results
}

const USER: &[&str] = &["plan=free", "user=u"];

#[test]
fn what_is_refused_is_counted_and_a_look_is_refused_beyond_the_limit() {
    let deny = "denied by plan_free.user: plan_free.user 0 After(Micros(60000000))";
    assert_eq!(
        check_sequence(false, &[(USER, 2), (USER, 1), (USER, 0), (USER, 1), (USER, 0)]),
        [
            "allowed by plan_free.user: plan_free.user 1",
            "allowed by plan_free.user: plan_free.user 0",
            "allowed by plan_free.user: plan_free.user 0",
            deny,
            deny,
            "allowed by plan_free.user: plan_free.user 3",
        ]
    );
    // More than is left: nothing of it passes, and all of it counts.
    assert_eq!(
        check_sequence(false, &[(USER, 2), (USER, 2), (USER, 1)]),
        [
            "allowed by plan_free.user: plan_free.user 1",
            deny,
            deny,
            "allowed by plan_free.user: plan_free.user 2",
        ]
    );
}

#[test]
fn strictly_what_is_refused_takes_nothing() {
    let deny = "denied by plan_free.user: plan_free.user 1 After(Micros(60000000))";
    assert_eq!(
        check_sequence(true, &[(USER, 2), (USER, 2), (USER, 1)]),
        [
            "allowed by plan_free.user: plan_free.user 1",
            deny,
            "allowed by plan_free.user: plan_free.user 0",
            "allowed by plan_free.user: plan_free.user 2",
        ]
    );
}

#[test]
fn each_kind_of_limit_is_told_as_what_it_is() {
    for strict in [false, true] {
        let result = |pairs: &[&str], times: usize| {
            let mut results = check_sequence(strict, &vec![(pairs, 1); times]);
            results.swap_remove(times - 1)
        };
        let retry = if strict { "Never" } else { "After(Micros(60000000))" };
        assert_eq!(
            result(&["banned=x"], 1),
            format!("denied by banned: banned 0 {retry}"),
            "{strict}"
        );
        assert_eq!(result(&["free=x"], 9), "allowed by -: free free");
        assert_eq!(result(&["large=x"], 1), "allowed by large: large 4294967294");
        assert_eq!(result(&["unknown=x"], 1), "allowed by -:");
        // Never refuses, whatever it says.
        assert!(
            result(&["shadow=x"], 3).starts_with("allowed by -: shadow 0 After"),
            "{strict}"
        );
        // Depth and order are those of the file.
        assert_eq!(result(&["user=u", "plan=free"], 9), "allowed by -:");
        assert_eq!(result(&["plan=free", "user=u", "more=x"], 9), "allowed by -:");
    }
    let shared: &[(&[&str], u64)] = &[(&["path=/a/1"], 1), (&["path=/a/2"], 1), (&["path=/a/3"], 1)];
    let allowed: Vec<bool> = check_sequence(false, shared)
        .iter()
        .map(|answer| answer.starts_with("allowed"))
        .collect();
    assert_eq!(allowed, [true, true, false, true]);
}

#[test]
fn a_domain_is_of_one_kind() {
    let mut parser = parser(false);
    let rules = "domain: shop\nrules: [{ id: a, limit: 1/s }]\n";
    parser.add_file(&yaml::parse(&Origin::new("rules.yaml", rules)).expect("yaml"));
    let problems = parser.finish().unwrap_err();
    assert!(
        problems[0]
            .text
            .contains("the domain `shop` is one of envoyproxy/ratelimit's files")
    );
}

/// Whether a request of these descriptors goes on, asked so many times.
fn check_descriptors(limiter: &RuleLimiter, descriptors: &[&str], times: usize) -> Vec<bool> {
    let entries: Vec<_> = descriptors.iter().map(|entry| attributes(&[entry])).collect();
    let item = |attributes| AttemptItem {
        attempt: Attempt {
            domain: "shop",
            attributes,
            cost: Cost::ONE,
        },
        direction: Direction::Consume,
        inline_limit: None,
    };
    let items: Vec<AttemptItem<'_>> = entries.iter().map(|entries| item(entries)).collect();
    let check = || match pin!(limiter.check_all(&items)).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(combined) => combined.allowed,
        Poll::Pending => unreachable!("the embedded store never waits"),
    };
    (0..times).map(|_| check()).collect()
}

/// Checks some descriptors together as often as there are results, over fresh stores and in both modes.
fn check_in_both_modes(descriptors: &[&str], expected: &[bool]) {
    for strict in [false, true] {
        let (store, _) = stopped_store();
        let limiter = RuleLimiter::new(parser(strict).finish().expect("sound descriptors").rules, store);
        let allowed = check_descriptors(&limiter, descriptors, expected.len());
        assert_eq!(allowed, expected, "{descriptors:?} {strict}");
    }
}

#[test]
fn a_limit_is_left_out_where_another_replaces_it() {
    check_in_both_modes(&["all=x", "unknown=x"], &[true, false]);
    check_in_both_modes(&["all=x", "special=x"], &[true, true, true, false]);
}

#[test]
fn quotas_refuse_only_all_together() {
    check_in_both_modes(&["quota=x", "quota=large"], &[true, true, false]);
    check_in_both_modes(&["quota=x", "free=x"], &[true, false]);
    // What limits nothing always has room, and is no quota whatever is written.
    check_in_both_modes(&["quota=x", "quota=free"], &[true, false]);
    check_in_both_modes(&["quota=large", "all=x"], &[true, false]);
}

#[test]
fn a_quota_of_nothing_leaves_it_to_the_others() {
    check_in_both_modes(&["quota=none", "quota=large"], &[true, true, false]);
    check_in_both_modes(&["quota=none", "unknown=x"], &[false]);
    // Alone it refuses, and then what others took is given back.
    let (store, _) = stopped_store();
    let limiter = RuleLimiter::new(parser(true).finish().expect("sound descriptors").rules, store);
    assert_eq!(check_descriptors(&limiter, &["quota=none", "all=x"], 2), [false, false]);
    assert_eq!(check_descriptors(&limiter, &["all=x", "unknown=x"], 1), [true]);
}

#[test]
fn what_is_banned_keeps_others_from_being_charged_only_strictly() {
    for (strict, left) in [(false, [true, false]), (true, [true, true])] {
        let (store, _) = stopped_store();
        let limiter = RuleLimiter::new(parser(strict).finish().expect("sound descriptors").rules, store);
        assert_eq!(check_descriptors(&limiter, &["quota=large", "banned=x"], 1), [false]);
        assert_eq!(
            check_descriptors(&limiter, &["quota=large", "unknown=x"], 2),
            left,
            "{strict}"
        );
    }
}

/// Whether one descriptor passes that may bring a limit along, how much is then left, and what its window holds.
fn check_one(
    limiter: &RuleLimiter,
    entry: &str,
    direction: Direction,
    cost: u64,
    limit_override: Option<LimitOverride>,
) -> (bool, Option<u64>, Option<u64>) {
    let item = AttemptItem {
        attempt: Attempt {
            domain: "shop",
            attributes: &attributes(&[entry]),
            cost: Cost::new(cost).expect("in range"),
        },
        direction,
        inline_limit: limit_override.map(InlineLimit::Override),
    };
    let items = [item];
    let combined = match pin!(limiter.check_all(&items)).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(combined) => combined,
        Poll::Pending => unreachable!("the embedded store never waits"),
    };
    let (decision, counted) = match &combined.items[..] {
        [ItemVerdict::Inline(decision, _, counted)] => (*decision, *counted),
        [ItemVerdict::Rules(verdict)] => {
            let ruling = verdict.rulings.first();
            (
                ruling.and_then(|ruling| ruling.decision),
                ruling.and_then(|ruling| ruling.counted),
            )
        }
        _ => panic!("one part, one answer"),
    };
    (
        combined.allowed,
        decision.map(|decision| decision.standing().remaining),
        counted.map(|count| count.after),
    )
}

/// An attempt and its result: the descriptor, the direction and its cost, the limit it brings; whether it passes, what
/// remains, and the count.
type Row<'a> = (
    &'a str,
    Direction,
    u64,
    Option<LimitOverride>,
    (bool, Option<u64>, Option<u64>),
);

/// Checks one attempt after the other.
fn check_rows(strict: bool, rows: &[Row<'_>]) {
    let (store, _) = stopped_store();
    let limiter = RuleLimiter::new(parser(strict).finish().expect("sound descriptors").rules, store);
    for (index, (entry, direction, cost, limit_override, expected)) in rows.iter().enumerate() {
        let result = check_one(&limiter, entry, *direction, *cost, *limit_override);
        assert_eq!(result, *expected, "row {index}: {entry}");
    }
}

#[test]
fn a_limit_that_a_request_brings_is_counted_where_the_files_limit_is() {
    use Direction::Consume;
    use Unit::{Hour, Minute};
    let brought = |requests, unit| Some(LimitOverride::new(requests, unit, false));
    let result = |passes, remaining, count| (passes, Some(remaining), Some(count));
    check_rows(
        false,
        &[
            // The file lets one of a minute pass.
            ("all=x", Consume, 1, None, result(true, 0, 1)),
            ("all=x", Consume, 1, brought(5, Minute), result(true, 3, 2)),
            ("all=x", Consume, 1, None, result(false, 0, 3)),
            // Windows of another length, another value, and what no file knows have counters of their own.
            ("all=x", Consume, 1, brought(5, Hour), result(true, 4, 1)),
            ("all=y", Consume, 1, brought(5, Minute), result(true, 4, 1)),
            ("new=x", Consume, 1, brought(5, Minute), result(true, 4, 1)),
            // What is counted together in the file is not here.
            ("path=/a/1", Consume, 2, None, result(true, 0, 2)),
            ("path=/a/1", Consume, 1, brought(5, Minute), result(true, 4, 1)),
            // Beyond it is refused and counted; zero is a ban; no shadow, no quota and nothing unlimited.
            ("shadow=x", Consume, 6, brought(5, Hour), result(false, 0, 6)),
            ("quota=x", Consume, 1, brought(0, Minute), result(false, 0, 1)),
            ("free=x", Consume, 2, brought(1, Minute), result(false, 0, 2)),
        ],
    );
}

#[test]
fn strictly_a_limit_that_a_request_brings_takes_nothing_when_it_refuses() {
    use Direction::Consume;
    let brought = Some(LimitOverride::new(5, Unit::Minute, true));
    check_rows(
        true,
        &[
            ("special=x", Consume, 2, None, (true, Some(1), None)),
            ("special=x", Consume, 4, brought, (false, Some(3), None)),
            ("special=x", Consume, 3, brought, (true, Some(0), None)),
        ],
    );
}

#[test]
fn what_is_given_back_is_taken_off_and_never_refused() {
    use Direction::{Consume, Refund};
    let brought = Some(LimitOverride::new(5, Unit::Minute, false));
    check_rows(
        false,
        &[
            ("all=x", Consume, 5, None, (false, Some(0), Some(5))),
            // Still beyond the limit.
            ("all=x", Refund, 3, None, (true, Some(0), Some(2))),
            ("all=x", Refund, 9, None, (true, Some(1), Some(0))),
            ("all=x", Consume, 7, brought, (false, Some(0), Some(7))),
            ("all=x", Refund, 1, brought, (true, Some(0), Some(6))),
            ("banned=x", Refund, 1, None, (true, Some(0), Some(0))),
        ],
    );
}

#[test]
fn a_limit_of_our_own_takes_nothing_when_it_refuses() {
    for strict in [false, true] {
        let exact = &["exact=x"][..];
        let results = check_sequence(strict, &[(exact, 2), (exact, 2), (exact, 1)]);
        let starts: Vec<&str> = results
            .iter()
            .filter_map(|answer| answer.split(" After").next())
            .collect();
        assert_eq!(
            starts,
            [
                "allowed by exact: exact 1",
                "denied by exact: exact 1",
                "allowed by exact: exact 0",
                "allowed by exact: exact 1",
            ],
            "{strict}"
        );
    }
}

#[test]
fn a_limit_of_our_own_is_charged_only_if_the_request_goes_on_and_others_are_counted_all_the_same() {
    let (store, _) = stopped_store();
    let limiter = RuleLimiter::new(parser(false).finish().expect("sound descriptors").rules, store);
    // The window lets one pass, the bucket three.
    assert_eq!(
        check_descriptors(&limiter, &["all=x", "exact=x"], 3),
        [true, false, false]
    );
    assert_eq!(
        check_descriptors(&limiter, &["exact=x", "unknown=x"], 3),
        [true, true, false]
    );
    // The window is used up by what the bucket refuses.
    assert_eq!(
        check_descriptors(&limiter, &["quota=large", "exact=x"], 2),
        [false, false]
    );
    assert_eq!(check_descriptors(&limiter, &["quota=large", "unknown=x"], 1), [false]);
}

#[test]
fn another_number_goes_on_counting_and_another_unit_begins_anew() {
    let (store, _) = stopped_store();
    let check = |file: &str| {
        let rules = parser_of(file, false).finish().expect("sound descriptors").rules;
        check_one(
            &RuleLimiter::new(rules, Arc::clone(&store)),
            "all=x",
            Direction::Consume,
            1,
            None,
        )
    };
    let other = |limit: &str| FILE.replace("unit: minute, requests_per_unit: 1, name", limit);
    assert_eq!(check(FILE), (true, Some(0), Some(1)));
    assert_eq!(
        check(&other("unit: minute, requests_per_unit: 5, name")),
        (true, Some(3), Some(2))
    );
    assert_eq!(
        check(&other("unit: hour, requests_per_unit: 5, name")),
        (true, Some(4), Some(1))
    );
    assert_eq!(check(FILE), (false, Some(0), Some(3)));
}
