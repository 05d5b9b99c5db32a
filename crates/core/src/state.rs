//! The states of keys and the forms they are stored in.

pub(crate) mod debt;
pub(crate) mod leases;
pub(crate) mod meter;
pub(crate) mod numbers;
pub(crate) mod packed;
mod portion;
pub(crate) mod ring;
