//! The examples: real gateways in front of a real service, asking a real server, each from exactly the files that are
//! shipped, with other ports put in.
//!
//! A missing gateway is a failure that says how to get it, never a test that passes for want of one.

mod client;
mod examples;
mod fixture;
mod process;
mod service;
