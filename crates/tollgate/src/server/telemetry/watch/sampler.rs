//! The sampler: reads the counters of telemetry once a second and adds what is new to the time series.

use super::Watch;
use super::latency::LatencyCounts;
use super::series::{BandCounts, RuleName, RuleStep, StepCounts, StepTotals};
use crate::server::telemetry::{ObserverState, RuleFigures, TotalFigures};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use tollgate_limiter::core::rules::RuleSet;

/// The counters as they were read last.
#[derive(Debug, Default)]
pub(crate) struct Sampler {
    /// Of the rule set that `rules` belongs to.
    state: Option<Arc<ObserverState>>,
    /// By the number of the rule.
    rules: Vec<SampledRule>,
    totals: Option<TotalFigures>,
    /// The rule that is read next, where they are not all read every second.
    next: usize,
}

#[derive(Debug)]
struct SampledRule {
    name: RuleName,
    last: RuleFigures,
    has_series: bool,
}

/// The rules that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RulesRead {
    All,
    /// Those that have a series, and as many others as one second has time for.
    Part,
}

impl Sampler {
    /// Adds the second that ended last, if that was not done. The first reading is what later ones are compared with.
    pub(crate) fn sample(
        &mut self,
        now_ms: u64,
        watch: &Watch,
        totals: TotalFigures,
        rules: &RuleSet,
        state: &Arc<ObserverState>,
    ) {
        let series = watch.series();
        let second = (now_ms / 1_000).saturating_sub(1);
        if !series.is_due(second) && self.totals.is_some() {
            return;
        }
        self.follow(rules, state);
        let Some(before) = self.totals.replace(totals) else {
            self.read_rules(state, RulesRead::All, |_, _, _| ());
            if series.is_due(second) {
                series.start_after(second);
            }
            return;
        };
        let mut step = StepTotals {
            counts: StepCounts {
                allowed: narrow(totals.allowed - before.allowed.min(totals.allowed)),
                denied: narrow(totals.denied - before.denied.min(totals.denied)),
                shadow_denied: 0,
            },
            decision: LatencyCounts::between(&before.decision, &totals.decision),
            store: LatencyCounts::between(&before.store, &totals.store),
            ..StepTotals::default()
        };
        for ((count, before), after) in step.sources.iter_mut().zip(&before.sources).zip(&totals.sources) {
            *count = narrow(after.saturating_sub(*before));
        }
        let mut rules = Vec::new();
        self.read_rules(state, RulesRead::Part, |rule, before, after| {
            let figures = after.since(before);
            if figures != RuleFigures::default() {
                rules.push(rule_step(rule.name.clone(), &figures));
            }
        });
        for rule in &rules {
            step.counts.shadow_denied = step.counts.shadow_denied.saturating_add(rule.counts.shadow_denied);
        }
        series.add(second, &step, &rules);
        watch.top().collect(now_ms, step.counts.denied.into());
        let tracked: HashSet<RuleName> = series.tracked().into_iter().collect();
        for rule in &mut self.rules {
            rule.has_series = tracked.contains(&rule.name);
        }
    }

    /// Follows the active rules: a rule that stays keeps its last reading, as it keeps its counters.
    fn follow(&mut self, rules: &RuleSet, state: &Arc<ObserverState>) {
        if self.state.as_ref().is_some_and(|known| Arc::ptr_eq(known, state)) {
            return;
        }
        let known = std::mem::take(&mut self.rules).into_iter();
        let mut known: HashMap<RuleName, SampledRule> = known.map(|rule| (rule.name.clone(), rule)).collect();
        let each = rules.rules().iter().map(|rule| RuleName::new(rule.domain(), rule.id()));
        self.rules = each
            .map(|name| {
                known.remove(&name).unwrap_or_else(|| SampledRule {
                    name,
                    last: RuleFigures::default(),
                    has_series: false,
                })
            })
            .collect();
        self.state = Some(Arc::clone(state));
        self.next = 0;
    }

    /// Reads rules, and calls `each` with the last reading and this one: those that have a series, and a part of the others.
    fn read_rules(
        &mut self,
        state: &ObserverState,
        read: RulesRead,
        mut each: impl FnMut(&SampledRule, &RuleFigures, &RuleFigures),
    ) {
        let count = self.rules.len();
        let reads_all = read == RulesRead::All || count <= READ_MAX;
        let (from, until) = (self.next, self.next + READ_MAX);
        let decisions = &state.0;
        for (index, rule) in self.rules.iter_mut().enumerate() {
            // A part that begins near the end goes on at the beginning.
            let is_turn = (from..until).contains(&index) || (from..until).contains(&(index + count));
            if reads_all || rule.has_series || is_turn {
                let figures = decisions.figures(index);
                each(rule, &rule.last, &figures);
                rule.last = figures;
            }
        }
        self.next = if count == 0 { 0 } else { until % count };
    }
}

