//! The gate: where every front end asks, and the only place where verdicts are timed and counted.

use super::store::{AnyRuleLimiter, AnyStore, AnyThrottle};
use super::telemetry::{MetricNames, Metrics, Protocol, RuleCounts, Telemetry, ThrottleTally};
use crate::compat::ratelimit::{RatelimitCompat, RatelimitCounts};
use arc_swap::{ArcSwap, ArcSwapOption, Guard};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use tokio::sync::watch;
use tollgate_limiter::clock::{StartTime, Stopwatch};
use tollgate_limiter::core::algorithm::cell::Reply;
use tollgate_limiter::core::rules::{Attempt, Explanation, RuleSet, Verdict};
use tollgate_limiter::core::{Cell, Charge, Cost, Micros};
use tollgate_limiter::store::StoreError;
use tollgate_limiter::{
    self as limiter, AttemptItem, CheckResult, CombinedVerdict, Direction, Fingerprint, ForgetError, ItemVerdict,
};

/// The rules in force, their store, and what is counted of them.
pub struct Gate {
    store: AnyStore,
    throttles: AnyThrottle,
    active_rules: ArcSwap<ActiveRules>,
    /// Why the rules that were last seen are not the ones in force.
    rules_error: ArcSwapOption<String>,
    /// Whether it has the rules it was to have.
    has_rules: watch::Sender<bool>,
    compat: RatelimitCompat,
    phase: AtomicU8,
    telemetry: Telemetry,
    stopwatch: Stopwatch,
}

/// One set of rules in force, with the counters of its rules.
struct ActiveRules {
    limiter: AnyRuleLimiter,
    counts: RuleCounts,
    ratelimit: RatelimitCounts,
}

/// The rules in force when a request came: it is answered by them, whatever comes after.
pub struct RulesSnapshot<'g> {
    gate: &'g Gate,
    active_rules: Guard<Arc<ActiveRules>>,
    protocol: Protocol,
}

/// Whether requests should be sent here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Not yet.
    Starting,
    /// Yes.
    Ready,
    /// No more.
    Draining,
}

impl Gate {
    /// A gate that is starting, with these rules in force over this store.
    pub fn new(rules: RuleSet, store: impl Into<AnyStore>) -> Self {
        let store = store.into();
        let telemetry = Telemetry::new(&store);
        let active_rules = ActiveRules::new(rules, &store, telemetry.metrics());
        telemetry.metrics().rules_installed.set(1);
        Self {
            throttles: store.throttle(),
            store,
            active_rules: ArcSwap::from_pointee(active_rules),
            rules_error: ArcSwapOption::empty(),
            has_rules: watch::Sender::new(true),
            compat: RatelimitCompat::default(),
            phase: AtomicU8::new(Phase::Starting as u8),
            telemetry,
            stopwatch: Stopwatch::new(),
        }
    }

