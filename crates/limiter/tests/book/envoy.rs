//! Descriptors of envoyproxy/ratelimit in a rule book: counted as there, or strictly.

use super::{attributes, stopped, told};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use tollgate_limiter::core::problem::Origin;
use tollgate_limiter::core::rules::envoy::{LimitOverride, DescriptorFiles, RatelimitOptions, Unit};
use tollgate_limiter::core::rules::{Attempt, RulesParser, ParserOptions};
use tollgate_limiter::core::{Cost, Micros, yaml};
use tollgate_limiter::{ItemVerdict, InlineLimit, AttemptItem, RuleLimiter, Direction};

const FILE: &str = "
domain: shop
descriptors:
- key: plan
  value: free
  descriptors:
  - key: user
    rate_limit: { unit: minute, requests_per_unit: 3 }
- key: banned
  rate_limit: { unit: minute, requests_per_unit: 0 }
- key: free
  rate_limit: { unlimited: true }
- key: quota
  value: free
  quota_mode: true
  rate_limit: { unlimited: true }
- key: shadow
  shadow_mode: true
  rate_limit: { unit: hour, requests_per_unit: 1 }
- key: path
  value: /a/*
  share_threshold: true
  rate_limit: { unit: minute, requests_per_unit: 2 }
- key: large
  rate_limit: { unit: second, requests_per_unit: 4294967295 }
- key: all
  rate_limit: { unit: minute, requests_per_unit: 1, name: everybody }
- key: special
  rate_limit: { unit: minute, requests_per_unit: 3, replaces: [{ name: everybody }] }
- key: exact
  rate_limit: { limit: 2/min burst 3, algorithm: token_bucket }
- key: quota
  quota_mode: true
  rate_limit: { unit: minute, requests_per_unit: 1 }
- key: quota
  value: none
  quota_mode: true
  rate_limit: { unit: minute, requests_per_unit: 0 }
- key: quota
  value: large
  quota_mode: true
  rate_limit: { unit: minute, requests_per_unit: 2 }
";

fn reader(strict: bool) -> RulesParser {
    reader_of(FILE, strict)
}

pub(super) fn reader_of(file: &str, strict: bool) -> RulesParser {
    let mut files = DescriptorFiles::new(false);
    files.add_file(&yaml::parse(&Origin::new("shop.yaml", file)).expect("yaml"));
    let (descriptors, _) = files.finish().expect("a sound file");
    let mut reader = RulesParser::new(ParserOptions::default());
    reader.set_descriptors(
        descriptors,
        RatelimitOptions {
            strict,
            ..RatelimitOptions::default()
        },
    );
    reader
}

/// The answers to several attempts, one after the other, and a minute later to the last of them again.
fn answers(strict: bool, attempts: &[(&[&str], u64)]) -> Vec<String> {
    let (store, clock) = stopped();
    let book = RuleLimiter::new(
        reader(strict).finish().expect("sound descriptors").rules,
        Arc::clone(&store),
    );
    let ask = |(pairs, cost): &(&[&str], u64)| {
        let attempt = Attempt {
            domain: "shop",
            attributes: &attributes(pairs),
            cost: Cost::new(*cost).expect("in range"),
        };
        told(&book.check_now(&attempt).verdict)
    };
    let mut answers: Vec<String> = attempts.iter().map(ask).collect();
    clock.advance(Micros::from_secs(60));
    answers.extend(attempts.last().map(ask));
    answers
}

const USER: &[&str] = &["plan=free", "user=u"];

#[test]
fn what_is_refused_is_counted_and_a_look_is_refused_beyond_the_limit() {
    let deny = "denied by plan_free.user: plan_free.user 0 After(Micros(60000000))";
    assert_eq!(
        answers(false, &[(USER, 2), (USER, 1), (USER, 0), (USER, 1), (USER, 0)]),
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
        answers(false, &[(USER, 2), (USER, 2), (USER, 1)]),
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
        answers(true, &[(USER, 2), (USER, 2), (USER, 1)]),
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
        let told = |pairs: &[&str], times: usize| {
            let mut answers = answers(strict, &vec![(pairs, 1); times]);
            answers.swap_remove(times - 1)
        };
        let retry = if strict { "Never" } else { "After(Micros(60000000))" };
        assert_eq!(
            told(&["banned=x"], 1),
            format!("denied by banned: banned 0 {retry}"),
            "{strict}"
        );
        assert_eq!(told(&["free=x"], 9), "allowed by -: free free");
        assert_eq!(told(&["large=x"], 1), "allowed by large: large 4294967294");
        assert_eq!(told(&["unknown=x"], 1), "allowed by -:");
        // Never refuses, whatever it says.
        assert!(
            told(&["shadow=x"], 3).starts_with("allowed by -: shadow 0 After"),
            "{strict}"
        );
        // Depth and order are those of the file.
        assert_eq!(told(&["user=u", "plan=free"], 9), "allowed by -:");
        assert_eq!(told(&["plan=free", "user=u", "more=x"], 9), "allowed by -:");
    }
    let shared: &[(&[&str], u64)] = &[(&["path=/a/1"], 1), (&["path=/a/2"], 1), (&["path=/a/3"], 1)];
    let begin: Vec<bool> = answers(false, shared)
        .iter()
        .map(|answer| answer.starts_with("allowed"))
        .collect();
    assert_eq!(begin, [true, true, false, true]);
}

#[test]
fn a_domain_is_of_one_kind() {
    let mut reader = reader(false);
    let rules = "domain: shop\nrules: [{ id: a, limit: 1/s }]\n";
    reader.add_file(&yaml::parse(&Origin::new("rules.yaml", rules)).expect("yaml"));
    let problems = reader.finish().unwrap_err();
    assert!(
        problems[0]
            .text
            .contains("the domain `shop` is one of envoyproxy/ratelimit's files")
    );
}

/// Whether a request of these descriptors goes on, asked so many times.
fn together(strict: bool, descriptors: &[&str], times: usize) -> Vec<bool> {
    let (store, _) = stopped();
    let book = RuleLimiter::new(reader(strict).finish().expect("sound descriptors").rules, store);
    together_in(&book, descriptors, times)
}

fn together_in(book: &RuleLimiter, descriptors: &[&str], times: usize) -> Vec<bool> {
    let entries: Vec<_> = descriptors.iter().map(|entry| attributes(&[entry])).collect();
    let part = |attributes| AttemptItem {
        attempt: Attempt {
            domain: "shop",
            attributes,
            cost: Cost::ONE,
        },
        direction: Direction::Consume,
        inline_limit: None,
    };
    let parts: Vec<AttemptItem<'_>> = entries.iter().map(|entries| part(entries)).collect();
    let ask = || match pin!(book.check_all(&parts)).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(together) => together.allowed,
        Poll::Pending => unreachable!("the embedded store never waits"),
    };
    (0..times).map(|_| ask()).collect()
}

#[test]
fn a_limit_is_left_out_where_another_replaces_it() {
    for strict in [false, true] {
        assert_eq!(together(strict, &["all=x", "unknown=x"], 2), [true, false]);
        assert_eq!(together(strict, &["all=x", "special=x"], 4), [true, true, true, false]);
    }
}

#[test]
fn quotas_refuse_only_all_together() {
    for strict in [false, true] {
        assert_eq!(
            together(strict, &["quota=x", "quota=large"], 3),
            [true, true, false],
            "{strict}"
        );
        assert_eq!(together(strict, &["quota=x", "free=x"], 2), [true, false], "{strict}");
        // What limits nothing always has room, and is no quota whatever is written.
        assert_eq!(
            together(strict, &["quota=x", "quota=free"], 2),
            [true, false],
            "{strict}"
        );
        assert_eq!(
            together(strict, &["quota=large", "all=x"], 2),
            [true, false],
            "{strict}"
        );
    }
}

#[test]
fn a_quota_of_nothing_leaves_it_to_the_others() {
    for strict in [false, true] {
        assert_eq!(
            together(strict, &["quota=none", "quota=large"], 3),
            [true, true, false],
            "{strict}"
        );
        assert_eq!(together(strict, &["quota=none", "unknown=x"], 1), [false], "{strict}");
    }
    // Alone it refuses, and then what others took is given back.
    let (store, _) = stopped();
    let book = RuleLimiter::new(reader(true).finish().expect("sound descriptors").rules, store);
    assert_eq!(together_in(&book, &["quota=none", "all=x"], 2), [false, false]);
    assert_eq!(together_in(&book, &["all=x", "unknown=x"], 1), [true]);
}

#[test]
fn what_is_banned_keeps_others_from_being_charged_only_strictly() {
    for (strict, left) in [(false, [true, false]), (true, [true, true])] {
        let (store, _) = stopped();
        let book = RuleLimiter::new(reader(strict).finish().expect("sound descriptors").rules, store);
        assert_eq!(together_in(&book, &["quota=large", "banned=x"], 1), [false]);
        assert_eq!(together_in(&book, &["quota=large", "unknown=x"], 2), left, "{strict}");
    }
}

/// Whether one descriptor passes that may bring a limit along, how much is then left, and what its window holds.
fn one(book: &RuleLimiter, entry: &str, way: Direction, cost: u64, own: Option<LimitOverride>) -> (bool, Option<u64>, Option<u64>) {
    let part = AttemptItem {
        attempt: Attempt {
            domain: "shop",
            attributes: &attributes(&[entry]),
            cost: Cost::new(cost).expect("in range"),
        },
        direction: way,
        inline_limit: own.map(InlineLimit::Override),
    };
    let parts = [part];
    let together = match pin!(book.check_all(&parts)).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(together) => together,
        Poll::Pending => unreachable!("the embedded store never waits"),
    };
    let (decision, counted) = match &together.items[..] {
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
        together.allowed,
        decision.map(|decision| decision.standing().remaining),
        counted.map(|count| count.after),
    )
}

#[test]
fn a_limit_that_a_request_brings_is_counted_where_the_files_limit_is() {
    use Direction::Consume;
    let (store, _) = stopped();
    let book = RuleLimiter::new(reader(false).finish().expect("sound descriptors").rules, store);
    let brought = |requests, unit| Some(LimitOverride::new(requests, unit, false));
    // The file lets one of a minute pass.
    assert_eq!(one(&book, "all=x", Consume, 1, None), (true, Some(0), Some(1)));
    assert_eq!(
        one(&book, "all=x", Consume, 1, brought(5, Unit::Minute)),
        (true, Some(3), Some(2))
    );
    assert_eq!(one(&book, "all=x", Consume, 1, None), (false, Some(0), Some(3)));
    // Windows of another length, another value, and what no file knows have counters of their own.
    assert_eq!(
        one(&book, "all=x", Consume, 1, brought(5, Unit::Hour)),
        (true, Some(4), Some(1))
    );
    assert_eq!(
        one(&book, "all=y", Consume, 1, brought(5, Unit::Minute)),
        (true, Some(4), Some(1))
    );
    assert_eq!(
        one(&book, "new=x", Consume, 1, brought(5, Unit::Minute)),
        (true, Some(4), Some(1))
    );
    // What is counted together in the file is not here.
    assert_eq!(one(&book, "path=/a/1", Consume, 2, None), (true, Some(0), Some(2)));
    assert_eq!(
        one(&book, "path=/a/1", Consume, 1, brought(5, Unit::Minute)),
        (true, Some(4), Some(1))
    );
    // Beyond it is refused and counted; zero is a ban; no shadow, no quota and nothing unlimited.
    assert_eq!(
        one(&book, "shadow=x", Consume, 6, brought(5, Unit::Hour)),
        (false, Some(0), Some(6))
    );
    assert_eq!(
        one(&book, "quota=x", Consume, 1, brought(0, Unit::Minute)),
        (false, Some(0), Some(1))
    );
    assert_eq!(
        one(&book, "free=x", Consume, 2, brought(1, Unit::Minute)),
        (false, Some(0), Some(2))
    );
}

#[test]
fn strictly_a_limit_that_a_request_brings_takes_nothing_when_it_refuses() {
    let (store, _) = stopped();
    let book = RuleLimiter::new(reader(true).finish().expect("sound descriptors").rules, store);
    let brought = Some(LimitOverride::new(5, Unit::Minute, true));
    assert_eq!(one(&book, "special=x", Direction::Consume, 2, None), (true, Some(1), None));
    assert_eq!(one(&book, "special=x", Direction::Consume, 4, brought), (false, Some(3), None));
    assert_eq!(one(&book, "special=x", Direction::Consume, 3, brought), (true, Some(0), None));
}

#[test]
fn what_is_given_back_is_taken_off_and_never_refused() {
    let (store, _) = stopped();
    let book = RuleLimiter::new(reader(false).finish().expect("sound descriptors").rules, store);
    assert_eq!(one(&book, "all=x", Direction::Consume, 5, None), (false, Some(0), Some(5)));
    // Still beyond the limit.
    assert_eq!(one(&book, "all=x", Direction::Refund, 3, None), (true, Some(0), Some(2)));
    assert_eq!(one(&book, "all=x", Direction::Refund, 9, None), (true, Some(1), Some(0)));
    let brought = Some(LimitOverride::new(5, Unit::Minute, false));
    assert_eq!(one(&book, "all=x", Direction::Consume, 7, brought), (false, Some(0), Some(7)));
    assert_eq!(one(&book, "all=x", Direction::Refund, 1, brought), (true, Some(0), Some(6)));
    assert_eq!(one(&book, "banned=x", Direction::Refund, 1, None), (true, Some(0), Some(0)));
}

#[test]
fn a_limit_of_our_own_takes_nothing_when_it_refuses() {
    for strict in [false, true] {
        let exact = &["exact=x"][..];
        let told = answers(strict, &[(exact, 2), (exact, 2), (exact, 1)]);
        let begin: Vec<&str> = told.iter().filter_map(|answer| answer.split(" After").next()).collect();
        assert_eq!(
            begin,
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
    let (store, _) = stopped();
    let book = RuleLimiter::new(reader(false).finish().expect("sound descriptors").rules, store);
    // The window lets one pass, the bucket three.
    assert_eq!(together_in(&book, &["all=x", "exact=x"], 3), [true, false, false]);
    assert_eq!(together_in(&book, &["exact=x", "unknown=x"], 3), [true, true, false]);
    // The window is used up by what the bucket refuses.
    assert_eq!(together_in(&book, &["quota=large", "exact=x"], 2), [false, false]);
    assert_eq!(together_in(&book, &["quota=large", "unknown=x"], 1), [false]);
}

#[test]
fn another_number_goes_on_counting_and_another_unit_begins_anew() {
    let (store, _) = stopped();
    let ask = |file: &str| {
        let rules = reader_of(file, false).finish().expect("sound descriptors").rules;
        one(&RuleLimiter::new(rules, Arc::clone(&store)), "all=x", Direction::Consume, 1, None)
    };
    let other = |limit: &str| FILE.replace("unit: minute, requests_per_unit: 1, name", limit);
    assert_eq!(ask(FILE), (true, Some(0), Some(1)));
    assert_eq!(
        ask(&other("unit: minute, requests_per_unit: 5, name")),
        (true, Some(3), Some(2))
    );
    assert_eq!(
        ask(&other("unit: hour, requests_per_unit: 5, name")),
        (true, Some(4), Some(1))
    );
    assert_eq!(ask(FILE), (false, Some(0), Some(3)));
}
