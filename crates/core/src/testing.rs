//! Sample limits and rules, oracles, worked examples and random timelines that tests, benches and other stores use.

pub mod limits;
pub mod oracle;
pub mod random;
pub mod rules;
pub mod timeline;
pub mod vectors;
