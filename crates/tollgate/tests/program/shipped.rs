//! The files under `deploy/`: alert rules for Prometheus and a dashboard for Grafana, on metrics that exist.

use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tollgate_test_kit::{TestFolder, run_to_end};

const METRICS: &str = include_str!("../../../../docs/metrics.md");

fn deploy(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(path)
}

fn promtool(args: &[&str], folder: &Path) {
    let mut command = Command::new("promtool");
    command.args(args).current_dir(folder);
    run_to_end(
        &mut command,
        "promtool refuses it, or is not installed: scripts/servers installs it",
    );
}

/// The names of metrics in a text.
fn metrics(text: &str) -> Vec<&str> {
    let is_part = |character: char| character.is_ascii_alphanumeric() || character == '_';
    let words = text.split(|character| !is_part(character));
    words.filter(|word| word.starts_with("tollgate_")).collect()
}

#[track_caller]
fn check_documented(text: &str) {
    let names = metrics(text);
    assert!(names.len() > 10, "{names:?}");
    for name in names {
        let name = name.trim_end_matches("_bucket");
        assert!(METRICS.contains(&format!("| `{name}` |")), "there is no metric {name}");
    }
}

#[test]
fn alert_rules_are_valid_and_fire_when_they_should() {
    let folder = deploy("prometheus");
    promtool(&["check", "rules", "alerts.yaml"], &folder);
    promtool(&["test", "rules", "alerts.test.yaml"], &folder);
    let text = fs::read_to_string(folder.join("alerts.yaml")).expect("it is there");
    check_documented(&text);
    let tests = fs::read_to_string(folder.join("alerts.test.yaml")).expect("it is there");
    let names: Vec<&str> = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "))
        .collect();
    for name in &names {
        assert!(tests.contains(&format!("alertname: {name}")), "{name} has no test");
    }
    assert_eq!(names.len(), 12);
    for line in text.lines().filter_map(|line| line.trim().strip_prefix("runbook: ")) {
        let (page, anchor) = line.split_once('#').unwrap_or((line, ""));
        let page = fs::read_to_string(deploy("..").join(page)).unwrap_or_else(|error| panic!("{page}: {error}"));
        let has_anchor = page
            .lines()
            .any(|line| line.trim_start_matches('#').trim().to_lowercase() == anchor);
        assert!(anchor.is_empty() || has_anchor, "{line}");
    }
}

#[test]
fn queries_of_the_grafana_dashboard_are_valid() {
    let text = fs::read_to_string(deploy("grafana/tollgate.json")).expect("it is there");
    check_documented(&text);
    let dashboard: Value = serde_json::from_str(&text).expect("it is JSON");
    let panels = dashboard["panels"].as_array().expect("it has panels");
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let queries: Vec<String> = targets
        .map(|target| {
            target["expr"]
                .as_str()
                .expect("a query")
                .replace("$__rate_interval", "5m")
        })
        .collect();
    assert!(queries.len() >= 20, "{}", queries.len());
    let rules: Vec<Value> = (0..)
        .zip(&queries)
        .map(|(number, query)| json!({ "record": format!("query_{number}"), "expr": query }))
        .collect();
    let groups = json!({ "groups": [{ "name": "dashboard", "rules": rules }] });
    let folder = TestFolder::with("queries.yaml", &groups.to_string());
    promtool(&["check", "rules", "queries.yaml"], folder.path());
}
