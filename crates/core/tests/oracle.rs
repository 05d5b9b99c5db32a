//! A short comparison of every algorithm with its oracle. The long one is a command of the bench crate.

use tollgate_core::testing::oracle;

/// Enough for every kind of event to meet every kind of limit many times over.
const STEPS: u64 = 200_000;

fn agrees(algorithm: &str) {
    let report = oracle::run(algorithm, STEPS, 1).unwrap_or_else(|difference| panic!("{difference}"));
    assert!(report.steps >= STEPS);
    assert!(report.allowed > STEPS / 20, "{report:?}");
    assert!(report.denied > STEPS / 20, "{report:?}");
    assert!(
        report.edits > 0 && report.clock_steps > 0 && report.returns > 0,
        "{report:?}"
    );
    assert!(report.promises > 0 || algorithm == "concurrency", "{report:?}");
}

#[test]
fn a_token_bucket_answers_as_its_referee_does() {
    agrees("token_bucket");
}

#[test]
fn gcra_answers_as_its_referee_does() {
    agrees("gcra");
}

#[test]
fn a_fixed_window_answers_as_its_referee_does() {
    agrees("fixed_window");
}

#[test]
fn a_sliding_counter_answers_as_its_referee_does() {
    agrees("sliding_counter");
}

#[test]
fn a_sliding_log_answers_as_its_referee_does() {
    agrees("sliding_log");
}

#[test]
fn a_leaky_bucket_answers_as_its_referee_does() {
    agrees("leaky_bucket");
}

#[test]
fn a_concurrency_limit_answers_as_its_referee_does() {
    agrees("concurrency");
}

#[test]
fn cell_answers_as_its_referee_does() {
    agrees("cell");
}
