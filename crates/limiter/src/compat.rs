//! Compatibility with envoyproxy/ratelimit: its counters, with its keys, commands and lifetimes.

#[cfg(feature = "redis")]
mod counter_commands;
#[cfg(feature = "redis")]
mod over_limit_cache;
#[cfg(feature = "redis")]
pub(crate) mod redis_counters;
#[cfg(feature = "redis")]
mod window;
