//! Rule reload: installs every update of a rule source in the gate, and reports those that cannot be used.

mod live_settings;

pub use live_settings::LiveSettings;

use crate::rule_source::{Revision, RuleSource, RulesUpdate, SourceError};
use crate::server::gate::Gate;
use std::sync::Arc;
use tollgate_limiter::core::problem::Problem;

/// Keeps the active rules of a gate at the latest update of a source.
#[derive(Debug)]
pub struct Reloader<S> {
    source: S,
    installed: Option<Revision>,
}

impl<S: RuleSource> Reloader<S> {
    /// A reloader of a gate that has the first rules of the source already, if it delivers only changes.
    pub fn new(source: S) -> Self {
        Self {
            source,
            installed: None,
        }
    }

    /// Installs updates without end. An update that is not above the last one is ignored: rules never move backwards.
    pub async fn run(mut self, gate: Arc<Gate>) {
        loop {
            match self.source.next().await {
                Ok(update) if self.installed >= Some(update.revision) => {
                    tracing::debug!(revision = ?update.revision, "outdated rules update ignored");
                }
                Ok(update) => {
                    self.installed = Some(update.revision);
                    let target = Arc::clone(&gate);
                    // Preparing the keys of many rules takes a while: not on a thread that serves requests.
                    let task = tokio::task::spawn_blocking(move || install(&target, update));
                    if let Err(error) = task.await {
                        report_failure(&gate, &SourceError::Failed(error.to_string()));
                    }
                }
                Err(error) => report_failure(&gate, &error),
            }
        }
    }
}

fn install(gate: &Gate, update: RulesUpdate) {
    for warning in &update.warnings {
        tracing::warn!("{}", one_line(warning));
    }
    gate.install_rules(update.rules);
    report_quarantined(gate, &update.quarantined);
    tracing::info!(rules = gate.rules_loaded(), "rules reloaded");
}

fn report_failure(gate: &Gate, error: &SourceError) {
    let errors = match error {
        SourceError::Invalid(problems) => error_lines(problems),
        SourceError::Failed(error) => vec![error.clone()],
    };
    gate.record_reload_failure(&errors.join("\n"));
    for error in &errors {
        tracing::error!("{error}");
    }
    tracing::error!("rule reload failed; keeping the previous rules");
}

/// Logs files that were set aside, and names them on `/readyz`.
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

/// The errors among problems, one line each, cut at `ERRORS_SHOWN_MAX`.
pub fn error_lines(problems: &[Problem]) -> Vec<String> {
    let errors: Vec<&Problem> = problems.iter().filter(|problem| problem.is_error()).collect();
    let shown = errors.iter().take(ERRORS_SHOWN_MAX);
    let mut lines: Vec<String> = shown.map(|problem| one_line(problem)).collect();
    let rest = errors.iter().skip(ERRORS_SHOWN_MAX);
    let more: usize = rest.map(|problem| problem.error_count()).sum();
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

/// Errors of one reload that are logged one by one.
const ERRORS_SHOWN_MAX: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::mpsc;
    use tollgate_limiter::core::problem::{Location, Origin};
    use tollgate_limiter::core::rules::{Attempt, ParserOptions, RuleSet, RulesParser};
    use tollgate_limiter::core::yaml;
    use tollgate_limiter::store::memory::Memory;

    /// A source that delivers what a test sends.
    struct Channel(mpsc::UnboundedReceiver<Result<RulesUpdate, SourceError>>);

    impl RuleSource for Channel {
        async fn next(&mut self) -> Result<RulesUpdate, SourceError> {
            match self.0.recv().await {
                Some(update) => update,
                None => std::future::pending().await,
            }
        }
    }

    fn rules(count: usize) -> RuleSet {
        let list: Vec<String> = (0..count).map(|id| format!("{{ id: r{id}, limit: 1/s }}")).collect();
        let root = yaml::parse(&Origin::new("rules.yaml", format!("[{}]", list.join(", ")))).unwrap();
        let mut parser = RulesParser::new(ParserOptions::default());
        parser.add_rules(&root, Attempt::DOMAIN);
        parser.finish().unwrap().rules
    }

    fn update(count: usize, number: u64) -> RulesUpdate {
        RulesUpdate {
            rules: rules(count),
            warnings: Vec::new(),
            quarantined: Vec::new(),
            revision: Revision { epoch: 0, number },
            lock: None,
        }
    }

    fn problem(text: &str) -> Problem {
        Problem::error(&Location::start(&Origin::new("rules.yaml", "")), text)
    }

    #[tokio::test]
    async fn any_source_replaces_the_rules_and_a_failure_keeps_them() {
        let gate = Arc::new(Gate::new(rules(1), Arc::new(Memory::options().build())));
        let (send, updates) = mpsc::unbounded_channel();
        let task = tokio::spawn(Reloader::new(Channel(updates)).run(Arc::clone(&gate)));
        // Updates are handled in order, so the last one shows when all are.
        let settled = async |reloads: u64| {
            while gate.rules_installed() + gate.reload_failures() < reloads {
                tokio::task::yield_now().await;
            }
        };
        send.send(Ok(update(3, 7))).unwrap();
        settled(2).await;
        assert_eq!((gate.rules_loaded(), gate.rules_error()), (3, None));

        send.send(Err(SourceError::Invalid(vec![problem("unknown key")])))
            .unwrap();
        settled(3).await;
        let error = gate.rules_error().expect("it failed");
        assert_eq!((gate.rules_loaded(), &**error), (3, "rules.yaml:1:1: unknown key"));

        // Not above the last one: ignored. A new epoch is above all of them.
        send.send(Ok(update(5, 7))).unwrap();
        let newer = RulesUpdate {
            revision: Revision { epoch: 1, number: 0 },
            quarantined: vec![problem("broken")],
            ..update(4, 0)
        };
        send.send(Ok(newer)).unwrap();
        settled(5).await;
        assert_eq!(gate.rules_loaded(), 4);
        assert!(gate.rules_error().is_some_and(|error| error.contains("broken")));
        task.abort();
    }

    #[test]
    fn of_many_errors_the_first_are_shown_and_the_rest_counted() {
        let problems: Vec<Problem> = (0..25).map(|n| problem(&format!("error {n}"))).collect();
        let lines = error_lines(&problems);
        assert_eq!(lines.len(), 21);
        assert_eq!(lines[20], "and 5 more; run `tollgate rules check` for the full list");
    }
}
