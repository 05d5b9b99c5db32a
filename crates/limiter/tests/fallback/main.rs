//! The local limiter, on clocks that are moved: how far limits are passed while a store is away, comes and goes, is away for
//! some, or is thought to be shared by fewer than share it.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::float_arithmetic,
    reason = "a test that cannot be set up, or indexes wrongly, has failed; what was let pass is reckoned by hand"
)]

mod bounds;
mod conformance;
mod fixture;
mod leases;
mod modes;