fn rule_step(name: RuleName, figures: &RuleFigures) -> RuleStep {
    let allowed = figures.allowed + figures.shadow_allowed;
    let [high, higher, highest, unknown] = figures.bands;
    let low = allowed.saturating_sub(high + higher + highest + unknown);
    RuleStep {
        name,
        counts: StepCounts {
            allowed: narrow(allowed),
            denied: narrow(figures.denied),
            shadow_denied: narrow(figures.shadow_denied),
        },
        bands: BandCounts([low, high, higher, highest, figures.denied + figures.shadow_denied].map(narrow)),
    }
}

fn narrow(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Rules without a series that are read in one second.
const READ_MAX: usize = 2_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::gate::Gate;
    use crate::server::telemetry::Protocol;
    use crate::server::telemetry::watch::series::Resolution;
    use tollgate_limiter::core::Source;
    use tollgate_limiter::core::testing::rules::{attempt, attributes, rule_set as rules};
    use tollgate_limiter::store::memory::Memory;

    async fn check(gate: &Gate, times: usize) {
        let attributes = attributes(&["user=u"]);
        for _ in 0..times {
            gate.snapshot(Protocol::Http).check(&attempt(&attributes)).await;
        }
    }

    fn last(gate: &Gate, rule: &str) -> Option<StepCounts> {
        let window = gate
            .watch()
            .series()
            .rule(&RuleName::new("default", rule), Resolution::Second);
        window.values.last().copied().flatten()
    }

    /// A time that begins a minute.
    const START_MS: u64 = 1_800_000_000_000 / 60_000 * 60_000;

    #[tokio::test]
    async fn each_second_has_the_decisions_since_the_one_before() {
        const RULES: &str = "
rules:
  - { id: plan, per: user, limit: 10/h }
  - { id: trial, per: user, limit: 4/h, mode: shadow }";
        let gate = Gate::new(rules(RULES), Arc::new(Memory::default()));
        let mut sampler = Sampler::default();
        check(&gate, 3).await;
        // What was before the first reading belongs to no second.
        gate.sample(&mut sampler, START_MS);
        check(&gate, 9).await;
        gate.sample(&mut sampler, START_MS + 1_003);
        let counts = |allowed, denied, shadow_denied| StepCounts {
            allowed,
            denied,
            shadow_denied,
        };
        assert_eq!(last(&gate, "plan"), Some(counts(7, 2, 0)));
        assert_eq!(last(&gate, "trial"), Some(counts(1, 0, 8)));
        let totals = gate
            .watch()
            .series()
            .totals(Resolution::Second)
            .values
            .last()
            .copied()
            .flatten()
            .unwrap();
        assert_eq!(totals.counts, counts(7, 2, 8));
        assert_eq!(totals.sources[Source::Memory as usize], 9);
        assert_eq!(totals.decision.0.iter().sum::<u32>(), 9);
        // 4, 5, ... 10 of 10 are used.
        let bands = gate.watch().series().last_minute()[&RuleName::new("default", "plan")].1;
        assert_eq!(bands, BandCounts([1, 3, 2, 1, 2]));
        // The same second again, and one without a decision.
        gate.sample(&mut sampler, START_MS + 1_900);
        check(&gate, 1).await;
        gate.sample(&mut sampler, START_MS + 2_001);
        assert_eq!(last(&gate, "plan"), Some(counts(0, 1, 0)));
        gate.sample(&mut sampler, START_MS + 3_001);
        assert_eq!(last(&gate, "plan"), Some(counts(0, 0, 0)));
    }

    #[tokio::test]
    async fn counters_that_begin_anew_with_their_rule_count_from_zero() {
        const RULES: &str = "rules: [{ id: plan, per: user, limit: 1000/h }]";
        let gate = Gate::new(rules(RULES), Arc::new(Memory::default()));
        let mut sampler = Sampler::default();
        gate.sample(&mut sampler, START_MS);
        check(&gate, 5).await;
        gate.sample(&mut sampler, START_MS + 1_000);
        gate.install_rules(rules("rules: [{ id: other, per: user, limit: 1000/h }]"));
        check(&gate, 2).await;
        gate.sample(&mut sampler, START_MS + 2_000);
        assert_eq!(last(&gate, "other").unwrap().allowed, 2);
        assert_eq!(last(&gate, "plan").unwrap().allowed, 0);
        gate.install_rules(rules(RULES));
        check(&gate, 3).await;
        gate.sample(&mut sampler, START_MS + 3_000);
        assert_eq!(last(&gate, "plan").unwrap().allowed, 3);
    }
}
