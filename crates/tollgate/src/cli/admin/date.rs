//! Times of commands: dates in UTC, lengths of time from now, and their text.

use crate::calendar::{date_of, days_in, is_leap};
use tollgate_limiter::clock::Clock;
use tollgate_limiter::core::quantity::parse_duration;

/// Unix time in milliseconds, now.
pub(crate) fn now_ms() -> u64 {
    Clock::wall().now().as_micros() / 1_000
}

/// Parses a time to come: `2026-12-01`, `2026-12-01T10:00:00Z`, or a length of time from now (`7day`).
pub(crate) fn parse_future(text: &str) -> Result<u64, String> {
    match parse_duration(text) {
        Ok(time) => Ok(now_ms().saturating_add(time.as_millis_ceil())),
        Err(_) => parse_date(text).ok_or_else(|| invalid(text)),
    }
}

/// Parses a time that has passed: a date, or a length of time before now (`24h`).
pub(crate) fn parse_past(text: &str) -> Result<u64, String> {
    match parse_duration(text) {
        Ok(time) => Ok(now_ms().saturating_sub(time.as_millis_ceil())),
        Err(_) => parse_date(text).ok_or_else(|| invalid(text)),
    }
}

fn invalid(text: &str) -> String {
    format!(
        "`{text}` is not a time; write 2026-12-01, 2026-12-01T10:00:00Z (UTC) or a length of time such as 24h or 7day"
    )
}

/// Parses a date, with or without a time of day, in UTC.
fn parse_date(text: &str) -> Option<u64> {
    let text = text.strip_suffix('Z').unwrap_or(text);
    let (date, time) = match text.split_once(['T', ' ']) {
        Some((date, time)) => (date, time),
        None => (text, "00:00"),
    };
    let [year, month, day] = numbers(date, '-')?;
    let time = if time.matches(':').count() == 1 {
        format!("{time}:00")
    } else {
        time.to_owned()
    };
    let [hour, minute, second] = numbers(&time, ':')?;
    let is_date =
        (1970..=9999).contains(&year) && (1..=12).contains(&month) && (1..=days_in(year, month)).contains(&day);
    if !is_date || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let years = (1970..year)
        .map(|year| if is_leap(year) { 366 } else { 365 })
        .sum::<u64>();
    let months = (1..month).map(|month| days_in(year, month)).sum::<u64>();
    let days = years + months + day - 1;
    Some((((days * 24 + hour) * 60 + minute) * 60 + second) * 1_000)
}

/// Three numbers of digits only.
fn numbers(text: &str, separator: char) -> Option<[u64; 3]> {
    let parse = |part: &str| {
        let is_number = !part.is_empty() && part.len() <= 4 && part.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| part.parse().ok()).flatten()
    };
    let parts: Option<Vec<u64>> = text.split(separator).map(parse).collect();
    parts?.try_into().ok()
}

/// A time as `2026-11-17 14:02 UTC`; 0 is `never`.
pub(crate) fn time_text(ms: u64) -> String {
    if ms == 0 {
        return "never".to_owned();
    }
    let (year, month, day) = date_of(ms / 86_400_000);
    let (hour, minute) = (ms / 3_600_000 % 24, ms / 60_000 % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_utc_and_come_back_as_they_were() {
        for (text, ms, printed) in [
            ("1970-01-02", 86_400_000, "1970-01-02 00:00 UTC"),
            ("2026-12-01", 1_796_083_200_000, "2026-12-01 00:00 UTC"),
            ("2024-02-29T23:59:59Z", 1_709_251_199_000, "2024-02-29 23:59 UTC"),
            ("2026-11-17 14:02", 1_794_924_120_000, "2026-11-17 14:02 UTC"),
        ] {
            assert_eq!(parse_date(text), Some(ms), "{text}");
            assert_eq!(time_text(ms), printed);
        }
        assert_eq!(time_text(0), "never");
    }

    #[test]
    fn what_is_no_date_has_an_example() {
        for text in [
            "",
            "tomorrow",
            "2026-13-01",
            "2025-02-29",
            "2026-12-01T25:00",
            "2026-12",
            "+026-12-01",
        ] {
            let error = parse_future(text).expect_err(text);
            assert!(error.contains("2026-12-01"), "{error}");
        }
        let now = now_ms();
        assert!(parse_future("1h").is_ok_and(|ms| ms >= now + 3_600_000));
        assert!(parse_past("1h").is_ok_and(|ms| ms <= now));
    }
}
