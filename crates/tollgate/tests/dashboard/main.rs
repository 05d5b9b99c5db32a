//! The dashboard in a real browser: a running `tollgate serve`, and scripts that drive Chromium.
//!
//! `scripts/browser` installs what they need. A script prints what it checked; if it fails, it prints the console of the browser and
//! the place of a picture below `target/dashboard`.

mod script;
mod server;

use script::{node, run};
use server::DashboardServer;

#[test]
fn a_rule_goes_from_a_draft_to_a_denial_an_override_and_back() {
    run("walkthrough.mjs", &DashboardServer::start(&[]));
}

#[test]
fn every_page_is_accessible_in_both_themes_and_by_keyboard() {
    run("accessibility.mjs", &DashboardServer::start(&[]));
}

#[test]
fn hostile_text_is_only_text_on_every_page() {
    run("payloads.mjs", &DashboardServer::start(&[]));
}

#[test]
fn pages_of_other_origins_reach_nothing() {
    run("foreign.mjs", &DashboardServer::start(&[]));
}

#[test]
fn the_policy_forbids_and_the_first_minute_shows_a_limit() {
    run("policy.mjs", &DashboardServer::start(&[]));
}

/// OB1. Times, long tasks and memory only where `TOLLGATE_PAGE_FIGURES` is set: on a machine that does nothing else.
#[test]
fn ten_tabs_share_one_stream() {
    run("figures.mjs", &DashboardServer::start(&[]));
}

#[test]
fn pages_stay_within_their_budgets() {
    run("budgets.mjs", &DashboardServer::start(&[]));
}

#[test]
fn tasks_of_each_page_work() {
    run("tasks.mjs", &DashboardServer::start(&[]));
}

#[test]
fn each_task_of_an_incident_is_three_clicks_from_the_overview() {
    run("incident.mjs", &DashboardServer::start(&[]));
}

#[test]
fn links_lead_to_what_they_name() {
    // The module has a timer, which would keep the process.
    node(&["--test", "--test-force-exit", "tests/dashboard/core.test.mjs"]);
}

#[test]
fn rule_files_are_edited_and_completed_as_text() {
    node(&["--test", "tests/dashboard/yaml_text.test.mjs"]);
}

#[test]
fn the_types_in_the_comments_of_its_modules_hold() {
    let compiler = script::target_folder().join("browser/node_modules/typescript/bin/tsc");
    let compiler = compiler.to_str().expect("the path is UTF-8");
    node(&[compiler, "--project", "tests/dashboard/types.json"]);
}
