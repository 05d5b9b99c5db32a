//! The shared store where sentinels choose the primary.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test that cannot be set up has failed"
)]

mod config_cache;
mod conformance;
mod failovers;
mod fixture;
mod losses;
mod replicas;
