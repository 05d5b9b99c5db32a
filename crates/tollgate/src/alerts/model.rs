//! The data of alerts: kinds, keys, states, and silences.

use super::hysteresis::AlertLevel;
use crate::control::model::SubjectValues;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The condition that an alert is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AlertKind {
    /// Many more checks than usual.
    ChecksJump,
    /// Many more denials than usual.
    DenialsJump,
    /// Many more denials of one subject than usual.
    SubjectJump,
    /// The shared store cannot be reached, or its circuit breaker is open.
    StoreUnavailable,
    /// Calls of the shared store take more than half their deadline.
    StoreSlow,
    /// More than 1 % of the requests met an error.
    Errors,
    /// Rules, override rows or attributes cannot be used.
    RulesRejected,
    /// Newer rules are not applied, or nothing is known of newer ones.
    RulesStale,
    /// Live instances report different rules.
    RulesDiffer,
    /// The database has another history than this instance.
    ControlForked,
    /// The database is behind what was seen of it.
    ControlRegressed,
    /// The audit log does not verify.
    AuditBroken,
    /// The live rules were not pushed from the repository.
    Drift,
}

/// The weight of an alert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AlertSeverity {
    /// To be looked at in working hours.
    Warning,
    /// To be looked at now.
    Critical,
}

/// A rule, named by its domain and its id.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AlertRule {
    /// The domain.
    pub domain: Arc<str>,
    /// The id.
    pub rule: Arc<str>,
}

/// The identity of an alert: there is one of a key at a time.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AlertKey {
    /// Its kind.
    pub kind: AlertKind,
    /// The rule it is about; none: all of them.
    pub rule: Option<AlertRule>,
    /// The subject it is about.
    pub subject: Option<Arc<SubjectValues>>,
}

/// The level of one key after a step of a detector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The key.
    pub key: AlertKey,
    /// Its level; a quiet one is left out.
    pub level: AlertLevel,
    /// The measured value.
    pub value: u64,
    /// The usual value, or the limit of a threshold.
    pub baseline: u64,
    /// The reason, for people.
    pub summary: String,
}

/// The state of an alert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AlertState {
    /// Its condition holds, and not long enough to fire.
    Pending,
    /// It fires.
    Firing,
    /// It fired, and its condition is gone.
    Resolved,
}

/// One alert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alert {
    /// Its id, new each time its condition begins.
    pub id: String,
    /// Its key.
    pub key: AlertKey,
    /// Its state.
    pub state: AlertState,
    /// Unix time in milliseconds at which its condition began.
    pub since: u64,
    /// Unix time in milliseconds at which it resolved.
    pub resolved_at: Option<u64>,
    /// The reason, for people. Without the subject, which not everybody may see.
    pub summary: String,
    /// The measured value; the last one while it fired.
    pub value: u64,
    /// The usual value, or the limit of a threshold.
    pub baseline: u64,
}

/// A promise not to send messages about some alerts until a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Silence {
    /// Its id.
    pub id: String,
    /// The kind of the alerts; none: all.
    pub kind: Option<AlertKind>,
    /// The domain of their rule; none: any.
    pub domain: Option<String>,
    /// Their rule; none: any.
    pub rule: Option<String>,
    /// Their subject; none: any.
    pub subject: Option<SubjectValues>,
    /// Unix time in milliseconds of its end.
    pub until: u64,
    /// The reason that was given.
    pub reason: String,
    /// The principal that made it.
    pub actor: String,
}

impl AlertKind {
    /// Each with its name in the API, in settings of receivers and in the documentation.
    pub const ALL: [(Self, &'static str); 13] = [
        (Self::ChecksJump, "checks_jump"),
        (Self::DenialsJump, "denials_jump"),
        (Self::SubjectJump, "subject_jump"),
        (Self::StoreUnavailable, "store_unavailable"),
        (Self::StoreSlow, "store_slow"),
        (Self::Errors, "errors"),
        (Self::RulesRejected, "rules_rejected"),
        (Self::RulesStale, "rules_stale"),
        (Self::RulesDiffer, "rules_differ"),
        (Self::ControlForked, "control_forked"),
        (Self::ControlRegressed, "control_regressed"),
        (Self::AuditBroken, "audit_broken"),
        (Self::Drift, "drift"),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        let found = Self::ALL.iter().find(|(kind, _)| *kind == self);
        found.map_or("", |(_, name)| name)
    }

    /// Its severity.
    pub const fn severity(self) -> AlertSeverity {
        match self {
            Self::StoreUnavailable | Self::ControlForked | Self::ControlRegressed | Self::AuditBroken => {
                AlertSeverity::Critical
            }
            _ => AlertSeverity::Warning,
        }
    }

    /// True if an unavailable store explains it, so that it says nothing new.
    pub const fn follows_from_store(self) -> bool {
        matches!(
            self,
            Self::ChecksJump
                | Self::DenialsJump
                | Self::SubjectJump
                | Self::StoreSlow
                | Self::Errors
                | Self::RulesDiffer
        )
    }

    /// True if it is found by comparing counts with what is usual.
    pub const fn is_anomaly(self) -> bool {
        matches!(self, Self::ChecksJump | Self::DenialsJump | Self::SubjectJump)
    }

    /// The section about it in the documentation.
    pub fn runbook(self) -> String {
        format!("#{}", self.name())
    }
}

impl AlertSeverity {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }
}

