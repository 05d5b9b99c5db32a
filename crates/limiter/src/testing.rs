//! What tests and benches of the shared store need: real servers, as processes of their own.

pub mod cluster;
pub mod sentinel;
pub mod servers;
pub mod skew;
