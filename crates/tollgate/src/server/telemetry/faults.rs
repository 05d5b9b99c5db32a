//! Calls without a verdict: those that were rejected on the gRPC port, and those that panicked. Each is counted, and one
//! of a kind per minute is logged.

use super::Protocol;
use super::decisions::PROTOCOLS;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;
use tonic::{Code, Status};

/// The faults of all front ends since the start.
#[derive(Debug, Default)]
pub struct Faults {
    /// By the index of [`CODES`].
    rejected: [FaultCount; CODES.len()],
    /// By the index of [`PROTOCOLS`].
    panics: [FaultCount; PROTOCOLS.len()],
}

/// The number of faults of one kind, and the last one that was logged.
#[derive(Debug, Default)]
struct FaultCount {
    total: AtomicU64,
    last_log: Mutex<Option<LastLog>>,
}

#[derive(Clone, Copy, Debug)]
struct LastLog {
    at: Instant,
    total: u64,
}

/// The time between two lines of the log about faults of one kind.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

impl Faults {
    /// Counts a call that the gRPC port did not decide.
    pub(in crate::server) fn add_rejected(&self, status: &Status) {
        let index = CODES.iter().position(|(code, _)| *code == status.code());
        let Some((count, (_, code))) = index.and_then(|index| self.rejected.get(index).zip(CODES.get(index))) else {
            return;
        };
        if let Some(calls) = count.add(Instant::now()) {
            let error = status.message();
            tracing::warn!(
                code,
                error,
                calls,
                "rejected a gRPC call; Envoy lets its request pass unless `failure_mode_deny` is set, so correct the caller"
            );
        }
    }

    /// Counts a call that panicked.
    pub(in crate::server) fn add_panic(&self, protocol: Protocol, message: &str) {
        let index = PROTOCOLS.iter().position(|(known, _)| *known == protocol);
        let Some((count, (_, protocol))) = index.and_then(|index| self.panics.get(index).zip(PROTOCOLS.get(index)))
        else {
            return;
        };
        if let Some(calls) = count.add(Instant::now()) {
            tracing::error!(
                protocol,
                message,
                calls,
                "a call panicked and was answered with an error; other calls go on; report this as a bug"
            );
        }
    }

    /// The number of calls that panicked over a protocol.
    pub fn panics(&self, protocol: Protocol) -> u64 {
        let index = PROTOCOLS.iter().position(|(known, _)| *known == protocol);
        index
            .and_then(|index| self.panics.get(index))
            .map_or(0, FaultCount::total)
    }

    /// The number of calls that panicked.
    pub(crate) fn all_panics(&self) -> u64 {
        self.panics.iter().map(FaultCount::total).sum()
    }

    pub(super) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut rejected = encoder.encode_descriptor(
            "tollgate_rejected",
            "Calls without a verdict, by protocol and status code.",
            None,
            MetricType::Counter,
        )?;
        for ((_, code), count) in CODES.iter().zip(&self.rejected) {
            let labels = [("protocol", "grpc"), ("code", *code)];
            ConstCounter::new(count.total()).encode(rejected.encode_family(&labels)?)?;
        }
        let mut panics = encoder.encode_descriptor(
            "tollgate_panics",
            "Calls that panicked and were answered with an error, by protocol.",
            None,
            MetricType::Counter,
        )?;
        for ((_, protocol), count) in PROTOCOLS.iter().zip(&self.panics) {
            let labels = [("protocol", *protocol)];
            ConstCounter::new(count.total()).encode(panics.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

impl FaultCount {
    fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// Counts one fault at `now`. Returns the number since the last one that was logged if this one is to be logged.
    fn add(&self, now: Instant) -> Option<u64> {
        let total = self.total.fetch_add(1, Ordering::Relaxed) + 1;
        // A thread that holds the lock logs in this one's place.
        let mut last_log = self.last_log.try_lock().ok()?;
        let logged = match *last_log {
            Some(last) if now.saturating_duration_since(last.at) < LOG_INTERVAL => return None,
            last => last.map_or(0, |last| last.total),
        };
        *last_log = Some(LastLog { at: now, total });
        Some(total.saturating_sub(logged))
    }
}

/// Every status of a call that is not decided, with its label.
const CODES: [(Code, &str); 10] = [
    (Code::Cancelled, "cancelled"),
    (Code::InvalidArgument, "invalid_argument"),
    (Code::DeadlineExceeded, "deadline_exceeded"),
    (Code::PermissionDenied, "permission_denied"),
    (Code::ResourceExhausted, "resource_exhausted"),
    (Code::OutOfRange, "out_of_range"),
    (Code::Unimplemented, "unimplemented"),
    (Code::Internal, "internal"),
    (Code::Unavailable, "unavailable"),
    (Code::Unauthenticated, "unauthenticated"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_fault_of_a_kind_is_logged_in_a_minute_with_the_number_since_the_last() {
        let count = FaultCount::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(count.add(at(0)), Some(1));
        assert_eq!(count.add(at(1)), None);
        assert_eq!(count.add(at(59)), None);
        assert_eq!(count.add(at(60)), Some(3));
        assert_eq!(count.add(at(61)), None);
        assert_eq!(count.total(), 5);
    }

    #[test]
    fn every_status_that_a_rejected_call_can_have_is_counted() {
        let faults = Faults::default();
        for (code, _) in CODES {
            faults.add_rejected(&Status::new(code, "reason"));
        }
        assert!(faults.rejected.iter().all(|count| count.total() == 1));
        faults.add_rejected(&Status::ok(""));
        assert!(faults.rejected.iter().all(|count| count.total() == 1));
    }
}
