//! The HTTP front end by its bytes: a server on a port of its own, and a client that writes and reads what it likes.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "all of it is a test, and the lints know only the functions that are marked as one"
)]

mod bad_input;
mod bounds;
mod checks;
mod draining;
mod envoy_files;
mod envoy_json;
mod forward;
mod headers;
mod leases;
mod metrics;
mod multiplexed;
mod openapi;
mod readiness;
mod reserves;
mod spreading;
mod tls;
mod tokens;
