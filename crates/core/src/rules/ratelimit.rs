//! Files of envoyproxy/ratelimit as they are: what they say, and which of their limits a descriptor meets.
//!
//! `file.rs` reads them, with the words that its users know for what is wrong, and `loading.rs` has those for what is no such
//! file at all; `tree.rs` finds the limit of a descriptor, entry by entry and without a way back; `lint.rs` warns of what can
//! be read and is hardly meant; `import.rs` writes them as rules of our own; `near.rs` is the arithmetic of its statistics, and
//! `path.rs` their names; `brought.rs` is a limit that comes with a request, `exact.rs` one of our own in such a file; `id.rs`
//! names the rules that are made of them, and
//! `counting.rs` says under which name an attempt is counted where counters are its own.

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

#[cfg(test)]
mod tests;
