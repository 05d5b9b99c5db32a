//! Alerts: false and missed ones in simulated weeks, and what a running server sends to a webhook.
#![expect(clippy::float_arithmetic, reason = "simulated traffic; no decision depends on it")]

mod simulation;
