//! The front end for the Redis protocol by its bytes, on the embedded store and on a real Redis, and real clients.

#![expect(
    clippy::unwrap_used,
    reason = "all of it is a test, and the lints know only the functions that are marked as one"
)]

mod access;
mod bounds;
mod checks;
mod clients;
mod document;
mod draining;
mod handshakes;
mod pipelines;
mod throttle;
mod throttle_grid;
mod transactions;
