//! Logs the state of a shared store: what it is when first reached, its errors, when it becomes unavailable or available
//! again, and when its deadline is too short for it.

use crate::server::store::RedisStore;
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, sleep, timeout_at};
use tollgate_limiter::store::redis::{Diagnostics, Redis};
use tollgate_limiter::store::{BreakerState, Store, StoreError, StoreMode, StoreStatus};

const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// The pause between two attempts to get an answer at start.
const START_PAUSE: Duration = Duration::from_millis(20);

/// Polls between two log lines about availability, so that a flapping connection does not flood the log.
const LOG_INTERVAL: u32 = 8;

/// Polls without a connection after which a store counts as unavailable although its circuit breaker is closed: a
/// connection that is replaced after one timeout says nothing.
const DISCONNECTED_POLLS_MAX: u32 = 4;

/// Polls between two log lines about one error code: ten seconds, or a minute for the single timeouts of a busy machine.
const ERROR_LOG_INTERVAL: u32 = 40;
const TIMEOUT_LOG_INTERVAL: u32 = 240;

/// Polls between two log lines about the deadline: a minute.
const DEADLINE_LOG_INTERVAL: u32 = 240;

/// Polls the status of a store and logs its changes, without end. `is_diagnosed`: its diagnostics were logged already.
pub(super) async fn watch(shared: &RedisStore, mut is_diagnosed: bool) {
    let mut ticker = tokio::time::interval(POLL_INTERVAL);
    ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut mode = shared.mode();
    // That it did not answer at start is logged already, unless it was not waited for.
    let mut availability = Availability::new(is_diagnosed || mode == StoreMode::LocalOnly);
    log_mode(mode);
    let mut errors = ErrorLog::default();
    let mut deadline = DeadlineLog::default();
    loop {
        ticker.tick().await;
        let status = shared.status();
        errors.report_new(&status);
        deadline.report(&status);
        if shared.mode() != mode {
            mode = shared.mode();
            log_mode(mode);
        }
        if status.is_connected() && !is_diagnosed {
            is_diagnosed = log_diagnostics(shared.inner().diagnose().await);
        }
        match availability.update(&status) {
            None => {}
            Some(false) => tracing::error!(
                error = status.connection_error.unwrap_or_default(),
                breaker = status.breaker.state.name(),
                "store unavailable; applying each rule's on_store_failure"
            ),
            Some(true) => {
                let decided_locally = status.fallback.map_or(0, |fallback| fallback.decided_charges);
                tracing::info!(decided_locally, "store available again");
            }
        }
    }
}

/// The availability of a store when it was last logged.
struct Availability {
    was_available: bool,
    /// Consecutive polls without a connection.
    disconnected_polls: u32,
    polls_since_log: u32,
}

impl Availability {
    const fn new(was_available: bool) -> Self {
        Self {
            was_available,
            disconnected_polls: 0,
            polls_since_log: LOG_INTERVAL,
        }
    }

    /// Records a poll. Returns true if the store has become available and false if it has become unavailable, once per
    /// change, however long it lasts.
    fn update(&mut self, status: &StoreStatus) -> Option<bool> {
        self.polls_since_log = self.polls_since_log.saturating_add(1);
        self.disconnected_polls = match status.is_connected() {
            true => 0,
            false => self.disconnected_polls.saturating_add(1),
        };
        let is_closed = status.breaker.state == BreakerState::Closed;
        let is_available = match (status.is_connected(), is_closed) {
            (true, true) => true,
            (false, true) if self.disconnected_polls < DISCONNECTED_POLLS_MAX => return None,
            _ => false,
        };
        if is_available == self.was_available || self.polls_since_log < LOG_INTERVAL {
            return None;
        }
        (self.was_available, self.polls_since_log) = (is_available, 0);
        Some(is_available)
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
            let is_timeout = code == StoreError::Timeout.name();
            let interval = match is_timeout {
                true => TIMEOUT_LOG_INTERVAL,
                false => ERROR_LOG_INTERVAL,
            };
            let (reported, polls) = self.reported.entry(code).or_insert((0, interval));
            *polls = polls.saturating_add(1);
            if count > *reported && *polls >= interval {
                let requests = count - *reported;
                let breaker = status.breaker.state.name();
                match is_timeout {
                    true => tracing::warn!(
                        requests,
                        breaker,
                        "store calls timed out since the last report; each was decided by its rule's on_store_failure"
                    ),
                    false => tracing::warn!(code, requests, breaker, "store errors since the last report"),
                }
                (*reported, *polls) = (count, 0);
            }
        }
        let restarts = status.calls.map_or(0, |calls| calls.task_restarts);
        if restarts > std::mem::replace(&mut self.restarts, restarts) {
            tracing::error!(restarts, "background store task panicked; restarted");
        }
    }
}