impl AlertKey {
    /// A key about everything.
    pub const fn new(kind: AlertKind) -> Self {
        Self {
            kind,
            rule: None,
            subject: None,
        }
    }

    /// The key about one rule, or about everything without one.
    pub const fn with_rule(kind: AlertKind, rule: Option<AlertRule>) -> Self {
        Self {
            kind,
            rule,
            subject: None,
        }
    }
}

impl Silence {
    /// True if it holds back messages about an alert at a time.
    pub fn covers(&self, key: &AlertKey, now: u64) -> bool {
        let rule = key.rule.as_ref();
        let matches_text = |wanted: &Option<String>, found: Option<&Arc<str>>| {
            wanted
                .as_deref()
                .is_none_or(|wanted| found.is_some_and(|found| **found == *wanted))
        };
        now < self.until
            && self.kind.is_none_or(|kind| kind == key.kind)
            && matches_text(&self.domain, rule.map(|rule| &rule.domain))
            && matches_text(&self.rule, rule.map(|rule| &rule.rule))
            && self
                .subject
                .as_ref()
                .is_none_or(|wanted| key.subject.as_deref() == Some(wanted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_json() {
        for (kind, name) in AlertKind::ALL {
            assert_eq!(serde_json::to_value(kind).expect("a kind is a text"), name);
            assert_eq!(kind.name(), name);
        }
    }

    #[test]
    fn a_silence_covers_what_it_names() {
        let subject: SubjectValues = [("merchant".to_owned(), "m_42".to_owned())].into();
        let key = AlertKey {
            kind: AlertKind::SubjectJump,
            rule: Some(AlertRule {
                domain: "default".into(),
                rule: "plan".into(),
            }),
            subject: Some(Arc::new(subject.clone())),
        };
        let all = Silence {
            id: "1".into(),
            kind: None,
            domain: None,
            rule: None,
            subject: None,
            until: 100,
            reason: String::new(),
            actor: String::new(),
        };
        assert!(all.covers(&key, 99) && !all.covers(&key, 100));
        let text = |text: &str| Some(text.to_owned());
        for (silence, is_covered) in [
            (
                Silence {
                    kind: Some(AlertKind::SubjectJump),
                    ..all.clone()
                },
                true,
            ),
            (
                Silence {
                    kind: Some(AlertKind::Errors),
                    ..all.clone()
                },
                false,
            ),
            (
                Silence {
                    domain: text("default"),
                    rule: text("plan"),
                    ..all.clone()
                },
                true,
            ),
            (
                Silence {
                    rule: text("other"),
                    ..all.clone()
                },
                false,
            ),
            (
                Silence {
                    domain: text("other"),
                    ..all.clone()
                },
                false,
            ),
            (
                Silence {
                    subject: Some(subject),
                    ..all.clone()
                },
                true,
            ),
            (
                Silence {
                    subject: Some(SubjectValues::new()),
                    ..all.clone()
                },
                false,
            ),
        ] {
            assert_eq!(silence.covers(&key, 0), is_covered, "{silence:?}");
            // An alert about everything has no rule that a silence could name.
            let about_all = AlertKey::new(AlertKind::Errors);
            let names_nothing = silence.domain.is_none() && silence.rule.is_none() && silence.subject.is_none();
            let is_kind = silence.kind.is_none_or(|kind| kind == AlertKind::Errors);
            assert_eq!(silence.covers(&about_all, 0), names_nothing && is_kind, "{silence:?}");
        }
    }
}
