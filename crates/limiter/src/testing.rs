//! The test kit: real servers as child processes, connections to them, certificates, keys and charges, polling.
//!
//! Sample limits and rules are in `tollgate_core::testing`.

pub mod admin;
pub mod certificates;
pub mod cluster;
mod conforms;
pub mod counters;
mod envelope;
mod poll;
pub mod relay;
pub mod reserve;
pub mod sentinel;
pub mod servers;
pub mod skew;

pub use self::conforms::conforms;
pub use self::envelope::excess_millionths;
pub use self::poll::{eventually, receive_hint};
