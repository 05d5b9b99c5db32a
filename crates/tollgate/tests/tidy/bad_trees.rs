//! Made-up files that break the rules: a rule that never finds anything is no wall.

mod vocabulary;

use crate::repository::File;
use crate::rules::dashboard::{self, SINKS, sinks};
use crate::rules::{
    ALGORITHMS, MACHINE_PATHS, Rule, SERVER_CALLS, UNFINISHED, algorithm_files, dependencies, imports, lengths,
    machine_paths, module_files, redis_layers, server_calls, shared_writers, titles, top_level, unfinished,
    white_space,
};

#[test]
fn an_algorithm_without_its_examples_or_its_twin_or_these_without_it_are_noticed() {
    let folder = |names: &[&str], violations: &[&str]| {
        let paths: Vec<String> = names.iter().map(|name| format!("{ALGORITHMS}{name}")).collect();
        let files: Vec<(&str, &str)> = paths.iter().map(|path| (path.as_str(), "")).collect();
        finds(algorithm_files, &files, violations);
    };
    folder(&["gcra.rs", "gcra.txt", "gcra.lua", "gcra/ring.rs"], &[]);
    folder(
        &["gcra.rs", "gcra.lua", "log.txt", "log.lua"],
        &[
            "crates/core/src/algorithm/gcra.txt: is missing; an algorithm is rs + txt + lua",
            "crates/core/src/algorithm/log.rs: is missing; an algorithm is rs + txt + lua",
        ],
    );
    folder(
        &["gcra.rs", "gcra.txt"],
        &["crates/core/src/algorithm/gcra.lua: is missing; an algorithm is rs + txt + lua"],
    );
    folder(
        &["gcra.rs", "gcra.txt", "gcra.lua", "log.rs", "log.txt", "old.lua"],
        &[
            "crates/core/src/algorithm/log.lua: is missing; an algorithm is rs + txt + lua",
            "crates/core/src/algorithm/old.rs: is missing; an algorithm is rs + txt + lua",
            "crates/core/src/algorithm/old.txt: is missing; an algorithm is rs + txt + lua",
        ],
    );
}

#[test]
fn a_call_to_the_server_outside_of_settle_is_noticed() {
    let [call, _] = SERVER_CALLS;
    finds(
        server_calls,
        &[
            ("crates/limiter/src/store/settle.lua", call),
            ("docs/twins.md", call),
            (
                "crates/core/src/algorithm/gcra.lua",
                &format!("local x = 1\n{call}('GET')"),
            ),
        ],
        &[&format!(
            "crates/core/src/algorithm/gcra.lua:2: `{call}`: only settle.lua calls the server"
        )],
    );
}

#[test]
fn a_dependency_through_a_wall_is_noticed() {
    let manifests = |core: &str, limiter: &str, violations: &[&str]| {
        let files = [
            ("crates/core/Cargo.toml", core),
            ("crates/limiter/Cargo.toml", limiter),
            ("crates/tower/Cargo.toml", ""),
            ("crates/sim/Cargo.toml", ""),
        ];
        finds(dependencies, &files, violations);
    };
    manifests(
        "[dependencies]\n# rand = \"0.9\"\n[dev-dependencies]\nproptest.workspace = true\n",
        "[dependencies]\ntollgate-core.workspace = true\n",
        &[],
    );
    let argue = "argue for it and add it to the list in the tidy test";
    for core in [
        "[dependencies]\ntokio = \"1\"\n",
        "[dependencies]\ntokio.workspace = true\n",
        "[dependencies.tokio]\nversion = \"1\"\n",
        "[target.'cfg(unix)'.dependencies]\ntokio = { version = \"1\" }\n",
    ] {
        manifests(
            core,
            "",
            &[&format!("crates/core/Cargo.toml: depends on `tokio`; {argue}")],
        );
    }
    manifests(
        "",
        "[dependencies]\nweb = { package = \"axum\", version = \"0.8\" }\nclap = \"4\"\n",
        &[
            "crates/limiter/Cargo.toml: depends on `axum`, which belongs to the product",
            "crates/limiter/Cargo.toml: depends on `clap`, which belongs to the product",
        ],
    );
    finds(
        dependencies,
        &[
            ("crates/limiter/Cargo.toml", ""),
            ("crates/tower/Cargo.toml", ""),
            ("crates/sim/Cargo.toml", ""),
        ],
        &["crates/core/Cargo.toml: is missing, and its list with it"],
    );
    let sim = "[dependencies]\ntollgate-core.workspace = true\nfastrand = \"2\"\n";
    finds(
        dependencies,
        &[
            ("crates/core/Cargo.toml", ""),
            ("crates/limiter/Cargo.toml", ""),
            ("crates/tower/Cargo.toml", ""),
            ("crates/sim/Cargo.toml", sim),
        ],
        &[&format!("crates/sim/Cargo.toml: depends on `fastrand`; {argue}")],
    );
    finds(
        dependencies,
        &[
            ("crates/core/Cargo.toml", ""),
            ("crates/limiter/Cargo.toml", ""),
            (
                "crates/tower/Cargo.toml",
                "[dependencies]\ntonic = \"0.14\"\n[dev-dependencies]\naxum = \"0.8\"\n",
            ),
            ("crates/sim/Cargo.toml", ""),
        ],
        &["crates/tower/Cargo.toml: depends on `tonic`, which belongs to the product"],
    );
}

