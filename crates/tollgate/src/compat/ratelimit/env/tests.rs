//! Variable by variable what it comes to, and what is said of those that come to nothing.

use crate::config::{Config, RawSettings, Sources, StoreSettings};
use tollgate_limiter::core::problem::Problem;
use tollgate_limiter::core::yaml::{Node, NodeKind};
use tollgate_test_kit::table::rows;

fn sources(variables: &[(&str, &str)]) -> Sources {
    let root = [("RUNTIME_ROOT", "/data")];
    let all = root.iter().chain(variables);
    Sources {
        file: None,
        variables: all.map(|(name, value)| ((*name).into(), (*value).into())).collect(),
        ..Sources::default()
    }
}

/// The variables of a cell of a table.
fn variables_of(cell: &str) -> Vec<(&str, &str)> {
    cell.split(' ')
        .filter_map(|variable| variable.split_once('='))
        .collect()
}

fn settings_of(variables: &[(&str, &str)]) -> RawSettings {
    let read = sources(variables).read();
    read.unwrap_or_else(|problems| panic!("{variables:?}: {}", text_of(&problems)))
}

fn text_of(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect()
}

/// The value at a path, as text.
fn value_at(settings: &RawSettings, path: &str) -> Option<String> {
    fn text(node: &Node) -> String {
        match &node.kind {
            NodeKind::Bool(flag) => flag.to_string(),
            NodeKind::List(items) => items.iter().map(text).collect::<Vec<_>>().join(","),
            _ => node.scalar().unwrap_or("?").to_owned(),
        }
    }
    let mut node = &settings.root;
    for name in path.split('.') {
        let NodeKind::Map(entries) = &node.kind else {
            return None;
        };
        node = &entries.iter().find(|(key, _)| &*key.text == name)?.1;
    }
    Some(text(node))
}

#[test]
fn each_variable_is_the_setting_it_stands_for() {
    for [variables, path, value] in rows(include_str!("tests/settings.txt")) {
        let value = if value == "(empty)" { "" } else { value };
        assert_eq!(
            value_at(&settings_of(&variables_of(variables)), path).as_deref(),
            Some(value),
            "{variables} {path}"
        );
    }
}

#[test]
fn only_grpc_has_the_certificates_that_were_for_grpc() {
    let settings = settings_of(&[
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", "/c.pem"),
        ("GRPC_SERVER_TLS_KEY", "/k.pem"),
        ("GRPC_CLIENT_TLS_CACERT", "/ca.pem"),
        ("GRPC_CLIENT_TLS_SAN", "envoy.example"),
    ]);
    let (config, warnings) = Config::read(&settings).expect("sound settings");
    let tls = config.tls.clone().expect("certificates are named");
    assert_eq!(
        (tls.certificate.to_str(), tls.key.to_str()),
        (Some("/c.pem"), Some("/k.pem"))
    );
    assert_eq!(tls.client_ca.as_deref().and_then(|path| path.to_str()), Some("/ca.pem"));
    assert_eq!(tls.client_names.as_deref(), Some(&["envoy.example".into()][..]));
    assert!(config.has_tls("grpc") && !config.has_tls("http") && !config.has_tls("debug"));
    // Whoever must show a certificate is known; the other two ports are as open as they were.
    let text = text_of(&warnings);
    assert!(!text.contains("0.0.0.0:8081"), "{text}");
    assert!(text.contains("0.0.0.0:8080") && text.contains("0.0.0.0:6070"), "{text}");
}

