//! The HTTP front end: a server and a client.

pub use crate::http_client::{Answer, Client, assert_starts_with, is_structured, post};

use crate::server::{TestServer, front_end};
use tollgate::server::http::{self, HttpSettings, RetryAfter};

pub use crate::server::NOW_S;

/// A server of the HTTP API.
pub type HttpServer = TestServer<Http>;

front_end!(Http, HttpSettings, http::serve);

impl HttpServer {
    /// With the default settings, without jitter.
    pub fn start(rules: &str) -> Self {
        Self::start_with(rules, settings())
    }

    pub fn connect(&self) -> Client {
        Client::connect(self.address)
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
