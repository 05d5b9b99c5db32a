//! Rate limit headers of a response, in the dialects that clients know, and the body of a denial.

mod dialects;
pub mod json;
mod policy;
pub mod problem;
mod retry_after;
mod retry_queues;
mod write;

pub use self::dialects::{Dialect, DialectError, Dialects};
pub use self::policy::{HeaderPolicy, PolicyQuota, seconds_ceil};
pub use self::retry_after::{RetryAfter, RetryAfterFormat, retry_after};
#[cfg(feature = "tokio")]
pub(crate) use self::retry_queues::{QueueDenial, RuleQueue};
pub use self::retry_queues::{RetryCaller, RetryQueues, RuleQueues, SpreadDenial};
pub use self::write::{HeaderInput, HeaderRanges, write};
