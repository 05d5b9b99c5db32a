//! The program as a shell meets it: what was typed, the code it ends with, what it says and where.

use crate::running::{Folder, Server, run, tollgate};
use Stream::{Stderr, Stdout};

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
    for words in [
        &[][..],
        &["serve"],
        &["check"],
        &["explain"],
        &["forget"],
        &["rules"],
        &["rules", "check"],
        &["rules", "schema"],
    ] {
        let (code, said, _) = run(&Folder::new(), &[words, &["--help"]].concat());
        assert_eq!(code, Some(0), "{words:?}");
        let example = said
            .split("Example")
            .nth(1)
            .unwrap_or_else(|| panic!("{words:?} has no example: {said}"));
        assert!(example.contains(&format!("\n  tollgate {}", words.join(" "))), "{said}");
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
    let ask = |words: &[&str]| run(&folder, &[words, &["--url", &url]].concat());
    // Everything behind the first `=` is the value, whatever it holds.
    let subject = "merchant=a=b\"{}\u{e9} c";
    let (code, said, complained) = ask(&["check", subject, "endpoint=/v1"]);
    assert_eq!((code, complained.as_str()), (Some(0), ""));
    assert!(said.starts_with("allowed by plan: 1 of 2 left"), "{said}");
    let (code, said, _) = ask(&["check", subject, "endpoint=/v1", "--cost", "2"]);
    assert_eq!(code, Some(1));
    assert!(said.starts_with("denied by plan: 1 of 2 left, ask again in "), "{said}");
    let (code, said, _) = ask(&["check", subject, "endpoint=/v1", "--cost", "2", "--json"]);
    assert_eq!(code, Some(1));
    let body: serde_json::Value = serde_json::from_str(&said).expect("one JSON value");
    assert_eq!(
        (&body["allowed"], &body["rule"], &body["status"]),
        (&false.into(), &"plan".into(), &429.into())
    );
    let (code, said, _) = ask(&["check", "endpoint=/v1", "--domain", "elsewhere"]);
    assert_eq!((code, said.as_str()), (Some(0), "allowed: no enforced rule is met\n"));

    let (code, said, _) = ask(&["explain", subject, "endpoint=/v1"]);
    assert_eq!(code, Some(0));
    assert!(said.contains("plan"), "{said}");
    let (code, said, _) = ask(&["explain", subject, "--json"]);
    assert_eq!(code, Some(0));
    serde_json::from_str::<serde_json::Value>(&said).expect("one JSON value");

    let (code, said, _) = ask(&["forget", subject, "--rule", "plan"]);
    assert_eq!((code, said.as_str()), (Some(0), "forgot 1 counter\n"));
    let (code, said, complained) = ask(&["forget", subject, "--rule", "pln"]);
    assert_eq!((code, said.as_str()), (Some(2), ""));
    assert!(complained.contains("did you mean `plan`?"), "{complained}");
    let (_, said, _) = ask(&["forget", subject, "--json"]);
    assert_eq!(said, "{\"forgotten\":0}\n");
    assert_eq!(ask(&["check", subject, "--cost", "2"]).0, Some(0), "it was forgotten");
}

#[test]
fn the_server_to_ask_may_stand_in_the_environment() {
    let (folder, server) = limited();
    let asked = crate::running::tollgate(&folder, &["check", "merchant=x"])
        .env("TOLLGATE_URL", server.url())
        .output();
    assert_eq!(asked.expect("the program can be run").status.code(), Some(0));
}

#[test]
fn trouble_says_what_to_do_next() {
    let gone = {
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("there is a free port");
        free.local_addr().expect("it is bound").to_string()
    };
    let url = format!("http://{gone}");
    for (words, wanted) in [
        (&["check", "a=b", "--url", &url][..], "is the server running"),
        (&["explain", "a=b", "--url", "gate:80"], "http://127.0.0.1:8080"),
        (&["forget", "a", "--url", &url], "it has no `=`"),
        (&["check", "a=b", "a=c", "--url", &url], "given twice"),
        (&["check", "a=b", "--cost", "-1", "--url", &url], "--cost"),
        (&["serve", "--config", "nowhere.yaml"], "nowhere.yaml"),
    ] {
        check(words, 2, Stderr, wanted);
    }
    let (folder, server) = limited();
    let (code, _, complained) = run(
        &folder,
        &["check", "a=b", "--cost", "99999999999999", "--url", &server.url()],
    );
    assert_eq!(code, Some(2));
    assert!(complained.contains("the server answered 400"), "{complained}");
}

