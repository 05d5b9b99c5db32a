//! What tests, benches and other stores check against: brute-force referees, worked examples, seeded numbers.

pub mod life;
pub mod oracle;
pub mod random;
pub mod vectors;
