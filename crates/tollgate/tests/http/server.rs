//! A server for one test: on a port of its own, with a clock that the test moves.

use crate::client::Client;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tollgate::server::gate::{Gate, Phase};
use tollgate::server::http::{self, HttpSettings, RetryAfter};
use tollgate::server::net::listen::{Address, Listener};
use tollgate_limiter::clock::Clock;
use tollgate_limiter::core::problem::Origin;
use tollgate_limiter::core::rules::{ParserOptions, RuleSet, RulesParser};
use tollgate_limiter::core::{Timestamp, yaml};
use tollgate_limiter::store::memory::Memory;

/// Sun, 15 Nov 2026 22:34:05 GMT.
pub(crate) const NOW_S: u64 = 1_794_782_045;

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) clock: Clock,
    pub(crate) gate: Arc<Gate>,
    pub(crate) runtime: Runtime,
    stop: Option<oneshot::Sender<()>>,
    ended: Option<JoinHandle<()>>,
}

impl Server {
    /// With the default settings, without jitter.
    pub(crate) fn start(rules: &str) -> Self {
        Self::start_with(rules, settings())
    }

    pub(crate) fn start_with(rules: &str, settings: HttpSettings) -> Self {
        Self::start_rules(rule_set(rules), settings)
    }

    pub(crate) fn start_rules(rules: RuleSet, settings: HttpSettings) -> Self {
        let clock = Clock::manual(Timestamp::from_micros(NOW_S * 1_000_000));
        let store = Arc::new(Memory::options().clock(clock.clone()).build());
        let gate = Arc::new(Gate::new(rules, store));
        gate.advance_phase(Phase::Ready);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = runtime
            .block_on(Listener::bind(&"127.0.0.1:0".parse().unwrap()))
            .unwrap();
        let Ok(Address::Tcp(address)) = listener.address() else {
            panic!("a TCP listener has a TCP address")
        };
        let (stop, stopped) = oneshot::channel();
        let ended = runtime.spawn(http::serve(listener, Arc::clone(&gate), settings, async {
            let _ = stopped.await;
        }));
        Self {
            address,
            clock,
            gate,
            runtime,
            stop: Some(stop),
            ended: Some(ended),
        }
    }

    pub(crate) fn connect(&self) -> Client {
        Client::connect(self.address)
    }

    /// Begins to drain.
    pub(crate) fn stop(&mut self) {
        let _ = self.stop.take().expect("a server is stopped once").send(());
    }

    /// Waits for the end of the server, which is to come in this time.
    pub(crate) fn wait_within(&mut self, time: Duration) {
        let ended = self.ended.take().expect("an end is waited for once");
        let ended = self.runtime.block_on(async { tokio::time::timeout(time, ended).await });
        ended.expect("it ends in time").unwrap();
    }

    /// Waits for the end of the server.
    pub(crate) fn wait(&mut self) {
        let ended = self.ended.take().expect("an end is waited for once");
        self.runtime.block_on(ended).unwrap();
    }
}

/// The defaults, without jitter, so that answers are the same every time.
pub(crate) fn settings() -> HttpSettings {
    HttpSettings {
        retry_after: RetryAfter {
            jitter_ppm: 0,
            ..RetryAfter::default()
        },
        ..HttpSettings::default()
    }
}

pub(crate) fn rule_set(rules: &str) -> RuleSet {
    let text = format!("rules:\n{rules}");
    let node = yaml::parse(&Origin::new("rules.yaml", text)).unwrap_or_else(|problems| panic!("{problems:?}"));
    let mut reader = RulesParser::new(ParserOptions::default());
    reader.add_file(&node);
    let read = reader.finish().unwrap_or_else(|problems| panic!("{problems:?}"));
    read.rules
}
