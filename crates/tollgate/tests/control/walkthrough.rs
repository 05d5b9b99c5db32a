//! The two tiers of `docs/control-plane.md`: ceilings of endpoints, plans of merchants, overrides of single ones, in a database.

use crate::program::{ControlServer, TestFolder};

const PAGE: &str = include_str!("../../../../docs/control-plane.md");

#[test]
fn the_walkthrough_of_the_page_goes_as_it_is_written() {
    let folder = TestFolder::new();
    let rules = PAGE.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next());
    let rules = rules.expect("the page has rules");
    folder.write("rules/plans.yaml", rules);
    let mut server = ControlServer::start(&folder);
    assert!(
        !folder.path().join("data/control.db").exists(),
        "nothing is written before the first change"
    );

    // The first admin.
    let text = server.succeed(&folder, &["token", "add", "ops", "--setup", &server.setup_code()]);
    let token = text.lines().find_map(|line| line.strip_prefix("token: "));
    server.token = token.unwrap_or_else(|| panic!("{text}")).to_owned();

    // A file becomes managed rules.
    let text = server.succeed(&folder, &["rules", "apply", "rules", "--yes", "--reason", "plans"]);
    assert!(
        text.starts_with(
            "live: no version is published\n+ default/charges-ceiling  new\n+ default/merchant-plan    new\nplan: 0 changed, 2 added"
        ),
        "{text}"
    );
    assert!(text.contains("published version 1, revision 1\n"), "{text}");
    let explained = server.succeed(&folder, &["explain", "merchant=m_42"]);
    assert!(explained.contains("100 per 1min"), "{explained}");
    let equal = server.run(&folder, &["rules", "diff", "rules"]);
    assert_eq!(
        (equal.code, equal.stdout.as_str()),
        (Some(0), "no changes\n"),
        "{equal:?}"
    );

    // One merchant gets more.
    let row = [
        "merchant-plan",
        "merchant=m_42",
        "--limit",
        "20000/min",
        "--until",
        "7day",
        "--reason",
        "sale",
    ];
    let text = server.succeed(&folder, &[&["overrides", "set"], &row[..]].concat());
    assert!(
        text.starts_with("default/merchant-plan merchant=m_42: 20000/min until "),
        "{text}"
    );
    assert!(text.ends_with(", revision 2\n"), "{text}");
    let explained = server.succeed(&folder, &["explain", "merchant=m_42"]);
    assert!(explained.contains("20000 per 1min"), "{explained}");
    let refused = server.run(
        &folder,
        &["overrides", "set", "merchant-plan", "merchant=m_42", "--limit", "many"],
    );
    assert_eq!(refused.code, Some(1), "{refused:?}");

    // A stricter plan says so before it is live, and names the row above it.
    folder.write("rules/plans.yaml", &rules.replace("limit: 100/min", "limit: 60/min"));
    let plan = server.run(&folder, &["rules", "diff", "rules"]);
    assert_eq!(plan.code, Some(1), "{plan:?}");
    let line = "~ default/merchant-plan  limit 100/min -> 60/min  stricter; usage is kept\n! 1 override row of default/merchant-plan is above the new limit";
    assert!(plan.stdout.contains(line), "{plan:?}");
    let unconfirmed = server.run(&folder, &["rules", "apply", "rules"]);
    assert_eq!(unconfirmed.code, Some(1), "{unconfirmed:?}");

    // A saved plan is published as it was, and only while nothing else was.
    server.succeed(&folder, &["rules", "apply", "rules", "--plan-out", "stricter.plan"]);
    server.succeed(
        &folder,
        &["rules", "apply", "stricter.plan", "--yes", "--reason", "stricter"],
    );
    folder.write("rules/plans.yaml", rules);
    let explained = server.succeed(&folder, &["explain", "merchant=m_1"]);
    assert!(explained.contains("60 per 1min"), "{explained}");

    // A push after an edit by hand is refused with its author.
    let refused = server.run(&folder, &["rules", "push", "rules", "--reason", "ci"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("ops"), "{refused:?}");

    // And back, with everything in the audit log.
    server.succeed(&folder, &["rules", "rollback", "--reason", "checkout denied"]);
    let explained = server.succeed(&folder, &["explain", "merchant=m_1"]);
    assert!(explained.contains("100 per 1min"), "{explained}");
    let audit = server.succeed(&folder, &["audit", "--since", "1h"]);
    for reason in ["plans", "sale", "stricter", "checkout denied"] {
        assert!(audit.contains(reason), "{reason}: {audit}");
    }
    let intact = server.succeed(&folder, &["audit", "--verify"]);
    assert!(intact.starts_with("intact: "), "{intact}");
    let status = server.succeed(&folder, &["control", "status"]);
    assert!(status.contains("1 override rows"), "{status}");
    server.succeed(&folder, &["rules", "check", "--live"]);
}

#[test]
fn push_and_pull_return_the_same_bytes_and_no_new_revision() {
    let folder = TestFolder::new();
    let text = "# A comment that stays.\nrules:\n  - { id: a, per: user,   limit: 5/min }\n";
    folder.write("rules/a.yaml", text);
    folder.write("rules/shop/b.yaml", "domain: shop\nrules: [{ id: b, limit: 9/s }]\n");
    let mut server = ControlServer::start(&folder);
    let added = server.succeed(&folder, &["token", "add", "ci", "--setup", &server.setup_code()]);
    let token = added.lines().find_map(|line| line.strip_prefix("token: "));
    server.token = token.unwrap_or_else(|| panic!("{added}")).to_owned();
    let push = |from: &str| {
        server.succeed(
            &folder,
            &["rules", "push", from, "--reason", "ci", "--commit", "4f1c2e"],
        )
    };
    let first = push("rules");
    assert!(first.contains("published version 1, revision 1\n"), "{first}");
    server.succeed(&folder, &["rules", "pull", "--to", "copy"]);
    assert_eq!(folder.read("copy/a.yaml"), text);
    assert_eq!(folder.read("copy/shop/b.yaml"), folder.read("rules/shop/b.yaml"));
    assert_eq!(push("copy"), "no changes: version 1, revision 1\n");
}

#[test]
fn a_command_without_a_valid_token_is_an_error_with_the_next_step() {
    let folder = TestFolder::new();
    let mut server = ControlServer::start(&folder);
    server.succeed(&folder, &["token", "add", "ops", "--setup", &server.setup_code()]);
    server.token = "tgt_0_0".to_owned();
    let output = server.run(&folder, &["overrides", "list"]);
    assert_eq!(output.code, Some(2), "{output:?}");
    assert!(output.stderr.contains("TOLLGATE_ADMIN_TOKEN"), "{output:?}");
}
