//! The Lua twins and the script made of them against the core, on real servers: every field of every step.

#![allow(
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test that indexes wrongly has failed, and a long one says how far it has come"
)]

mod calendars;
mod examples;
mod keys;
mod lives;
mod products;
mod settlements;
