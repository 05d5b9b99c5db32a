//! The deciding core of Tollgate: for every request, may this caller go on, and if not, when?
//!
//! Fully deterministic: no I/O, no clock, no async, no randomness, no floating point. Time comes in as an argument, the
//! state of a key comes in and goes out as a value, and so every decision can be repeated exactly, here, in a store's
//! Lua and in a simulator.
//!
//! - [`Limit`] is one limit: an algorithm and its numbers.
//! - [`Limit::decide`] answers a [`Cost`] at a time with a [`Step`]: a [`Decision`] and what follows if it is kept.
//! - [`settle`] does so for all limits a request meets at once.
//! - [`Counter`] says which charges share a counter.

pub mod algorithm;
mod decision;
mod limit;
pub mod lua;
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
pub use text::{network, problem, quantity, yaml};
pub use units::muldiv::muldiv;
pub use units::rate::{LimitError, Rate};
pub use units::time::{Micros, Now, Timestamp};
