//! A service with more requests than it can serve, behind different policies.
//!
//! The service has workers and a queue of its own; a request that has arrived there is worked on, even if its client has
//! left. In front of it a policy dispatches, queues or denies. Denying costs a two-hundredth of serving.

mod adaptive;
mod engine;
mod measure;
mod pattern;
pub mod policies;

pub use adaptive::{AdaptiveRun, run_adaptive};
pub use measure::CellResult;
pub(super) use measure::percentile;
pub use pattern::Pattern;
pub use policies::PolicyKind;

use tollgate_core::Micros;

/// A cell of the matrix: one policy under one load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverloadCell {
    /// The policy.
    pub policy: PolicyKind,
    /// Its parameters, as an index into [`PolicyKind::grid`].
    pub parameters: usize,
    /// The course of the load.
    pub pattern: Pattern,
    /// The load in overload over the capacity, in percent.
    pub load_percent: u64,
}

/// The matrix to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverloadPlan {
    /// The seed of all draws. Every policy meets the same requests.
    pub seed: u64,
    /// The policies.
    pub policies: Vec<PolicyKind>,
    /// The courses of the load.
    pub patterns: Vec<Pattern>,
    /// The loads in percent.
    pub loads_percent: Vec<u64>,
}

/// A policy with the parameters that were best over all cells, and its results, one for each pattern and load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyResult {
    /// The policy.
    pub policy: PolicyKind,
    /// The best parameters.
    pub parameters: &'static str,
    /// The parameters that were tried.
    pub tried: usize,
    /// By pattern and load.
    pub cells: Vec<CellResult>,
}

/// The default matrix.
impl Default for OverloadPlan {
    fn default() -> Self {
        Self {
            seed: 1,
            policies: PolicyKind::ALL.to_vec(),
            patterns: Pattern::ALL.to_vec(),
            loads_percent: vec![100, 120, 200, 500, 1_000],
        }
    }
}

/// Runs a matrix. Each published policy gets the parameters of its grid with the best mean goodput over all cells.
pub fn run(plan: &OverloadPlan) -> Vec<PolicyResult> {
    let of_policy = |policy: &PolicyKind| {
        let grid = policy.grid();
        let runs = (0..grid.len()).map(|parameters| {
            let cells: Vec<CellResult> = plan
                .patterns
                .iter()
                .flat_map(|pattern| {
                    plan.loads_percent.iter().map(|load_percent| {
                        let cell = OverloadCell {
                            policy: *policy,
                            parameters,
                            pattern: *pattern,
                            load_percent: *load_percent,
                        };
                        run_cell(&cell, plan.seed)
                    })
                })
                .collect();
            (parameters, cells)
        });
        // The first of the best.
        let total = |cells: &[CellResult]| cells.iter().map(|cell| cell.goodput_permille).sum::<u64>();
        let best = runs.reduce(|best, next| if total(&next.1) > total(&best.1) { next } else { best });
        let (parameters, cells) = best.unwrap_or_default();
        PolicyResult {
            policy: *policy,
            parameters: grid.get(parameters).copied().unwrap_or_default(),
            tried: grid.len(),
            cells,
        }
    };
    plan.policies.iter().map(of_policy).collect()
}

/// Runs one cell.
pub fn run_cell(cell: &OverloadCell, seed: u64) -> CellResult {
    let policy = policies::build(cell.policy, cell.parameters);
    engine::Engine::new(cell, seed, policy).run()
}

/// The workers of the service.
pub const WORKERS: u64 = 100;
/// The mean time a worker takes.
pub const SERVICE_MEAN: Micros = Micros::from_millis(50);
/// A client leaves after this time, and its response is lost.
pub const PATIENCE: Micros = Micros::from_secs(1);
/// The time a worker loses for each denial.
pub const DENIAL_COST: Micros = Micros::new(250);
/// The 99th percentile of the time a worker takes.
pub const UNLOADED_P99: Micros = Micros::from_millis(141);
