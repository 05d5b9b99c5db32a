//! What the log says of a shared store: what it is when it is first reached, and whenever it goes and comes back.

use std::collections::HashMap;
use std::time::Duration;
use tokio::time::{MissedTickBehavior, timeout};
use tollgate::server::store::SharedStore;
use tollgate_limiter::store::StoreMode;
use tollgate_limiter::store::redis::{Diagnostics, Redis};

const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// How long a server that starts waits for its store at most, so that the first requests find it.
const INITIAL_TIMEOUT: Duration = Duration::from_millis(500);

/// How many looks must pass before the log is told of another change: of a link that comes and goes it is told seldom.
const LOG_INTERVAL: u32 = 8;

/// The same for an error of one kind: ten seconds.
const ERROR_LOG_INTERVAL: u32 = 40;

/// Watches a store without end. `is_known`: whether it was reached already.
pub(super) async fn watch(shared: &SharedStore, mut is_diagnosed: bool) {
    let store = shared.inner();
    let mut ticker = tokio::time::interval(POLL_INTERVAL);
    ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut is_unavailable, mut polls_since_log) = (store.connection_error().is_some(), LOG_INTERVAL);
    let mut mode = shared.mode();
    log_mode(mode);
    let mut errors = ErrorLog::default();
    loop {
        ticker.tick().await;
        errors.report_new(store);
        polls_since_log = polls_since_log.saturating_add(1);
        if shared.mode() != mode {
            mode = shared.mode();
            log_mode(mode);
        }
        let error = store.connection_error();
        if error.is_none() && !is_diagnosed {
            is_diagnosed = run_diagnostics(store).await;
        }
        // Told once, however long it lasts.
        if error.is_some() == is_unavailable || polls_since_log < LOG_INTERVAL {
            continue;
        }
        (is_unavailable, polls_since_log) = (error.is_some(), 0);
        match error {
            Some(error) => tracing::error!(
                error,
                breaker = store.breaker().name(),
                "store unavailable; applying each rule's on_store_failure"
            ),
            None => tracing::info!(decided_locally = shared.metrics().decided(), "store available again"),
        }
    }
}

/// What the log was told of errors.
#[derive(Default)]
struct ErrorLog {
    /// How often each was met when the log was last told, and how many looks ago that was.
    reported: HashMap<&'static str, (u64, u32)>,
    restarts: u64,
}

impl ErrorLog {
    /// Tells of each error that requests have met since, at most once in a while: a server that answers some of them may
    /// never be away. That it is left alone is told elsewhere.
    fn report_new(&mut self, store: &Redis) {
        for (code, count) in store.metrics().errors().filter(|(code, _)| *code != "breaker_open") {
            let (reported, polls) = self.reported.entry(code).or_insert((0, ERROR_LOG_INTERVAL));
            *polls = polls.saturating_add(1);
            if count > *reported && *polls >= ERROR_LOG_INTERVAL {
                tracing::warn!(code, requests = count - *reported, "store errors since the last report");
                (*reported, *polls) = (count, 0);
            }
        }
        let restarts = store.metrics().task_restarts.get();
        if restarts > std::mem::replace(&mut self.restarts, restarts) {
            tracing::error!(restarts, "background store task panicked; restarted");
        }
    }
}

fn log_mode(mode: StoreMode) {
    match mode {
        StoreMode::Auto => {}
        StoreMode::SharedOnly => {
            tracing::warn!("`mode: shared_only`: while the store is away, `local` rules are closed")
        }
        StoreMode::LocalOnly => {
            tracing::warn!("`mode: local_only`: the store is not asked, every rule is decided by its share");
        }
    }
}

/// Says what a store is and what is wrong with it, and whether it could be reached.
async fn run_diagnostics(store: &Redis) -> bool {
    log_diagnostics(store.diagnose().await)
}

/// The same before the first request, which does not wait for a store that is away.
pub(super) async fn initial_diagnostics(store: &Redis) -> bool {
    match (
        timeout(INITIAL_TIMEOUT, store.diagnose()).await,
        store.connection_error(),
    ) {
        (Ok(diagnostics), _) => log_diagnostics(diagnostics),
        (Err(_), Some(error)) => log_diagnostics(Err(error)),
        // It is there, and only the look takes long.
        (Err(_), None) => false,
    }
}

fn log_diagnostics(result: Result<Diagnostics, String>) -> bool {
    match result {
        Ok(diagnostics) => {
            tracing::info!(
                server = diagnostics.server,
                functions = diagnostics.is_function,
                "reached the store"
            );
            for warning in &diagnostics.warnings {
                tracing::warn!("the store: {warning}");
            }
            true
        }
        Err(error) => {
            tracing::error!(error, "store unavailable; applying each rule's on_store_failure");
            false
        }
    }
}