#[test]
fn a_writer_of_headers_in_the_product() {
    finds(
        shared_writers,
        &[
            (
                "crates/tower/src/headers/write.rs",
                "from_static(\"x-ratelimit-limit\")",
            ),
            (
                "crates/tollgate/src/server/http/api.rs",
                "from_static(\"x-ratelimit-limit\")",
            ),
        ],
        &["crates/tollgate/src/server/http/api.rs:1: `\"x-ratelimit-`: belongs to crates/tower; import it from there"],
    );
}

#[test]
fn untidy_files_are_noticed() {
    finds(
        module_files,
        &[("crates/core/src/rules/mod.rs", ""), ("crates/core/src/rules.rs", "")],
        &["crates/core/src/rules/mod.rs: name the file after the module and put it next to the folder"],
    );
    finds(
        white_space,
        &[
            ("a.rs", "fn a() {}\n"),
            ("a.png", "\t \n\n"),
            ("b.md", "one \ntwo"),
            ("c.toml", "\ta = 1\n\n"),
            ("scripts/d", "echo\r\n"),
        ],
        &[
            "b.md:1: ends with white space",
            "b.md: does not end with exactly one newline",
            "c.toml:1: has a tab",
            "c.toml: does not end with exactly one newline",
            "scripts/d:1: ends with white space",
        ],
    );
    finds(
        titles,
        &[
            ("one.md", "# One\n\n```sh\n# a comment\n```\n## Part\n"),
            ("none.md", "Words.\n```\n# a comment\n```\n"),
            ("two.md", "# One\n# Two\n"),
        ],
        &[
            "none.md: has 0 titles, should have one",
            "two.md: has 2 titles, should have one",
        ],
    );
    finds(
        lengths,
        &[
            ("a.rs", &"\n".repeat(700)),
            ("b.rs", &"\n".repeat(701)),
            ("c.txt", &"\n".repeat(701)),
        ],
        &["b.rs: has 701 lines; at 700 it holds more than one idea"],
    );
    finds(
        top_level,
        &[
            ("crates/core/src/lib.rs", ""),
            ("notes.md", ""),
            ("tmp/a", ""),
            ("tmp/b", ""),
        ],
        &[
            "notes.md: is not in the list of top-level entries",
            "tmp: is not in the list of top-level entries",
        ],
    );
}

#[test]
fn sinks_and_white_space_of_the_dashboard_are_noticed() {
    let file = |text: &str| {
        [File {
            path: "crates/tollgate/src/ui/pages/a.js".into(),
            text: text.into(),
        }]
    };
    for sink in SINKS {
        let violations = sinks(&file(&format!("good();\nelement.{sink} x;\n")));
        assert!(
            violations
                .iter()
                .any(|found| found.contains("a.js:2") && found.contains(sink)),
            "{sink}"
        );
    }
    assert_eq!(sinks(&file("s(\"http://www.w3.org/2000/svg\");\n")), [""; 0]);
    for text in ["a();", "a();\n\n", "a(); \n", "\ta();\n"] {
        assert_eq!(dashboard::white_space(&file(text)).len(), 1, "{text:?}");
    }
    assert_eq!(dashboard::white_space(&file("a();\n")), [""; 0]);
}

