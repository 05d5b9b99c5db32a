//! Quantities that every decision is made of: time, rates, calendars, and the exact arithmetic between them.

pub(crate) mod calendar;
pub(crate) mod muldiv;
pub(crate) mod rate;
pub(crate) mod time;
