//! The server: front ends, each on its listener, and the gate they all end at.
//!
//! A front end turns bytes into an attempt, asks the [`gate`] and writes the verdict in its own words. It knows the gate
//! and what is listed here, and no other front end.

mod accept;
mod addresses;
pub mod envoy;
pub mod gate;
pub mod grpc;
pub mod headers;
mod heard;
pub mod http;
pub mod listen;
pub mod resp;
mod room;
pub mod store;
pub mod telemetry;
pub mod tls;
pub mod tokens;
