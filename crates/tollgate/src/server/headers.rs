//! Rate limit headers of a response, in the dialects that clients know.

mod dialects;
mod policy;
mod retry_queues;
mod write;

pub use dialects::{Dialect, DialectError, Dialects};
pub(super) use policy::{HeaderPolicy, PolicyQuota, seconds_ceil};
pub(crate) use retry_queues::{RetryCaller, RetryQueues, RuleQueues, SpreadDenial};
pub(super) use write::{HeaderInput, HeaderRanges, write};
