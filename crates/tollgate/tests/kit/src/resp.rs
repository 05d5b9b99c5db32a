//! The front end for the Redis protocol: a server and a client.

pub use crate::resp_client::{Client, command};

use crate::server::{TestServer, front_end, manual_clock, redis_store, rule_set};
use std::time::Duration;
use tollgate::server::resp::{self, RespSettings};

/// A server of the Redis protocol.
pub type RespServer = TestServer<Resp>;

front_end!(Resp, RespSettings, resp::serve);

impl RespServer {
    /// Over the memory store, without rules and with the default settings.
    pub fn start() -> Self {
        Self::start_with("", RespSettings::default())
    }

    /// Over a Redis of its own, with a deadline that a busy machine keeps.
    pub fn start_shared(rules: &str) -> Self {
        Self::start_shared_with(rules, RespSettings::default(), Duration::from_secs(5))
    }

    /// The same with other settings, and another deadline.
    pub fn start_shared_with(rules: &str, settings: RespSettings, deadline: Duration) -> Self {
        let (redis, open) = redis_store(deadline);
        let mut server = Self::over(open, &manual_clock(), rule_set(rules), settings);
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

    pub fn connect(&self) -> Client {
        Client::connect(self.address)
    }

    /// Sends bytes on a connection of their own, and returns all replies until the server closes it.
    pub fn exchange(&self, bytes: impl AsRef<[u8]>) -> String {
        let mut client = self.connect();
        client.send(bytes);
        client.rest()
    }
}
