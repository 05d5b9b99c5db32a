//! The admin API over real HTTP: a gate, a control plane and the API in one process, on a port of its own.
//!
//! Every response of every test is held against the OpenAPI document.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by a panic, and the names say what the helpers do"
)]

mod access;
mod away;
mod browser;
mod client;
mod conditions;
mod figures;
mod fixture;
mod matrix;
mod rules;
mod schemathesis;
mod subjects;
mod tables;
mod versions;
mod visibility;
