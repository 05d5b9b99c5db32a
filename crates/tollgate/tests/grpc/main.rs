//! The gRPC front end by its bytes: a server on a port of its own, and a client that sends what it likes over HTTP/2.

#![expect(
    clippy::unwrap_used,
    reason = "all of it is a test, and the lints know only the functions that are marked as one"
)]

mod bounds;
mod descriptors;
mod draining;
mod generated;
mod golden;
mod health;
mod reflection;
mod resets;
mod semantics;
mod statuses;
mod stores;
mod tls;
mod tokens;
