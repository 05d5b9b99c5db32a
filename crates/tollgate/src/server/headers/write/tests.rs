use super::*;
use hyper::HeaderMap;
use hyper::header::HeaderValue;
use proptest::prelude::*;
use tollgate_limiter::core::{Micros, Retry, Standing};

const NOW: Timestamp = Timestamp::from_micros(1_794_782_045_000_000);

fn api() -> HeaderPolicy<'static> {
    HeaderPolicy {
        name: "api",
        quota: PolicyQuota::Window {
            units: 100,
            window_s: 60,
        },
        standing: Standing {
            limit: 100,
            remaining: 42,
            reset_after: Micros::from_secs(17),
        },
        next_unit_after: None,
        retry: None,
    }
}

fn day() -> HeaderPolicy<'static> {
    HeaderPolicy {
        name: "day",
        quota: PolicyQuota::Window {
            units: 5_000,
            window_s: 86_400,
        },
        standing: Standing {
            limit: 5_000,
            remaining: 4_100,
            reset_after: Micros::new(35_999_000_001),
        },
        next_unit_after: None,
        retry: None,
    }
}

fn inflight(retry: Option<Retry>) -> HeaderPolicy<'static> {
    HeaderPolicy {
        name: "inflight",
        quota: PolicyQuota::Concurrent { slots: 20 },
        standing: Standing {
            limit: 20,
            remaining: 3,
            reset_after: Micros::from_secs(60),
        },
        next_unit_after: None,
        retry,
    }
}

