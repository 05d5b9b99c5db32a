//! The rate limit headers of an answer, in the dialects that clients know.

mod dialects;
mod policy;
mod write;

pub use dialects::{Dialect, DialectError, Dialects};
pub(super) use policy::{HeaderPolicy, PolicyQuota, seconds_ceil};
pub(super) use write::{HeaderInput, HeaderRanges, write};
