//! Options and usage of the memory store.

use super::Memory;
use super::budget::Budget;
use super::overflow::{Overflow, OverflowCounters};
use super::table_kind::Tables;
use crate::clock::Clock;
use crate::fingerprint::HashSecret;
use std::sync::atomic::AtomicU64;

/// The options of a memory store. Start from [`Memory::options`].
#[derive(Clone, Debug)]
pub struct MemoryOptions {
    pub(super) max_memory: usize,
    pub(super) overflow: Overflow,
    pub(super) shards: usize,
    pub(super) clock: Clock,
    pub(super) secret: HashSecret,
}

/// The usage of a memory store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUsage {
    /// Live keys.
    pub keys: usize,
    /// Bytes of the tables and of the states outside them.
    pub bytes: usize,
    /// Idle keys swept since the start.
    pub swept: u64,
    /// Charges that met an overflow counter: their key was new, and there was no capacity for it.
    pub overflowed: u64,
}

impl MemoryOptions {
    /// The largest number of bytes of keys and states. The tables never grow past it; only the logs and leases of
    /// existing keys may. 1 GiB by default.
    pub fn max_memory(self, bytes: usize) -> Self {
        Self {
            max_memory: bytes,
            ..self
        }
    }

    /// The treatment of new keys at the cap.
    pub fn overflow(self, overflow: Overflow) -> Self {
        Self { overflow, ..self }
    }

    /// The number of locks per algorithm, rounded up to a power of two. 256 by default.
    pub fn shards(self, shards: usize) -> Self {
        Self {
            shards: shards.clamp(1, 1 << 16).next_power_of_two(),
            ..self
        }
    }

    /// The clock, for tests and simulations.
    pub fn clock(self, clock: Clock) -> Self {
        Self { clock, ..self }
    }

    /// An empty store.
    pub fn build(self) -> Memory {
        Memory {
            secret: self.secret,
            clock: self.clock,
            tables: Tables::new(self.shards),
            budget: Budget::new(self.max_memory),
            overflow: OverflowCounters::new(self.overflow),
            swept: AtomicU64::new(0),
        }
    }
}
