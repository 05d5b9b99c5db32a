//! The program as a shell meets it: what was typed, the code it ends with, what it says and where.

use crate::test_server::{TestServer, run, tollgate};
use Stream::{Stderr, Stdout};
use tollgate_test_kit::TestFolder;

#[test]
fn an_unknown_command_is_refused_by_name() {
    check(&["levitate"], 2, Stderr, "levitate");
}

#[test]
fn no_command_at_all_shows_the_help() {
    check(&[], 2, Stderr, "Usage: tollgate");
}

#[test]
fn every_command_has_help_with_an_example_that_begins_with_it() {
    for args in [
        &[][..],
        &["serve"],
        &["check"],
        &["explain"],
        &["forget"],
        &["rules"],
        &["rules", "check"],
        &["rules", "schema"],
        &["rules", "diff"],
        &["rules", "apply"],
        &["rules", "push"],
        &["rules", "pull"],
        &["rules", "history"],
        &["rules", "rollback"],
        &["simulate"],
        &["overrides"],
        &["overrides", "list"],
        &["overrides", "set"],
        &["overrides", "delete"],
        &["overrides", "import"],
        &["overrides", "export"],
        &["attributes"],
        &["attributes", "list"],
        &["attributes", "set"],
        &["attributes", "delete"],
        &["attributes", "import"],
        &["attributes", "export"],
        &["audit"],
        &["user"],
        &["user", "add"],
        &["user", "list"],
        &["user", "disable"],
        &["token"],
        &["token", "add"],
        &["token", "list"],
        &["token", "revoke"],
        &["control"],
        &["control", "status"],
        &["control", "adopt"],
    ] {
        let (code, stdout, _) = run(&TestFolder::new(), &[args, &["--help"]].concat());
        assert_eq!(code, Some(0), "{args:?}");
        let example = stdout
            .split("Example")
            .nth(1)
            .unwrap_or_else(|| panic!("{args:?} has no example: {stdout}"));
        assert!(
            example.contains(&format!("\n  tollgate {}", args.join(" "))),
            "{stdout}"
        );
    }
}

#[test]
fn version_is_the_one_of_the_manifest() {
    check(
        &["--version"],
        0,
        Stdout,
        concat!("tollgate ", env!("CARGO_PKG_VERSION"), "\n"),
    );
}

