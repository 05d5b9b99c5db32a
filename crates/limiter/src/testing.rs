//! The test kit: real servers as child processes, polling, sample limits and charges.

pub mod cluster;
pub mod sentinel;
pub mod servers;
pub mod skew;
