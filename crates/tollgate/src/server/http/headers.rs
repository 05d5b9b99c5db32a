//! The rate limit headers of an answer, in the dialects that clients know.

mod dialects;
mod policy;
mod retry_after;
mod write;

pub use dialects::{Dialect, DialectError, Dialects};
pub(super) use policy::{Policy, Quota, estimated_over};
pub(super) use retry_after::retry_after;
pub(super) use write::{Shown, Written, write};
