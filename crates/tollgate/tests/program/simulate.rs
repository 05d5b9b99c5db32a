//! `tollgate simulate`: a table, JSON, and what is refused. The figures themselves are tested with the simulator.

use crate::test_server::run;
use tollgate_test_kit::TestFolder;

fn simulate(args: &[&str]) -> (Option<i32>, String, String) {
    run(&TestFolder::new(), &[&["simulate"], args].concat())
}

#[test]
fn a_scenario_is_a_table_or_json_and_equal_each_time() {
    let storm = ["--scenario", "storm", "--case", "storm", "--strategy", "jitter,spread"];
    let (code, table, errors) = simulate(&storm);
    assert_eq!((code, &*errors), (Some(0), ""));
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].starts_with("case "), "{table}");
    assert!(lines[1].contains("jitter") && lines[2].contains("spread"), "{table}");
    assert_eq!(simulate(&storm).1, table);

    let (code, text, _) = simulate(&[&storm[..], &["--json"]].concat());
    assert_eq!(code, Some(0));
    let report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&report["scenario"], &report["seed"]), (&"storm".into(), &1.into()));
    let spread = &report["storms"][1];
    assert_eq!(spread["strategy"], "spread");
    assert!(
        spread["requests"].as_u64() <= spread["ideal_requests"].as_u64(),
        "{spread}"
    );
}

#[test]
fn a_part_of_the_matrix_can_be_chosen() {
    let part = ["--policy", "none,ours", "--pattern", "step", "--load", "100"];
    let (code, text, _) = simulate(&[&["--scenario", "overload", "--json"], &part[..]].concat());
    assert_eq!(code, Some(0));
    let report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let policies = report["policies"].as_array().expect("a list");
    let names: Vec<&str> = policies.iter().filter_map(|policy| policy["policy"].as_str()).collect();
    assert_eq!(names, ["none", "ours"]);
    assert_eq!(policies[1]["cells"].as_array().map(Vec::len), Some(1));
}

#[test]
fn an_unknown_name_is_refused_with_the_names_there_are() {
    let (code, stdout, errors) = simulate(&["--scenario", "overload", "--policy", "hope"]);
    assert_eq!((code, &*stdout), (Some(2), ""));
    assert!(errors.contains("unknown policy; use one of none, fixed"), "{errors}");
    for foreign in [
        &["--scenario", "storm", "--load", "500"][..],
        &["--scenario", "overload", "--case", "storm"],
        &["--scenario", "overload", "--adaptive", "60", "--policy", "none"],
    ] {
        let (code, stdout, errors) = simulate(foreign);
        assert_eq!((code, &*stdout), (Some(2), ""), "{foreign:?}");
        assert!(errors.contains(foreign[foreign.len() - 2]), "{errors}");
    }
    let (code, _, errors) = simulate(&["--scenario", "drizzle"]);
    assert_eq!(code, Some(2));
    assert!(errors.contains("overload") && errors.contains("storm"), "{errors}");
}
