//! Descriptor files of envoyproxy/ratelimit: parsing, matching, and conversion to rules.
//!
//! `file.rs` parses the files with the error texts of the original; `tree.rs` finds the limit of a descriptor entry by
//! entry, without backtracking; `compile.rs` makes rules of descriptors; `lint.rs` warns of likely mistakes;
//! `import.rs` renders our own rules from descriptors; `hit_stats.rs` does the arithmetic of the statistics and
//! `stat_path.rs` names them; `limit_override.rs` is a limit sent with a request; `counter_target.rs` names the counter
//! an attempt is counted in; `id.rs` names the compiled rules.

mod compile;
mod counter_target;
mod file;
mod hit_stats;
mod id;
mod import;
mod limit_override;
mod lint;
mod options;
mod stat_path;
mod tree;

pub use compile::Descriptor;
pub use counter_target::CounterTarget;
pub use file::{DescriptorFiles, NativeLimit, Unit, is_descriptor_file, parse};
pub use hit_stats::{HitStats, near_threshold};
pub use limit_override::LimitOverride;
pub use options::RatelimitOptions;
pub use stat_path::{StatPath, override_path};
pub use tree::{DescriptorLimit, DescriptorMatch, Descriptors};

/// The error of a rule in a domain that a descriptor file has.
pub(super) fn domain_taken(domain: &str) -> String {
    format!("the domain `{domain}` is one of envoyproxy/ratelimit's files")
}

#[cfg(test)]
mod tests;
