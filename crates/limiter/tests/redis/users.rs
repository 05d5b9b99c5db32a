//! Users and what they may do: enough, too little, and nothing.

use crate::fixture::{Fixture, charge, connection_error, every_limit, lease};
use std::time::Duration;
use tollgate_core::{Limit, Micros};
use tollgate_limiter::store::redis::{Functions, Redis, RedisOptions};
use tollgate_limiter::store::{Store, StoreError};
use tollgate_limiter::testing::servers::{Server, ServerKind};

const PASSWORD: &str = "k4rp-im-teich";

/// What the script does.
const SCRIPT: [&str; 9] = [
    "+time",
    "+get",
    "+mget",
    "+exists",
    "+getrange",
    "+set",
    "+setrange",
    "+pexpireat",
    "+unlink",
];

/// How it gets there and is called.
const BY_SCRIPT: [&str; 3] = ["+script|load", "+evalsha", "+eval"];
const BY_FUNCTION: [&str; 3] = ["+function|list", "+function|load", "+fcall"];

/// A user who may do all of this to our keys, except one thing.
fn make_user(fixture: &Fixture, allowed: &[&str], except: Option<&str>) {
    let mut text = vec!["ACL", "SETUSER", "tollgate", "reset", "on"];
    let password = format!(">{PASSWORD}");
    text.extend([password.as_str(), "~tg:*", "-@all"]);
    text.extend(allowed.iter().filter(|allowed| Some(**allowed) != except));
    fixture.query::<()>(&text);
}

/// The commands for an operator, word by word: for all servers, for those with functions, and for the control plane.
pub(crate) fn documented() -> [Vec<&'static str>; 3] {
    let mut lines = include_str!("../../../../docs/redis.md")
        .lines()
        .filter(|line| line.starts_with("ACL SETUSER tollgate"))
        .map(|line| line.split(' ').collect());
    let commands = [lines.next(), lines.next(), lines.next()].map(|line| line.expect("is documented"));
    assert_eq!(lines.next(), None);
    commands
}

fn options(fixture: &Fixture, password: &str) -> RedisOptions {
    let url = format!("redis://tollgate:{password}@127.0.0.1:{}/", fixture.server.port());
    let options = Redis::options(&url).expect("a URL");
    options.deadline(Duration::from_secs(5))
}

