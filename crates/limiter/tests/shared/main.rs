//! The shared store on real servers.

#![allow(
    clippy::expect_used,
    clippy::float_arithmetic,
    clippy::indexing_slicing,
    reason = "a test that cannot be set up, or indexes wrongly, has failed"
)]

mod books;
mod breaking;
mod clocks;
mod conforms;
mod connections;
mod flushes;
mod instances;
mod lifetimes;
mod local;
mod nonsense;
mod papers;
mod refusals;
mod replicas;
mod secrets;
mod site;
mod together;
mod troubles;
mod users;
mod wide;
