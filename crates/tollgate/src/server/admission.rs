//! Admission: the stage before the rules snapshot. It owns the phase of the server and decides whether a request is
//! planned at all.
//!
//! The check APIs are always admitted: their callers ask for a verdict, and an error would make fail-open callers pass.
//! Only a server that still waits for its rules has none to give to callers of the rls service.

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};
use tokio::sync::watch;

/// Decides which requests are planned.
#[derive(Debug)]
pub struct AdmissionStage {
    phase: AtomicU8,
    /// The sources whose rules the server runs without, as bits.
    rules_missing: AtomicU8,
    /// Wakes those who wait for the rules.
    rules_present: watch::Sender<bool>,
}

/// A source of rules that the server was configured with. One that is there says nothing about the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConfiguredRules {
    /// Settings and files.
    Files = 1,
    /// The control plane.
    Managed = 2,
}

/// The stage of a server's life. Phases never move backwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Not yet ready for requests.
    Starting,
    /// Ready for requests.
    Ready,
    /// Finishing requests in flight; new ones should go elsewhere.
    Draining,
}

/// The state that health checks report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// Requests should be sent here.
    Serving,
    /// The server is starting.
    Starting,
    /// The server is configured to be unhealthy until its rules are there.
    AwaitingRules,
    /// The server is configured to be unhealthy without its store, which is unavailable.
    StoreUnavailable,
    /// The server is draining.
    Draining,
}

/// The reason a request has no verdict, the same for all front ends. The caller may retry; the operator can fix it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmissionError {
    /// The server started without its rules, and has none for this domain.
    AwaitingRules,
    /// The store could not decide, and a matching rule has `on_store_failure: closed`.
    StoreUnavailable,
}

impl AdmissionStage {
    /// Returns the control of a server that is starting and has its rules.
    pub(super) fn new() -> Self {
        Self {
            phase: AtomicU8::new(Phase::Starting as u8),
            rules_missing: AtomicU8::new(0),
            rules_present: watch::Sender::new(true),
        }
    }

    /// Takes a snapshot of the rules for a request whose domain has some if `has_domain` says so.
    ///
    /// # Errors
    /// The reason why the request gets no verdict.
    #[inline]
    pub fn admit<S>(
        &self,
        snapshot: impl FnOnce() -> S,
        has_domain: impl FnOnce(&S) -> bool,
    ) -> Result<S, AdmissionError> {
        // Loaded before the snapshot, and with the acquire order of the rules behind it: once the rules are present, no
        // request sees the empty ones.
        let rules_missing = self.rules_missing.load(Ordering::Acquire);
        let snapshot = snapshot();
        match rules_missing != 0 && !has_domain(&snapshot) {
            true => Err(AdmissionError::AwaitingRules),
            false => Ok(snapshot),
        }
    }

    /// The current phase.
    pub fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Relaxed) {
            0 => Phase::Starting,
            1 => Phase::Ready,
            _ => Phase::Draining,
        }
    }

    /// Advances the phase. Phases never move backwards.
    pub(super) fn advance_phase(&self, phase: Phase) {
        self.phase.fetch_max(phase as u8, Ordering::Relaxed);
    }

    /// Records that the server has the rules of a source.
    pub(super) fn set_rules_present(&self, source: ConfiguredRules) {
        let before = self.rules_missing.fetch_and(!(source as u8), Ordering::AcqRel);
        self.rules_present.send_replace(before & !(source as u8) == 0);
    }

    /// Records that the server runs without the rules of a source.
    pub(super) fn set_rules_missing(&self, source: ConfiguredRules) {
        self.rules_missing.fetch_or(source as u8, Ordering::AcqRel);
        self.rules_present.send_replace(false);
    }

    /// True while the server runs without rules it was configured with.
    pub(super) fn is_without_rules(&self) -> bool {
        self.rules_missing.load(Ordering::Relaxed) != 0
    }

    /// Waits until the server has its rules.
    pub(super) async fn wait_for_rules(&self) {
        // The sender is a field of ours, so it is not dropped.
        let _ = self.rules_present.subscribe().wait_for(|present| *present).await;
    }
}

impl AdmissionError {
    /// The text for the caller. The one about rules is that of `ratelimit`, which its users search for.
    pub const fn text(self) -> &'static str {
        match self {
            Self::AwaitingRules => "no rate limit configuration loaded",
            Self::StoreUnavailable => "store unavailable, and a matching rule has on_store_failure: closed",
        }
    }
}

impl fmt::Display for AdmissionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl std::error::Error for AdmissionError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_never_move_backwards() {
        let control = AdmissionStage::new();
        assert_eq!(control.phase(), Phase::Starting);
        control.advance_phase(Phase::Draining);
        control.advance_phase(Phase::Ready);
        assert_eq!(control.phase(), Phase::Draining);
    }

    #[test]
    fn only_domains_without_rules_are_denied_while_rules_are_missing() {
        let control = AdmissionStage::new();
        let admit = |has_domain: bool| control.admit(|| has_domain, |has_domain| *has_domain);
        assert_eq!(admit(false), Ok(false));
        control.set_rules_missing(ConfiguredRules::Files);
        assert_eq!(admit(true), Ok(true));
        assert_eq!(admit(false), Err(AdmissionError::AwaitingRules));
        // Those of the control plane are not those of the files.
        control.set_rules_missing(ConfiguredRules::Managed);
        control.set_rules_present(ConfiguredRules::Managed);
        assert_eq!(admit(false), Err(AdmissionError::AwaitingRules));
        control.set_rules_present(ConfiguredRules::Files);
        assert_eq!(admit(false), Ok(false));
    }
}
