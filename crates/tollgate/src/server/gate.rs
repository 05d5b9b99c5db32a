//! The gate: where every front end asks, and the only place where verdicts are timed and counted.

use super::envoy::Compat;
use super::store::{Book, Store, Throttles};
use super::telemetry::{Door, EnvoyCounts, Figures, Names, RuleCounts, Tally, Telemetry};
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
use tollgate_limiter::{self as limiter, CheckResult, Fingerprint, ItemVerdict, ForgetError, AttemptItem, CombinedVerdict, Direction};

/// The rules in force, their store, and what is counted of them.
pub struct Gate {
    store: Store,
    throttles: Throttles,
    in_force: ArcSwap<InForce>,
    /// Why the rules that were last seen are not the ones in force.
    rules_fault: ArcSwapOption<String>,
    /// Whether it has the rules it was to have.
    has_rules: watch::Sender<bool>,
    compat: Compat,
    phase: AtomicU8,
    telemetry: Telemetry,
    stopwatch: Stopwatch,
}

/// One set of rules in force, with the counters of its rules.
struct InForce {
    book: Book,
    counts: RuleCounts,
    envoy: EnvoyCounts,
}

/// The rules in force when a request came: it is answered by them, whatever comes after.
pub struct Sitting<'g> {
    gate: &'g Gate,
    in_force: Guard<Arc<InForce>>,
    door: Door,
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
    pub fn new(rules: RuleSet, store: impl Into<Store>) -> Self {
        let store = store.into();
        let telemetry = Telemetry::new(&store);
        let in_force = InForce::new(rules, &store, telemetry.figures());
        telemetry.figures().rules_taken.set(1);
        Self {
            throttles: store.throttles(),
            store,
            in_force: ArcSwap::from_pointee(in_force),
            rules_fault: ArcSwapOption::empty(),
            has_rules: watch::Sender::new(true),
            compat: Compat::default(),
            phase: AtomicU8::new(Phase::Starting as u8),
            telemetry,
            stopwatch: Stopwatch::new(),
        }
    }

    /// Opens the rules in force for one request through `door`.
    #[inline]
    pub fn sit(&self, door: Door) -> Sitting<'_> {
        Sitting {
            gate: self,
            in_force: self.in_force.load(),
            door,
        }
    }

    /// What `CL.THROTTLE` is counted in.
    pub fn throttles(&self) -> &Throttles {
        &self.throttles
    }

    /// Settles calls of `CL.THROTTLE` that came together, and tells what came of them in order.
    #[inline]
    pub fn throttle_each(
        &self,
        throttles: &limiter::ThrottleLimiter,
        charges: &[Charge<Fingerprint>],
        door: Door,
        mut answer: impl FnMut(&Reply),
    ) {
        let started = self.stopwatch.start();
        let mut tally = Tally::default();
        throttles.settle_each(charges, |_, reply, source| {
            tally.add(!reply.limited, source);
            answer(&reply);
        });
        self.count(&tally, door, started);
    }

    /// Settles one call of `CL.THROTTLE`.
    ///
    /// # Errors
    /// Why the store could not.
    pub async fn throttle(&self, key: &[u8], cell: Cell, cost: Cost, door: Door) -> Result<Reply, StoreError> {
        let started = self.stopwatch.start();
        let (reply, source) = self.throttles.settle(key, cell, cost).await?;
        let mut tally = Tally::default();
        tally.add(!reply.limited, source);
        self.count(&tally, door, started);
        Ok(reply)
    }

    fn count(&self, tally: &Tally, door: Door, started: StartTime) {
        let figures = self.telemetry.figures();
        let elapsed = self.stopwatch.elapsed_ns(started);
        figures
            .seconds
            .add_several(elapsed, figures.decisions.add_throttled(tally, door));
    }

    /// Takes other rules, all at once. Counters go on where rules stay the same.
    pub fn take_rules(&self, rules: RuleSet) {
        let figures = self.telemetry.figures();
        self.in_force.store(Arc::new(InForce::new(rules, &self.store, figures)));
        self.rules_fault.store(None);
        figures.reloads.add(1);
        figures.rules_taken.add(1);
        figures.rules_failed.set(0);
        self.has_rules.send_replace(true);
    }

    /// Notes that changed rules cannot be used, and why. Those in force stay.
    pub fn keep_rules(&self, fault: &str) {
        self.rules_fault.store(Some(Arc::new(fault.to_owned())));
        let figures = self.telemetry.figures();
        figures.reload_errors.add(1);
        figures.rules_failed.set(1);
    }

    /// Notes that it begins without the rules it was to have, and why. Others are taken when they come.
    pub fn begin_without_rules(&self, fault: &str) {
        self.telemetry.figures().rules_taken.set(0);
        self.has_rules.send_replace(false);
        self.keep_rules(fault);
    }

    /// Whether it waits for the rules it was to have, and is not to be called healthy before they come.
    pub fn lacks_rules(&self) -> bool {
        self.compat.modes().healthy_with_rules && !*self.has_rules.borrow()
    }

    /// Comes to an end when it has rules.
    pub async fn until_there_are_rules(&self) {
        // The sender is our own, so it is there.
        let _ = self.has_rules.subscribe().wait_for(|has| *has).await;
    }

    /// How often rules were taken, from the first on.
    pub fn rules_taken(&self) -> u64 {
        self.telemetry.figures().rules_taken.get()
    }

    /// How often changed rules could not be used.
    pub fn rules_refused(&self) -> u64 {
        self.telemetry.figures().reload_errors.get()
    }

    /// How requests for descriptors of envoyproxy/ratelimit's files are answered.
    pub fn compat(&self) -> &Compat {
        &self.compat
    }

    /// Why the rules that were last seen are not in force, if they are not.
    pub fn rules_fault(&self) -> Option<Arc<String>> {
        self.rules_fault.load_full()
    }

    /// How many rules are in force.
    pub fn rules_loaded(&self) -> u64 {
        self.telemetry.figures().rules_loaded.get()
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
    pub fn enter(&self, phase: Phase) {
        self.phase.fetch_max(phase as u8, Ordering::Relaxed);
    }

    /// The store.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// What is counted.
    pub fn figures(&self) -> &Figures {
        self.telemetry.figures()
    }

    /// What envoyproxy/ratelimit counts of descriptors, as its debug port tells it: `name: number`, one a line and sorted.
    pub fn envoy_stats(&self) -> String {
        self.figures().envoy.text()
    }

    /// All metrics as text.
    pub fn metrics(&self) -> String {
        self.telemetry.text(match self.compat.modes().prometheus_names {
            true => Names::AlsoRatelimit,
            false => Names::Own,
        })
    }
}

