//! Rate limits as a layer for any tower service.
//!
//! The limits are those of [`tollgate_limiter`]: exact, several at once or none, in this process or shared over Redis.
//!
//! - [`RateLimitLayer`] limits requests to a service: axum's, tonic's, hyper's.
//! - [`LimitSet`] has limits in code, [`RuleLimits`] rules as data; [`AdmissionControl`] is what the layer asks.
//! - [`extract`] has the keys of limits: the client's address, headers, path, method, host.
//! - [`protect`] bounds the requests in flight and sheds load by priority.
//! - [`headers`] writes rate limit headers and the body of a denial, for the server too.
//! - `client` (a feature) is the other side: a client that keeps to the limits of others.

#[cfg(feature = "client")]
pub mod client;
pub mod extract;
pub mod headers;

#[cfg(feature = "tokio")]
mod admission;
#[cfg(feature = "tokio")]
mod body;
#[cfg(feature = "tokio")]
mod future;
#[cfg(feature = "tokio")]
mod layer;
#[cfg(feature = "tokio")]
mod limits;
#[cfg(feature = "tokio")]
pub mod protect;
#[cfg(feature = "tokio")]
mod rules;

#[cfg(feature = "tokio")]
pub use self::{
    admission::{
        ActualCost, Admission, AdmissionControl, BoxFuture, CostTotals, Denial, DenialKind, Grant, OpenCharge,
    },
    body::LimitedBody,
    future::ResponseFuture,
    layer::{RateLimit, RateLimitLayer},
    limits::{LimitSet, LimitSetError},
    rules::RuleLimits,
};
pub use tollgate_limiter;

/// The examples of the documentation, compiled and run.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../../../docs/tower.md")]
    struct Tower;
}
