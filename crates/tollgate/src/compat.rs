//! Drop-in compatibility with other rate limiters.

pub mod ratelimit;
