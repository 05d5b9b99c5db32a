//! The commands against a real server: what they do, print and end with.

use crate::program::{ControlServer, run_at, secret};
use serde_json::Value;
use tollgate_test_kit::TestFolder;

const RULES: &str = "# A comment that stays.\nrules:\n  - { id: plan, per: user,   limit: 5/min }\n";

/// A folder with rules, and a server whose first token is `ops`.
fn set_up() -> (TestFolder, ControlServer) {
    let folder = TestFolder::new();
    folder.write("rules/a.yaml", RULES);
    folder.write("rules/shop/b.yaml", "domain: shop\nrules: [{ id: b, limit: 9/s }]\n");
    let mut server = ControlServer::start(&folder);
    server.set_up(&folder, "ops");
    (folder, server)
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn push_and_pull_return_the_same_bytes_and_no_new_revision() {
    let (folder, server) = set_up();
    let push = |from: &str| {
        server.succeed(
            &folder,
            &["rules", "push", from, "--reason", "ci", "--commit", "4f1c2e"],
        )
    };
    let first = push("rules");
    assert!(first.contains("published version 1, revision 1\n"), "{first}");
    server.succeed(&folder, &["rules", "pull", "--to", "copy"]);
    for name in ["a.yaml", "shop/b.yaml"] {
        assert_eq!(
            folder.read(&format!("copy/{name}")),
            folder.read(&format!("rules/{name}"))
        );
    }
    assert_eq!(push("copy"), "no changes: version 1, revision 1\n");
    // A comment is no change of meaning, but one of the files.
    folder.write("rules/a.yaml", &RULES.replace("stays", "changes"));
    let diff = server.run(&folder, &["rules", "diff", "rules"]);
    assert_eq!((diff.code, diff.stdout.as_str()), (Some(0), "no changes\n"));
    push("rules");
    server.succeed(&folder, &["rules", "pull", "--to", "copy"]);
    assert_eq!(folder.read("copy/a.yaml"), folder.read("rules/a.yaml"));
    // A file that the version no longer has is named: a push of the folder would bring it back.
    std::fs::remove_file(folder.path().join("rules/shop/b.yaml")).expect("it is there");
    push("rules");
    let pulled = server.run(&folder, &["rules", "pull", "--to", "copy"]);
    assert!(
        pulled.stderr.contains("not of this version: shop/b.yaml;"),
        "{pulled:?}"
    );
    let old = server.succeed(&folder, &["rules", "pull", "--to", "old", "--version", "1"]);
    assert_eq!(old, "version 1: 2 files in old\n");
    assert_eq!(folder.read("old/a.yaml"), RULES);
}

#[test]
fn a_push_over_an_edit_by_hand_is_refused_with_its_author_and_reason() {
    let (folder, server) = set_up();
    let push = ["rules", "push", "rules", "--reason", "ci"];
    server.succeed(&folder, &push);
    folder.write("by-hand/a.yaml", &RULES.replace("5/min", "50/min"));
    server.succeed(
        &folder,
        &["rules", "apply", "by-hand", "--yes", "--reason", "incident 7"],
    );
    let refused = server.run(&folder, &push);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    for text in ["version 2", "ops", "incident 7", "rules pull", "--force"] {
        assert!(refused.stderr.contains(text), "`{text}` is missing: {refused:?}");
    }
    let forced = server.succeed(&folder, &[&push[..], &["--force"]].concat());
    assert!(forced.contains("published version 3, revision 3\n"), "{forced}");
    // Or the repository takes the change over: the same files are then a push, and pushes go on.
    server.succeed(
        &folder,
        &["rules", "apply", "by-hand", "--yes", "--reason", "incident 8"],
    );
    std::fs::remove_dir_all(folder.path().join("rules")).expect("it is there");
    server.succeed(&folder, &["rules", "pull", "--to", "rules"]);
    let taken = server.succeed(&folder, &push);
    assert!(taken.contains("published version 5, revision 5\n"), "{taken}");
    assert_eq!(server.succeed(&folder, &push), "no changes: version 5, revision 5\n");
    folder.write("rules/a.yaml", RULES);
    server.succeed(&folder, &push);
}

#[test]
fn with_edits_from_git_only_a_push_publishes_unless_an_admin_breaks_the_glass() {
    let folder = TestFolder::new();
    folder.write("rules/a.yaml", RULES);
    let mut server = ControlServer::start_with(&folder, &["control.edits=git"]);
    server.set_up(&folder, "ops");
    let apply = ["rules", "apply", "rules", "--yes", "--reason", "by hand"];
    let refused = server.run(&folder, &apply);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("--break-glass"), "{refused:?}");
    server.succeed(&folder, &["rules", "push", "rules", "--reason", "ci"]);
    folder.write("rules/a.yaml", &RULES.replace("5/min", "50/min"));
    let broken = server.succeed(&folder, &[&apply[..], &["--break-glass"]].concat());
    assert!(broken.contains("published version 2"), "{broken}");
    // Rows stay editable, and the next push is refused: the live version is drift.
    server.succeed(&folder, &["overrides", "set", "plan", "user=u_1", "--limit", "9/min"]);
    folder.write("rules/a.yaml", &RULES.replace("5/min", "7/min"));
    let drift = server.run(&folder, &["rules", "push", "rules", "--reason", "ci"]);
    assert_eq!(drift.code, Some(1), "{drift:?}");
    assert!(drift.stderr.contains("by hand"), "{drift:?}");
    let without = server.run(&folder, &["rules", "apply", "rules", "--yes", "--break-glass"]);
    assert_eq!(without.code, Some(2), "a reason is required: {without:?}");
}

