//! Validation of settings over all sections: the values that are read, and the problems of invalid ones.

use super::*;
use crate::server::http::{Gateway, RequestField, RetryAfterFormat};
use std::time::Duration;
use tollgate_limiter::core::problem::Origin;
use tollgate_limiter::core::{Micros, yaml};
use tollgate_limiter::store::fallback;
use tollgate_limiter::store::memory::Overflow;
use tollgate_limiter::store::redis::{BreakerConfig, ClockSource, Functions, OpenFor, ReadFrom};
use tollgate_test_kit::table::rows;

/// The settings of a text, and everything that is said of them.
pub(crate) fn read(text: &str) -> (Option<Config>, String) {
    let origin = Origin::new("conf/tollgate.yaml", text);
    let mut root = yaml::parse(&origin).expect("the text is YAML");
    if root.is_null() {
        root.kind = yaml::NodeKind::Map(Vec::new());
    }
    let file = Some(ConfigFile {
        path: "conf/tollgate.yaml".into(),
        origin,
    });
    let messages = |problems: Vec<Problem>| problems.iter().map(ToString::to_string).collect();
    match Config::read(&RawSettings {
        root,
        file,
        ..RawSettings::empty()
    }) {
        Ok((config, warnings)) => (Some(config), messages(warnings)),
        Err(problems) => (None, messages(problems)),
    }
}

pub(crate) fn accepted(text: &str) -> Config {
    let (config, messages) = read(text);
    config.unwrap_or_else(|| panic!("{text} was refused: {messages}"))
}

fn accepted_redis(text: &str) -> RedisSettings {
    match accepted(text).store {
        StoreSettings::Redis(redis) => redis,
        StoreSettings::Memory(_) => panic!("a memory store: {text}"),
    }
}

fn memory_settings(store: StoreSettings) -> MemorySettings {
    match store {
        StoreSettings::Memory(memory) => memory,
        StoreSettings::Redis(_) => panic!("a shared store"),
    }
}

#[test]
fn nothing_written_means_the_defaults() {
    let config = accepted("");
    assert_eq!(
        config.grpc.map(|address| address.to_string()).as_deref(),
        Some("127.0.0.1:8081")
    );
    assert_eq!(
        config.http.map(|address| address.to_string()).as_deref(),
        Some("127.0.0.1:8080")
    );
    assert_eq!(
        config.resp.map(|address| address.to_string()).as_deref(),
        Some("127.0.0.1:6380")
    );
    assert_eq!(
        (
            config.admin.map(|address| address.to_string()).as_deref(),
            config.admin_is_configured
        ),
        (Some("127.0.0.1:8090"), false)
    );
    assert!(config.resp_password.is_none() && config.resp_idle_timeout.is_none());
    assert_eq!(config.store, StoreSettings::default());
    assert_eq!(config.drain, Duration::from_secs(10));
    assert_eq!(config.headers, Dialects::default());
    assert_eq!(config.retry_after, RetryAfter::default());
    assert_eq!(config.limits, HttpLimits::default());
    assert_eq!(config.ipv6_prefix, 64);
    assert!(config.tokens.is_none() && config.tls.is_none());
    assert_eq!(
        (config.data_dir.path.to_str(), config.data_dir.is_configured),
        (Some("conf/tollgate-data"), false)
    );
    // Sections that are there and empty are not there.
    accepted("server:\ncontrol:\nadmin:\nstore:\nauth:\nheaders:\ndrain:\n");
}