impl Sitting<'_> {
    /// May the attempt go on?
    #[inline]
    pub async fn check(&self, attempt: &Attempt<'_>) -> CheckResult<'_> {
        let Gate {
            telemetry, stopwatch, ..
        } = self.gate;
        let InForce { book, counts, envoy } = &**self.in_force;
        let started = stopwatch.start();
        let checked = book.check(attempt).await;
        let figures = telemetry.figures();
        figures.seconds.add(stopwatch.elapsed_ns(started));
        figures.decisions.add(counts, book.rules(), &checked.verdict, self.door);
        let passes = checked.verdict.allowed;
        figures
            .envoy
            .add(envoy, book.rules(), attempt, &checked.verdict, passes);
        if checked.invalid_costs > 0 {
            figures.odd_costs.add(checked.invalid_costs.into());
        }
        checked
    }

    /// May all of these attempts go on, as one? Each counts as an attempt; what is given back does not.
    #[inline]
    pub async fn check_together(&self, parts: &[AttemptItem<'_>]) -> CombinedVerdict<'_> {
        let Gate {
            telemetry, stopwatch, ..
        } = self.gate;
        let InForce { book, counts, envoy } = &**self.in_force;
        let started = stopwatch.start();
        let together = book.check_together(parts).await;
        let figures = telemetry.figures();
        figures.seconds.add(stopwatch.elapsed_ns(started));
        for (part, judged) in parts.iter().zip(&together.items) {
            match (part.direction, judged) {
                (Direction::Consume, ItemVerdict::Rules(verdict)) => {
                    figures.decisions.add(counts, book.rules(), verdict, self.door);
                    let passes = together.allowed;
                    figures.envoy.add(envoy, book.rules(), &part.attempt, verdict, passes);
                }
                (Direction::Consume, ItemVerdict::Inline(_, source, _)) => {
                    figures.decisions.add_own(judged.is_allow(), *source, self.door);
                    if book.rules().descriptors().has_domain(part.attempt.domain) {
                        figures
                            .envoy
                            .add_brought(envoy, &part.attempt, judged, together.allowed);
                    }
                }
                // Of a request that is refused nothing is given back, unless each descriptor is counted by itself.
                (Direction::Refund, _) if !together.allowed && book.rules().descriptors().options.strict => {}
                (Direction::Refund, ItemVerdict::Rules(verdict)) => {
                    figures
                        .envoy
                        .add_given_back(envoy, book.rules(), &part.attempt, verdict);
                }
                (Direction::Refund, ItemVerdict::Inline(decision, ..)) => {
                    if book.rules().descriptors().has_domain(part.attempt.domain) {
                        figures.envoy.add_brought_back(&part.attempt, decision.as_ref());
                    }
                }
            }
        }
        if together.invalid_costs > 0 {
            figures.odd_costs.add(together.invalid_costs.into());
        }
        together
    }

    /// Why the attempt would be answered as it would be. Takes nothing.
    pub async fn explain(&self, attempt: &Attempt<'_>) -> Explanation<'_> {
        self.book().explain(attempt).await
    }

    /// Gives the cost of an attempt back, and tells how its limits then stand.
    pub async fn refund(&self, attempt: &Attempt<'_>) -> Verdict<'_> {
        let InForce { book, envoy, .. } = &**self.in_force;
        let verdict = book.refund(attempt).await;
        let figures = self.gate.telemetry.figures();
        figures.envoy.add_given_back(envoy, book.rules(), attempt, &verdict);
        verdict
    }

    /// Clears the counters of one subject, of one rule or of all, and says how many held something.
    ///
    /// # Errors
    /// A name that no rule and no window of the attempt's domain has, or a store that is away.
    pub async fn forget(&self, attempt: &Attempt<'_>, rule: Option<&str>) -> Result<u64, ForgetError> {
        self.book().forget(attempt, rule).await
    }

    /// Gives back what a lease holds.
    ///
    /// # Errors
    /// A store that is away.
    pub async fn release(&self, lease: &str) -> Result<bool, StoreError> {
        self.book().release(lease).await
    }

    /// Lets a lease last a whole term from now, and says how long that is.
    ///
    /// # Errors
    /// A store that is away.
    pub async fn renew(&self, lease: &str) -> Result<Option<Micros>, StoreError> {
        self.book().renew(lease).await
    }

    /// The rules and their store.
    pub fn book(&self) -> &Book {
        &self.in_force.book
    }
}

impl InForce {
    fn new(rules: RuleSet, store: &Store, figures: &Figures) -> Self {
        let counts = figures.decisions.counts(&rules);
        let envoy = figures.envoy.counts(&rules);
        figures.rules_loaded.set(rules.rules().len() as u64);
        Self {
            book: store.book(rules),
            counts,
            envoy,
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
