//! Simulations of Tollgate's decisions, with the functions that a server runs.
//!
//! Reproducible: a seed is the whole input, time is simulated, and all arithmetic is on integers. Equal input gives equal
//! bytes, on every machine.
//!
//! - [`overload`](scenario::overload): a service with more requests than it can serve, behind the controllers of
//!   [`tollgate_core::protect`] and behind those that others have published.
//! - [`storm`](scenario::storm): callers that a limit denied, and the moments at which they return.

pub mod report;
pub mod scenario;
pub mod workload;
