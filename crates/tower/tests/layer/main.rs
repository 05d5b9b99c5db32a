//! The layer around services: axum's and tonic's over sockets, and services of the tests.

#![expect(
    clippy::indexing_slicing,
    reason = "all of it is a test, and the lint knows only the functions that are marked as one"
)]

mod costs;
mod denials;
mod ends;
mod examples;
mod fixture;
mod laws;
mod many_connections;
mod protection;
mod shaping;
mod stalls;
