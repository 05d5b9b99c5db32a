//! Who decided, most exact first.

use std::fmt;

/// Who decided, most exact first. An answer of several limits has the last of theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Source {
    /// The embedded store.
    Memory,
    /// The shared store.
    Shared,
    /// This instance, from what the shared store said moments ago: it would certainly refuse.
    Near,
    /// The shared coarse counter that new keys meet when the embedded store is full.
    Overflow,
    /// This instance, by its share of the limit: the store could not be asked.
    Local,
    /// Nobody, or a cap of this instance: the store could not be asked, and the rule lets pass what it cannot judge.
    Open,
    /// Nobody: the store could not be asked, and the rule refuses what it cannot judge.
    Closed,
    /// Admission: the request was shed before its rules were planned.
    Shed,
}

impl Source {
    /// All there are, most exact first: each at the place that it is as a number.
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

    /// As answers and metrics write it.
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
