//! A server for one test.

use std::marker::PhantomData;
use std::net::{SocketAddr, TcpStream};
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

/// A front end that a test serves.
pub trait FrontEnd {
    type Settings: Send + 'static;

    fn serve(
        listener: Listener,
        gate: Arc<Gate>,
        settings: Self::Settings,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> impl Future<Output = ()> + Send + 'static;
}

/// Defines a front end of this name by the function that serves it.
macro_rules! front_end {
    ($name:ident, $settings:ty, $serve:path) => {
        pub struct $name;

        impl crate::server::FrontEnd for $name {
            type Settings = $settings;

            async fn serve(
                listener: tollgate::server::net::listen::Listener,
                gate: std::sync::Arc<tollgate::server::gate::Gate>,
                settings: $settings,
                shutdown: impl Future<Output = ()> + Send + 'static,
            ) {
                $serve(listener, gate, settings, shutdown).await;
            }
        }
    };
}
pub(crate) use front_end;

/// A front end on a port of its own. It stops when it is dropped.
pub struct TestServer<F> {
    pub address: SocketAddr,
    pub gate: Arc<Gate>,
    pub runtime: Runtime,
    /// The clock of a memory store.
    pub clock: Clock,
    /// The server of a shared store.
    pub redis: Option<Server>,
    stop: Option<oneshot::Sender<()>>,
    ended: Option<JoinHandle<()>>,
    front_end: PhantomData<F>,
}

impl<F: FrontEnd> TestServer<F> {
    /// Over a store that is made inside a runtime.
    pub fn over(store: impl FnOnce() -> AnyStore, clock: &Clock, rules: RuleSet, settings: F::Settings) -> Self {
        Self::serve(|| Gate::new(rules, store()), clock, settings)
    }

    pub fn start_with(rules: &str, settings: F::Settings) -> Self {
        Self::over_memory(rule_set(rules), settings)
    }

    /// Over a memory store on a clock that the test moves.
    pub fn over_memory(rules: RuleSet, settings: F::Settings) -> Self {
        let clock = manual_clock();
        Self::over(|| memory_store(&clock), &clock, rules, settings)
    }

    /// Serves a gate that is made inside a runtime.
    pub fn serve(gate: impl FnOnce() -> Gate, clock: &Clock, settings: F::Settings) -> Self {
        let runtime = one_thread_runtime();
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
        let stopped = async {
            let _ = stopped.await;
        };
        let ended = runtime.spawn(F::serve(listener, Arc::clone(&gate), settings, stopped));
        Self {
            address,
            gate,
            runtime,
            clock: clock.clone(),
            redis: None,
            stop: Some(stop),
            ended: Some(ended),
            front_end: PhantomData,
        }
    }
}

impl<F> TestServer<F> {
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

/// A runtime with one thread.
pub fn one_thread_runtime() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(1).enable_all().build().unwrap()
}

/// A connection on which a read that waits for nothing fails instead of hanging: the timeout is far beyond what anything takes.
pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
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

/// Requires lines of the metrics.
#[track_caller]
pub fn assert_metrics(gate: &Gate, lines: &[&str]) {
    let metrics = gate.metrics_text();
    for line in lines {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
}

/// Waits until `condition` holds. A test that waits for nothing fails after half a minute.
#[track_caller]
pub fn eventually(what: &str, condition: impl FnMut() -> bool) {
    eventually_within(what, Duration::from_secs(30), condition);
}

/// The same with another bound, for what real servers take longer for.
#[track_caller]
#[expect(
    clippy::disallowed_methods,
    reason = "a real server does it in its own time; this only bounds the wait"
)]
pub fn eventually_within(what: &str, bound: Duration, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < bound, "not within {} s: {what}", bound.as_secs());
        std::thread::sleep(Duration::from_millis(1));
    }
}
