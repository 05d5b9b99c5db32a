//! The gate: the one place front ends call, and the only place where verdicts are timed and counted.

mod recent_attempts;
mod retired;
mod spans;

use super::admission::{AdmissionError, AdmissionStage, ConfiguredRules, Health};
use super::headers::{RetryCaller, SpreadDenial};
use super::observers::{ObservedVerdict, VerdictEvent, VerdictObserver};
#[cfg(test)]
use super::panic_guard::{PANIC_COST, PANIC_DOMAIN};
use super::store::{AnyRuleLimiter, AnyStore, AnyThrottle};
use super::telemetry::traces::{RequestTrace, Traces};
use super::telemetry::watch::Watch;
use super::telemetry::watch::sampler::Sampler;
use super::telemetry::{
    MetricNames, Metrics, ObserverState, Protocol, RuleFigures, Telemetry, ThrottleTally, TotalFigures,
};
use crate::compat::ratelimit::{CallOutcome, RatelimitCompat};
use arc_swap::{ArcSwap, ArcSwapOption, Guard};
use std::fmt;
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tollgate_limiter::clock::{Clock, StartTime, Stopwatch};
use tollgate_limiter::core::algorithm::cell::Reply;
use tollgate_limiter::core::rules::{
    Attempt, AttributeEdit, EditProblems, Explanation, LimitSelector, RowEdit, Rule, RuleSet, Ruling, UnknownDomain,
    Verdict,
};
use tollgate_limiter::core::{Cell, Charge, Cost, Micros};
use tollgate_limiter::store::StoreError;
use tollgate_limiter::{
    self as limiter, AttemptItem, CheckResult, CombinedVerdict, Direction, Fingerprint, ForgetError, ItemVerdict,
};

use self::retired::Retired;

pub use self::recent_attempts::RecentAttempts;
pub use super::admission::Phase;

/// The active rules, their store, admission and the observers of verdicts.
pub struct Gate {
    store: AnyStore,
    throttles: AnyThrottle,
    active_rules: ArcSwap<ActiveRules>,
    /// Held while the active rules are replaced, so that an amendment is not lost.
    replacing: Mutex<()>,
    /// Replaced rules that requests may still use.
    retired: Retired<ActiveRules>,
    /// The error of the last reload, if it failed.
    rules_error: ArcSwapOption<String>,
    /// The reason why the newest rules of the control plane are not active.
    managed_error: ArcSwapOption<String>,
    admission: AdmissionStage,
    compat: RatelimitCompat,
    telemetry: Telemetry,
    recent_attempts: RecentAttempts,
    stopwatch: Stopwatch,
}

/// A rule set in use, with the counters that observers keep for it.
struct ActiveRules {
    limiter: AnyRuleLimiter,
    observer_state: Arc<ObserverState>,
}

/// The rules that were active when a request arrived. A reload does not change them.
pub struct RulesSnapshot<'g> {
    gate: &'g Gate,
    active_rules: Guard<Arc<ActiveRules>>,
    protocol: Protocol,
    /// The place of the span of its check, if the request is sampled.
    trace: RequestTrace,
}

impl Gate {
    /// Returns a gate that is starting, with these rules over this store.
    pub fn new(rules: RuleSet, store: impl Into<AnyStore>) -> Self {
        let store = store.into();
        let telemetry = Telemetry::new(&store);
        let active_rules = ActiveRules::new(rules, &store, telemetry.metrics());
        telemetry.metrics().rules_installed.set(1);
        Self {
            throttles: store.throttle(),
            store,
            active_rules: ArcSwap::from_pointee(active_rules),
            replacing: Mutex::new(()),
            retired: Retired::default(),
            rules_error: ArcSwapOption::empty(),
            managed_error: ArcSwapOption::empty(),
            admission: AdmissionStage::new(),
            compat: RatelimitCompat::default(),
            telemetry,
            recent_attempts: RecentAttempts::default(),
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
            trace: None,
        }
    }

