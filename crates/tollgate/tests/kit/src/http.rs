//! The HTTP front end: a server and a client.

pub use crate::http_client::{Answer, Client, assert_starts_with, post};

use crate::server::{TestServer, manual_clock, memory_store, rule_set};
use std::ops::{Deref, DerefMut};
use tollgate::server::gate::Gate;
use tollgate::server::http::{self, HttpSettings, RetryAfter};
use tollgate::server::store::AnyStore;
use tollgate_limiter::clock::Clock;
use tollgate_limiter::core::rules::RuleSet;

pub use crate::server::NOW_S;

/// A server of the HTTP API.
pub struct HttpServer(TestServer);

impl HttpServer {
    /// With the default settings, without jitter.
    pub fn start(rules: &str) -> Self {
        Self::start_with(rules, settings())
    }

    pub fn start_with(rules: &str, settings: HttpSettings) -> Self {
        Self::start_rules(rule_set(rules), settings)
    }

    pub fn start_rules(rules: RuleSet, settings: HttpSettings) -> Self {
        let clock = manual_clock();
        Self::over(|| memory_store(&clock), &clock, rules, settings)
    }

    /// Over a store that is made inside a runtime.
    pub fn over(store: impl FnOnce() -> AnyStore, clock: &Clock, rules: RuleSet, settings: HttpSettings) -> Self {
        let gate = || Gate::new(rules, store());
        Self(TestServer::start(gate, clock.clone(), |listener, gate, stopped| {
            http::serve(listener, gate, settings, async {
                let _ = stopped.await;
            })
        }))
    }

    pub fn connect(&self) -> Client {
        Client::connect(self.address)
    }
}

impl Deref for HttpServer {
    type Target = TestServer;

    fn deref(&self) -> &TestServer {
        &self.0
    }
}

impl DerefMut for HttpServer {
    fn deref_mut(&mut self) -> &mut TestServer {
        &mut self.0
    }
}

/// The defaults, without jitter, so that responses are the same every time.
pub fn settings() -> HttpSettings {
    HttpSettings {
        retry_after: RetryAfter {
            jitter_ppm: 0,
            ..RetryAfter::default()
        },
        ..HttpSettings::default()
    }
}