#[test]
fn it_is_as_open_as_it_was_and_says_how_to_close_it() {
    let (config, warnings) = Config::read(&settings_of(&[])).expect("open is allowed here");
    assert_eq!(
        config.http.map(|address| address.to_string()).as_deref(),
        Some("0.0.0.0:8080")
    );
    assert_eq!((config.resp, config.store), (None, StoreSettings::default()));
    for (listener, is_open) in [("http", true), ("debug", true), ("resp", false)] {
        assert_eq!(config.exposed_as_ratelimit.contains(&listener), is_open, "{listener}");
    }
    let text = text_of(&warnings);
    for wanted in [
        "PORT",
        "GRPC_PORT",
        "DEBUG_PORT",
        "TOLLGATE_SERVER__GRPC=127.0.0.1:8081",
        "ANYONE",
    ] {
        assert!(text.contains(wanted), "{wanted} in {text}");
    }
    // Only what that environment says is.
    let mut other = sources(&[]);
    other.set = vec!["server.http=0.0.0.0:1".into()];
    let refused = Config::read(&other.read().expect("it can be read")).expect_err("it is refused");
    assert!(text_of(&refused).contains("--set server.http"), "{}", text_of(&refused));
}

#[test]
fn what_cannot_be_read_names_its_variable_and_an_example_but_never_a_secret() {
    for [variables, name, example] in rows(include_str!("tests/rejected.txt")) {
        let problems = sources(&variables_of(variables)).read().expect_err(name);
        let text = text_of(&problems);
        assert!(text.contains(&format!("{name}: error: ")), "{name}: {text}");
        assert!(text.contains(example) && !text.contains("hunter2"), "{name}: {text}");
    }
}

