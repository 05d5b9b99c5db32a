//! CPU time to compile a rule set from its text and to make a limiter of it, as an instance does before a publish.

use super::{cpu_ms, two_tiers};
use serde_json::{Value, json};
use std::hint::black_box;
use std::sync::Arc;
use tollgate_core::testing::rules::rule_set;
use tollgate_limiter::RuleLimiter;
use tollgate_limiter::store::memory::Memory;

/// The best compilation of some.
pub(super) struct Compiled {
    rules: usize,
    cpu_ms: f64,
    cpu_ms_max: f64,
}

/// Numbers of rules, and the bounds.
const SETS: [(usize, f64); 2] = [(10_000, 250.0), (100_000, 3_000.0)];
const ROUNDS: usize = 3;

pub(super) fn measure() -> Vec<Compiled> {
    let compiled = SETS.map(|(rules, cpu_ms_max)| {
        let text = two_tiers(rules);
        let rounds = (0..ROUNDS).map(|_| {
            let started = cpu_ms();
            let limiter = RuleLimiter::new(rule_set(&text), Arc::new(Memory::default()));
            assert_eq!(limiter.rules().rules().len(), rules, "every rule is compiled");
            black_box(limiter);
            cpu_ms() - started
        });
        Compiled {
            rules,
            cpu_ms: rounds.min_by(f64::total_cmp).unwrap_or_default(),
            cpu_ms_max,
        }
    });
    compiled.into()
}

impl Compiled {
    pub(super) fn is_within_bound(&self) -> bool {
        self.cpu_ms <= self.cpu_ms_max
    }

    pub(super) fn as_json(&self) -> Value {
        json!({ "rules": self.rules, "cpu_ms": self.cpu_ms, "cpu_ms_max": self.cpu_ms_max })
    }

    pub(super) fn as_table_row(&self) -> String {
        let Self {
            rules,
            cpu_ms,
            cpu_ms_max,
        } = self;
        format!("| compile {rules} rules, CPU time | {cpu_ms:.0} ms | {cpu_ms_max} ms |\n")
    }
}