#[test]
fn what_is_written_is_meant() {
    let config = accepted(
        "server:\n  http: '[::1]:0'\n  grpc: disabled\n  tls: { cert: a.pem, key: /etc/a.key, client_ca: ca.pem, client_names: [proxy.example] }\n\
         \x20 limits: { connections: 7, connections_per_address: 6, headers: 8, header_bytes: 32KiB, header_timeout: 3s, idle_timeout: 4s, body_timeout: 5s, streams: 9 }\n\
         store: { url: memory, max_memory: 2GiB, snapshot: counters, overflow: deny }\n\
         data_dir: ../data\ndrain: 500ms\nheaders: [draft07, x-unix]\nretry_after: { jitter: 2.5%, format: date }\n\
         log: warn\nipv6_prefix: 56\nkey_secret: hush\nrules: []\n",
    );
    assert_eq!(
        config.http.map(|address| address.to_string()).as_deref(),
        Some("[::1]:0")
    );
    let tls = config.tls.expect("certificates are named");
    assert_eq!(tls.certificate.to_str(), Some("conf/a.pem"));
    assert_eq!(tls.key.to_str(), Some("/etc/a.key"));
    assert_eq!(tls.client_names.as_deref(), Some(&["proxy.example".into()][..]));
    assert_eq!(config.grpc, None);
    let bounds = config.limits;
    assert_eq!(
        (bounds.connections, bounds.headers, bounds.header_bytes, bounds.streams),
        (7, 8, 32 << 10, 9)
    );
    assert_eq!(bounds.connections_per_address, 6);
    assert_eq!(
        [bounds.header_timeout, bounds.idle_timeout, bounds.body_timeout].map(|timeout| timeout.as_secs()),
        [3, 4, 5]
    );
    let memory = memory_settings(config.store);
    assert_eq!((memory.max_memory, memory.overflow), (2 << 30, Overflow::Deny));
    assert_eq!(memory.snapshot, Some(SnapshotPath::InDataDir("counters".into())));
    assert_eq!(
        (config.data_dir.path.to_str(), config.data_dir.is_configured),
        (Some("conf/../data"), true)
    );
    assert_eq!(config.drain, Duration::from_millis(500));
    assert_eq!(config.headers, Dialects::from_names(["draft07", "x-unix"]).unwrap());
    assert_eq!(
        (config.retry_after.jitter_ppm, config.retry_after.format),
        (25_000, RetryAfterFormat::Date)
    );
    assert_eq!(config.ipv6_prefix, 56);
}

#[test]
fn the_admin_api_is_at_its_default_at_an_address_or_nowhere() {
    let admin = |text: &str| {
        let config = accepted(text);
        (
            config.admin.map(|address| address.to_string()),
            config.admin_is_configured,
        )
    };
    assert_eq!(admin("server: { admin: '[::1]:0' }"), (Some("[::1]:0".into()), true));
    assert_eq!(admin("server: { admin: disabled }"), (None, false));
    // A control service that decides nothing.
    accepted("server: { http: disabled, grpc: disabled, resp: disabled, admin: 127.0.0.1:8090 }");
    let config = accepted("server: { tls: { cert: a, key: b, only: admin } }");
    assert!(config.has_tls("admin") && !config.has_tls("http"));
}

#[test]
fn a_snapshot_is_in_the_data_folder_or_where_its_path_says() {
    for (text, expected) in [
        ("counters", SnapshotPath::InDataDir("counters".into())),
        ("./counters", SnapshotPath::At("conf/./counters".into())),
        ("a/b", SnapshotPath::At("conf/a/b".into())),
        ("/var/lib/counters", SnapshotPath::At("/var/lib/counters".into())),
        ("..", SnapshotPath::At("conf/..".into())),
    ] {
        let memory = memory_settings(accepted(&format!("store: {{ snapshot: {text} }}")).store);
        assert_eq!(memory.snapshot, Some(expected), "{text}");
    }
}

#[test]
fn what_means_nothing_is_refused_with_its_place_and_what_to_write() {
    for [text, location, expected] in rows(include_str!("tests/rejected.txt")) {
        let (config, messages) = read(text);
        assert!(config.is_none(), "{text} was taken");
        assert!(
            messages.contains(&format!("{location}: error: ")) && messages.contains(expected),
            "{text}: {messages}"
        );
    }
}

