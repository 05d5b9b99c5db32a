//! `tollgate simulate`: generated traffic against the decisions of this program, without a server.

use super::{EXIT_OK, fail};
use clap::{Args, ValueEnum};
use std::io::{self, Write};
use std::process::ExitCode;
use tollgate_sim::report;
use tollgate_sim::scenario::overload::{self, OverloadPlan, Pattern, PolicyKind, run_adaptive};
use tollgate_sim::scenario::storm::{self, StormCase, StormPlan, Strategy};

/// The scenario and the parts of it to run.
#[derive(Args)]
pub(super) struct Simulate {
    /// The scenario
    #[arg(long, value_enum)]
    scenario: Scenario,
    /// The seed of all draws: equal seeds give equal reports
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// overload: the policies to compare: none, fixed, codel, gradient2, vegas, aimd, stripe, dagor, ours, ours-auto
    #[arg(long, value_delimiter = ',', value_parser = policy)]
    policy: Vec<PolicyKind>,
    /// overload: the courses of the load: steady, step, sawtooth, halved, bimodal, retrying
    #[arg(long, value_delimiter = ',', value_parser = pattern)]
    pattern: Vec<Pattern>,
    /// overload: the loads in percent of the capacity
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=10_000))]
    load: Vec<u64>,
    /// overload: the courses of adaptive limits over so many seconds instead
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(60..=86_400))]
    #[arg(conflicts_with_all = ["policy", "pattern", "load"])]
    adaptive: Option<u64>,
    /// storm: the cases, such as storm, storm+jitter, burst, minute, instances, one-address, quitters, poller
    #[arg(long, value_delimiter = ',', value_parser = case)]
    case: Vec<StormCase>,
    /// storm: the ways to choose Retry-After: jitter, rate, queue, spread
    #[arg(long, value_delimiter = ',', value_parser = strategy)]
    strategy: Vec<Strategy>,
    /// Prints JSON instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Scenario {
    /// A service with more requests than it can serve, behind different policies
    Overload,
    /// Callers that a limit denied, and the moments at which they return
    Storm,
}

impl Simulate {
    pub(super) fn run(self) -> ExitCode {
        if let Some(option) = self.foreign_option() {
            return fail(&format!(
                "{option} is an option of the other scenario; see `tollgate simulate --help`"
            ));
        }
        let text = match self.scenario {
            Scenario::Overload => self.overload(),
            Scenario::Storm => self.storm(),
        };
        match io::stdout().write_all(text.as_bytes()) {
            // A closed pipe has read what it wanted.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                fail(&format!("cannot write the report: {error}"))
            }
            _ => ExitCode::from(EXIT_OK),
        }
    }

    /// An option that this scenario does not have.
    fn foreign_option(&self) -> Option<&'static str> {
        let overload = [
            ("--policy", !self.policy.is_empty()),
            ("--pattern", !self.pattern.is_empty()),
            ("--load", !self.load.is_empty()),
            ("--adaptive", self.adaptive.is_some()),
        ];
        let storm = [
            ("--case", !self.case.is_empty()),
            ("--strategy", !self.strategy.is_empty()),
        ];
        let foreign = match self.scenario {
            Scenario::Overload => &storm[..],
            Scenario::Storm => &overload[..],
        };
        foreign.iter().find(|(_, is_given)| *is_given).map(|(name, _)| *name)
    }

    fn overload(self) -> String {
        if let Some(seconds) = self.adaptive {
            let runs: Vec<_> = [PolicyKind::OursAuto, PolicyKind::Gradient2]
                .into_iter()
                .flat_map(|policy| [10, 1_000].map(|start| run_adaptive(policy, start, seconds, self.seed)))
                .collect();
            return match self.json {
                true => report::adaptive_json(self.seed, &runs),
                false => report::adaptive_table(&runs),
            };
        }
        let all = OverloadPlan::default();
        let plan = OverloadPlan {
            seed: self.seed,
            policies: or_all(self.policy, all.policies),
            patterns: or_all(self.pattern, all.patterns),
            loads_percent: or_all(self.load, all.loads_percent),
        };
        let results = overload::run(&plan);
        match self.json {
            true => report::overload_json(&plan, &results),
            false => report::overload_table(&results),
        }
    }

    fn storm(self) -> String {
        let all = StormPlan::default();
        let plan = StormPlan {
            seed: self.seed,
            cases: or_all(self.case, all.cases),
            strategies: or_all(self.strategy, all.strategies),
        };
        let results = storm::run(&plan);
        match self.json {
            true => report::storm_json(&plan, &results),
            false => report::storm_table(&results),
        }
    }
}

/// The chosen items, or all if none is chosen.
fn or_all<T>(chosen: Vec<T>, all: Vec<T>) -> Vec<T> {
    if chosen.is_empty() { all } else { chosen }
}

fn policy(name: &str) -> Result<PolicyKind, String> {
    PolicyKind::from_name(name).ok_or_else(|| unknown("policy", &PolicyKind::ALL.map(PolicyKind::name)))
}

fn pattern(name: &str) -> Result<Pattern, String> {
    Pattern::from_name(name).ok_or_else(|| unknown("pattern", &Pattern::ALL.map(Pattern::name)))
}

fn case(name: &str) -> Result<StormCase, String> {
    StormCase::from_name(name).ok_or_else(|| unknown("case", &StormCase::ALL.map(StormCase::name)))
}

fn strategy(name: &str) -> Result<Strategy, String> {
    Strategy::from_name(name).ok_or_else(|| unknown("strategy", &Strategy::ALL.map(Strategy::name)))
}

fn unknown(what: &str, names: &[&str]) -> String {
    format!("unknown {what}; use one of {}", names.join(", "))
}
