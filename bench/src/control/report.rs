//! The table of figures and bounds, printed line by line.

use std::time::Duration;

/// The lines that were printed, as far as the end of the run depends on them.
#[derive(Default)]
pub(super) struct Report {
    missed: u32,
}

/// Times of one kind.
#[derive(Default)]
pub(super) struct Times(Vec<Duration>);

impl Report {
    pub(super) fn print_head(&self) {
        println!("| row | measured | figure | bound | result |\n|---|---|---:|---:|---|");
    }

    /// Prints a figure that has a bound.
    pub(super) fn bounded(
        &mut self,
        row: &str,
        measured: &str,
        figure: impl std::fmt::Display,
        bound: &str,
        is_met: bool,
    ) {
        let result = if is_met { "met" } else { "**missed**" };
        println!("| {row} | {measured} | {figure} | {bound} | {result} |");
        self.missed += u32::from(!is_met);
    }

    /// Prints a figure without a bound.
    pub(super) fn note(&self, row: &str, measured: &str, figure: impl std::fmt::Display) {
        println!("| {row} | {measured} | {figure} | - | - |");
    }

    /// True if all bounds were met.
    pub(super) const fn is_met(&self) -> bool {
        self.missed == 0
    }
}

impl Times {
    pub(super) fn push(&mut self, time: Duration) {
        self.0.push(time);
    }

    pub(super) fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// The time that this part of all times does not exceed: 0.99 is the 99th percentile. Zero without times.
    pub(super) fn quantile(&self, part: f64) -> Duration {
        let mut times = self.0.clone();
        times.sort_unstable();
        let rank = (times.len() as f64 * part).ceil() as usize;
        times.get(rank.saturating_sub(1)).copied().unwrap_or_default()
    }

    pub(super) fn max(&self) -> Duration {
        self.0.iter().max().copied().unwrap_or_default()
    }

    pub(super) const fn count(&self) -> usize {
        self.0.len()
    }

    /// Median, 99th percentile and maximum.
    pub(super) fn summary(&self) -> String {
        let [p50, p99] = [0.5, 0.99].map(|part| milliseconds(self.quantile(part)));
        format!("p50 {p50}, p99 {p99}, max {}", milliseconds(self.max()))
    }
}

impl FromIterator<Duration> for Times {
    fn from_iter<I: IntoIterator<Item = Duration>>(times: I) -> Self {
        Self(times.into_iter().collect())
    }
}

pub(super) fn milliseconds(time: Duration) -> String {
    let ms = time.as_secs_f64() * 1e3;
    if ms < 10.0 {
        format!("{ms:.2} ms")
    } else {
        format!("{ms:.0} ms")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_times_that_occurred() {
        let times: Times = (1..=200).map(Duration::from_millis).collect();
        assert_eq!(times.quantile(0.5), Duration::from_millis(100));
        assert_eq!(times.quantile(0.99), Duration::from_millis(198));
        assert_eq!(times.quantile(1.0), times.max());
        assert_eq!(times.summary(), "p50 100 ms, p99 198 ms, max 200 ms");
        assert_eq!(Times::default().quantile(0.99), Duration::ZERO);
    }
}