#[test]
fn rules_check_tells_all_that_is_wrong_with_rules_and_settings() {
    let folder = Folder::with("good.yaml", "rules: [{ id: r, limit: 1/s }]\n");
    folder.write("bad.yaml", "rules:\n- id: r\n  limt: 1/s\n- id: '?'\n  limit: often\n");
    folder.write(
        "settings.yaml",
        "server: { htpt: 127.0.0.1:1 }\nrules_files: [bad.yaml]\n",
    );
    folder.write("broken.yaml", "rules: [");
    let (code, said, complained) = run(&folder, &["rules", "check", "good.yaml"]);
    assert_eq!((code, complained.as_str()), (Some(0), ""), "{said}");
    assert!(said.ends_with("1 file: sound, 0 errors, 0 warnings\n"), "{said}");

    for (files, wanted) in [
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
            &["broken.yaml:1:", "nowhere.yaml:1:1: error: ", "3 files: refused"],
        ),
    ] {
        let (code, said, complained) = run(&folder, &[&["rules", "check"], files].concat());
        assert_eq!((code, complained.as_str()), (Some(1), ""), "{said}");
        for wanted in wanted {
            assert!(said.contains(wanted), "{wanted} in {said}");
        }
        assert!(!said.contains('\u{1b}'), "colours are for terminals");
    }
    let (code, said, _) = run(&folder, &["rules", "check", "--json", "bad.yaml"]);
    assert_eq!(code, Some(1));
    let body: serde_json::Value = serde_json::from_str(&said).expect("one JSON value");
    assert_eq!(body["valid"], false);
    assert_eq!(
        (&body["problems"][0]["file"], &body["problems"][0]["line"]),
        (&"bad.yaml".into(), &3.into())
    );
}

