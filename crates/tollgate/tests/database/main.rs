//! The control plane's database: one suite over SQLite and a real PostgreSQL.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a test fails by a panic, waits for real servers, and prints what it measures"
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
