//! The process: its memory, and how busy the threads are that decide.

use super::AlignedCount;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt;
use std::fs;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;
use tollgate_limiter::clock::{StartTime, Stopwatch};

/// The process as it is measured.
#[derive(Debug, Default)]
pub struct ProcessMetrics {
    workers: OnceLock<Handle>,
    stopwatch: Stopwatch,
    /// The time that workers were busy, and when that was read.
    last: Mutex<Option<(StartTime, Duration)>>,
    busy_ppm: AlignedCount,
}

/// The time over which business is averaged.
const SPAN_NS: u64 = 10_000_000_000;

impl ProcessMetrics {
    /// Measures the worker threads of this runtime from now on.
    pub fn measure_workers(&self, runtime: Handle) {
        let _ = self.workers.set(runtime);
    }

    /// Reads how busy workers were, if the time for it has come. Called every second.
    pub(crate) fn sample(&self) {
        let Some(runtime) = self.workers.get() else { return };
        let metrics = runtime.metrics();
        let workers = metrics.num_workers();
        let busy: Duration = (0..workers)
            .map(|worker| metrics.worker_total_busy_duration(worker))
            .sum();
        let now = self.stopwatch.start();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((then, busy_then)) = *last else {
            *last = Some((now, busy));
            return;
        };
        let elapsed = self.stopwatch.elapsed_ns(then);
        if elapsed >= SPAN_NS {
            *last = Some((now, busy));
            let share = busy_ppm(busy.saturating_sub(busy_then), elapsed, workers);
            self.busy_ppm.set(share);
        }
    }

    #[expect(clippy::float_arithmetic, reason = "a ratio for people to read")]
    pub(super) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Resident memory of the process, in bytes.";
        // Without a number where the system does not say.
        if let Some(bytes) = resident_bytes() {
            let gauge = ConstGauge::new(i64::try_from(bytes).unwrap_or(i64::MAX));
            gauge.encode(encoder.encode_descriptor("tollgate_memory_bytes", help, None, MetricType::Gauge)?)?;
        }
        let help = "Part of the last ten seconds that the threads were busy which decide: 1 is all of it.";
        let gauge = ConstGauge::new(self.busy_ppm.get() as f64 / 1e6);
        gauge.encode(encoder.encode_descriptor("tollgate_worker_busy_ratio", help, None, MetricType::Gauge)?)
    }
}

/// Millionths of the time of all workers.
fn busy_ppm(busy: Duration, elapsed_ns: u64, workers: usize) -> u64 {
    let whole = u128::from(elapsed_ns) * workers as u128;
    let share = (busy.as_nanos() * 1_000_000).checked_div(whole).unwrap_or_default();
    u64::try_from(share).unwrap_or(u64::MAX).min(1_000_000)
}

/// The resident memory, as Linux tells it.
fn resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1_024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_time_is_a_part_of_that_of_all_workers() {
        for (busy_ms, elapsed_ms, workers, expected) in [
            (0, 10_000, 2, 0),
            (5_000, 10_000, 2, 250_000),
            (20_000, 10_000, 2, 1_000_000),
            (20_001, 10_000, 2, 1_000_000),
            (1, 0, 2, 0),
            (1, 1, 0, 0),
        ] {
            let found = busy_ppm(Duration::from_millis(busy_ms), elapsed_ms * 1_000_000, workers);
            assert_eq!(found, expected, "{busy_ms} {elapsed_ms} {workers}");
        }
    }

    #[test]
    fn the_system_says_how_much_memory_is_resident() {
        let bytes = resident_bytes().expect("tests run on Linux");
        assert!(bytes > 1 << 20, "{bytes}");
    }
}
