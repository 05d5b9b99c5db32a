//! Rate limits as a layer for any tower service.
//!
//! The limits are those of [`tollgate_limiter`]: exact, several at once or none, in this process or shared over Redis.

#[cfg(feature = "client")]
pub mod client;
