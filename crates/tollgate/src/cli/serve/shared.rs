//! What the log says of a shared store: what it is when it is first reached, and whenever it goes and comes back.

use std::collections::HashMap;
use std::time::Duration;
use tokio::time::{MissedTickBehavior, timeout};
use tollgate::server::store::Shared;
use tollgate_limiter::store::local::StoreMode;
use tollgate_limiter::store::redis::{Redis, Diagnostics};

const LOOK_EVERY: Duration = Duration::from_millis(250);

/// How long a server that starts waits for its store at most, so that the first requests find it.
const FIRST_LOOK: Duration = Duration::from_millis(500);

/// How many looks must pass before the log is told of another change: of a link that comes and goes it is told seldom.
const QUIET: u32 = 8;

/// The same for an error of one kind: ten seconds.
const ERRORS_QUIET: u32 = 40;

/// Watches a store without end. `is_known`: whether it was reached already.
pub(super) async fn watch(shared: &Shared, mut is_known: bool) {
    let store = shared.inner();
    let mut clock = tokio::time::interval(LOOK_EVERY);
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut is_away, mut since_told) = (store.connection_error().is_some(), QUIET);
    let mut mode = shared.mode();
    tell_of(mode);
    let mut errors = Errors::default();
    loop {
        clock.tick().await;
        errors.tell(store);
        since_told = since_told.saturating_add(1);
        if shared.mode() != mode {
            mode = shared.mode();
            tell_of(mode);
        }
        let fault = store.connection_error();
        if fault.is_none() && !is_known {
            is_known = survey(store).await;
        }
        // Told once, however long it lasts.
        if fault.is_some() == is_away || since_told < QUIET {
            continue;
        }
        (is_away, since_told) = (fault.is_some(), 0);
        match fault {
            Some(fault) => tracing::error!(
                fault,
                breaker = store.breaker().name(),
                "the store cannot be reached; rules say what holds meanwhile"
            ),
            None => tracing::info!(
                decided_here = shared.metrics().decided(),
                "the store can be reached again"
            ),
        }
    }
}

/// What the log was told of errors.
#[derive(Default)]
struct Errors {
    /// How often each was met when the log was last told, and how many looks ago that was.
    told: HashMap<&'static str, (u64, u32)>,
    restarts: u64,
}

impl Errors {
    /// Tells of each error that requests have met since, at most once in a while: a server that answers some of them may
    /// never be away. That it is left alone is told elsewhere.
    fn tell(&mut self, store: &Redis) {
        for (code, met) in store.metrics().errors().filter(|(code, _)| *code != "breaker_open") {
            let (told, looks) = self.told.entry(code).or_insert((0, ERRORS_QUIET));
            *looks = looks.saturating_add(1);
            if met > *told && *looks >= ERRORS_QUIET {
                tracing::warn!(code, requests = met - *told, "the store could not answer requests");
                (*told, *looks) = (met, 0);
            }
        }
        let restarts = store.metrics().task_restarts.get();
        if restarts > std::mem::replace(&mut self.restarts, restarts) {
            tracing::error!(restarts, "a task that looks after the store failed and was begun again");
        }
    }
}

fn tell_of(mode: StoreMode) {
    match mode {
        StoreMode::Auto => {}
        StoreMode::SharedOnly => tracing::warn!("`mode: shared_only`: while the store is away, `local` rules are closed"),
        StoreMode::LocalOnly => {
            tracing::warn!("`mode: local_only`: the store is not asked, every rule is decided by its share");
        }
    }
}

/// Says what a store is and what is wrong with it, and whether it could be reached.
async fn survey(store: &Redis) -> bool {
    report(store.diagnose().await)
}

/// The same before the first request, which does not wait for a store that is away.
pub(super) async fn first_look(store: &Redis) -> bool {
    match (timeout(FIRST_LOOK, store.diagnose()).await, store.connection_error()) {
        (Ok(surveyed), _) => report(surveyed),
        (Err(_), Some(fault)) => report(Err(fault)),
        // It is there, and only the look takes long.
        (Err(_), None) => false,
    }
}

fn report(surveyed: Result<Diagnostics, String>) -> bool {
    match surveyed {
        Ok(survey) => {
            tracing::info!(
                server = survey.server,
                functions = survey.is_function,
                "reached the store"
            );
            for warning in &survey.warnings {
                tracing::warn!("the store: {warning}");
            }
            true
        }
        Err(fault) => {
            tracing::error!(fault, "the store cannot be reached; rules say what holds until it can");
            false
        }
    }
}
