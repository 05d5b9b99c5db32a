//! The storm scenario: reproducible, and what it must show about spreading.

use tollgate_sim::report::{storm_json, storm_table};
use tollgate_sim::scenario::storm::{StormCase, StormPlan, StormResult, Strategy, run};

fn storm(case: StormCase, strategy: Strategy) -> StormResult {
    let plan = StormPlan {
        seed: 1,
        cases: vec![case],
        strategies: vec![strategy],
    };
    run(&plan).remove(0)
}

#[test]
fn equal_seeds_give_equal_bytes_and_others_do_not() {
    let mut plan = StormPlan {
        seed: 1,
        cases: vec![StormCase::StormJitter, StormCase::OneAddress],
        strategies: Strategy::ALL.to_vec(),
    };
    let reports = |plan: &StormPlan| {
        let results = run(plan);
        (storm_table(&results), storm_json(plan, &results))
    };
    let first = reports(&plan);
    assert_eq!(first, reports(&plan));
    plan.seed = 2;
    assert_ne!(first, reports(&plan));
}

#[test]
fn every_caller_of_a_storm_is_denied_once_at_most() {
    let cases = [
        StormCase::Storm,
        StormCase::StormJitter,
        StormCase::BurstJitter,
        StormCase::MinuteLong,
    ];
    for case in cases {
        let result = storm(case, Strategy::Spread);
        let ideal = result.ideal.expect("a storm");
        assert!(result.requests * 100 <= ideal * 105, "{result:?}");
    }
    let jitter = storm(StormCase::Storm, Strategy::Jitter);
    assert!(jitter.requests > 50_000, "{jitter:?}");
}

#[test]
fn with_clients_that_add_a_second_the_peak_is_a_fiftieth() {
    let peak = storm(StormCase::Storm, Strategy::Jitter).peak;
    let spread = storm(StormCase::StormJitter, Strategy::Spread).peak;
    assert!(spread * 50 <= peak, "{spread} of {peak}");
}

#[test]
fn one_address_at_a_hundred_times_the_rate_moves_nobody_else() {
    let without = storm(StormCase::OneAddress, Strategy::Jitter);
    let with = storm(StormCase::OneAddress, Strategy::Spread);
    assert!(with.p99_ms * 10 <= without.p99_ms * 11, "{with:?} {without:?}");
    // A queue that counts denials and not callers is moved.
    let anonymous = storm(StormCase::OneAddress, Strategy::AnonymousQueue);
    assert!(anonymous.p99_ms > without.p99_ms * 2, "{anonymous:?}");
}

#[test]
fn a_poller_gets_the_header_it_would_get_without_spreading() {
    let without = storm(StormCase::Poller, Strategy::Jitter);
    let with = storm(StormCase::Poller, Strategy::Spread);
    assert_eq!(with.beyond_ms, without.beyond_ms);
}
