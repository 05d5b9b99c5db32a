//! Oracles, worked examples and random timelines that tests, benches and other stores check against.

pub mod oracle;
pub mod random;
pub mod timeline;
pub mod vectors;
