//! A server for one test.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tollgate::server::gate::{Gate, Phase};
use tollgate::server::net::listen::{Address, Listener};
use tollgate::server::store::AnyStore;
use tollgate_limiter::clock::Clock;
use tollgate_limiter::core::problem::Origin;
use tollgate_limiter::core::rules::{ParserOptions, RuleSet, RulesParser};
use tollgate_limiter::core::{Timestamp, yaml};
use tollgate_limiter::store::fallback::Fallback;
use tollgate_limiter::store::memory::Memory;
use tollgate_limiter::store::redis::Redis;
use tollgate_limiter::testing::servers::{Server, ServerKind};

/// Sun, 15 Nov 2026 22:34:05 GMT, the time of [`manual_clock`].
pub const NOW_S: u64 = 1_794_782_045;

/// A front end on a port of its own. It stops when it is dropped.
pub struct TestServer {
    pub address: SocketAddr,
    pub gate: Arc<Gate>,
    pub runtime: Runtime,
    /// The clock of a memory store.
    pub clock: Clock,
    /// The server of a shared store.
    pub redis: Option<Server>,
    stop: Option<oneshot::Sender<()>>,
    ended: Option<JoinHandle<()>>,
}

impl TestServer {
    /// Serves `gate` with `serve`, which gets a bound listener and the future that stops it.
    pub fn start<F>(
        gate: impl FnOnce() -> Gate,
        clock: Clock,
        serve: impl FnOnce(Listener, Arc<Gate>, oneshot::Receiver<()>) -> F,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let gate = {
            let _entered = runtime.enter();
            Arc::new(gate())
        };
        gate.advance_phase(Phase::Ready);
        let listener = runtime
            .block_on(Listener::bind(&"127.0.0.1:0".parse().unwrap()))
            .unwrap();
        let Ok(Address::Tcp(address)) = listener.address() else {
            panic!("a TCP listener has a TCP address")
        };
        let (stop, stopped) = oneshot::channel();
        let ended = runtime.spawn(serve(listener, Arc::clone(&gate), stopped));
        Self {
            address,
            gate,
            runtime,
            clock,
            redis: None,
            stop: Some(stop),
            ended: Some(ended),
        }
    }

    /// Starts to drain.
    pub fn stop(&mut self) {
        let _ = self.stop.take().expect("a server is stopped once").send(());
    }

    /// Waits for the end of the server.
    pub fn wait(&mut self) {
        let ended = self.ended.take().expect("an end is awaited once");
        self.runtime.block_on(ended).unwrap();
    }

    /// Waits for the end of the server, which has to come within this time.
    pub fn wait_within(&mut self, time: Duration) {
        let ended = self.ended.take().expect("an end is awaited once");
        let ended = self.runtime.block_on(async { tokio::time::timeout(time, ended).await });
        ended.expect("it ends in time").unwrap();
    }
}

/// A clock that the test moves.
pub fn manual_clock() -> Clock {
    Clock::manual(Timestamp::from_micros(NOW_S * 1_000_000))
}

/// A memory store on this clock.
pub fn memory_store(clock: &Clock) -> AnyStore {
    Arc::new(Memory::options().clock(clock.clone()).build()).into()
}

/// A Redis of its own, and the options of a store on it. The deadline is one that a busy machine keeps.
pub fn redis_store(deadline: Duration) -> (Server, impl FnOnce() -> AnyStore) {
    let redis = Server::start(ServerKind::Redis70);
    let options = Redis::options(&redis.url()).unwrap().deadline(deadline);
    let open = || Arc::new(Fallback::new(Arc::new(options.open()), Default::default())).into();
    (redis, open)
}

/// Compiles the text of a list of rules; empty text is no rules.
pub fn rule_set(rules: &str) -> RuleSet {
    let text = match rules.is_empty() {
        true => "rules: []".to_owned(),
        false => format!("rules:\n{rules}"),
    };
    let node = yaml::parse(&Origin::new("rules.yaml", text)).unwrap_or_else(|problems| panic!("{problems:?}"));
    let mut parser = RulesParser::new(ParserOptions::default());
    parser.add_file(&node);
    let parsed = parser.finish().unwrap_or_else(|problems| panic!("{problems:?}"));
    parsed.rules
}

/// Waits until `condition` holds. A test that waits for nothing fails after half a minute.
#[track_caller]
#[expect(
    clippy::disallowed_methods,
    reason = "a real server does it in its own time; this only bounds the wait"
)]
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(30), "not within 30 s: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
