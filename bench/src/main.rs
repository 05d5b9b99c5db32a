//! Measurements of Tollgate, each a subcommand.
fn main() {}
