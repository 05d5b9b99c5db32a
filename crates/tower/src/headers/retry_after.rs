//! The `Retry-After` header: seconds, or a date. Core rounds and spreads the wait.

use super::policy::seconds_ceil;
use std::time::{Duration, UNIX_EPOCH};
use tollgate_limiter::core::protect::retry_after_s;
use tollgate_limiter::core::{Micros, Retry, Timestamp};

/// The form of `Retry-After`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryAfter {
    /// The most jitter as a part of the wait, in millionths, so that denied clients do not retry at once.
    pub jitter_ppm: u32,
    /// Seconds, a date, or no header.
    pub format: RetryAfterFormat,
    /// True if denied callers of a limit without `per` return one after the other, rather than all at once.
    pub spread: bool,
    /// The longest extra wait that spreading causes.
    pub spread_max: Micros,
}

/// The forms of `Retry-After`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryAfterFormat {
    /// `Retry-After: 17`: needs no synchronized clocks.
    Seconds,
    /// `Retry-After: Sun, 15 Nov 2026 22:34:22 GMT`.
    Date,
    /// Not sent.
    None,
}

impl Default for RetryAfter {
    fn default() -> Self {
        Self {
            jitter_ppm: 100_000,
            format: RetryAfterFormat::Seconds,
            spread: true,
            spread_max: Micros::from_secs(60),
        }
    }
}

/// The value of `Retry-After` for a denied attempt; none if it can never pass, or the header is disabled.
///
/// The wait is the exact one and `extra`, which spreads the callers of a shared limit. It is extended by a random part of
/// the jitter, `fraction` of 2^32, and never shortened. It is at least one second: zero would invite a busy loop.
pub fn retry_after(settings: RetryAfter, retry: Retry, extra: Micros, now: Timestamp, fraction: u32) -> Option<String> {
    let wait = match retry {
        Retry::After(wait) => wait,
        Retry::Unknown => Micros::ZERO,
        Retry::Never => return None,
    };
    let wait_s = retry_after_s(wait, extra, settings.jitter_ppm, fraction);
    match settings.format {
        RetryAfterFormat::None => None,
        RetryAfterFormat::Seconds => Some(wait_s.to_string()),
        RetryAfterFormat::Date => {
            // A date has whole seconds: rounded up once more, so that it is not before the end of the wait.
            let at_s = seconds_ceil(Micros::new(now.as_micros()))
                .saturating_add(wait_s)
                .min(DATE_S_MAX);
            Some(httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(at_s)))
        }
    }
}

/// The last second of the year 9999: later dates have no form.
const DATE_S_MAX: u64 = 253_402_300_799;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: Timestamp = Timestamp::from_micros(1_794_782_045_000_000);

    fn check(format: RetryAfterFormat, jitter_ppm: u32, retry: Retry, draw: u32, expected: Option<&str>) {
        check_spread(format, jitter_ppm, retry, Micros::ZERO, draw, expected);
    }

    fn check_spread(
        format: RetryAfterFormat,
        jitter_ppm: u32,
        retry: Retry,
        extra: Micros,
        draw: u32,
        expected: Option<&str>,
    ) {
        let settings = RetryAfter {
            jitter_ppm,
            format,
            ..RetryAfter::default()
        };
        assert_eq!(retry_after(settings, retry, extra, NOW, draw).as_deref(), expected);
    }

    #[test]
    fn an_extra_wait_is_added_before_jitter_and_rounding() {
        use RetryAfterFormat::{Date, Seconds};
        let after = |us| Retry::After(Micros::new(us));
        let extra = |us| Micros::new(us);
        check_spread(Seconds, 0, after(400_000), extra(600_000), u32::MAX, Some("1"));
        check_spread(Seconds, 0, after(400_000), extra(600_001), u32::MAX, Some("2"));
        check_spread(
            Seconds,
            100_000,
            after(10_000_000),
            extra(10_000_000),
            u32::MAX,
            Some("22"),
        );
        check_spread(Seconds, 0, Retry::Unknown, extra(7_000_000), 0, Some("7"));
        check_spread(Seconds, 0, Retry::Never, extra(7_000_000), 0, None);
        check_spread(
            Date,
            0,
            after(7_000_000),
            extra(10_000_000),
            0,
            Some("Sun, 15 Nov 2026 22:34:22 GMT"),
        );
    }

    #[test]
    fn is_written_in_whole_seconds_never_zero_or_as_a_date() {
        use RetryAfterFormat::{Date, None as Silent, Seconds};
        let after = |us| Retry::After(Micros::new(us));
        check(Seconds, 0, after(17_000_000), u32::MAX, Some("17"));
        check(Seconds, 0, after(16_000_001), 0, Some("17"));
        check(Seconds, 0, after(1), 0, Some("1"));
        check(Seconds, 0, after(0), 0, Some("1"));
        check(Seconds, 100_000, Retry::Unknown, u32::MAX, Some("1"));
        check(Seconds, 100_000, Retry::Never, 0, None);
        check(Seconds, 100_000, after(100_000_000), 0, Some("100"));
        check(Seconds, 100_000, after(100_000_000), 1 << 31, Some("105"));
        check(Seconds, 100_000, after(100_000_000), u32::MAX, Some("110"));
        check(Date, 0, after(17_000_000), 0, Some("Sun, 15 Nov 2026 22:34:22 GMT"));
        check(Date, 0, Retry::Never, 0, None);
        check(Silent, 0, after(17_000_000), 0, None);
    }

    proptest! {
        #[test]
        fn is_never_before_the_wait_is_over_and_never_beyond_the_jitter(
            wait in 0..=Micros::MAX.get(), jitter_ppm in 0..=1_000_000_u32, draw: u32,
        ) {
            let stretched_us = u128::from(retry_after_s(Micros::new(wait), Micros::ZERO, jitter_ppm, draw)) * 1_000_000;
            let most_us = u128::from(wait) + u128::from(wait) * u128::from(jitter_ppm) / 1_000_000;
            prop_assert!(stretched_us >= u128::from(wait));
            prop_assert!(stretched_us <= most_us + 1_000_000);
        }

        #[test]
        fn any_moment_can_be_written_as_a_date(now in 0..=Timestamp::MAX.as_micros(), wait in 0..=Micros::MAX.get()) {
            let settings = RetryAfter { jitter_ppm: 0, format: RetryAfterFormat::Date, ..RetryAfter::default() };
            let (wait, now) = (Retry::After(Micros::new(wait)), Timestamp::from_micros(now));
            let date = retry_after(settings, wait, Micros::MAX, now, 0);
            prop_assert!(date.is_some_and(|date| httpdate::parse_http_date(&date).is_ok()));
        }
    }
}
