//! The `tollgate` program: parses what was typed and hands it on.
fn main() {}
