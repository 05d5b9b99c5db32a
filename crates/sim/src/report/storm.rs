//! The storm scenario.

use super::{JsonWriter, seconds, table};
use crate::scenario::storm::{StormPlan, StormResult};

/// One line for each case and strategy.
pub fn storm_table(results: &[StormResult]) -> String {
    let row = |result: &StormResult| {
        vec![
            result.case.name().to_owned(),
            result.strategy.name().to_owned(),
            result.requests.to_string(),
            result.ideal.map_or("-".to_owned(), |ideal| ideal.to_string()),
            result.peak.to_string(),
            seconds(result.last_served_ms),
            seconds(result.p50_ms),
            seconds(result.p99_ms),
            seconds(result.beyond_ms),
        ]
    };
    let rows: Vec<Vec<String>> = results.iter().map(row).collect();
    let header = [
        "case",
        "strategy",
        "requests",
        "ideal",
        "peak",
        "last served",
        "p50",
        "p99",
        "beyond",
    ];
    let note = "peak: requests in 100 ms after the first half second. beyond: the longest time that a header added to the \
                exact wait.\n";
    format!("{}\n{note}", table(&header, &rows))
}

/// All results and the plan. Times are in milliseconds.
pub fn storm_json(plan: &StormPlan, results: &[StormResult]) -> String {
    JsonWriter::object(|report| {
        report.string("scenario", "storm");
        report.number("seed", plan.seed);
        report.objects("storms", results, |object, result| {
            object.string("case", result.case.name());
            object.string("strategy", result.strategy.name());
            object.number("requests", result.requests);
            object.optional("ideal_requests", result.ideal);
            object.number("peak", result.peak);
            object.number("last_served_ms", result.last_served_ms);
            object.number("p50_ms", result.p50_ms);
            object.number("p99_ms", result.p99_ms);
            object.number("beyond_ms", result.beyond_ms);
        });
    })
}