#[test]
fn check_tells_by_its_exit_code_and_in_words() {
    let (folder, server) = limited();
    let url = server.url();
    let cli = |args: &[&str]| run(&folder, &[args, &["--url", &url]].concat());
    // Everything behind the first `=` is the value, whatever it holds.
    let subject = "merchant=a=b\"{}\u{e9} c";
    let (code, stdout, stderr) = cli(&["check", subject, "endpoint=/v1"]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    assert!(stdout.starts_with("allowed by plan: 1 of 2 remaining"), "{stdout}");
    let (code, stdout, _) = cli(&["check", subject, "endpoint=/v1", "--cost", "2"]);
    assert_eq!(code, Some(1));
    assert!(
        stdout.starts_with("denied by plan: 1 of 2 remaining, retry in "),
        "{stdout}"
    );
    let (code, stdout, _) = cli(&["check", subject, "endpoint=/v1", "--cost", "2", "--json"]);
    assert_eq!(code, Some(1));
    let body: serde_json::Value = serde_json::from_str(&stdout).expect("one JSON value");
    assert_eq!(
        (&body["allowed"], &body["rule"], &body["status"]),
        (&false.into(), &"plan".into(), &429.into())
    );
    let (code, stdout, _) = cli(&["check", "endpoint=/v1", "--domain", "elsewhere"]);
    assert_eq!(
        (code, stdout.as_str()),
        (Some(0), "allowed: domain `elsewhere` has no rules\n")
    );
    let meant = "domain `defualt` has no rules; did you mean `default`?";
    let (code, stdout, _) = cli(&["check", subject, "--domain", "defualt"]);
    assert_eq!((code, stdout), (Some(0), format!("allowed: {meant}\n")));
    let (code, stdout, _) = cli(&["explain", subject, "--domain", "defualt"]);
    assert_eq!(code, Some(0));
    assert!(stdout.starts_with(&format!("allowed: {meant}\n")), "{stdout}");
    let (code, stdout, stderr) = cli(&["forget", subject, "--domain", "defualt"]);
    assert_eq!((code, stdout.as_str()), (Some(2), ""));
    assert!(stderr.contains(&format!(": {meant}")), "{stderr}");
    let (code, _, stderr) = cli(&["check", subject, "--domain", ""]);
    assert_eq!(code, Some(2));
    assert!(stderr.contains("`domain` is empty"), "{stderr}");

    let (code, stdout, _) = cli(&["explain", subject, "endpoint=/v1"]);
    assert_eq!(code, Some(0));
    assert!(stdout.contains("plan"), "{stdout}");
    let (code, stdout, _) = cli(&["explain", subject, "--json"]);
    assert_eq!(code, Some(0));
    serde_json::from_str::<serde_json::Value>(&stdout).expect("one JSON value");

    let (code, stdout, _) = cli(&["forget", subject, "--rule", "plan"]);
    assert_eq!((code, stdout.as_str()), (Some(0), "forgot 1 counter\n"));
    let (code, stdout, stderr) = cli(&["forget", subject, "--rule", "pln"]);
    assert_eq!((code, stdout.as_str()), (Some(2), ""));
    assert!(stderr.contains("did you mean `plan`?"), "{stderr}");
    let (_, stdout, _) = cli(&["forget", subject, "--json"]);
    assert_eq!(stdout, "{\"forgotten\":0}\n");
    assert_eq!(cli(&["check", subject, "--cost", "2"]).0, Some(0), "it was forgotten");
}

#[test]
fn the_server_to_ask_may_stand_in_the_environment() {
    let (folder, server) = limited();
    let output = crate::test_server::tollgate(&folder, &["check", "merchant=x"])
        .env("TOLLGATE_URL", server.url())
        .output();
    assert_eq!(output.expect("the program can be run").status.code(), Some(0));
}

#[test]
fn a_url_without_a_valid_port_is_an_error_of_every_command_that_takes_one() {
    let folder = TestFolder::new();
    for url in [
        "http://127.0.0.1:99999",
        "http://127.0.0.1:abc",
        "http://[::1]:",
        "https://gate:0/x",
    ] {
        for command in ["check", "explain", "forget"] {
            check(
                &[command, "a=b", "--url", url],
                2,
                Stderr,
                "the port must be a number from 1 to 65535",
            );
        }
        let by_environment = tollgate(&folder, &["check", "a=b"]).env("TOLLGATE_URL", url).output();
        let output = by_environment.expect("the program can be run");
        assert_eq!(output.status.code(), Some(2), "{url}");
    }
}

#[test]
fn a_token_comes_from_a_file_or_the_environment_so_that_ps_shows_none() {
    let token = "token-of-the-shop-0001";
    let settings =
        "auth: { tokens: [{ name: shop, token_file: shop.token, rights: all }] }\nrules: [{ id: plan, limit: 9/h }]\n";
    let folder = TestFolder::with("tollgate.yaml", settings);
    folder.write("shop.token", &format!("{token}\n"));
    folder.write("other.token", "token-of-another-0001\n");
    folder.write("empty.token", "\n");
    let server = TestServer::start(&folder, &[]);
    let url = server.url();
    for command in ["check", "explain", "forget"] {
        let (code, _, stderr) = run(&folder, &[command, "a=b", "--url", &url, "--token-file", "shop.token"]);
        assert_eq!((code, stderr.as_str()), (Some(0), ""), "{command}");
    }
    for (name, value) in [("TOLLGATE_TOKEN", token), ("TOLLGATE_TOKEN_FILE", "shop.token")] {
        let output = tollgate(&folder, &["check", "a=b", "--url", &url])
            .env(name, value)
            .output();
        assert_eq!(output.expect("the program can be run").status.code(), Some(0), "{name}");
    }
    for (args, expected) in [
        (&["--token-file", "other.token"][..], "server error 401"),
        (&[], "--token-file or TOLLGATE_TOKEN"),
        (&["--token-file", "nowhere"], "token file nowhere: "),
        (&["--token-file", "empty.token"], "its first line is empty"),
        (
            &["--token-file", "shop.token", "--token", token],
            "both a token and a token file",
        ),
    ] {
        let (code, _, stderr) = run(&folder, &[&["check", "a=b", "--url", &url], args].concat());
        assert_eq!(code, Some(2), "{args:?}");
        assert!(
            stderr.contains(expected) && !stderr.contains(token),
            "{args:?}: {stderr}"
        );
    }
}

#[test]
fn trouble_says_what_to_do_next() {
    let gone = {
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("there is a free port");
        free.local_addr().expect("it is bound").to_string()
    };
    let url = format!("http://{gone}");
    for (args, expected) in [
        (&["check", "a=b", "--url", &url][..], "is the server running"),
        (&["explain", "a=b", "--url", "gate:80"], "http://127.0.0.1:8080"),
        (&["forget", "a", "--url", &url], "missing `=`"),
        (&["check", "a=b", "a=c", "--url", &url], "duplicate attribute"),
        (&["check", "a=b", "--cost", "-1", "--url", &url], "--cost"),
        (&["serve", "--config", "nowhere.yaml"], "nowhere.yaml"),
    ] {
        check(args, 2, Stderr, expected);
    }
    let (folder, server) = limited();
    let (code, _, stderr) = run(
        &folder,
        &["check", "a=b", "--cost", "9999999999999999", "--url", &server.url()],
    );
    assert_eq!(code, Some(2));
    assert!(stderr.contains("server error 400"), "{stderr}");
}

#[test]
fn rules_check_tells_all_that_is_wrong_with_rules_and_settings() {
    let folder = TestFolder::with("good.yaml", "rules: [{ id: r, limit: 1/s }]\n");
    folder.write("bad.yaml", "rules:\n- id: r\n  limt: 1/s\n- id: '?'\n  limit: often\n");
    folder.write(
        "settings.yaml",
        "server: { htpt: 127.0.0.1:1 }\nrules_files: [bad.yaml]\n",
    );
    folder.write("broken.yaml", "rules: [");
    let (code, stdout, stderr) = run(&folder, &["rules", "check", "good.yaml"]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""), "{stdout}");
    assert!(stdout.ends_with("1 file: valid, 0 errors, 0 warnings\n"), "{stdout}");

    for (files, expected) in [
        (
            &["bad.yaml"][..],
            &[
                "bad.yaml:3:3: error: ",
                "did you mean `limit`?",
                "bad.yaml:4:7: error: ",
                "bad.yaml:5:10: error: ",
            ][..],
        ),
        (
            &["settings.yaml"],
            &[
                "settings.yaml:1:11: error: ",
                "did you mean `http`?",
                "bad.yaml:3:3: error: ",
            ],
        ),
        (
            &["good.yaml", "broken.yaml", "nowhere.yaml"],
            &["broken.yaml:1:", "nowhere.yaml:1:1: error: ", "3 files: invalid"],
        ),
    ] {
        let (code, stdout, stderr) = run(&folder, &[&["rules", "check"], files].concat());
        assert_eq!((code, stderr.as_str()), (Some(1), ""), "{stdout}");
        for expected in expected {
            assert!(stdout.contains(expected), "{expected} in {stdout}");
        }
        assert!(!stdout.contains('\u{1b}'), "colours are for terminals");
    }
    let (code, stdout, _) = run(&folder, &["rules", "check", "--json", "bad.yaml"]);
    assert_eq!(code, Some(1));
    let body: serde_json::Value = serde_json::from_str(&stdout).expect("one JSON value");
    assert_eq!(body["valid"], false);
    assert_eq!(
        (&body["problems"][0]["file"], &body["problems"][0]["line"]),
        (&"bad.yaml".into(), &3.into())
    );
}

