//! The shared store on real servers.

#![allow(
    clippy::expect_used,
    clippy::float_arithmetic,
    clippy::indexing_slicing,
    reason = "a test that cannot be set up, or indexes wrongly, has failed"
)]

mod batching;
mod breaker;
mod clocks;
mod config_cache;
mod conformance;
mod connections;
mod fallback;
mod fixture;
mod flushes;
mod instances;
mod invalid_replies;
mod large_requests;
mod lifetimes;
mod near_cache;
mod replicas;
mod rule_limiters;
mod secrets;
mod server_errors;
mod users;
