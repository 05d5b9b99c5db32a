//! The remembering part of Tollgate: stores that keep what [`tollgate_core`] decides, and a limiter to embed.
//!
//! - [`Limiter`] is what a program holds; [`limits`] are what its rules are made of.
//! - [`RuleBook`] holds attempts against rules that are data, as [`core::rules`] read them.
//! - [`Throttles`] holds callers against limits that they bring along, as `CL.THROTTLE` does.
//! - [`store::Store`] is what keeps counters; [`store::memory::Memory`] is the embedded one.
//! - [`conformance`] is what every store must pass.

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
pub use lease::Permit;
pub use limiter::{LimitCheck, Limiter, NamedLimit};
pub use rule_limiter::{
    AttemptItem, CheckResult, CombinedVerdict, Direction, ForgetError, InlineLimit, ItemVerdict, RuleLimiter,
};
pub use throttle::ThrottleLimiter;
pub use tollgate_core as core;

/// The examples of the documents, compiled and run.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../../../README.md")]
    struct Readme;

    #[doc = include_str!("../../../docs/library.md")]
    struct Library;
}
