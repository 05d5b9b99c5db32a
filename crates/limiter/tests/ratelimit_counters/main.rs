//! Counters of envoyproxy/ratelimit on real servers: what is written there, and counting together with it. Its part is
//! played by bytes on a socket that are the commands it sends.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test that cannot be set up, or indexes wrongly, has failed"
)]

mod clusters;
mod fixture;
mod fleet;
mod keys;
mod outages;
mod settings;