/// The state of the deadline when it was last logged.
#[derive(Default)]
struct DeadlineLog {
    was_short: bool,
    polls_until_next: u32,
}

impl DeadlineLog {
    /// Logs when the deadline becomes too short for the store, or fits again, at most once per interval.
    fn report(&mut self, status: &StoreStatus) {
        self.polls_until_next = self.polls_until_next.saturating_sub(1);
        let Some(round_trip) = status.round_trip else { return };
        let warning = round_trip.warning();
        if warning.is_some() == self.was_short || self.polls_until_next > 0 {
            return;
        }
        (self.was_short, self.polls_until_next) = (warning.is_some(), DEADLINE_LOG_INTERVAL);
        match warning {
            Some(warning) => tracing::warn!("deadline too short: {warning}"),
            None => tracing::info!("the deadline of the store fits its round trip again"),
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

/// Runs the diagnostics before the first request, and waits until the store has answered, at most until `until`. True if
/// they were logged.
pub(super) async fn initial_diagnostics(shared: &RedisStore, until: Instant) -> bool {
    let store = shared.inner();
    if shared.mode() == StoreMode::LocalOnly {
        return false;
    }
    match timeout_at(until, answered(store)).await {
        Ok(diagnostics) => log_diagnostics(Ok(diagnostics)),
        Err(_) => {
            let error = store.status().connection_error;
            tracing::error!(
                error = error.as_deref().unwrap_or("no call was answered within its deadline"),
                "store unavailable: it has not answered within start_wait; applying each rule's on_store_failure"
            );
            false
        }
    }
}

/// The diagnostics of a store that has answered.
async fn answered(store: &Redis) -> Diagnostics {
    loop {
        match store.diagnose().await {
            Ok(diagnostics) if diagnostics.has_answered => return diagnostics,
            // It was not reached, or its first calls timed out.
            Ok(_) | Err(_) => sleep(START_PAUSE).await,
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_limiter::store::BreakerStatus;

    fn status(connection_error: Option<&str>, state: BreakerState) -> StoreStatus {
        StoreStatus {
            connection_error: connection_error.map(str::to_owned),
            breaker: BreakerStatus { state, transitions: 0 },
            ..StoreStatus::in_process(0)
        }
    }

    #[test]
    fn a_connection_that_is_replaced_is_no_outage_and_one_that_stays_away_is() {
        let silent = status(Some("no reply before the deadline"), BreakerState::Closed);
        let connected = status(None, BreakerState::Closed);
        let mut availability = Availability::new(true);
        for _ in 0..20 {
            assert_eq!(availability.update(&silent), None);
            assert_eq!(availability.update(&connected), None);
        }
        let updates: Vec<_> = (0..8).filter_map(|_| availability.update(&silent)).collect();
        assert_eq!(updates, [false]);
        let updates: Vec<_> = (0..20).filter_map(|_| availability.update(&connected)).collect();
        assert_eq!(updates, [true]);
    }

    #[test]
    fn an_open_breaker_is_an_outage_at_once() {
        let mut availability = Availability::new(true);
        let open = status(Some("no reply before the deadline"), BreakerState::Open);
        assert_eq!(availability.update(&open), Some(false));
        assert_eq!(availability.update(&open), None);
    }
}
