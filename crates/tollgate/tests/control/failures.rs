//! Commands that cannot do what they are for: each ends with a code, a clear message and a next step.

use crate::program::{CommandOutput, run_at};
use crate::stub::{StubServer, json, response};
use tollgate_test_kit::TestFolder;

/// Every command that calls the admin API.
const COMMANDS: [&[&str]; 26] = [
    &["rules", "diff", "rules"],
    &["rules", "apply", "rules", "--yes"],
    &["rules", "push", "rules", "--reason", "ci"],
    &["rules", "pull", "--to", "out"],
    &["rules", "history"],
    &["rules", "history", "--rule", "plan"],
    &["rules", "rollback", "--reason", "x"],
    &["rules", "check", "--live"],
    &["overrides", "list"],
    &["overrides", "set", "plan", "user=u_1", "--limit", "9/s"],
    &["overrides", "delete", "plan", "user=u_1"],
    &["overrides", "import", "rows.csv"],
    &["overrides", "export"],
    &["attributes", "list"],
    &["attributes", "set", "user=u_1", "tier=gold"],
    &["attributes", "delete", "user=u_1", "tier"],
    &["attributes", "import", "rows.csv"],
    &["attributes", "export"],
    &["audit"],
    &["audit", "--verify"],
    &["user", "list"],
    &["user", "add", "anna", "--role", "viewer"],
    &["token", "list"],
    &["token", "add", "ci", "--setup", "7K3F-9QXM-2HTD"],
    &["control", "status"],
    &["control", "adopt", "--reason", "x"],
];

fn folder() -> TestFolder {
    let folder = TestFolder::new();
    folder.write("rules/a.yaml", RULES);
    folder.write("rows.csv", "domain,rule,subject,terms,note,expires_at\n");
    folder
}

const RULES: &str = "rules:\n- id: plan\n  per: user\n  limit: many\n";

/// An error: code 2, nothing on stdout, and one message.
fn assert_error(output: &CommandOutput, what: &str) {
    assert_eq!(output.code, Some(2), "{what}: {output:?}");
    assert_eq!(output.stdout, "", "{what}");
    assert!(output.stderr.starts_with("tollgate: "), "{what}: {output:?}");
    assert!(!output.stderr.contains("panicked"), "{what}: {output:?}");
}

#[test]
fn without_a_server_every_command_names_the_address_and_how_to_set_it() {
    let folder = folder();
    for args in COMMANDS {
        // Nothing listens on the port of a listener that is gone.
        let gone = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let url = format!("http://{}", gone.expect("a free port"));
        let output = run_at(&folder, &url, "", args);
        assert_error(&output, &format!("{args:?}"));
        let text = format!("cannot connect to {url}");
        assert!(output.stderr.contains(&text), "{args:?}: {output:?}");
        assert!(output.stderr.contains("TOLLGATE_ADMIN_URL"), "{args:?}: {output:?}");
    }
}

#[test]
fn a_server_that_is_no_control_plane_is_named_as_the_probable_mistake() {
    let folder = folder();
    let replies: [(&str, Vec<u8>); 7] = [
        ("a page", response("200 OK", "text/html", "<html>hello</html>")),
        ("an empty object", json("200 OK", "{}")),
        ("a list", json("200 OK", "[]")),
        (
            "a cut body",
            b"HTTP/1.1 200 OK\r\ncontent-length: 90\r\n\r\n{\"items\":[".to_vec(),
        ),
        ("no HTTP", b"\x00\xff\x15\x03\x01".to_vec()),
        ("nothing", Vec::new()),
        (
            "the page of a proxy",
            response("502 Bad Gateway", "text/html", "<html>"),
        ),
    ];
    for (what, reply) in replies {
        let server = StubServer::start(move |_| reply.clone());
        for args in COMMANDS {
            let output = run_at(&folder, &server.url, "tgt_a_b", args);
            assert_error(&output, &format!("{what}: {args:?}"));
            assert!(output.stderr.contains("is this URL"), "{what}: {args:?}: {output:?}");
        }
    }
    assert!(!folder.path().join("out").exists(), "nothing was written");
}

/// A problem document for every request.
fn problem(status: &'static str, body: &'static str) -> StubServer {
    StubServer::start(move |_| response(status, "application/problem+json", body))
}

