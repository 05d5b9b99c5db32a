//! What a key holds between decisions, and the forms it is stored in.

pub(crate) mod debt;
pub(crate) mod leases;
pub(crate) mod meter;
pub(crate) mod numbers;
pub(crate) mod packed;
mod portion;
pub(crate) mod ring;
