//! What tests, benches and other stores check against: brute-force referees, worked examples, seeded numbers.

pub mod oracle;
pub mod random;
pub mod timeline;
pub mod vectors;
