//! The headers of all dialects, to the byte.

use hyper::HeaderMap;
use hyper::header::HeaderValue;
use proptest::prelude::*;
use std::ops::Range;
use tollgate_limiter::core::{Cost, Micros, Retry, Standing, Timestamp};
use tollgate_test_kit::http::is_structured;
use tollgate_test_kit::table::rows;
use tollgate_tower::headers::{Dialect, Dialects, HeaderInput, HeaderPolicy, HeaderRanges, PolicyQuota, write};

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

/// The policy of a name in the table.
fn policy(name: &str) -> HeaderPolicy<'static> {
    match name {
        "api" => api(),
        "day" => day(),
        "inflight" => inflight(None),
        "denied inflight" => inflight(Some(Retry::Unknown)),
        "denied api" => denied(api(), 0, Retry::After(Micros::new(16_000_001))),
        "exceeded api" => denied(api(), 42, Retry::Never),
        "banned api" => HeaderPolicy {
            quota: PolicyQuota::Banned,
            ..denied(api(), 0, Retry::Never)
        },
        _ => panic!("no policy {name}"),
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

/// The headers of one dialect, sorted by name, between slashes.
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
        .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
        .collect();
    lines.sort_unstable();
    for (name, value) in &headers {
        assert!(
            is_structured(name.as_str(), value.to_str().unwrap()),
            "{name}: {value:?}"
        );
    }
    lines.join(" // ")
}

#[test]
fn every_dialect_is_written_to_the_byte() {
    for [policies, dialect, expected] in rows(include_str!("tests/dialects.txt")) {
        let named: Vec<HeaderPolicy<'_>> = policies.split(", ").map(policy).collect();
        assert_eq!(lines(dialect, &named), expected, "{dialect}: {policies}");
    }
    assert_eq!(lines("none", &[api()]), "");
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
