//! The naming of counters in a store.

use std::fmt;
use tollgate_core::Counter;

/// The naming of counters in a store.
pub trait Keyspace {
    /// The name of a counter.
    type Key: Key;

    /// The part of a key that all subjects of one rule share, computed once per rule.
    type Template: Clone + Send + Sync;

    /// Returns the template of a counter's rule. The counter's `per` values are ignored.
    fn template(&self, counter: &Counter<'_>) -> Self::Template;

    /// Returns the key of one subject, named by the values it is counted by.
    fn key(&self, template: &Self::Template, per: &[&[u8]]) -> Self::Key;

    /// Returns a key as text, for looking it up in the store.
    fn key_text(&self, key: &Self::Key) -> String {
        let mut bytes = Vec::new();
        key.write(&mut bytes);
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The name of a counter: of a fixed size, without a caller's bytes in it.
pub trait Key: Copy + Eq + Send + Sync + fmt::Debug {
    /// The length of its encoding in bytes.
    const LENGTH: usize;

    /// Appends its encoding, which is the same on every instance that shares the store.
    fn write(&self, bytes: &mut Vec<u8>);

    /// Bits that are very unlikely to be shared by another key, for hash tables.
    fn bits(&self) -> u128;

    /// Decodes a key. `None` if these bytes cannot be one.
    fn read(bytes: &[u8]) -> Option<Self>;
}
