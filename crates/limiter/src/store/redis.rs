//! The shared store: one limit over many instances, on Redis and Valkey.
//!
//! What decides there is one script: the [twins](tollgate_core::lua) of the algorithms, and `settle.lua`, which reads keys,
//! settles requests as the core does, and writes what has changed.

pub mod call;
pub mod script;