#[test]
fn what_has_no_setting_here_is_taken_and_told_of() {
    for (name, value, wanted) in [
        ("CONFIG_GRPC_XDS_SERVER_URL", "x:1", "xDS"),
        ("XDS_CLIENT_BACKOFF_JITTER", "true", "xDS"),
        ("USE_STATSD", "true", "`/metrics`"),
        ("STATSD_HOST", "h", "`/stats`"),
        ("USE_DOG_STATSD", "true", "Datadog"),
        ("EXTRA_TAGS", "a:b", "Datadog"),
        ("USE_PROMETHEUS", "true", "`/metrics` on the HTTP port"),
        ("PROMETHEUS_ADDR", ":9090", "`/metrics` on the HTTP port"),
        ("MEMCACHE_HOST_PORT", "h:1", "Redis or Valkey"),
        ("BACKEND_TYPE", "memcache", "in memory"),
        ("TRACING_ENABLED", "true", "there is no equivalent"),
        ("REDIS_POOL_SIZE", "10", "store.deadline"),
        ("REDIS_PIPELINE_WINDOW", "150us", "store.deadline"),
        ("REDIS_POOL_ON_EMPTY_BEHAVIOR", "CREATE", "store.deadline"),
        ("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "true", "always verified"),
        ("GRPC_MAX_CONNECTION_AGE", "24h", "an hour"),
        ("DISABLE_STATS", "true", "always counted"),
    ] {
        let notes = settings_of(&[(name, value)]).notes;
        let note = notes.iter().find(|note| &*note.location.origin.name == name);
        let text = note.map_or(String::new(), ToString::to_string);
        assert!(text.contains(wanted) && text.contains("warning"), "{name}: {text}");
        assert!(super::is_known(name), "{name}");
    }
    for (name, value) in [
        ("USE_STATSD", "false"),
        ("USE_PROMETHEUS", "false"),
        ("TRACING_ENABLED", "0"),
        ("CONFIG_TYPE", "FILE"),
        ("RUNTIME_WATCH_ROOT", "false"),
        ("RUNTIME_IGNOREDOTFILES", "true"),
    ] {
        let notes = settings_of(&[(name, value), ("REDIS_URL", "r:1")]).notes;
        assert!(notes.is_empty(), "{name}={value}: {}", text_of(&notes));
    }
}

#[test]
fn without_its_root_none_of_it_is_a_setting() {
    let mut sources = sources(&[("PORT", "http"), ("REDIS_URL", "r:1"), ("SHADOW_MODE", "true")]);
    sources.variables.retain(|(name, _)| name != "RUNTIME_ROOT");
    let settings = sources.read().expect("nothing of it is read");
    assert!(settings.static_settings().is_empty() && settings.ratelimit_origins.is_empty());
    // And that is said, once, with the names that are its own.
    let notes = text_of(&settings.notes);
    for wanted in [
        "warning: the variables of envoyproxy/ratelimit have no effect without RUNTIME_ROOT: REDIS_URL, SHADOW_MODE",
        "`RUNTIME_ROOT=/srv/runtime_data/current`",
    ] {
        assert!(settings.notes.len() == 1 && notes.contains(wanted), "{notes}");
    }
    sources.variables.push(("RUNTIME_ROOT".into(), String::new()));
    assert!(
        sources
            .read()
            .expect("an empty one is none")
            .static_settings()
            .is_empty()
    );
}

#[test]
fn limits_over_xds_refuse_to_start_with_and_without_its_root() {
    for (value, expected) in [
        ("GRPC_XDS_SOTW", "cannot be read over xDS"),
        ("ETCD", "unknown source of limits"),
    ] {
        let problems = sources(&[("CONFIG_TYPE", value)]).read().expect_err(value);
        let text = text_of(&problems);
        assert!(
            text.contains("CONFIG_TYPE: error: ") && text.contains(expected),
            "{text}"
        );
    }
    let mut rootless = sources(&[("CONFIG_TYPE", "GRPC_XDS_SOTW")]);
    rootless.variables.retain(|(name, _)| name != "RUNTIME_ROOT");
    let problems = rootless.read().expect_err("it is Envoy Gateway's way");
    assert!(text_of(&problems).contains("cannot be read over xDS"));
}

#[test]
fn variables_that_many_programs_have_cause_no_note() {
    let mut common = sources(&[
        ("PORT", "80"),
        ("HOST", "h"),
        ("LOG_LEVEL", "x"),
        ("CONFIG_TYPE", "FILE"),
    ]);
    common
        .variables
        .retain(|(name, _)| name != "RUNTIME_ROOT" && name != "CONFIG_TYPE");
    assert!(common.read().expect("nothing of it is read").notes.is_empty());
}

#[test]
fn the_file_our_own_variables_and_flags_win_over_it() {
    let mut all = sources(&[
        ("PORT", "1"),
        ("GRPC_PORT", "2"),
        ("REDIS_URL", "r:1"),
        ("SHADOW_MODE", "true"),
    ]);
    all.variables
        .push(("TOLLGATE_SERVER__GRPC".into(), "127.0.0.1:3".into()));
    all.variables
        .push(("TOLLGATE_ENVOY_RULES__STRICT".into(), "true".into()));
    all.set = vec!["store.deadline=5s".into(), "server.http=127.0.0.1:4".into()];
    let settings = all.read().expect("sound settings");
    for (path, value) in [
        ("server.http", "127.0.0.1:4"),
        ("server.grpc", "127.0.0.1:3"),
        ("envoy_rules.strict", "true"),
        ("envoy_rules.shadow_mode", "true"),
        ("store.url", "redis://r:1"),
        ("store.deadline", "5s"),
    ] {
        assert_eq!(value_at(&settings, path).as_deref(), Some(value), "{path}");
    }
    let folder = std::env::temp_dir().join(format!("tollgate-below-{}", std::process::id()));
    std::fs::write(
        &folder,
        "server: { http: 127.0.0.1:5 }\nenvoy_rules: { shadow_mode: false }\n",
    )
    .unwrap();
    let mut below = sources(&[("SHADOW_MODE", "true")]);
    below.file = Some(folder.clone());
    let settings = below.read().expect("sound settings");
    std::fs::remove_file(folder).unwrap();
    for (path, value) in [
        ("server.http", "127.0.0.1:5"),
        ("server.debug", "0.0.0.0:6070"),
        ("envoy_rules.shadow_mode", "false"),
        ("envoy_rules.files", "/data/config/*"),
    ] {
        assert_eq!(value_at(&settings, path).as_deref(), Some(value), "{path}");
    }
}

#[test]
fn the_page_for_its_users_has_every_variable() {
    const PAGE: &str = include_str!("../../../../../../docs/migrating-from-envoy-ratelimit.md");
    let names: Vec<&str> = PAGE.split('`').skip(1).step_by(2).collect();
    for name in super::names::all() {
        let is_named = |word: &&str| match word.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => word.split('=').next() == Some(name),
        };
        assert!(names.iter().any(is_named), "{name}");
    }
}
