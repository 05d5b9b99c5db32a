//! Situations without a log: generated traffic against one part of the system.

pub mod overload;
pub mod storm;
