//! Files of envoyproxy/ratelimit as they are: what they say, and which of their limits a descriptor meets.
//!
//! `file.rs` reads them, with the words that its users know for what is wrong, and `loading.rs` has those for what is no such
//! file at all; `tree.rs` finds the limit of a descriptor, entry by entry and without a way back; `lint.rs` warns of what can
//! be read and is hardly meant; `import.rs` writes them as rules of our own; `near.rs` is the arithmetic of its statistics, and
//! `path.rs` their names; `brought.rs` is a limit that comes with a request, `exact.rs` one of our own in such a file; `id.rs`
//! names the rules that are made of them, and
//! `counting.rs` says under which name an attempt is counted where counters are its own.

mod brought;
mod compile;
mod counting;
mod exact;
mod file;
mod id;
mod import;
mod lint;
mod loading;
mod near;
mod options;
mod path;
mod tree;
mod unit;
mod wildcard;

pub use brought::LimitOverride;
pub use compile::Descriptor;
pub use counting::CounterTarget;
pub use exact::NativeLimit;
pub use file::{DescriptorFiles, is_descriptor_file};
pub use loading::parse;
pub use near::{HitStats, near_threshold};
pub use options::RatelimitOptions;
pub use path::{StatPath, override_path};
pub use tree::{DescriptorLimit, DescriptorMatch, Descriptors};
pub use unit::Unit;

#[cfg(test)]
mod tests;
