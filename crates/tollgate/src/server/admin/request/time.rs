//! Dates and times as people write them: `2026-12-01`, `2026-12-01T10:00:00Z`.

use crate::calendar::{days_in, is_leap};

/// Unix time in milliseconds of a date or a time in UTC.
pub(in crate::server::admin) fn parse(text: &str) -> Option<u64> {
    let (date, time) = match text.split_once('T') {
        Some((date, time)) => (date, time.strip_suffix('Z')?),
        None => (text, "00:00:00"),
    };
    let numbers = |text: &str, separator| -> Option<Vec<u64>> {
        text.split(separator)
            .map(|part| {
                (part.len() >= 2 && part.bytes().all(|byte| byte.is_ascii_digit())).then(|| part.parse().ok())?
            })
            .collect()
    };
    let (date, time) = (numbers(date, '-')?, numbers(time, ':')?);
    let (&[year, month, day], &[hour, minute, second]) = (date.as_slice(), time.as_slice()) else {
        return None;
    };
    let is_valid = (1970..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=days_in(year, month)).contains(&day)
        && hour < 24
        && minute < 60
        && second < 60;
    if !is_valid {
        return None;
    }
    let years: u64 = (1970..year).map(|year| if is_leap(year) { 366 } else { 365 }).sum();
    let months: u64 = (1..month).map(|month| days_in(year, month)).sum();
    let days = years + months + day - 1;
    Some((days * 86_400 + hour * 3_600 + minute * 60 + second) * 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_and_times_are_read_in_utc() {
        assert_eq!(parse("1970-01-02"), Some(86_400_000));
        assert_eq!(parse("2026-12-01"), Some(1_796_083_200_000));
        assert_eq!(parse("2024-02-29T23:59:59Z"), Some(1_709_251_199_000));
        for text in [
            "2026-13-01",
            "2025-02-29",
            "2026-12-01T10:00",
            "2026-12-01T10:00:00",
            "tomorrow",
            "",
            "1-1-1",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
