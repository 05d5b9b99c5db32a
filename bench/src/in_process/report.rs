//! The report, as tables and as JSON.

use super::CaseResult;
use super::growth::{Growth, NOTES};
use super::peers::{ALL, ALLOWED, DENIED, Numbers, TOLLGATE};
use serde_json::{Map, Value, json};

pub(crate) fn print_json(cases: &[CaseResult], bytes_per_key: &[(&str, f64)], by_keys: &[Growth]) {
    let case = |case: &CaseResult| {
        let peers = case.ns.iter().filter(|(name, _)| *name != TOLLGATE);
        json!({ "case": case.name, "tollgate_ns": rounded(case.of(TOLLGATE)), "peers_ns": object(peers) })
    };
    let growth = |row: &Growth| json!({ "algorithm": row.algorithm, "keys": row.keys, "ns": rounded(Some(row.ns)) });
    let report = json!({
        "cases": cases.iter().map(case).collect::<Value>(),
        "bytes_per_key": object(bytes_per_key.iter()),
        "by_keys": by_keys.iter().map(growth).collect::<Value>(),
    });
    println!("{report:#}");
}

fn object<'a>(values: impl Iterator<Item = &'a (&'a str, f64)>) -> Value {
    let entries = values.map(|&(name, figure)| (name.to_owned(), rounded(Some(figure))));
    Value::Object(entries.collect::<Map<_, _>>())
}

fn rounded(figure: Option<f64>) -> Value {
    figure.map_or(Value::Null, |figure| json!((figure * 10.0).round() / 10.0))
}

impl CaseResult {
    fn of(&self, name: &str) -> Option<f64> {
        self.ns.iter().find(|(known, _)| *known == name).map(|&(_, ns)| ns)
    }
}

pub(crate) fn print_tables(cases: &[CaseResult], bytes_per_key: &[(&str, f64)], by_keys: &[Growth]) {
    if !cases.is_empty() {
        print_cases(cases);
    }
    if !bytes_per_key.is_empty() {
        print_bytes(bytes_per_key);
    }
    if !by_keys.is_empty() {
        print_growth(by_keys);
    }
}

fn print_cases(cases: &[CaseResult]) {
    println!("Nanoseconds per decision, and in brackets the ratio to Tollgate; medians of alternating rounds.");
    println!("Several threads: wall time over the decisions of all. Compare ratios within one run.");
    println!("Allowed: {}. Denied: {}.", numbers_text(ALLOWED), numbers_text(DENIED));
    println!();
    let names = ALL.map(|(name, _)| name);
    println!("| case | {} |", names.join(" | "));
    println!("|---|{}", "---:|".repeat(names.len()));
    for case in cases {
        let ours = case.of(TOLLGATE).unwrap_or(f64::NAN);
        let cell = |name: &str| match case.of(name) {
            Some(ns) if name == TOLLGATE => format!("{ns:.1}"),
            Some(ns) => format!("{ns:.1} ({:.2}x)", ns / ours),
            None => "-".to_owned(),
        };
        println!("| {} | {} |", case.name, names.map(cell).join(" | "));
    }
    println!();
}

fn numbers_text(Numbers { unit_s, burst, used }: Numbers) -> String {
    format!("one unit per {unit_s} s, burst {burst}, of which {used} used before")
}

fn print_bytes(bytes_per_key: &[(&str, f64)]) {
    println!("Resident bytes per key with 1 M keys of 21 bytes, each library in its own process:");
    println!();
    println!("| library | bytes per key |");
    println!("|---|---:|");
    for (name, bytes) in bytes_per_key {
        println!("| {name} | {bytes:.1} |");
    }
    println!();
}

fn print_growth(by_keys: &[Growth]) {
    println!("Nanoseconds per decision through Tollgate's store, by live keys; one thread, keys at random:");
    println!();
    for rows in by_keys.chunk_by(|one, next| one.algorithm == next.algorithm) {
        let cells = |text: fn(&Growth) -> String| rows.iter().map(text).collect::<Vec<_>>().join(" | ");
        let is_first = by_keys.first().map(|row| row.algorithm) == rows.first().map(|row| row.algorithm);
        if is_first {
            println!("| algorithm | {} |", cells(|row| format!("{} keys", row.keys)));
            println!("|---|{}", "---:|".repeat(rows.len()));
        }
        let algorithm = rows.first().map_or("", |row| row.algorithm);
        println!("| {algorithm} | {} |", cells(|row| format!("{:.1}", row.ns)));
    }
    println!();
    for (algorithm, note) in NOTES {
        println!("{algorithm}: {note}.");
    }
}
