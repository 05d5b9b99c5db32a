//! Logs the state of a shared store: what it is when first reached, its errors, and when it becomes unavailable or
//! available again.

use crate::server::store::SharedStore;
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::{MissedTickBehavior, timeout};
use tollgate_limiter::store::redis::{Diagnostics, Redis};
use tollgate_limiter::store::{Store, StoreMode, StoreStatus};

const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// The longest wait for the store at start, so that the first requests find it connected.
const INITIAL_TIMEOUT: Duration = Duration::from_millis(500);

/// Polls between two log lines about availability, so that a flapping connection does not flood the log.
const LOG_INTERVAL: u32 = 8;

/// Polls between two log lines about one error code: ten seconds.
const ERROR_LOG_INTERVAL: u32 = 40;

/// Polls the status of a store and logs its changes, without end. `is_diagnosed`: its diagnostics were logged already.
pub(super) async fn watch(shared: &SharedStore, mut is_diagnosed: bool) {
    let mut ticker = tokio::time::interval(POLL_INTERVAL);
    ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut was_connected, mut polls_since_log) = (shared.status().is_connected(), LOG_INTERVAL);
    let mut mode = shared.mode();
    log_mode(mode);
    let mut errors = ErrorLog::default();
    loop {
        ticker.tick().await;
        let status = shared.status();
        errors.report_new(&status);
        polls_since_log = polls_since_log.saturating_add(1);
        if shared.mode() != mode {
            mode = shared.mode();
            log_mode(mode);
        }
        if status.is_connected() && !is_diagnosed {
            is_diagnosed = log_diagnostics(shared.inner().diagnose().await);
        }
        // One line per change, however long it lasts.
        if status.is_connected() == was_connected || polls_since_log < LOG_INTERVAL {
            continue;
        }
        (was_connected, polls_since_log) = (status.is_connected(), 0);
        match status.connection_error {
            Some(error) => tracing::error!(
                error,
                breaker = status.breaker.state.name(),
                "store unavailable; applying each rule's on_store_failure"
            ),
            None => {
                let decided_locally = status.fallback.map_or(0, |fallback| fallback.decided_charges);
                tracing::info!(decided_locally, "store available again");
            }
        }
    }
}

/// The errors logged so far.
#[derive(Default)]
struct ErrorLog {
    /// By code: the count when it was last logged, and the polls since then.
    reported: HashMap<&'static str, (u64, u32)>,
    restarts: u64,
}

impl ErrorLog {
    /// Logs the error codes that requests have met since, each at most once per interval: a server that answers some
    /// requests may never count as unavailable. An open breaker is logged elsewhere.
    fn report_new(&mut self, status: &StoreStatus) {
        for &(code, count) in status.errors.iter().filter(|(code, _)| *code != "breaker_open") {
            let (reported, polls) = self.reported.entry(code).or_insert((0, ERROR_LOG_INTERVAL));
            *polls = polls.saturating_add(1);
            if count > *reported && *polls >= ERROR_LOG_INTERVAL {
                tracing::warn!(code, requests = count - *reported, "store errors since the last report");
                (*reported, *polls) = (count, 0);
            }
        }
        let restarts = status.calls.map_or(0, |calls| calls.task_restarts);
        if restarts > std::mem::replace(&mut self.restarts, restarts) {
            tracing::error!(restarts, "background store task panicked; restarted");
        }
    }
}

fn log_mode(mode: StoreMode) {
    match mode {
        StoreMode::Auto => {}
        StoreMode::SharedOnly => {
            tracing::warn!("`mode: shared_only`: while the store is unavailable, `local` rules are closed");
        }
        StoreMode::LocalOnly => {
            tracing::warn!("`mode: local_only`: the store is not called; every rule is decided by its share");
        }
    }
}

/// Runs the diagnostics before the first request, which does not wait for an unavailable store. True if they were logged.
pub(super) async fn initial_diagnostics(store: &Redis) -> bool {
    match (
        timeout(INITIAL_TIMEOUT, store.diagnose()).await,
        store.status().connection_error,
    ) {
        (Ok(diagnostics), _) => log_diagnostics(diagnostics),
        (Err(_), Some(error)) => log_diagnostics(Err(error)),
        // It is reachable; only the diagnostics take long.
        (Err(_), None) => false,
    }
}

/// Logs the findings about a store. True if it could be reached.
fn log_diagnostics(result: Result<Diagnostics, String>) -> bool {
    match result {
        Ok(diagnostics) => {
            tracing::info!(
                server = diagnostics.server,
                functions = diagnostics.is_function,
                "connected to the store"
            );
            for warning in &diagnostics.warnings {
                tracing::warn!("store: {warning}");
            }
            true
        }
        Err(error) => {
            tracing::error!(error, "store unavailable; applying each rule's on_store_failure");
            false
        }
    }
}
