//! The client side of a limit: waits instead of being denied, learns limits from responses, and retries so that it helps.
//!
//! - [`PacerLayer`] wraps any `Service<Request<B>>`.
//! - `PacingClient` wraps a `reqwest::Client` (feature `reqwest`).
//! - [`PolicyLearner`] reads what responses say of limits; [`ThrottleStatus`] is Shopify's form of it, in bodies.
//!
//! The decisions are those of [`Pacer`](tollgate_limiter::core::protect::Pacer), which is sans-I/O. Here are the waiting, the headers, and the
//! [`Limiter`](tollgate_limiter::Limiter) by which several processes keep to one limit.

mod layer;
mod learner;
mod pacing;
#[cfg(feature = "reqwest")]
mod pacing_client;
mod repeat;
mod service;
mod shared_limits;
mod throttle_status;
mod turns;

pub use self::layer::PacerLayer;
pub use self::learner::PolicyLearner;
pub use self::pacing::{Pacing, PacingError};
#[cfg(feature = "reqwest")]
pub use self::pacing_client::PacingClient;
pub use self::repeat::{NeverRepeat, RepeatBody, RepeatCloned, RepeatEmpty};
pub use self::service::PacedService;
pub use self::throttle_status::ThrottleStatus;

/// The examples of the documentation, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/clients.md")]
struct ClientsPage;
