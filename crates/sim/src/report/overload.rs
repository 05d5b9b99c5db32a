//! The overload scenario.

use super::{JsonWriter, percent, seconds, table};
use crate::scenario::overload::{AdaptiveRun, CellResult, OverloadPlan, Pattern, PolicyResult, UNLOADED_P99};
use tollgate_core::protect::PriorityClass;

/// One line for each policy and cell.
pub fn overload_table(results: &[PolicyResult]) -> String {
    let mut text = String::new();
    for result in results {
        let parameters = match result.tried {
            1 => String::new(),
            tried => format!(" ({}; best of {tried})", result.parameters),
        };
        text.push_str(&format!("{}{parameters}\n", result.policy.name()));
        let rows: Vec<Vec<String>> = result.cells.iter().map(row).collect();
        text.push_str(&table(&HEADER, &rows));
        text.push('\n');
    }
    text.push_str(&format!(
        "goodput: responses within 1 s, of what the workers could have served. p99 without load: {} ms.\n",
        UNLOADED_P99.as_millis_ceil()
    ));
    text
}

const HEADER: [&str; 13] = [
    "load",
    "",
    "goodput",
    "critical",
    "high",
    "normal",
    "low",
    "shed",
    "denied",
    "p99",
    "back after",
    "step",
    "sd",
];

fn row(cell: &CellResult) -> Vec<String> {
    let mut row = vec![
        cell.pattern.map_or("", Pattern::name).to_owned(),
        format!("{}%", cell.load_percent),
        percent(cell.goodput_permille),
    ];
    row.extend(cell.served_permille.iter().map(|served| percent(*served)));
    row.extend([
        percent(cell.shed_permille),
        percent(cell.denied_permille),
        format!("{}ms", cell.p99_ms),
        cell.normal_after_ms.map_or("never".to_owned(), seconds),
        percent(cell.level_step_permille),
        percent(cell.level_sd_permille),
    ]);
    row
}

/// All results and the plan. Shares are in thousandths, times in milliseconds.
pub fn overload_json(plan: &OverloadPlan, results: &[PolicyResult]) -> String {
    JsonWriter::object(|report| {
        report.string("scenario", "overload");
        report.number("seed", plan.seed);
        report.number("unloaded_p99_ms", UNLOADED_P99.as_millis_ceil());
        report.objects("policies", results, |policy, result| {
            policy.string("policy", result.policy.name());
            policy.string("parameters", result.parameters);
            policy.number("parameters_tried", result.tried as u64);
            policy.objects("cells", &result.cells, |object, cell| {
                object.string("pattern", cell.pattern.map_or("", Pattern::name));
                object.number("load_percent", cell.load_percent);
                object.number("goodput_permille", cell.goodput_permille);
                for (class, served) in PriorityClass::ALL.iter().zip(cell.served_permille) {
                    object.number(&format!("{}_permille", class.name()), served);
                }
                object.number("shed_permille", cell.shed_permille);
                object.number("denied_permille", cell.denied_permille);
                object.number("p99_ms", cell.p99_ms);
                object.optional("normal_after_ms", cell.normal_after_ms);
                object.number("level_step_permille", cell.level_step_permille);
                object.number("level_sd_permille", cell.level_sd_permille);
            });
        });
    })
}

/// One line for each adaptive limit.
pub fn adaptive_table(runs: &[AdaptiveRun]) -> String {
    let limit = |run: &AdaptiveRun, index: usize| run.limits.get(index).map_or("-".to_owned(), u64::to_string);
    let row = |run: &AdaptiveRun| {
        let (first, last) = run.drift;
        vec![
            run.policy.name().to_owned(),
            run.start.to_string(),
            limit(run, 1),
            limit(run, 2),
            limit(run, 3),
            first.to_string(),
            last.to_string(),
            run.after_halving.to_string(),
        ]
    };
    let rows: Vec<Vec<String>> = runs.iter().map(row).collect();
    let header = [
        "limit",
        "from",
        "10s",
        "20s",
        "30s",
        "minute 2",
        "last minute",
        "half the workers + 10s",
    ];
    let note = "load: 120 % of 100 workers. The right limit is 100, and 50 after half of them are gone.\n";
    format!("{}\n{note}", table(&header, &rows))
}

/// The same as JSON, with the limit every ten seconds.
pub fn adaptive_json(seed: u64, runs: &[AdaptiveRun]) -> String {
    JsonWriter::object(|report| {
        report.string("scenario", "overload");
        report.number("seed", seed);
        report.objects("adaptive", runs, |object, run| {
            object.string("policy", run.policy.name());
            object.number("start", run.start);
            object.numbers("limits", &run.limits);
            object.number("minute_2", run.drift.0);
            object.number("last_minute", run.drift.1);
            object.number("after_halving", run.after_halving);
        });
    })
}
