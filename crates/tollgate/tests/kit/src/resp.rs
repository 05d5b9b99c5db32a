//! The front end for the Redis protocol: a server and a client.

pub use crate::resp_client::{Client, command};

use crate::server::{TestServer, manual_clock, memory_store, redis_store, rule_set};
use std::ops::{Deref, DerefMut};
use std::time::Duration;
use tollgate::server::gate::Gate;
use tollgate::server::resp::{self, RespSettings};
use tollgate::server::store::AnyStore;
use tollgate_limiter::clock::Clock;

/// A server of the Redis protocol.
pub struct RespServer(TestServer);

impl RespServer {
    /// Over the memory store, without rules and with the default settings.
    pub fn start() -> Self {
        Self::start_with("", RespSettings::default())
    }

    pub fn start_with(rules: &str, settings: RespSettings) -> Self {
        let clock = manual_clock();
        Self::over(|| memory_store(&clock), &clock, rules, settings)
    }

    /// Over a Redis of its own, with a deadline that a busy machine keeps.
    pub fn start_shared(rules: &str) -> Self {
        Self::start_shared_with(rules, RespSettings::default(), Duration::from_secs(5))
    }

    /// The same with other settings, and another deadline.
    pub fn start_shared_with(rules: &str, settings: RespSettings, deadline: Duration) -> Self {
        let (redis, open) = redis_store(deadline);
        let mut server = Self::over(open, &manual_clock(), rules, settings);
        server.redis = Some(redis);
        server
    }

    /// One over each store.
    pub fn both(rules: &str) -> [Self; 2] {
        [
            Self::start_with(rules, RespSettings::default()),
            Self::start_shared(rules),
        ]
    }

    fn over(store: impl FnOnce() -> AnyStore, clock: &Clock, rules: &str, settings: RespSettings) -> Self {
        let gate = || Gate::new(rule_set(rules), store());
        Self(TestServer::start(gate, clock.clone(), |listener, gate, stopped| {
            resp::serve(listener, gate, settings, async {
                let _ = stopped.await;
            })
        }))
    }

    pub fn connect(&self) -> Client {
        Client::connect(self.address)
    }
}

impl Deref for RespServer {
    type Target = TestServer;

    fn deref(&self) -> &TestServer {
        &self.0
    }
}

impl DerefMut for RespServer {
    fn deref_mut(&mut self) -> &mut TestServer {
        &mut self.0
    }
}
