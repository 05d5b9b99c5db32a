//! The overload scenario: reproducible, and what it must show about our controllers.

use tollgate_sim::report::{overload_json, overload_table};
use tollgate_sim::scenario::overload::{
    CellResult, OverloadCell, OverloadPlan, Pattern, PolicyKind, UNLOADED_P99, run, run_adaptive, run_cell,
};

fn cell(policy: PolicyKind, pattern: Pattern, load_percent: u64) -> CellResult {
    let cell = OverloadCell {
        policy,
        parameters: 0,
        pattern,
        load_percent,
    };
    run_cell(&cell, 1)
}

const OURS: [PolicyKind; 2] = [PolicyKind::Ours, PolicyKind::OursAuto];

#[test]
fn equal_seeds_give_equal_bytes_and_others_do_not() {
    let mut plan = OverloadPlan {
        seed: 1,
        policies: vec![PolicyKind::Codel, PolicyKind::Ours],
        patterns: vec![Pattern::Retrying],
        loads_percent: vec![200],
    };
    let reports = |plan: &OverloadPlan| {
        let results = run(plan);
        (overload_table(&results), overload_json(plan, &results))
    };
    let first = reports(&plan);
    assert_eq!(first, reports(&plan));
    plan.seed = 2;
    assert_ne!(first, reports(&plan));
}

#[test]
fn overload_keeps_goodput_and_critical_requests_and_a_short_wait() {
    for policy in OURS {
        for pattern in [Pattern::Steady, Pattern::Step, Pattern::Bimodal] {
            for load in [200, 500, 1_000] {
                let result = cell(policy, pattern, load);
                assert!(result.goodput_permille >= 930, "{result:?}");
                assert!(result.critical_permille >= 990, "{result:?}");
                assert!(result.normal_after_ms.is_some_and(|ms| ms <= 2_000), "{result:?}");
                if pattern != Pattern::Bimodal {
                    assert!(result.p99_ms <= 3 * UNLOADED_P99.as_millis_ceil(), "{result:?}");
                }
            }
        }
    }
}

#[test]
fn better_classes_are_served_before_worse_ones() {
    for load in [120, 200, 500] {
        let served = cell(PolicyKind::Ours, Pattern::Step, load).served_permille;
        assert!(served.is_sorted_by(|better, worse| better + 5 >= *worse), "{served:?}");
    }
}

#[test]
fn without_protection_twice_the_load_leaves_a_fifth_at_most() {
    let result = cell(PolicyKind::None, Pattern::Steady, 200);
    assert!(result.goodput_permille <= 200, "{result:?}");
}

#[test]
fn a_quiet_service_denies_nothing() {
    for policy in PolicyKind::ALL {
        // Netflix's limits start at 20, and grow while the load lasts.
        if matches!(policy, PolicyKind::Gradient2 | PolicyKind::Vegas | PolicyKind::Aimd) {
            continue;
        }
        let result = cell(policy, Pattern::Steady, 70);
        let denials = (result.shed_permille, result.denied_permille);
        assert_eq!(denials, (0, 0), "{policy:?} {result:?}");
    }
}

#[test]
fn the_adaptive_limit_finds_the_workers_from_below_and_from_above() {
    for start in [10, 1_000] {
        let run = run_adaptive(PolicyKind::OursAuto, start, 60, 1);
        let after_30s = run.limits.get(3).copied().unwrap_or(0);
        assert!((70..=150).contains(&after_30s), "{run:?}");
        // Half of the workers, ten seconds later.
        assert!((35..=75).contains(&run.after_halving), "{run:?}");
    }
}
