//! Alerts: false and missed ones in simulated weeks.
#![allow(clippy::indexing_slicing, reason = "a missing element fails the test")]
#![expect(clippy::float_arithmetic, reason = "simulated traffic; no decision depends on it")]

mod simulation;
