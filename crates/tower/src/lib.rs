//! Rate limits as a layer for any tower service.
//!
//! The limits are those of [`tollgate_limiter`]: exact, several at once or none, in this process or shared over Redis.

pub mod extract;
pub mod headers;
