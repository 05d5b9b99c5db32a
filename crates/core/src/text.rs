//! Text written by people: YAML with locations, quantities, networks, and the problems found in them.

pub mod network;
pub mod problem;
pub mod quantity;
pub mod spelling;
pub mod yaml;
