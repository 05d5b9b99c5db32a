//! The server: front ends, each on its listener, and the gate they all end at.
//!
//! A front end turns bytes into an attempt, asks the [`gate`] and writes the verdict in its own words. It knows the gate
//! and what is listed here, and no other front end.

pub mod admin;
pub mod admission;
pub mod auth;
pub mod gate;
pub mod grpc;
pub mod headers;
pub mod http;
pub mod net;
pub(crate) mod observers;
mod panic_guard;
pub mod resp;
pub mod rls;
pub mod store;
pub mod telemetry;