#[test]
fn each_refusal_of_a_server_has_its_exit_code_and_its_next_step() {
    let folder = folder();
    let push = ["rules", "push", "rules", "--reason", "ci"];
    for (status, body, code, texts) in [
        (
            "401 Unauthorized",
            r#"{"code":"unauthorized","detail":"no valid credential"}"#,
            2,
            &["the token is not valid", "TOLLGATE_ADMIN_TOKEN"][..],
        ),
        (
            "403 Forbidden",
            r#"{"code":"forbidden","detail":"this needs the right edit"}"#,
            2,
            &["this needs the right edit; use a credential that has this right"],
        ),
        (
            "409 Conflict",
            r#"{"code":"drift","detail":"version 7 was not pushed","author":"anna","reason":"incident"}"#,
            1,
            &[
                "refused: version 7 was not pushed; by anna; reason incident",
                "rules pull",
                "--force",
            ],
        ),
        (
            "409 Conflict",
            r#"{"code":"prepare-incomplete","detail":"a vote is missing","instances":["eu-3"]}"#,
            1,
            &["refused: a vote is missing", "control status", "\n  instance eu-3\n"],
        ),
        (
            "409 Conflict",
            r#"{"code":"rows-invalid","detail":"1 row","rows":[{"domain":"d","rule":"r","subject":{"m":"x"},"terms":"9/s"}]}"#,
            1,
            &["refused: 1 row", "--drop-rows", "\n  d/r  m=x  9/s"],
        ),
        (
            "409 Conflict",
            r#"{"code":"database-regressed","detail":"the database is behind"}"#,
            1,
            &["control status", "control adopt"],
        ),
        (
            "422 Unprocessable Entity",
            r#"{"code":"invalid","detail":"1 error","problems":[{"severity":"error","file":"a.yaml","line":4,"column":10,"width":4,"text":"not a limit","hint":"write 10/s"}]}"#,
            1,
            &[
                "refused: 1 problem\nrules/a.yaml:4:10: error: not a limit\n",
                "4 |   limit: many\n",
                "^^^^",
                "write 10/s",
            ],
        ),
        (
            "429 Too Many Requests",
            r#"{"code":"too-many-requests","detail":"wait a minute"}"#,
            2,
            &["retry later"],
        ),
        (
            "503 Service Unavailable",
            r#"{"code":"database-unavailable","detail":"the database is unavailable"}"#,
            2,
            &["the database is unavailable; retry later"],
        ),
        (
            "507 Insufficient Storage",
            r#"{"code":"disk-full","detail":"the disk is full"}"#,
            2,
            &["the disk is full"],
        ),
    ] {
        let server = problem(status, body);
        let output = run_at(&folder, &server.url, "tgt_a_b", &push);
        assert_eq!(
            (output.code, output.stdout.as_str()),
            (Some(code), ""),
            "{status}: {output:?}"
        );
        for text in texts {
            assert!(
                output.stderr.contains(text),
                "{status}: `{text}` is missing: {}",
                output.stderr
            );
        }
        // A pipe is no terminal.
        assert!(!output.stderr.contains('\u{1b}'), "{output:?}");
    }
}

