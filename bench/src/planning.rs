//! Nanoseconds to find the rules of an attempt and to build its keys, by number of rules.
//!
//! ```text
//! cargo run --profile dist -p tollgate-bench -- planning
//! ```
//!
//! The rules have two tiers: a ceiling for every endpoint over all merchants, and a limit for each merchant by tier.
//! Every attempt has a random endpoint and merchant, drawn beforehand, so that with many rules all of their memory is
//! used. The rule sets alternate round by round: compare ratios within one run.

use crate::measurement::median;
use serde_json::{Value, json};
use std::fmt::Write;
use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;
use tollgate_core::problem::Origin;
use tollgate_core::rules::{Attempt, Attribute, ParserOptions, RuleSet, RulesParser};
use tollgate_core::testing::random::Random;
use tollgate_core::{Cost, yaml};
use tollgate_limiter::RuleLimiter;
use tollgate_limiter::store::memory::Memory;

/// Measures planning with few and with many rules.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  cargo run --profile dist -p tollgate-bench -- planning --rounds 51")]
pub(crate) struct Args {
    /// Rounds per rule set; the median is reported.
    #[arg(long, default_value_t = ROUNDS, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    /// Prints JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// Enough for a steady median.
pub(crate) const ROUNDS: u32 = 31;
/// Rules per set, and overrides of its last rule.
const SETS: [(usize, usize); 4] = [(10, 0), (1_000, 0), (10_000, 0), (10, 100_000)];
/// The maximum ratio of planning with 10,000 rules to planning with 10.
const RATIO_MAX: f64 = 3.0;
/// Attempts drawn beforehand, and passes over them per round: a rule set should find its own data in the CPU caches, not
/// that of the set before it.
pub(crate) const ATTEMPTS: usize = 16_384;
const PASSES: usize = 4;

/// One rule set, and attempts that each match two of its rules.
struct Case {
    rules: usize,
    overrides: usize,
    limiter: RuleLimiter,
    attempts: Vec<AttributeValues>,
    plan_ns: Vec<f64>,
    check_ns: Vec<f64>,
}

/// The values of one attempt.
struct AttributeValues {
    endpoint: String,
    merchant: String,
    tier: &'static str,
}

/// The results of all rule sets.
pub(crate) struct PlanningReport([Timing; SETS.len()]);

pub(crate) fn run(args: &Args) -> ExitCode {
    let planned = measure(args.rounds);
    if args.json {
        println!("{:#}", json!({ "planning": planned.as_json(), "ratio_max": RATIO_MAX }));
    } else {
        print!("{}", planned.as_table());
    }
    if planned.is_within_ratio() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Times every rule set.
pub(crate) fn measure(rounds: u32) -> PlanningReport {
    let mut cases = SETS.map(|(rules, overrides)| Case::new(rules, overrides));
    for _ in 0..rounds {
        for case in &mut cases {
            case.time();
        }
    }
    let base = cases.first().map(|case| case.plan_ns.clone()).unwrap_or_default();
    PlanningReport(cases.map(|case| Timing {
        rules: case.rules,
        overrides: case.overrides,
        // Per round: other load slows down all sets of a round.
        ratio: median(case.plan_ns.iter().zip(&base).map(|(ns, base)| ns / base)),
        plan_ns: median(case.plan_ns),
        check_ns: median(case.check_ns),
    }))
}

impl Case {
    fn new(rules: usize, overrides: usize) -> Self {
        let endpoints = rules / 2;
        let limiter = RuleLimiter::new(two_tiers(endpoints, overrides), Arc::new(Memory::default()));
        let mut random = Random::new(7);
        let merchants = overrides.max(10_000) as u64;
        let attempts = (0..ATTEMPTS).map(|_| AttributeValues {
            endpoint: endpoint(random.below(endpoints as u64) as usize),
            merchant: format!("m_{}", random.below(merchants)),
            tier: random.pick(&["free", "enterprise"]),
        });
        Self {
            rules,
            overrides,
            attempts: attempts.collect(),
            limiter,
            plan_ns: Vec::new(),
            check_ns: Vec::new(),
        }
    }

    /// Plans all attempts, then checks all of them.
    fn time(&mut self) {
        let mut met = 0;
        let begun = Instant::now();
        for words in std::iter::repeat_n(&self.attempts, PASSES).flatten() {
            words.attempt(|attempt| {
                met += black_box(self.limiter.plan(attempt)).lines.len();
            });
        }
        self.plan_ns.push(nanos(begun));
        assert_eq!(met, 2 * ATTEMPTS * PASSES, "every attempt meets a ceiling and a plan");
        let begun = Instant::now();
        for words in std::iter::repeat_n(&self.attempts, PASSES).flatten() {
            words.attempt(|attempt| {
                black_box(self.limiter.check_now(attempt));
            });
        }
        self.check_ns.push(nanos(begun));
    }
}

impl AttributeValues {
    fn attempt(&self, then: impl FnOnce(&Attempt<'_>)) {
        let attribute = |name, value: &'static str| Attribute {
            name,
            value: value.as_bytes(),
        };
        let attributes = [
            Attribute {
                name: "merchant",
                value: self.merchant.as_bytes(),
            },
            Attribute {
                name: "endpoint",
                value: self.endpoint.as_bytes(),
            },
            attribute("tier", self.tier),
        ];
        then(&Attempt {
            domain: Attempt::DOMAIN,
            attributes: &attributes,
            cost: Cost::ONE,
        });
    }
}

fn endpoint(number: usize) -> String {
    format!("/v1/endpoint-{number}")
}

/// A ceiling and a limit per merchant for each endpoint; the last one with overrides.
fn two_tiers(endpoints: usize, overrides: usize) -> RuleSet {
    let mut text = String::from("rules:\n");
    for number in 0..endpoints {
        let endpoint = endpoint(number);
        writeln!(
            text,
            "- {{id: c{number}, when: {{endpoint: {endpoint}}}, limit: 10000/s}}\n\
             - id: m{number}\n  when: {{endpoint: {endpoint}}}\n  per: merchant\n  limit: 100/min\n  \
             by: {{tier: {{free: 100/min, enterprise: 5000/min burst 500}}}}"
        )
        .expect("writing to a string cannot fail");
    }
    if overrides > 0 {
        text.push_str("  overrides:\n");
    }
    for number in 0..overrides {
        writeln!(text, "  - {{merchant: m_{number}, limit: 20000/min}}").expect("writing to a string cannot fail");
    }
    let origin = Origin::new("two tiers", text);
    let mut reader = RulesParser::new(ParserOptions::default());
    reader.add_file(&yaml::parse(&origin).expect("it is yaml"));
    reader.finish().expect("the rules are valid").rules
}

/// The result of one rule set.
struct Timing {
    rules: usize,
    overrides: usize,
    plan_ns: f64,
    /// The ratio of planning to planning with the first set.
    ratio: f64,
    check_ns: f64,
}

impl Timing {
    fn json(&self) -> Value {
        json!({
            "rules": self.rules,
            "overrides": self.overrides,
            "plan_ns": self.plan_ns.round(),
            "check_ns": self.check_ns.round(),
            "ratio": (self.ratio * 100.0).round() / 100.0,
        })
    }
}

impl PlanningReport {
    /// True if no set exceeds the maximum ratio.
    fn is_within_ratio(&self) -> bool {
        self.0.iter().all(|timing| timing.ratio <= RATIO_MAX)
    }

    pub(crate) fn as_json(&self) -> Value {
        self.0.iter().map(Timing::json).collect()
    }

    pub(crate) fn as_table(&self) -> String {
        let mut table = String::from(
            "Nanoseconds per attempt that meets two rules: planned, and checked with the embedded store.\n\n\
             | rules | overrides | plan ns | x 10 rules | check ns |\n|---:|---:|---:|---:|---:|\n",
        );
        for timing in &self.0 {
            let Timing {
                rules,
                overrides,
                plan_ns,
                ratio,
                check_ns,
            } = timing;
            let _ = writeln!(
                table,
                "| {rules} | {overrides} | {plan_ns:.0} | {ratio:.2} | {check_ns:.0} |"
            );
        }
        table
    }
}

fn nanos(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1e9 / (ATTEMPTS * PASSES) as f64
}
