//! The control plane's database: one suite over SQLite and a real PostgreSQL.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by a panic, and the names say what the helpers do"
)]

mod access;
mod adoption;
mod audit;
mod commits;
mod crashes;
mod faults;
mod fixture;
mod latency;
mod lists;
mod retention;
mod versions;
