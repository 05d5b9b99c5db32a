//! Where rules come from: files today. A source delivers whole sets of rules, or the reasons it cannot.

mod file_stamps;
mod files;
mod quarantine;

pub use files::{ConfigLoader, ConfigSnapshot, QUICKSTART};
