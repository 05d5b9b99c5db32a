//! The remembering part of Tollgate: stores that keep what [`tollgate_core`] decides.

pub use tollgate_core as core;