#[test]
fn invalid_files_are_an_error_of_diff_whose_other_code_means_a_difference() {
    let server = problem("422 Unprocessable Entity", r#"{"code":"invalid","detail":"1 error"}"#);
    let output = run_at(&folder(), &server.url, "tgt_a_b", &["rules", "diff", "rules"]);
    assert_error(&output, "diff");
}

#[test]
fn a_missing_token_says_how_the_first_is_made() {
    let server = problem(
        "401 Unauthorized",
        r#"{"code":"unauthorized","detail":"no valid credential"}"#,
    );
    let output = server.run(&folder(), &["overrides", "list"]);
    assert_error(&output, "without a token");
    assert!(
        output.stderr.contains("a token is needed; pass one with --token-file"),
        "{output:?}"
    );
    assert!(output.stderr.contains("--setup CODE"), "{output:?}");
}

#[test]
fn a_token_file_wins_over_the_variable_and_the_token_is_in_no_message() {
    let server = problem(
        "401 Unauthorized",
        r#"{"code":"unauthorized","detail":"no valid credential"}"#,
    );
    let folder = folder();
    folder.write("token", "tgt_from_file\nrest\n");
    let args = ["overrides", "list", "--token-file", "token"];
    let output = run_at(&folder, &server.url, "tgt_from_variable", &args);
    let head = server.requests().join("").to_lowercase();
    assert!(head.contains("authorization: bearer tgt_from_file\r\n"), "{head}");
    assert!(!output.stderr.contains("tgt_from"), "{output:?}");
    for (name, reason) in [("missing", "No such file"), ("empty", "its first line is empty")] {
        folder.write("empty", "");
        let output = server.run(&folder, &["overrides", "list", "--token-file", name]);
        assert_error(&output, name);
        assert!(output.stderr.contains(reason), "{output:?}");
    }
}

#[test]
fn a_version_never_writes_outside_the_folder_of_a_pull() {
    for path in [
        "../evil.yaml",
        "/tmp/tollgate-evil.yaml",
        "a/../../evil.yaml",
        ".git/config",
        ".git/hooks/a.yaml",
        "Makefile",
        "a//b.yaml",
        "",
    ] {
        let body = serde_json::json!({"number": 1, "digest": "d", "files": [
            {"path": "good.yaml", "grammar": "own", "text": "rules: []\n"},
            {"path": path, "grammar": "own", "text": "rules: []\n"},
        ]});
        let server = StubServer::start(move |_| json("200 OK", &body.to_string()));
        let folder = folder();
        let output = run_at(&folder, &server.url, "tgt_a_b", &["rules", "pull", "--to", "out"]);
        assert_error(&output, path);
        assert!(output.stderr.contains("nothing was written"), "{path}: {output:?}");
        assert!(!folder.path().join("out").exists(), "{path}");
        assert!(!folder.path().join("evil.yaml").exists(), "{path}");
    }
}

/// A control plane with a plan to confirm.
fn planning() -> StubServer {
    StubServer::start(|target| match target {
        "POST /v1/plan" => json(
            "200 OK",
            r#"{"live":{"version":0,"etag":"\"e0-r0\""},"digest":"d","plan":{"lines":[{"op":"added","domain":"default","rule":"plan","what":"new","effect":"","effect_kind":"none"}],"rows":[],"changed":0,"added":1,"removed":0,"unchanged":0,"format":1,"supported":1,"instances":1}}"#,
        ),
        "GET /v1/versions" => json("200 OK", r#"{"items":[{"number":6}],"next":null}"#),
        _ => json(
            "200 OK",
            r#"{"version":7,"revision":9,"epoch":1,"changed":true,"prepared":1,"applied":1,"rejected":0,"silent":0}"#,
        ),
    })
}

#[test]
fn apply_publishes_after_a_yes_and_after_nothing_else() {
    let folder = folder();
    for (input, code) in [
        ("y\n", 0),
        ("yes\n", 0),
        ("Y\n", 0),
        ("n\n", 1),
        ("\n", 1),
        ("", 1),
        ("yesterday\n", 1),
    ] {
        let server = planning();
        let output = crate::program::run_with_input(&folder, &server.url, input, &["rules", "apply", "rules"]);
        assert_eq!(output.code, Some(code), "{input:?}: {output:?}");
        let plan = "live: no version is published\n+ default/plan  new\n";
        assert!(output.stdout.starts_with(plan), "{output:?}");
        assert!(output.stdout.contains("publish as version 7? [y/N] "), "{output:?}");
        let is_published = server
            .requests()
            .iter()
            .any(|head| head.starts_with("POST /v1/publish"));
        assert_eq!(is_published, code == 0, "{input:?}");
        if code == 0 {
            assert!(
                output.stdout.contains("published version 7, revision 9\n"),
                "{output:?}"
            );
        } else {
            assert!(output.stderr.contains("nothing was published"), "{output:?}");
        }
    }
}

#[test]
fn apply_with_json_needs_a_yes_and_prints_one_document() {
    let folder = folder();
    let server = planning();
    let output = server.run(&folder, &["rules", "apply", "rules", "--json"]);
    assert_error(&output, "json");
    assert!(output.stderr.contains("--yes"), "{output:?}");
    let output = server.run(&folder, &["rules", "apply", "rules", "--json", "--yes"]);
    assert_eq!(output.code, Some(0), "{output:?}");
    let body: serde_json::Value = serde_json::from_str(&output.stdout).expect("one JSON value");
    assert_eq!(body["version"], 7);
}

#[test]
fn a_plan_file_is_published_without_a_question_and_a_damaged_one_is_an_error() {
    let folder = folder();
    let server = planning();
    let planned = server.run(&folder, &["rules", "apply", "rules", "--plan-out", "p"]);
    assert_eq!(planned.code, Some(0), "{planned:?}");
    assert!(planned.stderr.contains("`tollgate rules apply p`"), "{planned:?}");
    assert!(
        !server
            .requests()
            .iter()
            .any(|head| head.starts_with("POST /v1/publish"))
    );
    let applied = server.run(&folder, &["rules", "apply", "p", "--reason", "r"]);
    assert_eq!(applied.code, Some(0), "{applied:?}");
    let head = server.requests().pop().unwrap_or_default();
    assert!(head.to_lowercase().contains("if-none-match: *\r\n"), "{head}");
    let plan = folder.read("p");
    for damaged in [
        plan.replace("tollgate_plan\": 1", "tollgate_plan\": 2"),
        plan[..plan.len() / 2].to_owned(),
    ] {
        folder.write("damaged", &damaged);
        let output = server.run(&folder, &["rules", "apply", "damaged"]);
        assert_error(&output, "a damaged plan");
        assert!(output.stderr.contains("plan again"), "{output:?}");
    }
}

#[test]
fn a_failed_export_leaves_the_file_of_the_last_one() {
    let server = problem("503 Service Unavailable", r#"{"code":"busy","detail":"busy"}"#);
    let folder = folder();
    folder.write("rows.csv", "old");
    let args = ["overrides", "export", "--format", "csv", "--out", "rows.csv"];
    let output = server.run(&folder, &args);
    assert_error(&output, "export");
    assert_eq!(folder.read("rows.csv"), "old");
    assert!(!folder.path().join("rows.csv.tmp").exists());
}
