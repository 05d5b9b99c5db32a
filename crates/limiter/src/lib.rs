//! Tollgate's state and time: stores that keep what [`tollgate_core`] decides, and a rate limiter to embed.
//!
//! - [`Limiter`] checks limits written in code; [`limits`] builds them.
//! - [`RuleLimiter`] checks attempts against rule files, as [`core::rules`] compiles them.
//! - [`ThrottleLimiter`] checks calls that carry their limit, as `CL.THROTTLE` does.
//! - [`store::Store`] keeps counters; [`store::memory::Memory`] is the store in this process.
//! - [`conformance`] tests any store.

pub mod clock;
mod compat;
pub mod conformance;
mod fingerprint;
mod lease;
mod limiter;
pub mod limits;
mod rule_limiter;
pub mod store;
mod sync;
#[cfg(feature = "testing")]
pub mod testing;
mod throttle;
mod wait;

pub use fingerprint::{Fingerprint, HashSecret, MemoryKeyTemplate};
#[cfg(feature = "tokio")]
pub use lease::LeaseRenewer;
pub use lease::{AnyPermit, Permit};
pub use limiter::{ConcurrencyLimit, LimitCheck, Limiter, NamedLimit, SlotCheck};
pub use rule_limiter::{
    ActualUse, AttemptItem, CheckResult, CombinedVerdict, Direction, ForgetError, InlineLimit, ItemVerdict, RuleLimiter,
};
pub use throttle::ThrottleLimiter;
pub use tollgate_core as core;

/// The examples of the documentation, compiled and run.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../../../README.md")]
    struct Readme;

    #[doc = include_str!("../../../docs/library.md")]
    struct Library;
}