#[test]
fn a_concurrency_rule_behind_forward_auth_is_a_warning_that_says_what_to_do() {
    let rules =
        "rules:\n- { id: inflight, per: ip, algorithm: concurrency, limit: 5 }\n- { id: plan, per: ip, limit: 5/s }\n";
    for (name, forward, warnings) in [
        ("with.yaml", "forward_auth: { gateway: nginx }\n", 1),
        ("without.yaml", "", 0),
    ] {
        let folder = TestFolder::with(name, &format!("{forward}{rules}"));
        let (code, stdout, _) = run(&folder, &["rules", "check", name]);
        assert_eq!(code, Some(0), "{stdout}");
        assert_eq!(
            stdout.matches("rule `inflight` takes a slot").count(),
            warnings,
            "{stdout}"
        );
        assert_eq!(stdout.matches("tollgate-lease").count(), warnings, "{stdout}");
        assert!(!stdout.contains("`plan` takes"), "{stdout}");
    }
}

#[test]
fn warnings_do_not_refuse() {
    let folder = TestFolder::with(
        "odd.yaml",
        "attributes: { ip: client_ip }\nrules: [{ id: r, limit: 1/s }]\n",
    );
    let (code, stdout, _) = run(&folder, &["rules", "check", "odd.yaml"]);
    assert_eq!(code, Some(0), "{stdout}");
    assert!(
        stdout.contains("odd.yaml:1:13: warning: ") && stdout.ends_with("0 errors, 1 warning\n"),
        "{stdout}"
    );
}