#[test]
fn warnings_do_not_refuse() {
    let folder = Folder::with(
        "odd.yaml",
        "attributes: { ip: client_ip }\nrules: [{ id: r, limit: 1/s }]\n",
    );
    let (code, said, _) = run(&folder, &["rules", "check", "odd.yaml"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("odd.yaml:1:13: warning: ") && said.ends_with("0 errors, 1 warning\n"),
        "{said}"
    );
}

#[test]
fn the_example_of_two_tiers_is_sound() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/payments.yaml");
    let (code, said, _) = run(&Folder::new(), &["rules", "check", example]);
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn the_schema_is_one_of_settings_and_rules() {
    let (code, said, _) = run(&Folder::new(), &["rules", "schema"]);
    assert_eq!(code, Some(0));
    let schema: serde_json::Value = serde_json::from_str(&said).expect("one JSON value");
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    assert!(schema["$defs"]["settings"]["properties"]["server"].is_object());
    assert!(schema["$defs"]["rule"]["properties"]["limit"].is_object());
}

/// A server with one rule for each merchant.
fn limited() -> (Folder, Server) {
    let folder = Folder::with("tollgate.yaml", "rules: [{ id: plan, per: merchant, limit: 2/h }]\n");
    let server = Server::start(&folder, &[]);
    (folder, server)
}

enum Stream {
    Stdout,
    Stderr,
}

/// The words end with this code, and this text is on this stream and nothing on the other.
fn check(words: &[&str], code: i32, stream: Stream, text: &str) {
    let (ended, stdout, stderr) = run(&Folder::new(), words);
    let (said, silent) = match stream {
        Stdout => (stdout, stderr),
        Stderr => (stderr, stdout),
    };
    assert_eq!(ended, Some(code), "tollgate {words:?} said: {said}");
    assert!(said.contains(text), "tollgate {words:?} said: {said}");
    assert_eq!(silent, "", "tollgate {words:?} on the other stream");
}

#[test]
fn rules_import_envoy_converts_files_that_rules_check_knows() {
    let folder = Folder::new();
    folder.write(
        "envoy.yaml",
        "domain: shop\ndescriptors:\n- key: plan\n  value: free\n  descriptors:\n  - key: user\n    \
         rate_limit: { unit: minute, requests_per_unit: 3 }\n- { key: plan, valeu: x }\n",
    );
    let (code, said, _) = run(&folder, &["rules", "check", "envoy.yaml"]);
    assert!(
        code == Some(1) && said.contains("config error, unknown key 'valeu'"),
        "{said}"
    );
    let (code, said, complained) = run(&folder, &["rules", "import-envoy", "envoy.yaml"]);
    assert!(
        code == Some(1) && said.is_empty() && complained.contains("'valeu'"),
        "{complained}"
    );
    folder.write(
        "envoy.yaml",
        "domain: shop\ndescriptors:\n- key: plan\n  value: free\n  descriptors:\n  - key: user\n    \
         rate_limit: { unit: minute, requests_per_unit: 3 }\n",
    );
    let (code, said, complained) = run(&folder, &["rules", "import-envoy", "envoy.yaml"]);
    assert!(code == Some(0) && complained.is_empty(), "{complained}");
    folder.write("rules.yaml", &said);
    let (code, said, _) = run(&folder, &["rules", "check", "rules.yaml", "envoy.yaml"]);
    assert!(code == Some(0) && said.contains("2 files: sound"), "{said}");
    let server = Server::start(&folder, &["--set", "rules_files=[rules.yaml]"]);
    let asked = r#"{"domain":"shop","attributes":{"plan":"free","user":"u"}}"#;
    let statuses: Vec<u16> = (0..4).map(|_| server.post("/v1/check", asked).status).collect();
    assert_eq!(statuses, [200, 200, 200, 429]);
}

#[test]
fn files_of_one_domain_are_sound_where_domains_are_merged() {
    let folder = Folder::new();
    for key in ["user", "path"] {
        let limit = "rate_limit: { unit: day, requests_per_unit: 1 }";
        let file = format!("domain: shop\ndescriptors: [{{ key: {key}, {limit} }}]\n");
        folder.write(&format!("{key}.yaml"), &file);
    }
    let words = ["rules", "check", "user.yaml", "path.yaml"];
    let (code, said, _) = run(&folder, &words);
    assert!(code == Some(1) && said.contains("duplicate domain 'shop'"), "{said}");
    let (code, said, _) = run(&folder, &[&words[..], &["--merge-domains"]].concat());
    assert!(code == Some(0) && said.contains("2 files: sound"), "{said}");
    for (value, code) in [("true", 0), ("false", 1)] {
        let ended = tollgate(&folder, &words).env("MERGE_DOMAIN_CONFIG", value).output();
        assert_eq!(
            ended.expect("the program can be run").status.code(),
            Some(code),
            "{value}"
        );
    }
}

#[test]
fn limits_of_our_own_in_envoys_files_are_checked_converted_and_hold() {
    let folder = Folder::new();
    let file = |limit: &str| format!("domain: shop\ndescriptors:\n- key: user\n  rate_limit: {{ {limit} }}\n");
    folder.write("envoy.yaml", &file("limit: 3/h, algorithm: sliding_logg"));
    let (code, said, _) = run(&folder, &["rules", "check", "envoy.yaml"]);
    assert!(
        code == Some(1) && said.contains("envoy.yaml:4:40: error: `sliding_logg` is not an algorithm"),
        "{said}"
    );
    assert!(said.contains("did you mean `sliding_log`?"), "{said}");
    folder.write(
        "envoy.yaml",
        &file("unit: hour, requests_per_unit: 3, algorithm: sliding_log"),
    );
    let (code, rules, complained) = run(&folder, &["rules", "import-envoy", "envoy.yaml"]);
    assert!(code == Some(0) && complained.is_empty(), "{complained}");
    folder.write("rules.yaml", &rules);
    folder.write(
        "tollgate.yaml",
        "envoy_rules: { files: envoy.yaml, near_limit_ratio: 120% }\n",
    );
    let (code, said, _) = run(&folder, &["rules", "check", "rules.yaml", "tollgate.yaml"]);
    assert!(
        code == Some(1) && said.contains("tollgate.yaml:1:53: error: `120%` is not a share"),
        "{said}"
    );
    folder.write(
        "tollgate.yaml",
        "envoy_rules: { files: envoy.yaml, near_limit_ratio: 60%, dynamic_metadata: true }\n",
    );
    let (code, said, _) = run(
        &folder,
        &["rules", "check", "rules.yaml", "tollgate.yaml", "envoy.yaml"],
    );
    assert!(code == Some(0) && said.contains("3 files: sound"), "{said}");
    let asked = r#"{"domain":"shop","attributes":{"user":"u"}}"#;
    for words in [
        &["--set", "envoy_rules=envoy.yaml"],
        &["--set", "rules_files=[rules.yaml]"],
    ] {
        let other = Folder::new();
        other.write(
            "envoy.yaml",
            &file("unit: hour, requests_per_unit: 3, algorithm: sliding_log"),
        );
        other.write("rules.yaml", &rules);
        let server = Server::start(&other, words);
        let statuses: Vec<u16> = (0..4).map(|_| server.post("/v1/check", asked).status).collect();
        assert_eq!(statuses, [200, 200, 200, 429], "{words:?}");
    }
}
