//! The layer around services: axum's and tonic's over sockets, and services of the tests.

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