    /// Returns the active rules, for one request over `protocol`.
    #[inline]
    pub fn snapshot(&self, protocol: Protocol) -> RulesSnapshot<'_> {
        RulesSnapshot {
            gate: self,
            active_rules: self.active_rules.load(),
            protocol,
        }
    }

    /// What `CL.THROTTLE` is counted in.
    pub fn throttles(&self) -> &AnyThrottle {
        &self.throttles
    }

    /// Settles calls of `CL.THROTTLE` that came together, and tells what came of them in order.
    #[inline]
    pub fn throttle_each(
        &self,
        throttles: &limiter::ThrottleLimiter,
        charges: &[Charge<Fingerprint>],
        protocol: Protocol,
        mut on_reply: impl FnMut(&Reply),
    ) {
        let started = self.stopwatch.start();
        let mut tally = ThrottleTally::default();
        throttles.settle_each(charges, |_, reply, source| {
            tally.add(!reply.limited, source);
            on_reply(&reply);
        });
        self.count(&tally, protocol, started);
    }

    /// Settles one call of `CL.THROTTLE`.
    ///
    /// # Errors
    /// Why the store could not.
    pub async fn throttle(&self, key: &[u8], cell: Cell, cost: Cost, protocol: Protocol) -> Result<Reply, StoreError> {
        let started = self.stopwatch.start();
        let (reply, source) = self.throttles.settle(key, cell, cost).await?;
        let mut tally = ThrottleTally::default();
        tally.add(!reply.limited, source);
        self.count(&tally, protocol, started);
        Ok(reply)
    }

    fn count(&self, tally: &ThrottleTally, protocol: Protocol, started: StartTime) {
        let metrics = self.telemetry.metrics();
        let elapsed = self.stopwatch.elapsed_ns(started);
        metrics
            .seconds
            .add_many(elapsed, metrics.decisions.add_throttled(tally, protocol));
    }

    /// Takes other rules, all at once. Counters go on where rules stay the same.
    pub fn install_rules(&self, rules: RuleSet) {
        let metrics = self.telemetry.metrics();
        self.active_rules
            .store(Arc::new(ActiveRules::new(rules, &self.store, metrics)));
        self.rules_error.store(None);
        metrics.reloads.add(1);
        metrics.rules_installed.add(1);
        metrics.reload_failed.set(0);
        self.has_rules.send_replace(true);
    }

    /// Notes that changed rules cannot be used, and why. Those in force stay.
    pub fn record_reload_failure(&self, error: &str) {
        self.rules_error.store(Some(Arc::new(error.to_owned())));
        let metrics = self.telemetry.metrics();
        metrics.reload_errors.add(1);
        metrics.reload_failed.set(1);
    }

    /// Notes that it begins without the rules it was to have, and why. Others are taken when they come.
    pub fn mark_rules_missing(&self, error: &str) {
        self.telemetry.metrics().rules_installed.set(0);
        self.has_rules.send_replace(false);
        self.record_reload_failure(error);
    }

    /// Whether it waits for the rules it was to have, and is not to be called healthy before they come.
    pub fn is_awaiting_rules(&self) -> bool {
        self.compat.modes().healthy_with_rules && !*self.has_rules.borrow()
    }

    /// Comes to an end when it has rules.
    pub async fn wait_for_rules(&self) {
        // The sender is our own, so it is there.
        let _ = self.has_rules.subscribe().wait_for(|has| *has).await;
    }

    /// How often rules were taken, from the first on.
    pub fn rules_installed(&self) -> u64 {
        self.telemetry.metrics().rules_installed.get()
    }

    /// How often changed rules could not be used.
    pub fn reload_failures(&self) -> u64 {
        self.telemetry.metrics().reload_errors.get()
    }

    /// How requests for descriptors of envoyproxy/ratelimit's files are answered.
    pub fn compat(&self) -> &RatelimitCompat {
        &self.compat
    }

    /// Why the rules that were last seen are not in force, if they are not.
    pub fn rules_error(&self) -> Option<Arc<String>> {
        self.rules_error.load_full()
    }

    /// How many rules are in force.
    pub fn rules_loaded(&self) -> u64 {
        self.telemetry.metrics().rules_loaded.get()
    }

    /// Whether requests should be sent here.
    pub fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Relaxed) {
            0 => Phase::Starting,
            1 => Phase::Ready,
            _ => Phase::Draining,
        }
    }

    /// Says so. Who drains does not get ready again.
    pub fn advance_phase(&self, phase: Phase) {
        self.phase.fetch_max(phase as u8, Ordering::Relaxed);
    }

    /// The store.
    pub fn store(&self) -> &AnyStore {
        &self.store
    }

    /// What is counted.
    pub fn metrics(&self) -> &Metrics {
        self.telemetry.metrics()
    }

    /// What envoyproxy/ratelimit counts of descriptors, as its debug port tells it: `name: number`, one a line and sorted.
    pub fn ratelimit_stats(&self) -> String {
        self.metrics().ratelimit.text()
    }

    /// All metrics as text.
    pub fn metrics_text(&self) -> String {
        self.telemetry.text(match self.compat.modes().prometheus_names {
            true => MetricNames::WithRatelimit,
            false => MetricNames::Native,
        })
    }
}

