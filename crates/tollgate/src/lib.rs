//! The server of Tollgate, as a library for its program, tests and benches.

pub mod alerts;
mod calendar;
pub mod cli;
pub mod compat;
pub mod config;
pub mod control;
pub mod data_dir;
mod names;
pub mod reload;
pub mod rule_source;
pub mod server;
pub mod ui;
