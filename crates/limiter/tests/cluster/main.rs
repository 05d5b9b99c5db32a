//! The shared store on real clusters: three primaries, three replicas.

#![allow(clippy::expect_used, reason = "a test that cannot be set up has failed")]
#![allow(clippy::indexing_slicing, reason = "a missing element fails the test")]

mod config_cache;
mod conformance;
mod cross_slot_load;
mod faults;
mod fixture;
mod losses;
mod replicas;
mod rule_limiters;
mod secrets;
mod slots;
mod users;
