//! The client layer against real servers on loopback, and over a real Redis.
#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

mod budget;
mod documents;
mod learning;
mod paced;
mod reqwest_client;
mod upstream;
#[allow(dead_code, unreachable_pub, reason = "an example is a program by itself")]
#[path = "../../examples/worker.rs"]
mod worker;