#[test]
fn a_plan_is_refused_once_something_else_was_published() {
    let (folder, server) = set_up();
    server.succeed(&folder, &["rules", "apply", "rules", "--plan-out", "p"]);
    folder.write("other/a.yaml", &RULES.replace("5/min", "50/min"));
    server.succeed(&folder, &["rules", "apply", "other", "--yes", "--reason", "incident"]);
    let refused = server.run(&folder, &["rules", "apply", "p"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    for text in [
        "refused: the live rules have changed since the plan: version 1",
        "ops: incident",
        "plan again",
    ] {
        assert!(refused.stderr.contains(text), "`{text}` is missing: {refused:?}");
    }
}

#[test]
fn invalid_rules_are_refused_with_file_line_and_snippet() {
    let (folder, server) = set_up();
    folder.write("rules/a.yaml", &RULES.replace("5/min", "5/fortnight"));
    let refused = server.run(&folder, &["rules", "apply", "rules", "--yes"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("rules/a.yaml:3:37: error: "), "{refused:?}");
    assert!(refused.stderr.contains("limit: 5/fortnight }\n"), "{refused:?}");
    assert_eq!(server.run(&folder, &["rules", "diff", "rules"]).code, Some(2));
    let history = server.succeed(&folder, &["rules", "history"]);
    assert_eq!(history, "no versions\n");
}

#[test]
fn history_rollback_and_check_live() {
    let (folder, server) = set_up();
    server.succeed(&folder, &["rules", "apply", "rules", "--yes", "--reason", "first"]);
    folder.write("rules/a.yaml", &RULES.replace("5/min", "50/min"));
    server.succeed(&folder, &["rules", "apply", "rules", "--yes", "--reason", "second"]);
    let back = server.succeed(&folder, &["rules", "rollback", "--reason", "too many"]);
    assert!(back.contains("published version 3, revision 3\n"), "{back}");
    // As after a lost response: the version before the live one is the one that was left.
    let repeated = server.run(&folder, &["rules", "rollback", "--reason", "too many"]);
    assert_eq!(repeated.code, Some(1), "{repeated:?}");
    assert!(
        repeated
            .stderr
            .contains("version 3, which is live, is a rollback to version 1 already")
            && repeated.stderr.contains("name the version to return to"),
        "{repeated:?}"
    );
    let named = server.succeed(&folder, &["rules", "rollback", "1", "--reason", "too many"]);
    assert_eq!(named, "no changes: version 3, revision 3\n");
    let history = server.succeed(&folder, &["rules", "history"]);
    let lines: Vec<&str> = history.lines().collect();
    assert_eq!(lines.len(), 4, "{history}");
    assert!(
        lines[1].starts_with("3 ") && lines[1].contains("live") && lines[1].contains("rollback 1"),
        "{history}"
    );
    let of_rule = server.succeed(&folder, &["rules", "history", "--rule", "plan"]);
    for text in ["added", "changed", "a.yaml:3", "too many"] {
        assert!(of_rule.contains(text), "`{text}` is missing: {of_rule}");
    }
    let unknown = server.run(&folder, &["rules", "rollback", "99", "--reason", "x"]);
    assert_eq!(unknown.code, Some(2), "{unknown:?}");
    assert!(unknown.stderr.contains("version 99"), "{unknown:?}");
    let live = server.succeed(&folder, &["rules", "check", "--live"]);
    assert!(
        live.ends_with("version 3, 0 override rows: valid, 0 errors\n"),
        "{live}"
    );
    let page = json(&server.succeed(&folder, &["rules", "history", "--json"]));
    assert_eq!(page["items"][0]["number"], 3);
}

#[test]
fn rows_are_set_listed_exported_imported_and_deleted() {
    let (folder, server) = set_up();
    let orphan = ["overrides", "set", "plan", "user=u_1", "--limit", "9/min"];
    let refused = server.run(&folder, &orphan);
    assert_eq!(refused.code, Some(2), "there is no such rule yet: {refused:?}");
    assert!(refused.stderr.contains("plan"), "{refused:?}");
    server.succeed(&folder, &["rules", "apply", "rules", "--yes"]);
    let set = server.succeed(
        &folder,
        &[&orphan[..], &["--until", "7day", "--note", "a note", "--reason", "r"]].concat(),
    );
    assert!(
        set.starts_with("default/plan user=u_1: 9/min until ") && set.ends_with(", revision 2\n"),
        "{set}"
    );
    let explained = server.succeed(&folder, &["explain", "user=u_1"]);
    assert!(explained.contains("9 per 1min"), "{explained}");
    let bad = server.run(&folder, &["overrides", "set", "plan", "user=u_1", "--limit", "many"]);
    assert_eq!(bad.code, Some(1), "{bad:?}");
    let ban = server.run(&folder, &["overrides", "set", "plan", "user=u_2", "--limit", "0/min"]);
    assert_ne!(ban.code, Some(0), "a ban needs a reason: {ban:?}");
    assert!(ban.stderr.contains("reason"), "{ban:?}");
    let dry = server.succeed(
        &folder,
        &["overrides", "set", "plan", "user=u_3", "--limit", "9/min", "--dry-run"],
    );
    assert!(dry.ends_with("is valid; nothing was changed\n"), "{dry}");
    let list = server.succeed(&folder, &["overrides", "list", "--rule", "plan"]);
    assert_eq!(list.lines().count(), 2, "{list}");
    assert!(list.contains("user=u_1") && list.contains("a note"), "{list}");

    for format in ["csv", "ndjson"] {
        let file = format!("rows.{format}");
        server.succeed(&folder, &["overrides", "export", "--format", format, "--out", &file]);
        let same = server.succeed(&folder, &["overrides", "import", &file]);
        assert_eq!(
            same,
            "imported 1 rows, 0 changed, revision 2\n",
            "{format}: {}",
            folder.read(&file)
        );
    }
    folder.write(
        "more.csv",
        "domain,rule,subject,terms\ndefault,plan,user=u_5,7/min\ndefault,plan,user=u_6,bad\n",
    );
    let refused = server.run(&folder, &["overrides", "import", "more.csv", "--reason", "r"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("line 3: error: "), "{refused:?}");
    let deleted = server.succeed(
        &folder,
        &["overrides", "delete", "plan", "user=u_1", "--reason", "over"],
    );
    assert_eq!(deleted, "default/plan user=u_1: deleted\n");
    let missing = server.run(&folder, &["overrides", "delete", "plan", "user=u_1"]);
    assert_eq!(missing.code, Some(2), "{missing:?}");
    assert_eq!(server.succeed(&folder, &["overrides", "list"]), "no override rows\n");
}

#[test]
fn attributes_are_set_listed_exported_imported_and_deleted() {
    let (folder, server) = set_up();
    let set = server.succeed(
        &folder,
        &["attributes", "set", "merchant=m_42", "tier=gold", "--reason", "r"],
    );
    assert_eq!(set, "merchant=m_42: tier=gold, revision 1\n");
    let list = server.succeed(&folder, &["attributes", "list", "--source", "merchant"]);
    assert!(list.contains("merchant=m_42") && list.contains("tier=gold"), "{list}");
    server.succeed(
        &folder,
        &["attributes", "export", "--format", "csv", "--out", "tiers.csv"],
    );
    assert!(
        folder.read("tiers.csv").contains("merchant,m_42,tier,gold"),
        "{}",
        folder.read("tiers.csv")
    );
    let same = server.succeed(&folder, &["attributes", "import", "tiers.csv"]);
    assert_eq!(same, "imported 1 attributes, 0 changed, revision 1\n");
    let deleted = server.succeed(&folder, &["attributes", "delete", "merchant=m_42", "tier"]);
    assert_eq!(deleted, "merchant=m_42: tier deleted\n");
    assert_eq!(
        server.succeed(&folder, &["attributes", "list"]),
        "no subject attributes\n"
    );
}

#[test]
fn users_and_tokens_have_their_rights_until_they_are_disabled() {
    let (folder, server) = set_up();
    let again = server.run(&folder, &["token", "add", "two", "--setup", &server.setup_code()]);
    assert_eq!(again.code, Some(1), "the code is void: {again:?}");
    let added = server.succeed(
        &folder,
        &["token", "add", "see", "--role", "viewer", "--expires", "90day"],
    );
    let viewer = secret(&added, "token: ");
    let refused = server.run_as(&folder, &viewer, &["rules", "push", "rules", "--reason", "ci"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(
        refused.stderr.contains("use a credential that has this right"),
        "{refused:?}"
    );
    let list = server.succeed(&folder, &["token", "list"]);
    assert!(
        list.contains("see") && list.contains("viewer") && list.contains("until "),
        "{list}"
    );
    assert!(!list.contains("tgt_"), "secrets are printed once: {list}");
    assert_eq!(
        server.succeed(&folder, &["token", "revoke", "see", "--reason", "r"]),
        "see: revoked\n"
    );
    let gone = server.run_as(&folder, &viewer, &["rules", "history"]);
    assert_eq!(gone.code, Some(2), "{gone:?}");
    assert!(gone.stderr.contains("the token is not valid"), "{gone:?}");

    let added = server.succeed(
        &folder,
        &["user", "add", "anna", "--role", "editor", "--domain", "shop"],
    );
    assert!(added.starts_with("anna: editor\npassword: "), "{added}");
    folder.write("password", "a long enough password\n");
    let added = server.succeed(
        &folder,
        &["user", "add", "ben", "--role", "viewer", "--password-file", "password"],
    );
    assert_eq!(added, "ben: viewer\n");
    let twice = server.run(&folder, &["user", "add", "ben", "--role", "viewer"]);
    assert_eq!(twice.code, Some(1), "{twice:?}");
    let list = server.succeed(&folder, &["user", "list"]);
    assert!(
        list.contains("anna") && list.contains("shop") && list.contains("ops"),
        "{list}"
    );
    assert_eq!(server.succeed(&folder, &["user", "disable", "ben"]), "ben: disabled\n");
    let unknown = server.run(&folder, &["user", "disable", "nemo"]);
    assert_eq!(unknown.code, Some(2), "{unknown:?}");
}

#[test]
fn the_audit_log_names_every_change_and_proves_that_nothing_was_cut() {
    let (folder, server) = set_up();
    server.succeed(
        &folder,
        &["rules", "apply", "rules", "--yes", "--reason", "first rules"],
    );
    server.succeed(
        &folder,
        &[
            "overrides",
            "set",
            "plan",
            "user=u_1",
            "--limit",
            "9/min",
            "--reason",
            "sale",
        ],
    );
    let log = server.succeed(&folder, &["audit", "--since", "1h"]);
    for text in ["ops", "cli", "first rules", "sale", "default/plan"] {
        assert!(log.contains(text), "`{text}` is missing: {log}");
    }
    assert_eq!(
        server.succeed(&folder, &["audit", "--actor", "nemo"]),
        "no audit entries\n"
    );
    let intact = server.succeed(&folder, &["audit", "--verify"]);
    let hash = intact.rsplit(' ').next().unwrap_or_default().trim().to_owned();
    server.succeed(&folder, &["overrides", "delete", "plan", "user=u_1"]);
    let anchored = server.succeed(&folder, &["audit", "--verify", "--anchor", &hash]);
    assert!(anchored.ends_with(", the anchor is part of it\n"), "{anchored}");
    let foreign = server.run(&folder, &["audit", "--verify", "--anchor", &"1".repeat(64)]);
    assert_eq!(foreign.code, Some(1), "{foreign:?}");
    let malformed = server.run(&folder, &["audit", "--verify", "--anchor", "x"]);
    assert_eq!(malformed.code, Some(2), "{malformed:?}");
}

#[test]
fn the_status_names_version_database_and_instances() {
    let (folder, server) = set_up();
    let before = server.succeed(&folder, &["control", "status"]);
    assert!(before.starts_with("no version is published"), "{before}");
    server.succeed(&folder, &["rules", "apply", "rules", "--yes", "--reason", "first"]);
    let status = server.succeed(&folder, &["control", "status"]);
    assert!(status.starts_with("version 1, revision 1 ("), "{status}");
    for text in ["ops: first", "database: sqlite, up", "2 managed"] {
        assert!(status.contains(text), "`{text}` is missing: {status}");
    }
    let body = json(&server.succeed(&folder, &["control", "status", "--json"]));
    assert_eq!(body["status"]["version"], 1);
    assert_eq!(body["problems"], Value::Array(Vec::new()));
}

#[test]
fn an_id_of_a_file_of_the_server_is_refused_with_both_places() {
    let folder = TestFolder::new();
    folder.write("tollgate.yaml", "rules: [{ id: plan, limit: 9/s }]\n");
    folder.write("rules/a.yaml", RULES);
    let mut server = ControlServer::start(&folder);
    server.set_up(&folder, "ops");
    let refused = server.run(&folder, &["rules", "apply", "rules", "--yes"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    for text in ["tollgate.yaml", "a.yaml", "plan"] {
        assert!(refused.stderr.contains(text), "`{text}` is missing: {refused:?}");
    }
}

#[test]
fn a_token_is_added_offline_while_the_server_is_stopped_and_only_then() {
    let folder = TestFolder::new();
    folder.write("tollgate.yaml", "data_dir: data\nrules: []\n");
    let add = [
        "token",
        "add",
        "ops",
        "--role",
        "admin",
        "--offline",
        "--reason",
        "headless",
    ];
    let nowhere = "http://127.0.0.1:9";
    let added = run_at(&folder, nowhere, "", &add);
    assert_eq!(added.code, Some(0), "{added:?}");
    assert!(added.stdout.starts_with("ops: admin\ntoken: tgt_"), "{added:?}");
    let twice = run_at(&folder, nowhere, "", &add);
    assert_eq!(twice.code, Some(1), "{twice:?}");
    let server = ControlServer::start_with_flags(&folder, &[]);
    assert!(
        !server.banner.contains("setup: "),
        "there is an admin: {}",
        server.banner
    );
    let token = secret(&added.stdout, "token: ");
    let list = server.run_as(&folder, &token, &["token", "list"]);
    assert_eq!(list.code, Some(0), "{list:?}");
    assert!(list.stdout.contains("offline"), "{list:?}");
    let audit = server.run_as(&folder, &token, &["audit"]);
    assert!(audit.stdout.contains("headless"), "{audit:?}");
    let held = run_at(
        &folder,
        nowhere,
        "",
        &["user", "add", "anna", "--role", "viewer", "--offline"],
    );
    assert_eq!(held.code, Some(2), "{held:?}");
    assert!(held.stderr.contains("has locked data; stop it"), "{held:?}");
}
