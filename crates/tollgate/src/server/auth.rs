//! Authentication of callers, shared by all front ends.

pub mod tokens;