/// Does everything to a counter of every algorithm.
async fn everything(fixture: &Fixture, store: &Redis) {
    for limit in every_limit(5, Micros::from_secs(60)) {
        let keys = ["one", "two"].map(|subject| fixture.counter(store, &limit, subject));
        let one = keys.map(|key| charge(key, &limit, 1));
        let held = lease();
        for _ in 0..3 {
            assert!(store.settle(&one, held).await.outcomes.iter().all(Result::is_ok));
        }
        let peeked = store.peek(&one[..1]).await;
        assert!(peeked.outcomes[0].is_ok());
        let receipt = peeked.outcomes[0].expect("checked").receipt;
        let key = keys[0];
        store.undo(key, &limit, &receipt).await.expect("undone");
        store.refund(&one[0]).await.expect("refunded");
        store.renew(key, &limit, held).await.expect("renewed");
        store.release(key, &limit, held).await.expect("released");
        store.forget(key, &limit).await.expect("cleared");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn little_is_enough() {
    let cases = [
        (ServerKind::Redis70, Functions::Auto, &BY_FUNCTION[..], true),
        (ServerKind::Redis70, Functions::Auto, &BY_SCRIPT, false),
        (ServerKind::Redis62, Functions::Auto, &BY_SCRIPT, false),
        (ServerKind::Valkey, Functions::On, &BY_FUNCTION, true),
        (ServerKind::Valkey, Functions::Off, &BY_SCRIPT, false),
    ];
    for (kind, functions, label, is_function) in cases {
        let fixture = Fixture::start(kind);
        make_user(&fixture, &[&SCRIPT[..], label, &["+info"]].concat(), None);
        let store = options(&fixture, PASSWORD).functions(functions).open();
        let survey = store.diagnose().await.expect("a server");
        assert_eq!(survey.warnings, Vec::<String>::new(), "{kind:?} {functions:?}");
        assert_eq!(survey.is_function, is_function);
        everything(&fixture, &store).await;
        fixture.audit();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_documented_is_enough_also_when_the_script_was_forgotten() {
    for kind in ServerKind::ALL {
        let fixture = Fixture::start(kind);
        let has_functions = kind != ServerKind::Redis62;
        let [for_all, with_functions, _] = documented();
        fixture.query::<()>(&for_all);
        if has_functions {
            fixture.query::<()>(&with_functions);
        }
        let store = options(&fixture, "password").open();
        let survey = store.diagnose().await.expect("a server");
        assert_eq!((survey.warnings, survey.is_function), (Vec::new(), has_functions));
        fixture.query::<()>(if has_functions {
            &["FUNCTION", "FLUSH"]
        } else {
            &["SCRIPT", "FLUSH"]
        });
        everything(&fixture, &store).await;
        assert_eq!(store.metrics().script_loads.get(), 1);
        fixture.audit();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_survey_misses_whatever_is_missing() {
    for kind in [ServerKind::Redis70, ServerKind::Redis62, ServerKind::Valkey] {
        let fixture = Fixture::start(kind);
        for missing in SCRIPT {
            make_user(&fixture, &[&SCRIPT[..], &BY_SCRIPT, &["+info"]].concat(), Some(missing));
            let store = options(&fixture, PASSWORD).functions(Functions::Off).open();
            let survey = store.diagnose().await.expect("a server");
            let [warning] = &survey.warnings[..] else {
                panic!("{kind:?} without {missing}: {:?}", survey.warnings)
            };
            assert!(
                warning.contains("docs/redis.md"),
                "{kind:?} without {missing}: {warning}"
            );
        }
        make_user(&fixture, &[&SCRIPT[..], &BY_SCRIPT].concat(), None);
        let store = options(&fixture, PASSWORD).functions(Functions::Off).open();
        let survey = store.diagnose().await.expect("a server");
        assert!(survey.warnings.len() == 1 && survey.warnings[0].contains("+info"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_may_not_be_read_is_not_taken_for_a_foreign_one() {
    for kind in [ServerKind::Redis70, ServerKind::Redis62, ServerKind::Valkey] {
        let fixture = Fixture::start(kind);
        let allowed = [&SCRIPT[..], &BY_SCRIPT].concat();
        for (missing, algorithm) in [("+get", "token_bucket"), ("+getrange", "sliding_log")] {
            make_user(&fixture, &allowed, Some(missing));
            let store = options(&fixture, PASSWORD).functions(Functions::Off).open();
            let limits = every_limit(5, Micros::from_secs(60));
            let limit: &Limit = limits
                .iter()
                .find(|limit| limit.algorithm() == algorithm)
                .expect("of this name");
            let key = fixture.counter(&store, limit, "unread");
            let settlement = store.settle(&[charge(key, limit, 1)], lease()).await;
            assert!(
                matches!(settlement.outcomes[0], Err(StoreError::Server(_))),
                "{kind:?} {missing}: {settlement:?}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_do_only_what_envoyproxy_ratelimit_does_is_told_what_is_needed() {
    for kind in [ServerKind::Redis70, ServerKind::Redis62, ServerKind::Valkey] {
        let fixture = Fixture::start(kind);
        make_user(&fixture, &["+ping", "+incrby", "+expire", "+get", "+del"], None);
        let store = options(&fixture, PASSWORD).deadline(Duration::from_millis(200)).open();
        for text in [
            connection_error(&store).await,
            store.diagnose().await.expect_err("no script"),
        ] {
            assert!(
                text.contains("+script|load") && text.contains("docs/redis.md"),
                "{text}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_password_is_told_and_not_repeated() {
    let fixture = Fixture::start(ServerKind::Redis70);
    make_user(&fixture, &SCRIPT, None);
    let store = options(&fixture, "wr0ng-and-s3cret")
        .deadline(Duration::from_millis(200))
        .open();
    let limits = every_limit(5, Micros::from_secs(60));
    let key = fixture.counter(&store, &limits[0], "anybody");
    let settlement = store.settle(&[charge(key, &limits[0], 1)], lease()).await;
    assert_eq!(settlement.outcomes, [Err(StoreError::Unavailable)]);
    let connection_error = connection_error(&store).await;
    assert!(connection_error.contains("WRONGPASS"), "{connection_error}");
    let survey = store.diagnose().await.expect_err("no connection");
    for text in [
        connection_error,
        survey,
        format!("{store:?}"),
        format!("{:?}", options(&fixture, "s3cret")),
    ] {
        assert!(!text.contains("s3cret"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_repeats_what_it_was_told_is_not_repeated() {
    for kind in [ServerKind::Redis70, ServerKind::Redis62, ServerKind::Valkey] {
        let server = Server::start_with(kind, &["--rename-command", "HELLO", ""]);
        let url = format!("redis://tollgate:s3cret@127.0.0.1:{}/", server.port());
        let store = Redis::options(&url).expect("a URL").open();
        let connection_error = connection_error(&store).await;
        assert!(
            !connection_error.contains("s3cret") && connection_error.contains("HELLO"),
            "{connection_error}"
        );
    }
}
