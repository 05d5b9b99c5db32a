//! The report, as a table and as JSON.

use super::contestants::Kind;
use super::{CaseFigures, Figures};
use serde_json::{Value, json};

/// The most nanoseconds over the bare service with one key.
const HOT_NS_MAX: f64 = 250.0;
/// The least ratio to tower_governor with a million keys.
const RATIO_MIN: f64 = 1.5;

impl CaseFigures {
    fn of(&self, kind: Kind) -> Option<&Figures> {
        self.figures.iter().find(|figures| figures.kind == kind)
    }

    /// Nanoseconds over the bare service.
    fn over(&self, kind: Kind) -> f64 {
        match (self.of(kind), self.of(Kind::Bare)) {
            (Some(figures), Some(bare)) => figures.ns - bare.ns,
            _ => f64::NAN,
        }
    }

    fn allocations_over(&self, kind: Kind) -> f64 {
        match (self.of(kind), self.of(Kind::Bare)) {
            (Some(figures), Some(bare)) => figures.allocations - bare.allocations,
            _ => f64::NAN,
        }
    }

    /// The time that tower_governor takes, over ours.
    fn ratio(&self) -> f64 {
        self.over(Kind::TowerGovernor) / self.over(Kind::Tollgate)
    }
}

/// True if the goals are met.
pub(crate) fn is_met(cases: &[CaseFigures]) -> bool {
    cases.iter().all(|case| match case.name {
        "hot" => case.over(Kind::Tollgate) <= HOT_NS_MAX && case.allocations_over(Kind::Tollgate) == 0.0,
        _ => case.ratio() >= RATIO_MIN,
    })
}

pub(crate) fn print_table(cases: &[CaseFigures]) {
    println!("Nanoseconds per request on one core, medians of alternating rounds; over: without the bare service.");
    println!();
    println!("| case | contestant | ns | ns over | allocations over | tower_governor / this |");
    println!("|---|---|---:|---:|---:|---:|");
    for case in cases {
        for figures in &case.figures {
            let kind = figures.kind;
            let ratio = case.over(Kind::TowerGovernor) / case.over(kind);
            let ratio = if kind == Kind::Bare {
                "-".to_owned()
            } else {
                format!("{ratio:.2}")
            };
            println!(
                "| {} | {} | {:.1} | {:.1} | {:.2} | {ratio} |",
                case.name,
                kind.name(),
                figures.ns,
                case.over(kind),
                case.allocations_over(kind),
            );
        }
    }
}

pub(crate) fn print_json(cases: &[CaseFigures]) {
    let rounded = |figure: f64| (figure * 100.0).round() / 100.0;
    let contestant = |case: &CaseFigures, figures: &Figures| {
        json!({
            "name": figures.kind.name(),
            "ns": rounded(figures.ns),
            "ns_over": rounded(case.over(figures.kind)),
            "allocations_over": rounded(case.allocations_over(figures.kind)),
        })
    };
    let cases = cases.iter().map(|case| {
        let contestants: Vec<Value> = case.figures.iter().map(|figures| contestant(case, figures)).collect();
        json!({ "case": case.name, "contestants": contestants, "tower_governor_ratio": rounded(case.ratio()) })
    });
    println!("{:#}", json!({ "cases": cases.collect::<Vec<_>>() }));
}