impl RulesSnapshot<'_> {
    /// May the attempt go on?
    #[inline]
    pub async fn check(&self, attempt: &Attempt<'_>) -> CheckResult<'_> {
        let Gate {
            telemetry, stopwatch, ..
        } = self.gate;
        let ActiveRules {
            limiter,
            counts,
            ratelimit,
        } = &**self.active_rules;
        let started = stopwatch.start();
        let result = limiter.check(attempt).await;
        let metrics = telemetry.metrics();
        metrics.seconds.add(stopwatch.elapsed_ns(started));
        metrics
            .decisions
            .add(counts, limiter.rules(), &result.verdict, self.protocol);
        let allowed = result.verdict.allowed;
        metrics
            .ratelimit
            .add(ratelimit, limiter.rules(), attempt, &result.verdict, allowed);
        if result.invalid_costs > 0 {
            metrics.invalid_costs.add(result.invalid_costs.into());
        }
        result
    }

    /// May all of these attempts go on, as one? Each counts as an attempt; what is given back does not.
    #[inline]
    pub async fn check_all(&self, items: &[AttemptItem<'_>]) -> CombinedVerdict<'_> {
        let Gate {
            telemetry, stopwatch, ..
        } = self.gate;
        let ActiveRules {
            limiter,
            counts,
            ratelimit,
        } = &**self.active_rules;
        let started = stopwatch.start();
        let combined = limiter.check_all(items).await;
        let metrics = telemetry.metrics();
        metrics.seconds.add(stopwatch.elapsed_ns(started));
        for (item, item_verdict) in items.iter().zip(&combined.items) {
            match (item.direction, item_verdict) {
                (Direction::Consume, ItemVerdict::Rules(verdict)) => {
                    metrics.decisions.add(counts, limiter.rules(), verdict, self.protocol);
                    let allowed = combined.allowed;
                    metrics
                        .ratelimit
                        .add(ratelimit, limiter.rules(), &item.attempt, verdict, allowed);
                }
                (Direction::Consume, ItemVerdict::Inline(_, source, _)) => {
                    metrics
                        .decisions
                        .add_inline(item_verdict.is_allow(), *source, self.protocol);
                    if limiter.rules().descriptors().has_domain(item.attempt.domain) {
                        metrics
                            .ratelimit
                            .add_override(ratelimit, &item.attempt, item_verdict, combined.allowed);
                    }
                }
                // Of a request that is refused nothing is given back, unless each descriptor is counted by itself.
                (Direction::Refund, _) if !combined.allowed && limiter.rules().descriptors().options.strict => {}
                (Direction::Refund, ItemVerdict::Rules(verdict)) => {
                    metrics
                        .ratelimit
                        .add_refund(ratelimit, limiter.rules(), &item.attempt, verdict);
                }
                (Direction::Refund, ItemVerdict::Inline(decision, ..)) => {
                    if limiter.rules().descriptors().has_domain(item.attempt.domain) {
                        metrics.ratelimit.add_override_refund(&item.attempt, decision.as_ref());
                    }
                }
            }
        }
        if combined.invalid_costs > 0 {
            metrics.invalid_costs.add(combined.invalid_costs.into());
        }
        combined
    }

    /// Why the attempt would be answered as it would be. Takes nothing.
    pub async fn explain(&self, attempt: &Attempt<'_>) -> Explanation<'_> {
        self.limiter().explain(attempt).await
    }

    /// Gives the cost of an attempt back, and tells how its limits then stand.
    pub async fn refund(&self, attempt: &Attempt<'_>) -> Verdict<'_> {
        let ActiveRules { limiter, ratelimit, .. } = &**self.active_rules;
        let verdict = limiter.refund(attempt).await;
        let metrics = self.gate.telemetry.metrics();
        metrics
            .ratelimit
            .add_refund(ratelimit, limiter.rules(), attempt, &verdict);
        verdict
    }

    /// Clears the counters of one subject, of one rule or of all, and says how many held something.
    ///
    /// # Errors
    /// A name that no rule and no window of the attempt's domain has, or a store that is away.
    pub async fn forget(&self, attempt: &Attempt<'_>, rule: Option<&str>) -> Result<u64, ForgetError> {
        self.limiter().forget(attempt, rule).await
    }

    /// Gives back what a lease holds.
    ///
    /// # Errors
    /// A store that is away.
    pub async fn release(&self, lease: &str) -> Result<bool, StoreError> {
        self.limiter().release(lease).await
    }

    /// Lets a lease last a whole term from now, and says how long that is.
    ///
    /// # Errors
    /// A store that is away.
    pub async fn renew(&self, lease: &str) -> Result<Option<Micros>, StoreError> {
        self.limiter().renew(lease).await
    }

    /// The rules and their store.
    pub fn limiter(&self) -> &AnyRuleLimiter {
        &self.active_rules.limiter
    }
}

impl ActiveRules {
    fn new(rules: RuleSet, store: &AnyStore, metrics: &Metrics) -> Self {
        let counts = metrics.decisions.counts(&rules);
        let ratelimit = metrics.ratelimit.counts(&rules);
        metrics.rules_loaded.set(rules.rules().len() as u64);
        Self {
            limiter: store.rule_limiter(rules),
            counts,
            ratelimit,
        }
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate")
            .field("phase", &self.phase())
            .field("telemetry", &self.telemetry)
            .finish_non_exhaustive()
    }
}
