//! The part of the system that decided.

use std::fmt;

/// The part of the system that decided, most exact first. A verdict of several limits has the last of theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Source {
    /// The memory store.
    Memory,
    /// The shared store.
    Shared,
    /// This instance, from a recent state of the shared store that certainly denies.
    Near,
    /// The overflow counter that new keys share while the memory store is full.
    Overflow,
    /// This instance, by its share of the limit: the store is unavailable.
    Local,
    /// No limit, or a cap of this instance: the store is unavailable and the rule has `on_store_failure: open`.
    Open,
    /// No limit: the store is unavailable and the rule has `on_store_failure: closed`.
    Closed,
    /// Admission: the request was shed before its rules were planned.
    Shed,
}

impl Source {
    /// All sources, each at the index of its number.
    pub const ALL: [Self; 8] = [
        Self::Memory,
        Self::Shared,
        Self::Near,
        Self::Overflow,
        Self::Local,
        Self::Open,
        Self::Closed,
        Self::Shed,
    ];

    /// The name in replies and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Shared => "shared",
            Self::Near => "near",
            Self::Overflow => "overflow",
            Self::Local => "local",
            Self::Open => "open",
            Self::Closed => "closed",
            Self::Shed => "shed",
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
