//! The test kit: real servers as child processes, connections to them, certificates, keys and charges, polling.
//!
//! Sample limits and rules are in `tollgate_core::testing`.

pub mod admin;
pub mod certificates;
pub mod cluster;
pub mod counters;
mod poll;
pub mod sentinel;
pub mod servers;
pub mod skew;

pub use self::poll::eventually;