#[test]
fn the_example_of_two_tiers_is_sound() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/payments.yaml");
    let (code, stdout, _) = run(&TestFolder::new(), &["rules", "check", example]);
    assert_eq!(code, Some(0), "{stdout}");
}

#[test]
fn rules_check_takes_a_folder_and_what_envoyproxy_ratelimit_takes() {
    let folder = TestFolder::new();
    let file = "domain: a
descriptors:
- { key: a, shadow_mode: yes, rate_limit: &daily { unit: day, requests_per_unit: 0x10 } }
- { key: b, rate_limit: *daily }
---
";
    folder.write("config/shop", file);
    folder.write("config/more.yml", "domain: b\ndescriptors: []\n");
    folder.write("config/README.md", "no rules");
    folder.write("config/.hidden.yaml", "[");
    let (code, stdout, stderr) = run(&folder, &["rules", "check", "config"]);
    assert_eq!((code, &*stderr), (Some(0), ""), "{stdout}");
    assert!(stdout.contains("2 files: valid, 0 errors"), "{stdout}");
    // Not in our own files.
    folder.write("config/own.yaml", "rules: [{ id: &x a, limit: 1/s }]\n");
    let (code, stdout, _) = run(&folder, &["rules", "check", "config"]);
    assert_eq!(code, Some(1));
    assert!(stdout.contains("anchors are not supported"), "{stdout}");
    folder.write("empty/README.md", "no rules");
    let (code, stdout, _) = run(&folder, &["rules", "check", "empty"]);
    assert_eq!(code, Some(1));
    assert!(
        stdout.contains("empty") && stdout.contains("no rule files in this folder"),
        "{stdout}"
    );
}

#[test]
fn the_schema_is_one_of_settings_and_rules() {
    let (code, stdout, _) = run(&TestFolder::new(), &["rules", "schema"]);
    assert_eq!(code, Some(0));
    let schema: serde_json::Value = serde_json::from_str(&stdout).expect("one JSON value");
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    assert!(schema["$defs"]["settings"]["properties"]["server"].is_object());
    assert!(schema["$defs"]["rule"]["properties"]["limit"].is_object());
}

/// A server with one rule for each merchant.
fn limited() -> (TestFolder, TestServer) {
    let (folder, server) = TestServer::with_settings("rules: [{ id: plan, per: merchant, limit: 2/h }]\n");
    (folder, server)
}

enum Stream {
    Stdout,
    Stderr,
}

/// The words end with this code, and this text is on this stream and nothing on the other.
fn check(args: &[&str], code: i32, stream: Stream, text: &str) {
    let (ended, stdout, stderr) = run(&TestFolder::new(), args);
    let (output, other) = match stream {
        Stdout => (stdout, stderr),
        Stderr => (stderr, stdout),
    };
    assert_eq!(ended, Some(code), "tollgate {args:?} said: {output}");
    assert!(output.contains(text), "tollgate {args:?} said: {output}");
    assert_eq!(other, "", "tollgate {args:?} on the other stream");
}

#[test]
fn rules_import_envoy_converts_files_that_rules_check_knows() {
    let folder = TestFolder::new();
    folder.write(
        "envoy.yaml",
        "domain: shop\ndescriptors:\n- key: plan\n  value: free\n  descriptors:\n  - key: user\n    \
         rate_limit: { unit: minute, requests_per_unit: 3 }\n- { key: plan, valeu: x }\n",
    );
    let (code, stdout, _) = run(&folder, &["rules", "check", "envoy.yaml"]);
    assert!(
        code == Some(1) && stdout.contains("config error, unknown key 'valeu'"),
        "{stdout}"
    );
    let (code, stdout, stderr) = run(&folder, &["rules", "import-envoy", "envoy.yaml"]);
    assert!(
        code == Some(1) && stdout.is_empty() && stderr.contains("'valeu'"),
        "{stderr}"
    );
    folder.write(
        "envoy.yaml",
        "domain: shop\ndescriptors:\n- key: plan\n  value: free\n  descriptors:\n  - key: user\n    \
         rate_limit: { unit: minute, requests_per_unit: 3 }\n",
    );
    let (code, stdout, stderr) = run(&folder, &["rules", "import-envoy", "envoy.yaml"]);
    assert!(code == Some(0) && stderr.is_empty(), "{stderr}");
    folder.write("rules.yaml", &stdout);
    let (code, stdout, _) = run(&folder, &["rules", "check", "rules.yaml", "envoy.yaml"]);
    assert!(code == Some(0) && stdout.contains("2 files: valid"), "{stdout}");
    let server = TestServer::start(&folder, &["--set", "rules_files=[rules.yaml]"]);
    let body = r#"{"domain":"shop","attributes":{"plan":"free","user":"u"}}"#;
    let statuses: Vec<u16> = (0..4).map(|_| server.post("/v1/check", body).status).collect();
    assert_eq!(statuses, [200, 200, 200, 429]);
}

