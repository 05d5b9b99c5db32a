//! Alerts: false and missed ones in simulated weeks.
#![expect(clippy::float_arithmetic, reason = "simulated traffic; no decision depends on it")]

mod simulation;
