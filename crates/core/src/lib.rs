//! The deciding core of Tollgate: for each request, may it pass now, and if not, when?
//!
//! Deterministic: no I/O, no clock, no async, no randomness, no floating point. Time is an argument and the state of a
//! key is a value, so every decision can be repeated exactly: here, in the Lua of a shared store and in a simulator.
//!
//! - [`Limit`] is one limit: an algorithm and its numbers.
//! - [`Limit::decide`] takes a [`Cost`] and a time and returns a [`Step`]: a [`Decision`] and the change if it is kept.
//! - [`propose`] decides all limits of a request at one instant.
//! - [`failure_policy`](failure_policy()) decides what to do when the store cannot.
//! - [`Counter`] is the identity of a count: equal counters share one.
//! - [`protect`] has the controllers against overload and herds.
//! - [`rules`] turns rule files and attempts into charges, and outcomes into verdicts.

pub mod algorithm;
mod decision;
mod limit;
pub mod lua;
pub mod protect;
pub mod rules;
mod settle;
mod state;
#[cfg(feature = "testing")]
pub mod testing;
pub mod text;
mod units;

pub use algorithm::{
    Algorithm, LeaseId, Mark, Receipt, Step, cell::Cell, concurrency::Concurrency, fixed_window::FixedWindow,
    gcra::Gcra, leaky_bucket::LeakyBucket, sliding_counter::SlidingCounter, sliding_log::SlidingLog,
    token_bucket::TokenBucket,
};
pub use decision::{Cost, CostTooLarge, Decision, Retry, Standing};
pub use limit::{Change, Limit, State};
pub use settle::counter::Counter;
pub use settle::source::Source;
pub use settle::{
    Charge, FailureAction, OnStoreFailure, Outcome, Policy, PortionRatio, Proposal, ProposedCharge, StoreMode,
    failure_policy, failure_policy_with, propose, undecided_source,
};
pub use state::debt::{Debt, NanoFraction, PackedDebt, TimeFraction, UnitFraction};
pub use state::leases::{LeaseEdit, LeaseTable};
pub use state::numbers::StateNumbers;
pub use state::ring::{Edit, Ring};
pub use text::{network, problem, quantity, spelling, yaml};
pub use units::calendar::{Calendar, CalendarUnit, UnknownZone};
pub use units::muldiv::muldiv;
pub use units::rate::{LimitError, Rate};
pub use units::time::{Micros, Now, Timestamp};
