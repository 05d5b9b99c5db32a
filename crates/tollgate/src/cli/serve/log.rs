//! The log, on stderr.

use std::io::IsTerminal;
use tracing::level_filters::LevelFilter;

/// From here on everything that is logged is written, from this level on.
pub(super) fn begin(level: LevelFilter) {
    let log = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .finish();
    // Only one is ever begun.
    let _ = tracing::subscriber::set_global_default(log);
}
