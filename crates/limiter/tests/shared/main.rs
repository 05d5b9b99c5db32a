//! The shared store on real servers.

#![allow(clippy::expect_used, reason = "a test that cannot be set up has failed")]

mod conforms;

use std::time::Duration;
use tollgate_limiter::store::redis::{Options, Redis};
use tollgate_limiter::testing::servers::Server;

/// A store on a server, with a deadline that a busy machine keeps.
fn options(server: &Server) -> Options {
    Redis::options(&server.url())
        .expect("a URL")
        .deadline(Duration::from_secs(5))
}
