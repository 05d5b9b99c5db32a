//! The shared store on real clusters: three primaries, three replicas.

#![allow(clippy::expect_used, reason = "a test that cannot be set up has failed")]
#![allow(clippy::indexing_slicing, reason = "a missing element fails the test")]

mod books;
mod conforms;
mod faults;
mod losses;
#[path = "../shared/papers.rs"]
mod papers;
mod replicas;
mod rush;
mod secrets;
mod site;
mod slots;
mod users;
