//! The settings of `envoy_rules`, read from a configuration file.

use super::{CompatModes, HeaderNames, RatelimitCounterSettings};
use crate::config::tests::{accepted, read};
use crate::config::{LogFormat, StoreSettings};
use std::time::Duration;

#[test]
fn counters_of_envoyproxy_are_kept_as_is_said() {
    let counters = |text: &str| match accepted(text).store {
        StoreSettings::Redis(redis) => redis.ratelimit_counters,
        StoreSettings::Memory(_) => panic!("{text}"),
    };
    assert_eq!(counters("store: redis://a"), None);
    for plain in ["[a.yaml]", "{ files: a.yaml }", "{ files: a.yaml, counters: {} }"] {
        let text = format!("store: redis://a\nenvoy_rules: {plain}");
        assert_eq!(counters(&text), Some(RatelimitCounterSettings::default()), "{plain}");
    }
    let all = counters(
        "store: redis://a\nenvoy_rules:\n  files: a.yaml\n  counters:\n    prefix: 'rl:'\n    jitter: 0s\n    local_cache: 1MiB\n    \
         stop_when_over: true\n    per_second: { url: 'redis+cluster://b', deadline: 20ms }\n",
    );
    let all = all.expect("counters");
    assert_eq!(
        (&*all.prefix, all.jitter, all.local_cache, all.stop_when_over),
        ("rl:", 0, 1 << 20, true)
    );
    assert_eq!(all.per_second.expect("a server").deadline, Duration::from_millis(20));
    for (counters, what) in [
        ("{ jitter: 1500ms }", "write whole seconds"),
        ("{ jitter: 300 }", "300"),
        ("{ per_second: memory }", "this is not a Redis server"),
        ("{ per_second: 'http://a' }", "unknown store"),
        ("{ prefx: a }", "did you mean `prefix`"),
        ("7", "`counters` of `envoy_rules`"),
    ] {
        let (config, messages) = read(&format!(
            "store: redis://a\nenvoy_rules: {{ files: a.yaml, counters: {counters} }}"
        ));
        assert!(config.is_none() && messages.contains(what), "{counters}: {messages}");
    }
    let (config, messages) = read("envoy_rules: { files: a.yaml, counters: { prefix: x } }");
    assert!(
        config.is_some() && messages.contains("has no effect with the memory store"),
        "{messages}"
    );
}

#[test]
fn how_files_of_envoyproxys_ratelimit_are_answered_is_as_it_is_written() {
    assert_eq!(accepted("").debug, None);
    assert_eq!(accepted("").ratelimit_modes, CompatModes::default());
    let config = accepted("envoy_rules: [a.yaml]");
    let debug = config.debug.map(|address| address.to_string());
    assert_eq!(
        (debug.as_deref(), config.ratelimit_modes),
        (Some("127.0.0.1:6070"), CompatModes::default())
    );
    let off = accepted("server: { debug: disabled }\nenvoy_rules: [a.yaml]");
    assert_eq!(off.debug, None);
    let own = accepted("server: { debug: '127.0.0.1:7' }")
        .debug
        .map(|address| address.to_string());
    assert_eq!(own.as_deref(), Some("127.0.0.1:7"));
    let config = accepted(
        "log_format: json\nenvoy_rules: { files: a.yaml, shadow_mode: true, healthy_with_rules: true, healthy_with_store: true, response_headers: { reset: X-Reset }, \
         prometheus_names: true, json_errors_as_400: true }",
    );
    let names = HeaderNames {
        reset: "X-Reset".into(),
        ..HeaderNames::default()
    };
    let modes = CompatModes {
        shadow: true,
        healthy_with_rules: true,
        healthy_with_store: true,
        headers: Some(names),
        prometheus_names: true,
        json_errors_as_400: true,
    };
    assert_eq!((config.ratelimit_modes, config.log_format), (modes, LogFormat::Json));
    let on = accepted("envoy_rules: { files: a.yaml, response_headers: true }").ratelimit_modes;
    assert_eq!(on.headers, Some(HeaderNames::default()));
}
