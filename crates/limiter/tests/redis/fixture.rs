//! A server with stores on it, and a look at what they leave there.

use redis::{Commands, Connection, FromRedisValue};
use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tollgate_core::{Limit, Timestamp};
use tollgate_limiter::store::redis::{Redis, RedisKey, RedisOptions};
use tollgate_limiter::store::{Keyspace, Store};
use tollgate_limiter::testing::admin;
use tollgate_limiter::testing::counters::key;
use tollgate_limiter::testing::servers::{Server, ServerKind};

pub(crate) use tollgate_core::testing::limits::{every_limit, rate};
pub(crate) use tollgate_limiter::testing::admin::query;
pub(crate) use tollgate_limiter::testing::counters::{charge, lease, settle};

/// A server, and the counters that a test has on it.
pub(crate) struct Fixture {
    pub(crate) server: Server,
    counters: Mutex<HashMap<String, Limit>>,
    started: Timestamp,
}

impl Fixture {
    pub(crate) fn start(kind: ServerKind) -> Self {
        Self::on(Server::start(kind))
    }

    pub(crate) fn on(server: Server) -> Self {
        let mut fixture = Self {
            server,
            counters: Mutex::default(),
            started: Timestamp::EPOCH,
        };
        fixture.started = time(&mut fixture.admin());
        fixture
    }

    /// Stores with a deadline that a busy machine keeps.
    pub(crate) fn options(&self) -> RedisOptions {
        let options = Redis::options(&self.server.url()).expect("a URL");
        options.deadline(Duration::from_secs(5))
    }

    /// A connection of our own.
    pub(crate) fn admin(&self) -> Connection {
        admin::connect(&self.server)
    }

    /// Asks the server something.
    pub(crate) fn query<T: FromRedisValue>(&self, text: &[&str]) -> T {
        query(&mut self.admin(), text)
    }

    /// The counter of a subject under a limit, by the limit's name.
    pub(crate) fn counter(&self, store: &Redis, limit: &Limit, subject: &str) -> RedisKey {
        let key = key(store, limit.algorithm(), limit, &[subject.as_bytes()]);
        let mut counters = self.counters.lock().expect("no test panics with it");
        counters.insert(store.key_text(&key), *limit);
        key
    }

    /// Every key of the server is a counter of ours that expires: not before it is fresh, and at most twice that time
    /// and a minute after it was written.
    pub(crate) fn audit(&self) -> usize {
        let mut admin = self.admin();
        let keys: Vec<String> = admin.scan().expect("a scan").map(|key| key.expect("a key")).collect();
        let counters = self.counters.lock().expect("no test panics with it");
        let mut unknown = 0;
        for key in &keys {
            assert!(key.starts_with("tg:{"), "{key} is not ours");
            let mut pipeline = redis::pipe();
            pipeline.atomic().cmd("TIME").cmd("PTTL").arg(key).cmd("GET").arg(key);
            let ((secs, micros), ttl_ms, held): ((u64, u64), i64, Option<Vec<u8>>) =
                pipeline.query(&mut admin).expect("what the key holds");
            let Some(held) = held else { continue };
            assert!(ttl_ms > 0, "{key} has no time to live");
            let Some(limit) = counters.get(key) else {
                // What a server is probed with is no counter: there is one such key for each tag.
                unknown += 1;
                assert!(unknown <= 1 && ttl_ms <= 61_000, "{key} is no counter of this test");
                continue;
            };
            let state = limit.read_packed(&held).expect("a state");
            let now = Timestamp::from_micros(secs * 1_000_000 + micros);
            let fresh_at = limit.fresh_at(&state).expect("a state of this limit");
            let lasts = fresh_at.since(now).get();
            // The server counts milliseconds.
            let ttl = u64::try_from(ttl_ms).expect("positive") * 1_000 + 1_000;
            assert!(ttl >= lasts, "{limit:?}: {ttl} us are less than {lasts}");
            let since_written = now.since(self.started).get();
            let ttl_max = 2 * lasts + since_written + 60_000_000 + 2_000;
            assert!(ttl <= ttl_max, "{limit:?}: {ttl} us are more than {ttl_max}");
        }
        keys.len() - unknown
    }
}

/// What the server's clock shows.
pub(crate) fn time(admin: &mut Connection) -> Timestamp {
    let (secs, micros): (u64, u64) = query(admin, &["TIME"]);
    Timestamp::from_micros(secs * 1_000_000 + micros)
}

/// Why a store finds no server, once it has tried.
pub(crate) async fn connection_error(store: &Redis) -> String {
    let from = Instant::now();
    loop {
        match store.status().connection_error {
            Some(error) if error != "not connected yet" => return error,
            error => assert!(from.elapsed() < Duration::from_secs(5), "{error:?}"),
        }
        sleep(Duration::from_millis(1)).await;
    }
}