    /// Admits a request to `domain` and returns the active rules for it.
    ///
    /// # Errors
    /// The reason it gets no verdict.
    #[inline]
    pub fn admit(&self, protocol: Protocol, domain: &str) -> Result<RulesSnapshot<'_>, AdmissionError> {
        let has_domain = |snapshot: &RulesSnapshot<'_>| snapshot.limiter().rules().has_domain(domain);
        self.admission.admit(|| self.snapshot(protocol), has_domain)
    }

    /// The counters of `CL.THROTTLE`.
    pub fn throttles(&self) -> &AnyThrottle {
        &self.throttles
    }

    /// Settles a batch of `CL.THROTTLE` calls and passes their replies to `on_reply`, in order.
    #[inline]
    pub fn throttle_each(
        &self,
        throttle: &limiter::ThrottleLimiter,
        charges: &[Charge<Fingerprint>],
        protocol: Protocol,
        mut on_reply: impl FnMut(&Reply),
    ) {
        #[cfg(test)]
        assert!(charges.iter().all(|charge| charge.cost.get() != PANIC_COST), "injected");
        let started = self.stopwatch.start();
        let mut tally = ThrottleTally::default();
        throttle.settle_each(charges, |_, reply, source| {
            tally.add(!reply.limited, source);
            on_reply(&reply);
        });
        self.count(&tally, protocol, started);
    }

    /// Settles one call of `CL.THROTTLE`.
    ///
    /// # Errors
    /// The error of the store.
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

    /// Replaces the active rules at once by those of the files. Counters of unchanged rules are kept.
    pub fn install_rules(&self, rules: RuleSet) {
        self.replace_rules(rules);
        self.rules_error.store(None);
        self.update_reload_failed();
        self.admission.set_rules_present(ConfiguredRules::Files);
    }

    /// The same because the rules of the control plane have changed. An error of the files stays.
    pub fn install_managed_rules(&self, rules: RuleSet) {
        self.replace_rules(rules);
    }

    fn replace_rules(&self, rules: RuleSet) {
        let _replacing = self.replacing.lock().unwrap_or_else(PoisonError::into_inner);
        let metrics = self.telemetry.metrics();
        let next = Arc::new(ActiveRules::new(rules, &self.store, metrics));
        self.retired.retire(self.active_rules.swap(next));
        metrics.reloads.add(1);
        metrics.rules_installed.add(1);
    }

    /// Applies edits of override rows and subject attributes to the active rules, and returns the edits that could not
    /// be applied. Not a reload: rules are not compiled again, and everything counted about them continues.
    pub fn amend_rules(&self, rows: &[RowEdit], attributes: &[AttributeEdit]) -> EditProblems {
        let _replacing = self.replacing.lock().unwrap_or_else(PoisonError::into_inner);
        let active = self.active_rules.load_full();
        let (limiter, problems) = active.limiter.amended(rows, attributes);
        let next = Arc::new(ActiveRules {
            limiter,
            observer_state: Arc::clone(&active.observer_state),
        });
        drop(active);
        self.retired.retire(self.active_rules.swap(next));
        problems
    }

    /// The active rules. Cheap: their parts are shared.
    pub fn active_rules(&self) -> RuleSet {
        self.active_rules.load().limiter.rules().clone()
    }

    /// Records a failed reload. The active rules stay.
    pub fn record_reload_failure(&self, error: &str) {
        self.rules_error.store(Some(Arc::new(error.to_owned())));
        self.telemetry.metrics().reload_errors.add(1);
        self.update_reload_failed();
    }

    /// Records that the newest rules of the control plane cannot be used. The active rules stay.
    pub fn record_managed_failure(&self, error: &str) {
        self.managed_error.store(Some(Arc::new(error.to_owned())));
        self.telemetry.metrics().reload_errors.add(1);
        self.update_reload_failed();
    }

    /// Records that the newest rules of the control plane are active.
    pub fn clear_managed_failure(&self) {
        self.managed_error.store(None);
        self.update_reload_failed();
    }

    fn update_reload_failed(&self) {
        let has_error = self.rules_error.load().is_some() || self.managed_error.load().is_some();
        self.telemetry.metrics().reload_failed.set(has_error.into());
    }

    /// Records that the server starts without the files it was configured with. They are installed once they can be read.
    pub fn mark_rules_missing(&self, error: &str) {
        self.telemetry.metrics().rules_installed.set(0);
        self.admission.set_rules_missing(ConfiguredRules::Files);
        self.record_reload_failure(error);
    }

    /// Records that the server starts without the rules of the control plane that it expects.
    pub fn mark_managed_missing(&self, error: &str) {
        self.admission.set_rules_missing(ConfiguredRules::Managed);
        self.record_managed_failure(error);
    }

    /// Records that the server has the rules of the control plane, or knows that there are none.
    pub fn mark_managed_present(&self) {
        self.clear_managed_failure();
        self.admission.set_rules_present(ConfiguredRules::Managed);
    }

    /// True while the server waits for its rules and is configured to be unhealthy until then.
    pub fn is_awaiting_rules(&self) -> bool {
        self.compat.modes().healthy_with_rules && self.admission.is_without_rules()
    }

    /// True while the store is unavailable and the server is configured to be unhealthy then.
    pub fn is_missing_store(&self) -> bool {
        self.compat.modes().healthy_with_store && !self.store.status().is_connected()
    }

    /// Waits until the server has its rules.
    pub async fn wait_for_rules(&self) {
        self.admission.wait_for_rules().await;
    }

    /// The state that health checks report.
    pub fn health(&self) -> Health {
        match self.admission.phase() {
            Phase::Starting => Health::Starting,
            Phase::Ready if self.is_awaiting_rules() => Health::AwaitingRules,
            Phase::Ready if self.is_missing_store() => Health::StoreUnavailable,
            Phase::Ready => Health::Serving,
            Phase::Draining => Health::Draining,
        }
    }

    /// The number of rule sets installed, the first included.
    pub fn rules_installed(&self) -> u64 {
        self.telemetry.metrics().rules_installed.get()
    }

    /// The number of failed reloads.
    pub fn reload_failures(&self) -> u64 {
        self.telemetry.metrics().reload_errors.get()
    }

    /// The answer modes of `ratelimit`.
    pub fn compat(&self) -> &RatelimitCompat {
        &self.compat
    }

    /// The error of the last reload, if it failed, and the reason why newer rules of the control plane are not active.
    pub fn rules_error(&self) -> Option<Arc<String>> {
        match (self.rules_error.load_full(), self.managed_error.load_full()) {
            (Some(files), Some(managed)) => Some(Arc::new(format!("{files}\n{managed}"))),
            (files, managed) => files.or(managed),
        }
    }

    /// The number of active rules.
    pub fn rules_loaded(&self) -> u64 {
        self.telemetry.metrics().rules_loaded.get()
    }

    /// The number of active rules that have matched no attempt since they were loaded.
    pub fn rules_never_matched(&self) -> u64 {
        self.telemetry.metrics().matches.never_matched()
    }

    /// The current phase.
    pub fn phase(&self) -> Phase {
        self.admission.phase()
    }

    /// Advances the phase. Phases never move backwards.
    pub fn advance_phase(&self, phase: Phase) {
        self.admission.advance_phase(phase);
    }

    /// The store.
    pub fn store(&self) -> &AnyStore {
        &self.store
    }

    /// The last distinct attempts.
    pub fn recent_attempts(&self) -> &RecentAttempts {
        &self.recent_attempts
    }

    /// The observation of this server.
    pub(crate) fn watch(&self) -> &Watch {
        &self.telemetry.metrics().watch
    }

    /// The traces of this server.
    pub(crate) fn traces(&self) -> &Traces {
        &self.telemetry.metrics().traces
    }

    /// Samples the counters into the time series once a second, and frees rules that no request uses any more, without end.
    pub async fn keep_sampling(&self) {
        let mut sampler = Sampler::default();
        loop {
            let now_ms = Clock::wall().now().as_micros() / 1_000;
            self.sample(&mut sampler, now_ms);
            self.retired.free_unused();
            self.telemetry.metrics().process.sample();
            // To the end of the second, and not before it.
            tokio::time::sleep(Duration::from_millis(1_000 - now_ms % 1_000)).await;
        }
    }

    /// Adds the second that ended last to the time series.
    pub(super) fn sample(&self, sampler: &mut Sampler, now_ms: u64) {
        let active = self.active_rules.load_full();
        let rules = active.limiter.rules();
        sampler.sample(now_ms, self.watch(), self.totals(), rules, &active.observer_state);
    }

    /// The counters of all checks since the start.
    pub(crate) fn totals(&self) -> TotalFigures {
        self.telemetry.metrics().totals(self.store.call_times())
    }

    /// The variants of a rule with an experiment, control first: their limits, and the decisions since they exist.
    pub(crate) fn variants(&self, domain: &str, id: &str) -> Option<[(String, RuleFigures); 2]> {
        let active = self.active_rules.load();
        let rules = active.limiter.rules().rules();
        let is_it = |rule: &Rule| rule.domain() == domain && rule.id() == id;
        let (index, rule) = rules.iter().enumerate().find(|(_, rule)| is_it(rule))?;
        let (counts, ..) = &*active.observer_state;
        let [control, experiment] = counts.variants(index)?;
        let limit = |selector: &LimitSelector| selector.limit().to_string();
        Some([
            (limit(rule.limit_selector()), control),
            (limit(rule.experiment()?.limit_selector()), experiment),
        ])
    }

    /// The values of the metrics.
    pub fn metrics(&self) -> &Metrics {
        self.telemetry.metrics()
    }

    /// Counts one call of the rls service.
    pub(crate) fn record_call(&self, outcome: CallOutcome) {
        self.telemetry.metrics().ratelimit.calls.add(outcome);
    }

    /// Counts one call of the rls service that the store failed to answer, although it has a verdict.
    pub(crate) fn record_covered_store_failure(&self) {
        self.telemetry.metrics().ratelimit.calls.store_failed.add(1);
    }

    /// The statistics of `ratelimit` as its debug port shows them: `name: number`, sorted, one per line.
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
    /// The same rules, for a request that may be sampled.
    #[inline]
    #[must_use]
    pub(crate) fn traced(self, trace: RequestTrace) -> Self {
        Self { trace, ..self }
    }

    /// Decides an attempt.
    #[inline]
    pub async fn check(&self, attempt: &Attempt<'_>) -> CheckResult<'_> {
        let stopwatch = &self.gate.stopwatch;
        let started = stopwatch.start();
        let result = self.limiter().check(attempt).await;
        let elapsed_ns = stopwatch.elapsed_ns(started);
        self.count(attempt, &result, elapsed_ns);
        if let Some(trace) = &self.trace {
            self.record_check(trace, attempt, &result.verdict, elapsed_ns);
        }
        result
    }

    /// Decides attempts one after the other, in one call to the store. Each counts as if it were checked alone; all
    /// took as long as the call.
    pub async fn check_each(&self, attempts: &[Attempt<'_>]) -> Vec<CheckResult<'_>> {
        let stopwatch = &self.gate.stopwatch;
        let started = stopwatch.start();
        let results = self.limiter().check_each(attempts).await;
        let elapsed_ns = stopwatch.elapsed_ns(started);
        for (attempt, result) in attempts.iter().zip(&results) {
            self.count(attempt, result, elapsed_ns);
        }
        if let Some(trace) = &self.trace {
            self.record_batch(trace, attempts, &results, elapsed_ns);
        }
        results
    }

    /// Counts the result of one check.
    #[inline]
    fn count(&self, attempt: &Attempt<'_>, result: &CheckResult<'_>, elapsed_ns: u64) {
        let metrics = self.gate.telemetry.metrics();
        metrics.seconds.add(elapsed_ns);
        self.observe(&VerdictEvent {
            rules: self.limiter().rules(),
            attempt,
            direction: Direction::Consume,
            verdict: ObservedVerdict::Rules(&result.verdict),
            request_allowed: result.verdict.allowed,
            lacks_key: result.lacks_key,
            protocol: self.protocol,
        });
        if result.invalid_costs > 0 {
            metrics.invalid_costs.add(result.invalid_costs.into());
        }
    }

    /// Decides several attempts that pass together or not at all. Observers see each of them.
    #[inline]
    pub async fn check_all(&self, items: &[AttemptItem<'_>]) -> CombinedVerdict<'_> {
        let stopwatch = &self.gate.stopwatch;
        let started = stopwatch.start();
        let combined = self.limiter().check_all(items).await;
        let elapsed_ns = stopwatch.elapsed_ns(started);
        let metrics = self.gate.telemetry.metrics();
        metrics.seconds.add(elapsed_ns);
        for (item, item_verdict) in items.iter().zip(&combined.items) {
            self.observe(&VerdictEvent {
                rules: self.limiter().rules(),
                attempt: &item.attempt,
                direction: item.direction,
                verdict: match item_verdict {
                    ItemVerdict::Rules(verdict) => ObservedVerdict::Rules(verdict),
                    ItemVerdict::Inline(decision, source, count) => ObservedVerdict::Inline {
                        allowed: item_verdict.is_allow(),
                        decision: decision.as_ref(),
                        source: *source,
                        count: *count,
                    },
                },
                request_allowed: combined.allowed,
                lacks_key: combined.lacks_key,
                protocol: self.protocol,
            });
        }
        if combined.invalid_costs > 0 {
            metrics.invalid_costs.add(combined.invalid_costs.into());
        }
        if let Some(trace) = &self.trace {
            self.record_combined(trace, items, &combined, elapsed_ns);
        }
        combined
    }

    /// The extra wait in the `Retry-After` of an attempt that `ruling` denies, at most `extra_max`.
    pub(crate) fn spread_retry(
        &self,
        attempt: &Attempt<'_>,
        ruling: &Ruling<'_>,
        caller: RetryCaller,
        extra_max: Micros,
    ) -> Micros {
        let denial = SpreadDenial {
            ruling,
            caller,
            instances: NonZeroU64::new(self.gate.store.instances().into()).unwrap_or(NonZeroU64::MIN),
            extra_max,
        };
        let queues = &self.gate.telemetry.metrics().retry_queues;
        let (.., state) = &*self.active_rules.observer_state;
        queues.extra(state, self.limiter().rules(), attempt, &denial)
    }

    #[inline]
    fn observe(&self, event: &VerdictEvent<'_>) {
        #[cfg(test)]
        assert_ne!(event.attempt.domain, PANIC_DOMAIN, "injected");
        self.gate.recent_attempts.record(event.attempt);
        let observers = self.gate.telemetry.metrics().observers();
        observers.record(&self.active_rules.observer_state, event);
    }

    /// The reason an attempt met no rule, if its domain has none.
    #[inline]
    pub fn unknown_domain(&self, attempt: &Attempt<'_>, verdict: &Verdict<'_>) -> Option<UnknownDomain> {
        match verdict.rulings.is_empty() {
            true => self.limiter().rules().unknown_domain(attempt.domain),
            false => None,
        }
    }

    /// The reason to reject a request to a domain that has no rules. Counted as an attempt without a rule.
    pub fn reject_unknown_domain(&self, domain: &str) -> Option<UnknownDomain> {
        let unknown = self.limiter().rules().unknown_domain(domain)?;
        let next_step = "answered with 404; correct the domain in the path that the gateway asks, or set \
                         `unknown_domain: allow` in `forward_auth`";
        let matches = &self.gate.telemetry.metrics().matches;
        matches.add_unknown_domain(self.protocol, next_step, || Some(unknown.clone()));
        Some(unknown)
    }

    /// Explains the verdict an attempt would get. Consumes nothing.
    pub async fn explain(&self, attempt: &Attempt<'_>) -> Explanation<'_> {
        self.limiter().explain(attempt).await
    }

    /// Refunds the cost of an attempt and returns the standings after it.
    pub async fn refund(&self, attempt: &Attempt<'_>) -> Verdict<'_> {
        let verdict = self.limiter().refund(attempt).await;
        self.observe(&VerdictEvent {
            rules: self.limiter().rules(),
            attempt,
            direction: Direction::Refund,
            verdict: ObservedVerdict::Rules(&verdict),
            request_allowed: true,
            lacks_key: false,
            protocol: self.protocol,
        });
        verdict
    }

    /// Clears the counters of one subject, for one rule or for all, and returns how many held something.
    ///
    /// # Errors
    /// A domain without rules, a name that no rule and no window of the domain has, or an unavailable store.
    pub async fn forget(&self, attempt: &Attempt<'_>, rule: Option<&str>) -> Result<u64, ForgetError> {
        self.limiter().forget(attempt, rule).await
    }

    /// Releases the slots of a lease. False if it holds none.
    ///
    /// # Errors
    /// An unavailable store.
    pub async fn release(&self, lease: &str) -> Result<bool, StoreError> {
        self.limiter().release(lease).await
    }

    /// Renews a lease for its whole term and returns the term.
    ///
    /// # Errors
    /// An unavailable store.
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
        let observer_state = metrics.observers().rule_state(&rules);
        metrics.rules_loaded.set(rules.rules().len() as u64);
        Self {
            limiter: store.rule_limiter(rules),
            observer_state: Arc::new(observer_state),
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

#[cfg(test)]
mod tests;
