//! Lengths of years and months, and dates, for those that people read and write.

/// True if a year has 366 days.
pub(crate) const fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

/// The number of days of a month, counted from 1.
pub(crate) const fn days_in(year: u64, month: u64) -> u64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// The year, the month and the day of the month of a day since 1970-01-01. Years above 9999 are 9999.
pub(crate) const fn date_of(day: u64) -> (u64, u64, u64) {
    let (mut year, mut days) = (1970, day);
    // A year is added at a time, for at most a few thousand of them.
    while year < 9999 {
        let length = if is_leap(year) { 366 } else { 365 };
        if days < length {
            break;
        }
        days -= length;
        year += 1;
    }
    let mut month = 1;
    while month < 12 && days >= days_in(year, month) {
        days -= days_in(year, month);
        month += 1;
    }
    (year, month, days + 1)
}

/// A Unix time in milliseconds by RFC 3339: `2026-11-17T14:02:05.120Z`.
pub(crate) fn rfc3339(ms: u64) -> String {
    let (year, month, day) = date_of(ms / 86_400_000);
    let (hour, minute) = (ms / 3_600_000 % 24, ms / 60_000 % 60);
    let (second, millis) = (ms / 1_000 % 60, ms % 1_000);
    format!("{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_its_date() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_709_251_199_999, "2024-02-29T23:59:59.999Z"),
            (1_794_924_120_000, "2026-11-17T14:02:00.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(rfc3339(ms), text);
        }
    }
}
