//! Drop-in replacement for envoyproxy/ratelimit: its environment, its files, its answer modes, its statistics and its
//! debug port. Envoy's own protocol is `server::rls`.

mod counters;
pub(crate) mod debug_port;
pub(crate) mod env;
pub(crate) mod exposure;
pub(crate) mod files;
mod modes;
mod stats;

#[cfg(test)]
mod tests;

#[cfg(test)]
pub(crate) use self::counters::COUNTERS;
pub use self::counters::RatelimitCounterSettings;
pub use self::env::merges_domains;
pub use self::modes::{CompatModes, HeaderNames, RatelimitCompat};
pub use self::stats::{CallCounts, RatelimitStats};
pub(crate) use self::stats::{CallOutcome, RatelimitCollector, RatelimitCounts};

/// The setting that names its files.
pub(crate) const SETTING: &str = "envoy_rules";
