//! Takes changed rules and tokens while the server runs: a file that was written, replaced or linked elsewhere, or a signal.

use crate::config::{ConfigLoader, StoreSettings, RawSettings};
use crate::server::gate::Gate;
use crate::server::store::Store;
use crate::server::tokens::Keyring;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::MissedTickBehavior;
use tollgate_limiter::core::problem::Problem;

/// Looks at settings and rules for as long as it is polled, and brings changed rules to the gate and changed tokens to the
/// keyring. One reading at a time, away from the threads that answer requests.
#[derive(Debug)]
pub struct Reloads {
    settings: Arc<Mutex<ConfigLoader>>,
    /// The settings the server was started with.
    started_with: Arc<RawSettings>,
    store: Arc<StoreSettings>,
    /// None if it was started without tokens: whether callers need one is settled then.
    keyring: Option<Arc<Keyring>>,
    asked: Arc<Notify>,
}

impl Reloads {
    /// How often files are looked at.
    pub const EVERY: Duration = Duration::from_millis(500);

    /// Of settings that were read once, and what they then were. Each notification of `asked` reads them again, changed
    /// or not.
    pub fn new(
        settings: ConfigLoader,
        started_with: Arc<RawSettings>,
        store: StoreSettings,
        keyring: Option<Arc<Keyring>>,
        asked: Arc<Notify>,
    ) -> Self {
        Self {
            settings: Arc::new(Mutex::new(settings)),
            started_with,
            store: Arc::new(store),
            keyring,
            asked,
        }
    }

    /// Watches without end.
    pub async fn watch(self, gate: Arc<Gate>) {
        let mut clock = tokio::time::interval(Self::EVERY);
        clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let why = tokio::select! {
                _ = clock.tick() => Why::Time,
                () = self.asked.notified() => Why::Asked,
            };
            let settings = Arc::clone(&self.settings);
            let (started_with, store) = (Arc::clone(&self.started_with), Arc::clone(&self.store));
            let (gate, keyring) = (Arc::clone(&gate), self.keyring.clone());
            // A panic ends this reading only; the next look is a new one.
            let read = tokio::task::spawn_blocking(move || {
                let began = Began {
                    written: &started_with,
                    store: &store,
                };
                look(&settings, &began, why, &gate, keyring.as_deref());
            });
            if let Err(error) = read.await {
                tracing::error!(%error, "reading the rules failed; what holds goes on holding");
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    Time,
    Asked,
}

/// What the server was started with.
struct Began<'a> {
    written: &'a RawSettings,
    store: &'a StoreSettings,
}

fn look(settings: &Mutex<ConfigLoader>, began: &Began<'_>, why: Why, gate: &Gate, keyring: Option<&Keyring>) {
    let mut settings = settings.lock().unwrap_or_else(PoisonError::into_inner);
    let read = match why {
        Why::Time => settings.load_if_changed(),
        Why::Asked => Some(settings.load()),
    };
    match read {
        None => {}
        Some(Ok(loaded)) => {
            let mut changed = loaded.raw.changed_since(began.written);
            if let (Some(keyring), Some(tokens)) = (keyring, loaded.config.tokens) {
                let count = tokens.len();
                if keyring.take(tokens) {
                    tracing::info!(tokens = count, "took the changed tokens");
                }
                changed.retain(|name| name != "auth");
            }
            if let (Store::Redis(shared), StoreSettings::Redis(now)) = (gate.store(), &loaded.config.store) {
                // Who decides can be changed at any time: it is for when something is wrong.
                shared.set_mode(now.fallback.mode);
                if let StoreSettings::Redis(then) = began.store {
                    if then.differs_only_in_mode(now) {
                        changed.retain(|name| name != "store");
                    }
                    if then.ratelimit_counters != now.ratelimit_counters {
                        changed.push("envoy_rules.counters".into());
                    }
                }
            }
            if !changed.is_empty() {
                tracing::warn!(
                    settings = changed.join(", "),
                    "these settings differ from those the server was started with; they need a restart"
                );
            }
            for warning in &loaded.warnings {
                tracing::warn!("{}", one_line(warning));
            }
            gate.compat().set_modes(loaded.config.ratelimit_modes);
            gate.take_rules(loaded.rules);
            leave_apart(gate, &loaded.quarantined);
            tracing::info!(rules = gate.rules_loaded(), "took the changed rules");
        }
        Some(Err(problems)) => {
            let faults = faults(&problems);
            gate.keep_rules(&faults.join("\n"));
            for fault in &faults {
                tracing::error!("{fault}");
            }
            tracing::error!("the changed rules are refused; what holds goes on holding");
        }
    }
}

/// Tells of files that were left apart from those that were taken.
pub fn leave_apart(gate: &Gate, apart: &[Problem]) {
    if apart.is_empty() {
        return;
    }
    let faults = faults(apart);
    gate.keep_rules(&faults.join("\n"));
    for fault in &faults {
        tracing::error!("{fault}");
    }
    tracing::error!("files that cannot be used stay what they were, or are left out; the others are taken");
}

/// The errors among problems, each in one line, and of many the first.
pub fn faults(problems: &[Problem]) -> Vec<String> {
    let errors: Vec<&Problem> = problems.iter().filter(|problem| problem.is_error()).collect();
    let mut faults: Vec<String> = errors.iter().take(TOLD).map(|problem| one_line(problem)).collect();
    let more: usize = errors.iter().skip(TOLD).map(|problem| problem.error_count()).sum();
    if more > 0 {
        faults.push(format!("and {more} more; `tollgate rules check` tells them all"));
    }
    faults
}

/// A problem in one line, for the log and for `/readyz`.
pub fn one_line(problem: &Problem) -> String {
    match &problem.hint {
        Some(hint) => format!("{}: {}; {hint}", problem.location, problem.text),
        None => format!("{}: {}", problem.location, problem.text),
    }
}

/// Faults of one edit that are told one by one.
const TOLD: usize = 20;
