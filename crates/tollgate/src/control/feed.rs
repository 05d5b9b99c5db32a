//! Propagation through the shared store: the values of its `{cfg}` keys, the control service that keeps them there, and the part of the
//! follower that reads them.
//!
//! The store is a cache that anybody with access to it can write. A value counts if its code was made with the secret of the fleet
//! ([`Signer`]), and a change or a set if a head leads to it by chain or digest. Formats are pure: time is an argument.

pub mod head;
pub mod log;
pub mod parts;
pub mod reader;
pub mod set;
mod signer;
pub mod snapshot;

#[cfg(test)]
mod attack_tests;

pub use signer::Signer;
