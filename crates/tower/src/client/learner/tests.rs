//! Every dialect, by the bytes that servers send.

use super::*;
use http::{HeaderName, HeaderValue};
use proptest::prelude::*;

/// Sun, 15 Nov 2026 22:34:05 GMT.
const NOW: Timestamp = Timestamp::from_micros(1_794_782_045_000_000);

fn headers(lines: &[(&str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        let name: HeaderName = name.parse().expect("a name");
        headers.append(name, HeaderValue::from_str(value).expect("a value"));
    }
    headers
}

type Numbers = (Option<u64>, Option<u64>, Option<u64>, Option<u64>);

/// Quota, window, remaining and reset of each policy, in seconds.
fn read(lines: &[(&str, &str)]) -> Vec<Numbers> {
    let seconds = |time: Option<Micros>| time.map(|time| time.get() / 1_000_000);
    PolicyLearner::policies(&headers(lines), NOW)
        .into_iter()
        .map(|report| {
            (
                report.quota,
                seconds(report.window),
                report.remaining,
                seconds(report.reset),
            )
        })
        .collect()
}

#[test]
fn all_dialects_say_the_same() {
    let full: Numbers = (Some(100), Some(60), Some(42), Some(17));
    let without_window: Numbers = (Some(100), None, Some(42), Some(17));
    let cases: [(&[(&str, &str)], Numbers); 9] = [
        (
            &[
                ("ratelimit-policy", "\"api\";q=100;w=60"),
                ("ratelimit", "\"api\";r=42;t=17"),
            ],
            full,
        ),
        (
            &[
                ("ratelimit-policy", "\"api\";q=100;w=60"),
                ("ratelimit", "\"api\";a=42;w=17;c=1"),
            ],
            full,
        ),
        (
            &[("ratelimit-policy", "api;q=100;w=60"), ("ratelimit", "api;r=42;t=17")],
            full,
        ),
        (
            &[
                ("ratelimit-policy", "100;w=60"),
                ("ratelimit", "limit=100, remaining=42, reset=17"),
            ],
            full,
        ),
        (
            &[
                ("ratelimit-limit", "100"),
                ("ratelimit-remaining", "42"),
                ("ratelimit-reset", "17"),
                ("ratelimit-policy", "100;w=60"),
            ],
            full,
        ),
        (
            &[
                ("ratelimit-limit", "100, 100;w=60"),
                ("ratelimit-remaining", "42"),
                ("ratelimit-reset", "17"),
            ],
            full,
        ),
        (
            &[
                ("x-ratelimit-limit", "100, 100;w=60;name=\"api\""),
                ("x-ratelimit-remaining", "42"),
                ("x-ratelimit-reset", "17"),
            ],
            full,
        ),
        (
            &[
                ("x-ratelimit-limit", "100"),
                ("x-ratelimit-remaining", "42"),
                ("x-ratelimit-reset", "17"),
            ],
            without_window,
        ),
        (
            &[
                ("x-ratelimit-limit", "100"),
                ("x-ratelimit-remaining", "42"),
                ("x-ratelimit-reset", "1794782062"),
            ],
            without_window,
        ),
    ];
    for (lines, expected) in cases {
        assert_eq!(read(lines), [expected], "{lines:?}");
    }
}

#[test]
fn several_policies_keep_their_numbers() {
    let lines = [
        ("ratelimit-policy", "\"api\";q=100;w=60,\"day\";q=5000;w=86400"),
        ("ratelimit", "\"api\";r=42;t=17;pk=:dGVuYW50OmFjbWU=:"),
        ("ratelimit", "\"day\";r=4100;t=36000"),
    ];
    let expected = [
        (Some(100), Some(60), Some(42), Some(17)),
        (Some(5_000), Some(86_400), Some(4_100), Some(36_000)),
    ];
    assert_eq!(read(&lines), expected);
    let envoy = [
        ("x-ratelimit-limit", "100, 100;w=60;name=\"per-tenant\", 1000;w=3600"),
        ("x-ratelimit-remaining", "42"),
        ("x-ratelimit-reset", "17"),
    ];
    let expected = [
        (Some(100), Some(60), Some(42), Some(17)),
        (Some(1_000), Some(3_600), None, None),
    ];
    assert_eq!(read(&envoy), expected);
}

#[test]
fn limits_that_do_not_count_requests_are_ignored() {
    let lines = [
        (
            "ratelimit-policy",
            "\"bytes\";q=65535;qu=\"content-bytes\";w=10, \"api\";q=9;w=1",
        ),
        ("ratelimit", "\"bytes\";r=0;t=9, \"api\";r=3;t=1"),
    ];
    assert_eq!(read(&lines), [(Some(9), Some(1), Some(3), Some(1))]);
}

#[test]
fn a_name_is_the_same_policy_in_every_process() {
    let lines = [("ratelimit", "\"api\";r=42;t=17")];
    let reports = PolicyLearner::policies(&headers(&lines), NOW);
    assert_eq!(reports.first().map(|report| report.id), Some(0xe74f_c019_056a_ae07));
}

#[test]
fn fields_that_are_no_structured_fields_are_ignored() {
    for value in [
        "\"api\"; q=100",
        "\"api\";Q=1",
        "api;q=;w=1",
        "\"api",
        "\u{7f}",
        "-5;w=60",
        "1.5;w=60",
        "(1 2);w=3",
    ] {
        let lines: Vec<(&str, &str)> = vec![("ratelimit-policy", value)];
        let Ok(_) = HeaderValue::from_str(value) else { continue };
        let numbers = read(&lines);
        let is_harmless = |(quota, ..): &Numbers| quota.is_none_or(|quota| quota == 100);
        assert!(numbers.iter().all(is_harmless), "{value}: {numbers:?}");
    }
    let long = "1;w=1, ".repeat(2_000) + "1;w=1";
    assert_eq!(read(&[("ratelimit-policy", &long)]), []);
    assert_eq!(read(&[("x-ratelimit-remaining", "18446744073709551616")]), []);
    assert_eq!(read(&[]), []);
}

#[test]
fn retry_after_is_seconds_or_a_date_by_the_clock_of_the_server() {
    let asked = |lines: &[(&str, &str)]| PolicyLearner::retry_after(&headers(lines), NOW);
    let date = ("retry-after", "Sun, 15 Nov 2026 22:34:22 GMT");
    assert_eq!(asked(&[("retry-after", "17")]), Some(Micros::from_secs(17)));
    assert_eq!(asked(&[date]), Some(Micros::from_secs(17)));
    assert_eq!(
        asked(&[date, ("date", "Sun, 15 Nov 2026 22:34:20 GMT")]),
        Some(Micros::from_secs(2))
    );
    // Past, and out of range.
    assert_eq!(
        asked(&[("retry-after", "Sun, 15 Nov 2020 22:34:22 GMT")]),
        Some(Micros::ZERO)
    );
    assert_eq!(asked(&[("retry-after", "99999999999999999999999")]), Some(Micros::MAX));
    for invalid in ["", "-1", "1.5", "soon", "17s", "Sun, 15 Foo 2026 22:34:22 GMT"] {
        assert_eq!(asked(&[("retry-after", invalid)]), None, "{invalid}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn no_header_makes_it_panic_or_report_without_bound(
        values in prop::collection::vec((0..8_usize, "[ -~]{0,60}|[a-z\";,=0-9w:()-]{0,60}"), 0..8),
    ) {
        const NAMES: [&str; 8] = [
            "ratelimit", "ratelimit-policy", "ratelimit-limit", "ratelimit-remaining", "x-ratelimit-limit",
            "x-ratelimit-reset", "retry-after", "date",
        ];
        let lines: Vec<(&str, &str)> = values.iter()
            .filter_map(|(name, value)| Some((*NAMES.get(*name)?, value.as_str())))
            .collect();
        let headers = headers(&lines);
        prop_assert!(PolicyLearner::policies(&headers, NOW).len() <= 8);
        let _ = PolicyLearner::retry_after(&headers, NOW);
    }
}

#[test]
fn of_a_field_full_of_items_no_more_are_kept_than_are_reported() {
    let full = vec!["a"; 2_700].join(",");
    let several: Vec<String> = (0..1_000).map(|name| format!("p{name};w=1")).collect();
    let numbered: Vec<String> = (1..1_000).map(|quota| format!("{quota};w=1")).collect();
    for list in [full, several.join(","), numbered.join(",")] {
        let named = headers(&[("ratelimit-policy", &list), ("ratelimit", &list)]);
        assert!(fields::named(&named).len() <= REPORTS_MAX);
        let numbered = headers(&[
            ("ratelimit-limit", &list),
            ("ratelimit-policy", &list),
            ("ratelimit-remaining", "1"),
        ]);
        assert!(fields::numbered(&numbered, "ratelimit", NOW).len() <= REPORTS_MAX);
    }
}
