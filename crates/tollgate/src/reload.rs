//! Takes changed rules and tokens while the server runs: a file that was written, replaced or linked elsewhere, or a signal.

use crate::config::{RawSettings, StoreSettings};
use crate::rule_source::ConfigLoader;
use crate::server::auth::tokens::Keyring;
use crate::server::gate::Gate;
use crate::server::store::AnyStore;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::MissedTickBehavior;
use tollgate_limiter::core::problem::Problem;

/// Looks at settings and rules for as long as it is polled, and brings changed rules to the gate and changed tokens to the
/// keyring. One reading at a time, away from the threads that answer requests.
#[derive(Debug)]
pub struct Reloader {
    loader: Arc<Mutex<ConfigLoader>>,
    /// The settings the server was started with.
    started_with: Arc<RawSettings>,
    store: Arc<StoreSettings>,
    /// None if it was started without tokens: whether callers need one is settled then.
    keyring: Option<Arc<Keyring>>,
    requested: Arc<Notify>,
}

impl Reloader {
    /// How often files are looked at.
    pub const INTERVAL: Duration = Duration::from_millis(500);

    /// Of settings that were read once, and what they then were. Each notification of `asked` reads them again, changed
    /// or not.
    pub fn new(
        loader: ConfigLoader,
        started_with: Arc<RawSettings>,
        store: StoreSettings,
        keyring: Option<Arc<Keyring>>,
        requested: Arc<Notify>,
    ) -> Self {
        Self {
            loader: Arc::new(Mutex::new(loader)),
            started_with,
            store: Arc::new(store),
            keyring,
            requested,
        }
    }

    /// Watches without end.
    pub async fn watch(self, gate: Arc<Gate>) {
        let mut ticker = tokio::time::interval(Self::INTERVAL);
        ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let trigger = tokio::select! {
                _ = ticker.tick() => Trigger::Interval,
                () = self.requested.notified() => Trigger::Request,
            };
            let loader = Arc::clone(&self.loader);
            let (started_with, store) = (Arc::clone(&self.started_with), Arc::clone(&self.store));
            let (gate, keyring) = (Arc::clone(&gate), self.keyring.clone());
            // A panic ends this reading only; the next look is a new one.
            let task = tokio::task::spawn_blocking(move || {
                let baseline = Baseline {
                    raw: &started_with,
                    store: &store,
                };
                reload(&loader, &baseline, trigger, &gate, keyring.as_deref());
            });
            if let Err(error) = task.await {
                tracing::error!(%error, "rule reload failed; keeping the previous rules");
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Trigger {
    Interval,
    Request,
}

/// What the server was started with.
struct Baseline<'a> {
    raw: &'a RawSettings,
    store: &'a StoreSettings,
}

fn reload(
    loader: &Mutex<ConfigLoader>,
    baseline: &Baseline<'_>,
    trigger: Trigger,
    gate: &Gate,
    keyring: Option<&Keyring>,
) {
    let mut loader = loader.lock().unwrap_or_else(PoisonError::into_inner);
    let result = match trigger {
        Trigger::Interval => loader.load_if_changed(),
        Trigger::Request => Some(loader.load()),
    };
    match result {
        None => {}
        Some(Ok(snapshot)) => {
            let mut changed = snapshot.raw.changed_since(baseline.raw);
            if let (Some(keyring), Some(tokens)) = (keyring, snapshot.config.tokens) {
                let count = tokens.len();
                if keyring.replace(tokens) {
                    tracing::info!(tokens = count, "tokens reloaded");
                }
                changed.retain(|name| name != "auth");
            }
            if let (AnyStore::Redis(shared), StoreSettings::Redis(current)) = (gate.store(), &snapshot.config.store) {
                // Who decides can be changed at any time: it is for when something is wrong.
                shared.set_mode(current.fallback.mode);
                if let StoreSettings::Redis(initial) = baseline.store {
                    if initial.differs_only_in_mode(current) {
                        changed.retain(|name| name != "store");
                    }
                    if initial.ratelimit_counters != current.ratelimit_counters {
                        changed.push("envoy_rules.counters".into());
                    }
                }
            }
            if !changed.is_empty() {
                tracing::warn!(
                    settings = changed.join(", "),
                    "changed settings take effect only after a restart"
                );
            }
            for warning in &snapshot.warnings {
                tracing::warn!("{}", one_line(warning));
            }
            gate.compat().set_modes(snapshot.config.ratelimit_modes);
            gate.install_rules(snapshot.rules);
            report_quarantined(gate, &snapshot.quarantined);
            tracing::info!(rules = gate.rules_loaded(), "rules reloaded");
        }
        Some(Err(problems)) => {
            let errors = error_lines(&problems);
            gate.record_reload_failure(&errors.join("\n"));
            for error in &errors {
                tracing::error!("{error}");
            }
            tracing::error!("rule reload failed; keeping the previous rules");
        }
    }
}

/// Tells of files that were left apart from those that were taken.
pub fn report_quarantined(gate: &Gate, quarantined: &[Problem]) {
    if quarantined.is_empty() {
        return;
    }
    let errors = error_lines(quarantined);
    gate.record_reload_failure(&errors.join("\n"));
    for error in &errors {
        tracing::error!("{error}");
    }
    tracing::error!("rule files quarantined; using their last good version, or none; other files loaded");
}

/// The errors among problems, each in one line, and of many the first.
pub fn error_lines(problems: &[Problem]) -> Vec<String> {
    let errors: Vec<&Problem> = problems.iter().filter(|problem| problem.is_error()).collect();
    let mut lines: Vec<String> = errors
        .iter()
        .take(ERRORS_SHOWN_MAX)
        .map(|problem| one_line(problem))
        .collect();
    let more: usize = errors
        .iter()
        .skip(ERRORS_SHOWN_MAX)
        .map(|problem| problem.error_count())
        .sum();
    if more > 0 {
        lines.push(format!("and {more} more; run `tollgate rules check` for the full list"));
    }
    lines
}

/// A problem in one line, for the log and for `/readyz`.
pub fn one_line(problem: &Problem) -> String {
    match &problem.hint {
        Some(hint) => format!("{}: {}; {hint}", problem.location, problem.text),
        None => format!("{}: {}", problem.location, problem.text),
    }
}

/// Faults of one edit that are told one by one.
const ERRORS_SHOWN_MAX: usize = 20;