#[test]
fn unfinished_code_and_machine_paths_are_noticed_everywhere() {
    for (rule, needles) in [
        (unfinished as Rule, &UNFINISHED[..]),
        (machine_paths as Rule, &MACHINE_PATHS[..]),
    ] {
        for needle in needles {
            for path in ["a.rs", "docs/a.md", "scripts/a"] {
                let files = [File {
                    path: path.into(),
                    text: format!("good\nbad: {needle}x\n"),
                }];
                let violations = rule(&files);
                assert!(
                    violations
                        .iter()
                        .any(|violation| violation.starts_with(&format!("{path}:2: `{needle}`")))
                );
            }
        }
        finds(rule, &[("a.rs", "a good line\n")], &[]);
    }
}

#[test]
fn an_import_between_front_ends_is_noticed_however_it_is_written() {
    let file = |path: &str, source: &str, violations: &[&str]| finds(imports, &[(path, source)], violations);
    let http = "crates/tollgate/src/server/http.rs";
    for source in [
        "use crate::server::gate::Gate;",
        "use crate::server::{gate::{Gate, grpc}, telemetry};\nuse tonic::grpc;",
        "use crate::server::http::decode;",
    ] {
        file(http, source, &[]);
    }
    for source in [
        "use crate::server::grpc::Status;",
        "use crate::server::{gate::{Gate, Shutdown}, grpc};",
        "use crate::server::{\n    grpc::{self, Status},\n    gate,\n};",
        "use crate::{config, server::grpc};",
        "use super::grpc;",
        "fn f() { super::super::grpc::serve() }",
    ] {
        let violation = "`http` imports `grpc`; what they share belongs to the gate";
        file(http, source, &[&format!("{http}: {violation}")]);
        let below = "crates/tollgate/src/server/http/decode.rs";
        file(below, source, &[&format!("{below}: {violation}")]);
        file("crates/tollgate/src/server.rs", source, &[]);
    }
    let admin = "use crate::server::admin::Session;";
    file("crates/tollgate/src/server/admin/login.rs", admin, &[]);
    for path in ["crates/tollgate/src/cli.rs", http, "crates/tollgate/src/server/gate.rs"] {
        file(path, admin, &[&format!("{path}: imports `admin`, which nothing may")]);
    }
}

#[test]
fn an_import_of_a_layer_above_is_noticed() {
    let file = |path: &str, source: &str, violations: &[&str]| {
        let path = format!("crates/limiter/src/store/redis/{path}");
        let violations: Vec<String> = violations
            .iter()
            .map(|violation| format!("{path}: {violation}"))
            .collect();
        let violations: Vec<&str> = violations.iter().map(String::as_str).collect();
        finds(redis_layers, &[(&path, source)], &violations);
    };
    let node = "use crate::store::redis::node::Node;";
    file("topology/cluster.rs", node, &[]);
    file(
        "node/batcher.rs",
        "use super::request::NodeRequest;\nuse crate::store::redis::connection::Failure;",
        &[],
    );
    file("options.rs", node, &[]);
    file(
        "connection/connector.rs",
        node,
        &["`connection` imports `node`, which is above it"],
    );
    file(
        "connection.rs",
        "use super::{context, topology::Topology};",
        &["`connection` imports `topology`, which is above it"],
    );
    file("script/call.rs", node, &["`script` imports `node`, which is above it"]);
}

/// The rule finds exactly these violations in these files.
fn finds(rule: Rule, files: &[(&str, &str)], violations: &[&str]) {
    let files: Vec<File> = files
        .iter()
        .map(|(path, text)| File {
            path: (*path).into(),
            text: (*text).into(),
        })
        .collect();
    assert_eq!(rule(&files), violations);
}
