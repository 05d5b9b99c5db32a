//! Rules of envoyproxy/ratelimit over a server, and that one's own way to it.

use redis::FromRedisValue;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;
use tollgate_limiter::clock::Clock;
use tollgate_limiter::core::rules::ratelimit::RatelimitOptions;
use tollgate_limiter::core::rules::{Attempt, Attribute, RuleSet};
use tollgate_limiter::core::testing::rules::descriptor_rules;
use tollgate_limiter::core::{Cost, Source, Timestamp};
use tollgate_limiter::store::CounterStore;
use tollgate_limiter::store::redis::{Redis, RedisCountersOptions};
use tollgate_limiter::testing::admin;
use tollgate_limiter::testing::servers::Server;
use tollgate_limiter::{AttemptItem, CheckResult, Direction, RuleLimiter};

pub(crate) use tollgate_limiter::core::testing::rules::attributes as entries;
pub(crate) use tollgate_limiter::testing::eventually as until;

/// 2026-03-14 12:27:17 and a half: within a window of each length, and at the start of none.
pub(crate) const NOW: Timestamp = Timestamp::from_micros(1_773_491_237_500_000);

pub(crate) const FILE: &str = include_str!("fixture.yaml");

pub(crate) fn rules(strict: bool) -> RuleSet {
    let options = RatelimitOptions {
        strict,
        ..RatelimitOptions::default()
    };
    descriptor_rules(FILE, options)
}

/// As that one counts, at a time that stands still.
pub(crate) fn counters() -> RedisCountersOptions {
    RedisCountersOptions {
        clock: Clock::manual(NOW),
        ..RedisCountersOptions::default()
    }
}

/// A store that counts so, with a deadline that a busy machine keeps.
pub(crate) fn open(url: &str, counters: RedisCountersOptions) -> Redis {
    let options = Redis::options(url).expect("a URL");
    options
        .deadline(Duration::from_secs(5))
        .ratelimit_counters(counters)
        .open()
}

pub(crate) fn limiter(url: &str, counters: RedisCountersOptions) -> RuleLimiter<Redis> {
    RuleLimiter::new(rules(false), Arc::new(open(url, counters)))
}

pub(crate) fn attempt<'a>(entries: &'a [Attribute<'a>], hits: u64) -> Attempt<'a> {
    Attempt {
        domain: "shop",
        attributes: entries,
        cost: Cost::from_hits(hits),
    }
}

/// Whether so many hits pass, what remains, and who says so.
pub(crate) async fn hit<S: CounterStore>(limiter: &RuleLimiter<S>, pairs: &[&str], hits: u64) -> (bool, u64, Source) {
    reply(&limiter.check(&attempt(&entries(pairs), hits)).await)
}

pub(crate) fn reply(checked: &CheckResult<'_>) -> (bool, u64, Source) {
    let ruling = &checked.verdict.rulings[0];
    let remaining = ruling.decision.expect("a decision").standing().remaining;
    (checked.verdict.allowed, remaining, checked.verdict.source)
}

/// Whether a request of several descriptors of one entry each passes, and what remains of each.
pub(crate) async fn check_all<S: CounterStore>(limiter: &RuleLimiter<S>, descriptors: &[&str]) -> (bool, Vec<u64>) {
    let all: Vec<_> = descriptors.iter().map(|entry| entries(&[entry])).collect();
    let part = |entries| AttemptItem {
        attempt: attempt(entries, 1),
        direction: Direction::Consume,
        inline_limit: None,
    };
    let parts: Vec<AttemptItem<'_>> = all.iter().map(|entries| part(entries)).collect();
    let combined = limiter.check_all(&parts).await;
    let remaining = combined.items.iter().map(|item| match item {
        tollgate_limiter::ItemVerdict::Rules(verdict) => {
            let decision = verdict.rulings[0].decision.expect("a decision");
            decision.standing().remaining
        }
        tollgate_limiter::ItemVerdict::Inline(..) => panic!("nobody brought a limit"),
    });
    (combined.allowed, remaining.collect())
}

pub(crate) fn query<T: FromRedisValue>(server: &Server, text: &[&str]) -> T {
    admin::query(&mut admin::connect(server), text)
}

/// All keys of a server that are no counters of ours, sorted.
pub(crate) fn keys(server: &Server) -> Vec<String> {
    let keys: Vec<String> = query(server, &["KEYS", "*"]);
    let mut keys: Vec<String> = keys.into_iter().filter(|key| !key.starts_with("tg:{")).collect();
    keys.sort();
    keys
}

/// The number of times a server has run a command.
pub(crate) fn calls(server: &Server, command: &str) -> u64 {
    admin::calls(server, &[command])
}

/// Another instance, as envoyproxy/ratelimit is one: it sends what that sends, and nothing else.
pub(crate) struct Other {
    stream: BufReader<TcpStream>,
}

impl Other {
    pub(crate) fn outcome(server: &Server) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", server.port())).expect("a server");
        stream.set_nodelay(true).expect("a socket");
        Self {
            stream: BufReader::new(stream),
        }
    }

    /// Counts one hit, and says what is counted then.
    pub(crate) fn hit(&mut self, key: &str, lifetime: u32) -> u64 {
        let (length, digits) = (key.len(), lifetime.to_string());
        let text = format!(
            "*3\r\n$6\r\nINCRBY\r\n${length}\r\n{key}\r\n$1\r\n1\r\n\
             *3\r\n$6\r\nEXPIRE\r\n${length}\r\n{key}\r\n${}\r\n{digits}\r\n",
            digits.len(),
        );
        self.stream.get_mut().write_all(text.as_bytes()).expect("a write");
        let counted = self.line();
        assert_eq!(self.line(), ":1");
        counted.strip_prefix(':').expect("a number").parse().expect("a number")
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("a line");
        line.trim_end().to_owned()
    }
}

/// Hears every command that a server is sent.
pub(crate) struct Ear(Other);

impl Ear {
    pub(crate) fn at(server: &Server) -> Self {
        let mut other = Other::outcome(server);
        other.stream.get_mut().write_all(b"MONITOR\r\n").expect("a write");
        assert_eq!(other.line(), "+OK");
        Self(other)
    }

    /// The next so many commands on single keys, as a server writes them.
    pub(crate) fn next(&mut self, count: usize) -> Vec<String> {
        let mut calls_received = Vec::new();
        while calls_received.len() < count {
            let line = self.0.line();
            let (_, text) = line.split_once("] ").expect("a command");
            let is_ours = ["\"INCRBY\"", "\"EXPIRE\"", "\"GET\"", "\"DEL\""];
            if is_ours.iter().any(|name| text.starts_with(name)) && !line.contains("lua]") {
                calls_received.push(text.replace('"', ""));
            }
        }
        calls_received
    }
}
