//! A server for one test: on a port of its own, with a clock that the test moves.

use crate::client::Client;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tollgate::compat::ratelimit::CompatModes;
use tollgate::server::gate::{Gate, Phase};
use tollgate::server::grpc::{self, GrpcSettings};
use tollgate::server::headers::Dialects;
use tollgate::server::net::listen::{Address, Listener};
use tollgate::server::store::AnyStore;
use tollgate_limiter::clock::Clock;
use tollgate_limiter::core::problem::Origin;
use tollgate_limiter::core::rules::ratelimit::{DescriptorFiles, RatelimitOptions};
use tollgate_limiter::core::rules::{ParserOptions, RuleSet, RulesParser};
use tollgate_limiter::core::{Timestamp, yaml};
use tollgate_limiter::store::memory::Memory;

/// Sun, 15 Nov 2026 22:34:05 GMT.
const NOW_S: u64 = 1_794_782_045;

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) clock: Clock,
    pub(crate) gate: Arc<Gate>,
    pub(crate) runtime: Runtime,
    stop: Option<oneshot::Sender<()>>,
    ended: Option<JoinHandle<()>>,
}

impl Server {
    /// With the default settings, without headers to add.
    pub(crate) fn start(rules: &str) -> Self {
        Self::start_with(rules, settings())
    }

    pub(crate) fn start_with(rules: &str, settings: GrpcSettings) -> Self {
        let clock = Clock::manual(Timestamp::from_micros(NOW_S * 1_000_000));
        let store = || Arc::new(Memory::options().clock(clock.clone()).build()).into();
        Self::over(store, &clock, rules, settings)
    }

    /// With a file of envoyproxy/ratelimit.
    pub(crate) fn start_envoy(file: &str, options: RatelimitOptions) -> Self {
        let node = yaml::parse(&Origin::new("shop.yaml", file)).unwrap_or_else(|problems| panic!("{problems:?}"));
        let mut files = DescriptorFiles::new(false);
        files.add_file(&node);
        let (descriptors, _) = files.finish().unwrap_or_else(|problems| panic!("{problems:?}"));
        let mut reader = RulesParser::new(ParserOptions::default());
        reader.set_descriptors(descriptors, options);
        let clock = Clock::manual(Timestamp::from_micros(NOW_S * 1_000_000));
        let store = || Arc::new(Memory::options().clock(clock.clone()).build()).into();
        Self::with(store, &clock, reader.finish().unwrap().rules, settings())
    }

    /// Over a store that is made inside a runtime.
    pub(crate) fn over(store: impl FnOnce() -> AnyStore, clock: &Clock, rules: &str, settings: GrpcSettings) -> Self {
        Self::with(store, clock, rule_set(rules), settings)
    }

    fn with(store: impl FnOnce() -> AnyStore, clock: &Clock, rules: RuleSet, settings: GrpcSettings) -> Self {
        let runtime = runtime();
        let gate = runtime.block_on(async { Arc::new(Gate::new(rules, store())) });
        Self::before(gate, clock, runtime, settings)
    }

    /// That lacks the rules it was to have, and is not healthy without them.
    pub(crate) fn start_without_rules() -> Self {
        let clock = Clock::manual(Timestamp::from_micros(NOW_S * 1_000_000));
        let store = Arc::new(Memory::options().clock(clock.clone()).build());
        let gate = Gate::new(
            RulesParser::new(ParserOptions::default()).finish().unwrap().rules,
            store,
        );
        gate.compat().set_modes(CompatModes {
            healthy_with_rules: true,
            ..CompatModes::default()
        });
        gate.mark_rules_missing("no file fits this pattern");
        Self::before(Arc::new(gate), &clock, runtime(), settings())
    }

    fn before(gate: Arc<Gate>, clock: &Clock, runtime: Runtime, settings: GrpcSettings) -> Self {
        gate.advance_phase(Phase::Ready);
        let listener = runtime
            .block_on(Listener::bind(&"127.0.0.1:0".parse().unwrap()))
            .unwrap();
        let Ok(Address::Tcp(address)) = listener.address() else {
            panic!("a TCP listener has a TCP address")
        };
        let (stop, stopped) = oneshot::channel();
        let ended = runtime.spawn(grpc::serve(listener, Arc::clone(&gate), settings, async {
            let _ = stopped.await;
        }));
        Self {
            address,
            clock: clock.clone(),
            gate,
            runtime,
            stop: Some(stop),
            ended: Some(ended),
        }
    }

    pub(crate) fn connect(&self) -> Client<'_> {
        Client::connect(&self.runtime, self.address)
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

/// The defaults, without headers to add: tests of those ask for them.
pub(crate) fn settings() -> GrpcSettings {
    GrpcSettings {
        headers: Dialects::NONE,
        ..GrpcSettings::default()
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap()
}

pub(crate) fn rule_set(rules: &str) -> RuleSet {
    let text = format!("rules:\n{rules}");
    let node = yaml::parse(&Origin::new("rules.yaml", text)).unwrap_or_else(|problems| panic!("{problems:?}"));
    let mut reader = RulesParser::new(ParserOptions::default());
    reader.add_file(&node);
    let read = reader.finish().unwrap_or_else(|problems| panic!("{problems:?}"));
    read.rules
}
