//! A server for one test: on a port of its own, on the embedded store with a clock that the test moves, or on a real Redis.

use crate::client::Client;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tollgate::server::gate::{Gate, Phase};
use tollgate::server::net::listen::{Address, Listener};
use tollgate::server::resp::{self, RespSettings};
use tollgate::server::store::AnyStore;
use tollgate_limiter::clock::Clock;
use tollgate_limiter::core::problem::Origin;
use tollgate_limiter::core::rules::{ParserOptions, RuleSet, RulesParser};
use tollgate_limiter::core::{Timestamp, yaml};
use tollgate_limiter::store::fallback::Fallback;
use tollgate_limiter::store::memory::Memory;
use tollgate_limiter::store::redis::Redis;
use tollgate_limiter::testing::servers;

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) clock: Clock,
    pub(crate) gate: Arc<Gate>,
    pub(crate) runtime: Runtime,
    stop: Option<oneshot::Sender<()>>,
    ended: Option<JoinHandle<()>>,
    pub(crate) redis: Option<servers::Server>,
}

impl Server {
    /// On the embedded store, without rules and with the default settings.
    pub(crate) fn start() -> Self {
        Self::start_with("", RespSettings::default())
    }

    pub(crate) fn start_with(rules: &str, settings: RespSettings) -> Self {
        let clock = Clock::manual(Timestamp::from_micros(1_794_782_045_000_000));
        let store = Arc::new(Memory::options().clock(clock.clone()).build());
        Self::over(|| store.into(), rules, settings, clock, None)
    }

    /// On a Redis of its own, with a deadline that a busy machine keeps.
    pub(crate) fn start_shared(rules: &str) -> Self {
        Self::start_shared_with(rules, RespSettings::default(), Duration::from_secs(5))
    }

    /// The same with other settings, and another deadline.
    pub(crate) fn start_shared_with(rules: &str, settings: RespSettings, deadline: Duration) -> Self {
        let redis = servers::Server::start(servers::ServerKind::Redis70);
        let options = Redis::options(&redis.url()).unwrap().deadline(deadline);
        let clock = Clock::manual(Timestamp::EPOCH);
        let open = || Arc::new(Fallback::new(Arc::new(options.open()), Default::default())).into();
        Self::over(open, rules, settings, clock, Some(redis))
    }

    /// One of each.
    pub(crate) fn both(rules: &str) -> [Self; 2] {
        [
            Self::start_with(rules, RespSettings::default()),
            Self::start_shared(rules),
        ]
    }

    fn over(
        store: impl FnOnce() -> AnyStore,
        rules: &str,
        settings: RespSettings,
        clock: Clock,
        redis: Option<servers::Server>,
    ) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let gate = {
            let _inside = runtime.enter();
            Arc::new(Gate::new(rule_set(rules), store()))
        };
        gate.advance_phase(Phase::Ready);
        let listener = runtime
            .block_on(Listener::bind(&"127.0.0.1:0".parse().unwrap()))
            .unwrap();
        let Ok(Address::Tcp(address)) = listener.address() else {
            panic!("a TCP listener has a TCP address")
        };
        let (stop, stopped) = oneshot::channel();
        let ended = runtime.spawn(resp::serve(listener, Arc::clone(&gate), settings, async {
            let _ = stopped.await;
        }));
        Self {
            address,
            clock,
            gate,
            runtime,
            stop: Some(stop),
            ended: Some(ended),
            redis,
        }
    }

    pub(crate) fn connect(&self) -> Client {
        Client::connect(self.address)
    }

    /// Begins to drain.
    pub(crate) fn stop(&mut self) {
        let _ = self.stop.take().expect("a server is stopped once").send(());
    }

    /// Waits for the end of the server.
    pub(crate) fn wait(&mut self) {
        let ended = self.ended.take().expect("an end is waited for once");
        self.runtime.block_on(ended).unwrap();
    }
}

fn rule_set(rules: &str) -> RuleSet {
    let text = if rules.is_empty() {
        "rules: []".to_owned()
    } else {
        format!("rules:\n{rules}")
    };
    let node = yaml::parse(&Origin::new("rules.yaml", text)).unwrap_or_else(|problems| panic!("{problems:?}"));
    let mut reader = RulesParser::new(ParserOptions::default());
    reader.add_file(&node);
    let read = reader.finish().unwrap_or_else(|problems| panic!("{problems:?}"));
    read.rules
}
