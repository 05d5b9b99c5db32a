//! Counts per minute of one series: the last 25 hours, in a ring that fills gaps.

use super::baseline::{Baseline, Comparison, RISE_MIN};
use std::collections::VecDeque;

/// The counts of one series: at most 6 KiB.
#[derive(Clone, Debug)]
pub(super) struct MinuteSeries {
    /// One per minute up to `last`; [`NONE`] where nothing was measured.
    counts: VecDeque<u32>,
    /// The minute of the last count.
    last: u64,
    /// The number of minutes that are kept.
    kept: u64,
}

/// The mark of a minute without a measurement.
const NONE: u32 = u32::MAX;
const HOUR: u64 = 60;
const DAY: u64 = 24 * HOUR;
/// The minutes that are kept.
const KEPT: u64 = 25 * HOUR;
/// The newest minutes are left out of their own baseline.
const NEWEST: u64 = 2;
/// The minutes around the same one of yesterday.
const AROUND: u64 = 5;
/// The least number of measured minutes of the last hour that make a baseline.
pub(super) const HOUR_COUNTS_MIN: usize = 20;
/// The least number of measured minutes of yesterday that make one.
const YESTERDAY_COUNTS_MIN: usize = 6;

impl MinuteSeries {
    /// A series of 25 hours, with a baseline of yesterday.
    pub(super) const fn long() -> Self {
        Self {
            counts: VecDeque::new(),
            last: 0,
            kept: KEPT,
        }
    }

    /// A series of the last hour.
    pub(super) const fn short() -> Self {
        Self {
            counts: VecDeque::new(),
            last: 0,
            kept: HOUR + NEWEST,
        }
    }

    /// Appends the count of a minute. Minutes that were left out have no count; one that is not newer is ignored.
    pub(super) fn push(&mut self, minute: u64, count: u64) {
        if self.counts.is_empty() || minute.saturating_sub(self.last) > self.kept {
            self.counts.clear();
            self.last = minute;
        } else if minute <= self.last {
            return;
        } else {
            for _ in self.last + 1..minute {
                self.counts.push_back(NONE);
            }
            self.last = minute;
        }
        self.counts
            .push_back(u32::try_from(count).unwrap_or(NONE - 1).min(NONE - 1));
        while self.counts.len() as u64 > self.kept {
            self.counts.pop_front();
        }
    }

    /// The minute of the last count.
    pub(super) const fn last(&self) -> u64 {
        self.last
    }

    /// The count of a minute, if it was measured.
    pub(super) fn count(&self, minute: u64) -> Option<u64> {
        let before_last = usize::try_from(self.last.checked_sub(minute)?).ok()?;
        let index = self.counts.len().checked_sub(before_last + 1)?;
        self.counts
            .get(index)
            .filter(|&&count| count != NONE)
            .map(|&count| count.into())
    }

    /// The counts of a range of minutes, as far as they were measured.
    pub(super) fn counts(&self, first: u64, last: u64) -> Vec<u64> {
        (first..=last).filter_map(|minute| self.count(minute)).collect()
    }

    /// The counts of the hour up to a minute, before the newest minutes of it.
    pub(super) fn hour(&self, minute: u64) -> Vec<u64> {
        let first = minute.saturating_sub(HOUR - 1);
        self.counts(first, minute.saturating_sub(NEWEST))
    }

    /// Compares the last count with the baselines; none while there is no baseline.
    ///
    /// Most counts are too low for a jump whatever the baseline is: then it is not computed, unless it is `needed`.
    pub(super) fn compare(&self, needed: bool) -> Option<Comparison> {
        let count = self.count(self.last)?;
        if !needed && count < RISE_MIN {
            return None;
        }
        let mut hour = self.hour(self.last);
        if hour.len() < HOUR_COUNTS_MIN {
            return None;
        }
        let hour = Baseline::new(&mut hour)?;
        let yesterday = self.yesterday();
        let baselines = [hour, yesterday.unwrap_or(hour)];
        Comparison::new(count, &baselines)
    }

    /// The baseline of the same minute yesterday, once the series is 25 hours long.
    fn yesterday(&self) -> Option<Baseline> {
        if (self.counts.len() as u64) < KEPT {
            return None;
        }
        let middle = self.last.checked_sub(DAY)?;
        let mut counts = self.counts(middle - AROUND, middle + AROUND);
        if counts.len() < YESTERDAY_COUNTS_MIN {
            return None;
        }
        Baseline::new(&mut counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A minute of the epoch.
    const START: u64 = 29_000_000;

    #[test]
    fn minutes_that_were_not_measured_have_no_count() {
        let mut series = MinuteSeries::long();
        series.push(START, 5);
        series.push(START + 3, 7);
        series.push(START + 1, 9);
        let counts: Vec<Option<u64>> = (START - 1..START + 5).map(|minute| series.count(minute)).collect();
        assert_eq!(counts, [None, Some(5), None, None, Some(7), None]);
        assert_eq!(series.counts(START, START + 3), [5, 7]);
        series.push(START + 4, u64::MAX);
        assert_eq!(series.count(START + 4), Some(u64::from(NONE - 1)));
    }

    #[test]
    fn it_keeps_25_hours_and_starts_anew_after_a_longer_gap() {
        let mut series = MinuteSeries::long();
        for minute in 0..3_000 {
            series.push(START + minute, minute);
        }
        assert_eq!(series.counts.len() as u64, KEPT);
        assert_eq!(series.count(START + 1_499), None);
        assert_eq!(series.count(START + 1_500), Some(1_500));
        series.push(START + 3_000 + KEPT, 1);
        assert_eq!(series.counts.len(), 1);
    }

    #[test]
    fn it_has_no_baseline_before_twenty_minutes() {
        let mut series = MinuteSeries::long();
        for minute in 0..21 {
            series.push(START + minute, 100);
            assert_eq!(series.compare(true), None, "{minute}");
        }
        series.push(START + 21, 100);
        assert!(series.compare(true).is_some_and(|found| !found.is_jump));
    }

    #[test]
    fn the_newest_two_minutes_are_no_part_of_the_baseline() {
        let mut series = MinuteSeries::long();
        for minute in 0..60 {
            series.push(START + minute, 100);
        }
        series.push(START + 60, 1_000);
        series.push(START + 61, 1_000);
        assert_eq!(series.hour(START + 61), vec![100; 58]);
        let found = series.compare(false).expect("it has a baseline");
        assert!(found.is_jump && found.baseline == 100, "{found:?}");
    }

    #[test]
    fn yesterday_counts_after_25_hours() {
        // A daily rise from 100 to 1,000 in one minute, as a job does at midnight.
        let mut series = MinuteSeries::long();
        let count = |minute: u64| if minute % DAY < 60 { 1_000 } else { 100 };
        let mut jumps = Vec::new();
        for minute in 30..3 * DAY {
            series.push(START + minute, count(minute));
            if series.compare(false).is_some_and(|found| found.is_jump) {
                jumps.push(minute / DAY);
            }
        }
        // Day 0 begins inside the rise. On day 1 nothing is known of yesterday before 25 hours.
        jumps.dedup();
        assert_eq!(jumps, [1]);
    }
}