#[test]
fn files_of_one_domain_are_sound_where_domains_are_merged() {
    let folder = TestFolder::new();
    for key in ["user", "path"] {
        let limit = "rate_limit: { unit: day, requests_per_unit: 1 }";
        let file = format!("domain: shop\ndescriptors: [{{ key: {key}, {limit} }}]\n");
        folder.write(&format!("{key}.yaml"), &file);
    }
    let args = ["rules", "check", "user.yaml", "path.yaml"];
    let (code, stdout, _) = run(&folder, &args);
    assert!(
        code == Some(1) && stdout.contains("duplicate domain 'shop'"),
        "{stdout}"
    );
    let (code, stdout, _) = run(&folder, &[&args[..], &["--merge-domains"]].concat());
    assert!(code == Some(0) && stdout.contains("2 files: valid"), "{stdout}");
    for (value, code) in [("true", 0), ("false", 1)] {
        let ended = tollgate(&folder, &args).env("MERGE_DOMAIN_CONFIG", value).output();
        assert_eq!(
            ended.expect("the program can be run").status.code(),
            Some(code),
            "{value}"
        );
    }
}

#[test]
fn limits_of_our_own_in_envoys_files_are_checked_converted_and_hold() {
    let folder = TestFolder::new();
    let file = |limit: &str| format!("domain: shop\ndescriptors:\n- key: user\n  rate_limit: {{ {limit} }}\n");
    folder.write("envoy.yaml", &file("limit: 3/h, algorithm: sliding_logg"));
    let (code, stdout, _) = run(&folder, &["rules", "check", "envoy.yaml"]);
    assert!(
        code == Some(1) && stdout.contains("envoy.yaml:4:40: error: `sliding_logg` is not an algorithm"),
        "{stdout}"
    );
    assert!(stdout.contains("did you mean `sliding_log`?"), "{stdout}");
    folder.write(
        "envoy.yaml",
        &file("unit: hour, requests_per_unit: 3, algorithm: sliding_log"),
    );
    let (code, rules, stderr) = run(&folder, &["rules", "import-envoy", "envoy.yaml"]);
    assert!(code == Some(0) && stderr.is_empty(), "{stderr}");
    folder.write("rules.yaml", &rules);
    folder.write(
        "tollgate.yaml",
        "envoy_rules: { files: envoy.yaml, near_limit_ratio: 120% }\n",
    );
    let (code, stdout, _) = run(&folder, &["rules", "check", "rules.yaml", "tollgate.yaml"]);
    assert!(
        code == Some(1) && stdout.contains("tollgate.yaml:1:53: error: `120%` is not a share"),
        "{stdout}"
    );
    folder.write(
        "tollgate.yaml",
        "envoy_rules: { files: envoy.yaml, near_limit_ratio: 60%, dynamic_metadata: true }\n",
    );
    let (code, stdout, _) = run(
        &folder,
        &["rules", "check", "rules.yaml", "tollgate.yaml", "envoy.yaml"],
    );
    assert!(code == Some(0) && stdout.contains("3 files: valid"), "{stdout}");
    let body = r#"{"domain":"shop","attributes":{"user":"u"}}"#;
    for args in [
        &["--set", "envoy_rules=envoy.yaml"],
        &["--set", "rules_files=[rules.yaml]"],
    ] {
        let other = TestFolder::new();
        other.write(
            "envoy.yaml",
            &file("unit: hour, requests_per_unit: 3, algorithm: sliding_log"),
        );
        other.write("rules.yaml", &rules);
        let server = TestServer::start(&other, args);
        let statuses: Vec<u16> = (0..4).map(|_| server.post("/v1/check", body).status).collect();
        assert_eq!(statuses, [200, 200, 200, 429], "{args:?}");
    }
}
