//! Quantities that every decision is made of: time, rates, and the exact arithmetic between them.

pub(crate) mod muldiv;
pub(crate) mod rate;
pub(crate) mod time;
