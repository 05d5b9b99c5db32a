//! Brute-force referees.
