//! Rate limit headers of a response: `tollgate-tower` writes them; here are the metrics of the queues of `Retry-After`.

mod retry_observer;
#[cfg(test)]
mod tests;

pub(super) use retry_observer::encode_queues;
pub use tollgate_tower::headers::{Dialect, DialectError, Dialects, RetryAfter, RetryAfterFormat};
pub(super) use tollgate_tower::headers::{
    HeaderInput, HeaderPolicy, HeaderRanges, PolicyQuota, retry_after, seconds_ceil, write,
};
pub(crate) use tollgate_tower::headers::{RetryCaller, RetryQueues, RuleQueues, SpreadDenial};