fn denied(policy: HeaderPolicy<'static>, remaining: u64, retry: Retry) -> HeaderPolicy<'static> {
    let standing = Standing {
        remaining,
        ..policy.standing
    };
    HeaderPolicy {
        standing,
        retry: Some(retry),
        ..policy
    }
}

/// The headers of one dialect as lines, sorted by name.
fn lines(dialect: &str, policies: &[HeaderPolicy<'static>]) -> String {
    let input = HeaderInput {
        policies: policies.iter().copied(),
        nearest: policies[0],
        cost: Cost::ONE,
        now: NOW,
    };
    // Behind something else, as in an answer to a pipelined request.
    let mut buffer = b"before".to_vec();
    let mut ranges = HeaderRanges::default();
    write(
        Dialects::from_names([dialect]).unwrap(),
        &input,
        &mut buffer,
        &mut ranges,
    );
    let value = |range: Range<usize>| HeaderValue::from_bytes(&buffer[range]).unwrap();
    let headers: HeaderMap = ranges
        .into_iter()
        .map(|(name, range)| (name.clone(), value(range)))
        .collect();
    let mut lines: Vec<String> = headers
        .iter()
        .map(|(name, value)| format!("{name}: {}\n", value.to_str().unwrap()))
        .collect();
    lines.sort_unstable();
    for (name, value) in &headers {
        assert!(
            is_structured(name.as_str(), value.to_str().unwrap()),
            "{name}: {value:?}"
        );
    }
    lines.concat()
}

/// True if a strict parser of structured fields accepts it as the type of its dialect.
fn is_structured(name: &str, value: &str) -> bool {
    let parser = sfv::Parser::new(value);
    match name {
        "ratelimit" if value.starts_with("limit=") => parser.parse::<sfv::Dictionary>().is_ok(),
        "ratelimit" | "ratelimit-policy" | "ratelimit-limit" | "x-ratelimit-limit" => {
            parser.parse::<sfv::List>().is_ok()
        }
        _ => parser
            .parse::<sfv::Item>()
            .is_ok_and(|item| item.bare_item.as_integer().is_some()),
    }
}

#[test]
fn every_dialect_is_written_to_the_byte() {
    for (dialect, expected) in [
        (
            "ietf",
            "ratelimit-policy: \"api\";q=100;w=60\nratelimit: \"api\";r=42;t=17\n",
        ),
        (
            "ietf-next",
            "ratelimit-policy: \"api\";q=100;w=60\nratelimit: \"api\";a=42;w=17;c=1\n",
        ),
        (
            "draft07",
            "ratelimit-policy: 100;w=60\nratelimit: limit=100, remaining=42, reset=17\n",
        ),
        (
            "draft06",
            "ratelimit-limit: 100\nratelimit-policy: 100;w=60\nratelimit-remaining: 42\nratelimit-reset: 17\n",
        ),
        (
            "draft03",
            "ratelimit-limit: 100, 100;w=60\nratelimit-remaining: 42\nratelimit-reset: 17\n",
        ),
        (
            "x-envoy",
            "x-ratelimit-limit: 100, 100;w=60;name=\"api\"\nx-ratelimit-remaining: 42\nx-ratelimit-reset: 17\n",
        ),
        (
            "x-delta",
            "x-ratelimit-limit: 100\nx-ratelimit-remaining: 42\nx-ratelimit-reset: 17\n",
        ),
        (
            "x-unix",
            "x-ratelimit-limit: 100\nx-ratelimit-remaining: 42\nx-ratelimit-reset: 1794782062\nx-ratelimit-used: 58\n",
        ),
        ("none", ""),
    ] {
        assert_eq!(lines(dialect, &[api()]), expected, "{dialect}");
    }
}

#[test]
fn several_limits_are_listed_and_the_nearest_stands_alone_where_there_is_room_for_one() {
    for (dialect, expected) in [
        (
            "ietf",
            "ratelimit-policy: \"api\";q=100;w=60, \"day\";q=5000;w=86400\n\
             ratelimit: \"api\";r=42;t=17, \"day\";r=4100;t=36000\n",
        ),
        (
            "draft07",
            "ratelimit-policy: 100;w=60, 5000;w=86400\nratelimit: limit=100, remaining=42, reset=17\n",
        ),
        (
            "draft03",
            "ratelimit-limit: 100, 100;w=60, 5000;w=86400\nratelimit-remaining: 42\nratelimit-reset: 17\n",
        ),
        (
            "x-envoy",
            "x-ratelimit-limit: 100, 100;w=60;name=\"api\", 5000;w=86400;name=\"day\"\n\
             x-ratelimit-remaining: 42\nx-ratelimit-reset: 17\n",
        ),
        (
            "x-delta",
            "x-ratelimit-limit: 100\nx-ratelimit-remaining: 42\nx-ratelimit-reset: 17\n",
        ),
    ] {
        assert_eq!(lines(dialect, &[api(), day()]), expected, "{dialect}");
    }
}

#[test]
fn a_denied_limit_tells_the_wait_rounded_up_and_what_is_left() {
    let api = denied(api(), 0, Retry::After(Micros::new(16_000_001)));
    assert_eq!(
        lines("ietf", &[api]),
        "ratelimit-policy: \"api\";q=100;w=60\nratelimit: \"api\";r=0;t=17\n"
    );
    assert_eq!(
        lines("x-delta", &[api]),
        "x-ratelimit-limit: 100\nx-ratelimit-remaining: 0\nx-ratelimit-reset: 17\n"
    );
    assert_eq!(
        lines("x-unix", &[api]),
        "x-ratelimit-limit: 100\nx-ratelimit-remaining: 0\nx-ratelimit-reset: 1794782062\nx-ratelimit-used: 100\n"
    );
}

#[test]
fn a_cost_that_can_never_pass_has_no_time_to_wait_for() {
    let api = denied(api(), 42, Retry::Never);
    assert_eq!(
        lines("ietf", &[api]),
        "ratelimit-policy: \"api\";q=100;w=60\nratelimit: \"api\";r=42\n"
    );
    assert_eq!(
        lines("x-delta", &[api]),
        "x-ratelimit-limit: 100\nx-ratelimit-remaining: 42\n"
    );
    assert_eq!(
        lines("x-unix", &[api]),
        "x-ratelimit-limit: 100\nx-ratelimit-remaining: 42\nx-ratelimit-used: 58\n"
    );
    assert_eq!(
        lines("draft07", &[api]),
        "ratelimit-policy: 100;w=60\nratelimit: limit=100, remaining=42\n"
    );
}

#[test]
fn concurrency_has_its_own_unit_and_neither_window_nor_time() {
    for retry in [None, Some(Retry::Unknown)] {
        assert_eq!(
            lines("ietf", &[inflight(retry), api()]),
            "ratelimit-policy: \"inflight\";q=20;qu=\"concurrent-requests\", \"api\";q=100;w=60\n\
             ratelimit: \"inflight\";r=3, \"api\";r=42;t=17\n"
        );
    }
    assert_eq!(
        lines("draft06", &[inflight(None)]),
        "ratelimit-limit: 20\nratelimit-remaining: 3\n"
    );
}

#[test]
fn a_ban_is_a_quota_of_nothing() {
    let banned = HeaderPolicy {
        quota: PolicyQuota::Banned,
        ..denied(api(), 0, Retry::Never)
    };
    assert_eq!(
        lines("ietf", &[banned]),
        "ratelimit-policy: \"api\";q=0\nratelimit: \"api\";r=0\n"
    );
}

proptest! {
    #[test]
    fn whatever_the_numbers_a_strict_parser_reads_every_field(
        units: u64, window_s in 1_u64.., remaining: u64, reset_us in 0..=Micros::MAX.get(),
        retry in proptest::option::of(prop_oneof![
            (0..=Micros::MAX.get()).prop_map(|us| Retry::After(Micros::new(us))),
            Just(Retry::Unknown),
            Just(Retry::Never),
        ]),
    ) {
        let standing = Standing { limit: units, remaining, reset_after: Micros::new(reset_us) };
        let windowed = HeaderPolicy { name: "a.b:c/d_e-9", quota: PolicyQuota::Window { units, window_s }, standing, next_unit_after: None, retry };
        for (dialect, _) in Dialect::NAMES {
            lines(dialect, &[windowed, inflight(None), day()]);
        }
    }
}