#[test]
fn settings_that_have_no_effect_are_reported() {
    for (text, expected) in [
        (
            "attributes: { merchant: header:x-merchant-id, ip: client_ip }",
            "has no effect without `forward_auth`",
        ),
        (
            "trusted_proxies: [10.0.0.0/8, '::1']",
            "has no effect without `forward_auth`",
        ),
    ] {
        let (config, messages) = read(text);
        assert!(config.is_some() && messages.contains(expected), "{text}: {messages}");
    }
}

#[test]
fn gateways_are_as_they_are_written() {
    let forward = accepted(
        "forward_auth: { gateway: nginx }\ntrusted_proxies: [10.0.0.0/8, '::1']\n\
         attributes: { merchant: header:X-Merchant-Id, endpoint: path, ip: client_ip }",
    )
    .forward
    .expect("a gateway is named");
    assert_eq!(forward.gateway, Gateway::Nginx);
    assert!(forward.trusted_proxies.contains("10.1.2.3".parse().unwrap()));
    assert!(forward.trusted_proxies.contains("::1".parse().unwrap()));
    assert!(!forward.trusted_proxies.contains("127.0.0.1".parse().unwrap()));
    let merchant = RequestField::from_name("header:x-merchant-id").expect("a header");
    assert_eq!(
        forward.attributes,
        [
            ("path".into(), RequestField::Path),
            ("method".into(), RequestField::Method),
            ("host".into(), RequestField::Host),
            ("merchant".into(), merchant),
            ("endpoint".into(), RequestField::Path),
            ("ip".into(), RequestField::ClientIp),
        ]
    );
    let plain = accepted("forward_auth: { gateway: caddy }\ntrusted_proxies: []").forward;
    let plain = plain.expect("a gateway is named");
    assert_eq!(plain.attributes, Forward::default_attributes());
    assert!(plain.trusted_proxies.is_empty());
}

