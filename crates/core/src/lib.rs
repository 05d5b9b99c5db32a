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
mod counter;
mod debt;
mod decision;
mod limit;
pub mod lua;
mod meter;
mod muldiv;
pub mod network;
mod packed;
mod portion;
pub mod problem;
pub mod quantity;
mod rate;
mod ring;
pub mod rules;
mod settle;
mod source;
#[cfg(feature = "testing")]
pub mod testing;
mod time;
mod words;
pub mod yaml;

pub use algorithm::{
    Algorithm, LeaseId, Mark, Receipt, Step, cell::Cell, concurrency::Concurrency, fixed_window::FixedWindow,
    gcra::Gcra, leaky_bucket::LeakyBucket, sliding_counter::SlidingCounter, sliding_log::SlidingLog,
    token_bucket::TokenBucket,
};
pub use counter::Counter;
pub use debt::{Debt, NanoFraction, PackedDebt, TimeFraction, UnitFraction};
pub use decision::{Cost, CostTooLarge, Decision, Retry, Standing};
pub use limit::{Change, Limit, State};
pub use muldiv::muldiv;
pub use rate::{LimitError, Rate};
pub use ring::{Edit, Ring};
pub use settle::{Charge, OnStoreFailure, Policy, Proposal, ProposedCharge, propose};
pub use source::Source;
pub use time::{Micros, Now, Timestamp};
pub use words::StateNumbers;