#[test]
fn attributes_are_added_to_the_default_in_every_layer() {
    let folder = std::env::temp_dir().join(format!("tollgate-attributes-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder can be made");
    let file = folder.join("tollgate.yaml");
    std::fs::write(
        &file,
        "forward_auth: { gateway: nginx, unknown_domain: allow }\ntrusted_proxies: []\n\
         attributes: { merchant: header:x-merchant-id, host: none }\n",
    )
    .expect("it can be written");
    let sources = Sources {
        file: Some(file),
        variables: vec![
            ("TOLLGATE_ATTRIBUTES__ENDPOINT".into(), "path".into()),
            ("TOLLGATE_ATTRIBUTES__METHOD".into(), "none".into()),
        ],
        store: None,
        set: vec!["attributes.ip=none".into(), "attributes.points=caller".into()],
    };
    let raw = sources.read().expect("every layer can be read");
    std::fs::remove_dir_all(&folder).expect("it can be removed");
    let (config, _) = Config::read(&raw).expect("it is valid");
    let forward = config.forward.expect("a gateway is named");
    assert_eq!(forward.unknown_domain, crate::server::http::UnknownDomainPolicy::Allow);
    let names: Vec<&str> = forward.attributes.iter().map(|(name, _)| &**name).collect();
    assert_eq!(names, ["path", "merchant", "endpoint"]);
    let known: Vec<&str> = config.known_attributes.names.iter().map(|name| &**name).collect();
    assert_eq!(known, ["path", "merchant", "endpoint", "points"]);
}

#[test]
fn attributes_of_all_callers_are_known_if_only_a_gateway_asks() {
    let closed = "server: { grpc: disabled, resp: disabled }\n";
    let gateway = "forward_auth: { gateway: nginx }\n";
    for (text, expected) in [
        (String::new(), Coverage::Unknown),
        (closed.to_owned(), Coverage::Unknown),
        (gateway.to_owned(), Coverage::Partial),
        (format!("{gateway}server: {{ grpc: disabled }}\n"), Coverage::Partial),
        (format!("{closed}{gateway}"), Coverage::Complete),
    ] {
        assert_eq!(accepted(&text).known_attributes.coverage, expected, "{text}");
    }
    let known = accepted("forward_auth: { gateway: nginx }\nattributes: { tier: header:x-tier, kind: caller }");
    assert_eq!(known.known_attributes.from_headers, [Box::from("tier")]);
}

#[test]
fn settings_that_let_clients_share_or_multiply_their_counters_are_told_of() {
    let trusting = "forward_auth: { gateway: caddy }\ntrusted_proxies: [127.0.0.1]\n";
    for (text, expected) in [
        (
            "forward_auth: { gateway: caddy }".to_owned(),
            Some("the address of the gateway in every request"),
        ),
        (
            "forward_auth: { gateway: caddy }\nattributes: { path: path }".to_owned(),
            Some("the address of the gateway in every request"),
        ),
        (
            "forward_auth: { gateway: caddy }\nattributes: { ip: none }".to_owned(),
            None,
        ),
        (
            format!("{trusting}attributes: {{ who: client_ip }}"),
            Some("each IPv6 address is counted separately"),
        ),
        (format!("{trusting}attributes: {{ remote_addr: client_ip }}"), None),
    ] {
        let (config, messages) = read(&text);
        assert!(config.is_some(), "{text}: {messages}");
        assert_eq!(messages.is_empty(), expected.is_none(), "{text}: {messages}");
        assert!(messages.contains(expected.unwrap_or_default()), "{text}: {messages}");
    }
}

#[test]
fn what_holds_while_a_shared_store_is_away_is_as_it_is_written() {
    let redis = accepted_redis("store: redis://h");
    assert_eq!(
        (redis.breaker, redis.fallback),
        (BreakerConfig::default(), fallback::FallbackOptions::default())
    );
    let other = accepted_redis(
        "store: { url: 'redis://h', deadline: 20ms, decision_deadline: 30ms, instances: 3, fallback_share: 50%, \
         mode: local_only, breaker: { failures: 7, within: 5s, open_for: 30s } }",
    );
    let breaking = BreakerConfig {
        failures: 7,
        within: Micros::from_secs(5),
        open_for: OpenFor::Fixed(Micros::from_secs(30)),
    };
    assert_eq!(other.breaker, breaking);
    let fallback = fallback::FallbackOptions {
        share_millionths: 500_000,
        instances: Some(3),
        mode: tollgate_limiter::store::StoreMode::LocalOnly,
        compensation_timeout: Duration::from_millis(10),
        ..fallback::FallbackOptions::default()
    };
    assert_eq!(other.fallback, fallback);
    assert!(!redis.differs_only_in_mode(&other));
    let switched = accepted_redis("store: { url: 'redis://h', mode: shared_only }");
    assert!(redis.differs_only_in_mode(&switched) && redis != switched);
}

#[test]
fn a_shared_store_is_as_it_is_written() {
    let redis = accepted_redis("store: redis://user:hunter2@h:6379/3");
    assert_eq!(
        (redis.deadline, redis.clock),
        (Duration::from_millis(10), ClockSource::Server)
    );
    assert_eq!((&*redis.prefix, redis.tags, redis.near_cache), ("tg", 64, true));
    assert_eq!(
        (redis.read_from, redis.start_wait),
        (ReadFrom::Primary, Duration::from_secs(1))
    );
    let redis = accepted_redis(
        "store: { url: 'redis+unix:///run/redis.sock', deadline: 20ms, start_wait: 3s, clock: client, skew_tolerance: 50ms, \
         functions: off, prefix: shop, tags: 128, near_cache: false, read_from: replica }",
    );
    let skew_tolerance = Micros::from_millis(50);
    assert_eq!(
        (redis.deadline, redis.clock),
        (Duration::from_millis(20), ClockSource::Client { skew_tolerance })
    );
    assert_eq!((redis.functions, redis.read_from), (Functions::Off, ReadFrom::Replica));
    assert_eq!(redis.start_wait, Duration::from_secs(3));
    assert_eq!((&*redis.prefix, redis.tags, redis.near_cache), ("shop", 128, false));
    assert!(redis.options().is_ok());
    for text in [
        "store: { url: 'redis+sentinel://h1:26379,h2:26379/mymaster', sentinel_password: hush }",
        "store: { url: 'redis+cluster://user:hush@h1:7000,h2:7001', tags: 1024 }",
        "store: 'rediss+cluster://h1:7000'",
    ] {
        let redis = accepted_redis(text);
        assert!(redis.options().is_ok(), "{text}");
    }
}

#[test]
fn all_that_is_wrong_is_told_at_once() {
    let (_, messages) = read("sevrer: {}\ndrain: soon\nstore: { url: x, overflow: y }\nheaders: z\n");
    assert_eq!(messages.matches(": error: ").count(), 5, "{messages}");
}

#[test]
fn whoever_can_be_reached_from_outside_must_know_whom_he_answers() {
    let tokens = "auth: { tokens: [{ name: shop, token: 0123456789abcdef }] }";
    let password = "auth: { resp_password: 0123456789abcdef }";
    let tls = |client_ca: &str| format!("tls: {{ cert: a, key: b{client_ca} }}");
    for (text, is_accepted) in [
        ("server: { http: 127.0.0.1:0 }".to_owned(), true),
        ("server: { http: unix:/run/tollgate.sock }".to_owned(), true),
        ("server: { http: 0.0.0.0:0 }".to_owned(), false),
        ("server: { http: '[::]:0' }".to_owned(), false),
        ("server: { grpc: 0.0.0.0:0 }".to_owned(), false),
        (format!("server: {{ http: 0.0.0.0:0 }}\n{tokens}"), true),
        ("server: { resp: 0.0.0.0:0 }".to_owned(), false),
        (format!("server: {{ resp: 0.0.0.0:0 }}\n{tokens}"), true),
        (format!("server: {{ resp: 0.0.0.0:0 }}\n{password}"), true),
        (format!("server: {{ http: 0.0.0.0:0 }}\n{password}"), false),
        (format!("server: {{ http: 0.0.0.0:0, {} }}", tls("")), false),
        (
            format!("server: {{ http: 0.0.0.0:0, {} }}", tls(", client_ca: c")),
            true,
        ),
    ] {
        let (config, messages) = read(&text);
        assert_eq!(config.is_some(), is_accepted, "{text}: {messages}");
        assert!(is_accepted || messages.contains("tokens_file"), "{messages}");
    }
}

#[test]
fn no_secret_is_repeated_in_what_is_said() {
    check_kept_secret(&[
        "auth: { tokens: [{ name: a, token: hunter2 }] }",
        "store: 'rediss://user:hunter2@[::1'",
        "store: { url: 'wrong://user:hunter2@h' }",
        "store: { url: 'redis://h', sentinel_password: [hunter2] }",
        "key_secret: [hunter2]",
        "auth: { resp_password: [hunter2] }",
        "auth: { resp_password: hunter2 }",
    ]);
}

/// Settings with the secret `hunter2` that are rejected, and no message repeats it.
pub(crate) fn check_kept_secret(texts: &[&str]) {
    for text in texts {
        let (config, messages) = read(text);
        assert!(config.is_none() && !messages.contains("hunter2"), "{text}: {messages}");
    }
}

#[test]
fn every_secret_may_stand_in_a_file_and_not_in_two_places() {
    let folder = std::env::temp_dir().join(format!("tollgate-secrets-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let secret = file("secret", "a-secret-of-many-bytes\r\n");
    let lines = file("lines", "a-secret-of-many-bytes\nanother-line\n");
    let empty = file("empty", "\n");
    type Text = fn(&str, &str) -> String;
    let settings: [(&str, Text); 5] = [
        ("password", |key, value| {
            format!("store: {{ url: 'redis://h', {key}: '{value}' }}")
        }),
        ("sentinel_password", |key, value| {
            format!("store: {{ url: 'redis+sentinel://h:1/name', {key}: '{value}' }}")
        }),
        ("key_secret", |key, value| {
            format!("store: 'redis://h'\n{key}: '{value}'")
        }),
        ("resp_password", |key, value| format!("auth: {{ {key}: '{value}' }}")),
        ("token", |key, value| {
            format!("auth: {{ tokens: [{{ name: shop, {key}: '{value}' }}] }}")
        }),
    ];
    for (key, text) in settings {
        let file_key = format!("{key}_file");
        let written = accepted(&text(key, "a-secret-of-many-bytes"));
        for path in [&secret, &lines] {
            let (read, messages) = read(&text(&file_key, path));
            let read = read.unwrap_or_else(|| panic!("{messages}"));
            assert_eq!(read.store, written.store, "{file_key}");
            let digests = |config: &Config| {
                let keyring = config.tokens.as_ref().or(config.resp_password.as_ref());
                keyring.map(|tokens| tokens.caller(b"a-secret-of-many-bytes").is_some())
            };
            assert_eq!(digests(&read), digests(&written), "{file_key}");
            assert_eq!(
                messages.contains("only its first line is used"),
                *path == lines,
                "{messages}"
            );
            assert!(
                !messages.contains("a-secret-of") && !messages.contains("another-line"),
                "{messages}"
            );
        }
        for (path, expected) in [
            (&*empty, "its first line is empty"),
            ("/no/such/file", "/no/such/file: cannot be read"),
        ] {
            let (config, messages) = read(&text(&file_key, path));
            assert!(config.is_none(), "{file_key}: {path}");
            assert!(
                messages.contains(&format!("`{file_key}`: ")) && messages.contains(expected),
                "{messages}"
            );
        }
        let both = text(&format!("{key}: hunter2-hunter2-hunter2, {file_key}"), &secret);
        let both = both.replace("hunter2, key_secret_file", "hunter2\nkey_secret_file");
        let (config, messages) = read(&both);
        assert!(config.is_none() && messages.contains(&file_key), "{messages}");
        assert!(!messages.contains("hunter2"), "{messages}");
    }
    let (config, messages) = read(&format!(
        "store: {{ url: 'redis://u:hunter2@h', password_file: '{secret}' }}"
    ));
    assert!(
        config.is_none() && messages.contains("set twice") && !messages.contains("hunter2"),
        "{messages}"
    );
    let user = accepted(&format!("store: {{ url: 'redis://u@h', password_file: '{secret}' }}"));
    assert!(
        matches!(user.store, StoreSettings::Redis(redis) if redis.options().is_ok_and(|options| options.has_password()))
    );
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn tls_may_be_for_some_listeners_only_and_the_others_must_be_guarded_otherwise() {
    let tls = |only: &str| format!("{{ cert: a, key: b, client_ca: c{only} }}");
    let all = accepted(&format!("server: {{ http: 0.0.0.0:1, tls: {} }}", tls("")));
    assert!(all.has_tls("http") && all.has_tls("grpc"));
    let some = accepted(&format!("server: {{ grpc: 0.0.0.0:1, tls: {} }}", tls(", only: grpc")));
    assert!(some.has_tls("grpc") && !some.has_tls("http") && !accepted("").has_tls("grpc"));
    let (config, messages) = read(&format!(
        "server: {{ http: 0.0.0.0:1, grpc: 0.0.0.0:2, tls: {} }}",
        tls(", only: [grpc]")
    ));
    assert!(
        config.is_none() && messages.contains("can reach 0.0.0.0:1,") && !messages.contains("can reach 0.0.0.0:2"),
        "{messages}"
    );
    let (config, messages) = read(&format!("server: {{ tls: {} }}", tls(", only: [grcp]")));
    assert!(
        config.is_none() && messages.contains("did you mean `grpc`?"),
        "{messages}"
    );
    let (config, messages) = read("server: { debug: 0.0.0.0:1 }");
    assert!(
        config.is_none() && messages.contains("can reach 0.0.0.0:1,"),
        "{messages}"
    );
}
