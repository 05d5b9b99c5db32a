//! Propagation through the shared store: the values of its `{cfg}` keys, the control service that keeps them there, and the part of the
//! follower that reads them.
//!
//! The store is a cache that anybody with access to it can write. A value counts if its code was made with the secret of the fleet
//! ([`Signer`]), and a change or a set if a head leads to it by chain or digest. Formats are pure: time is an argument.

pub mod claim;
pub mod head;
pub mod log;
mod owner;
pub mod parts;
pub mod reader;
pub(in crate::control) mod refill;
pub mod set;
mod signer;
pub mod snapshot;

#[cfg(test)]
mod attack_tests;

pub use signer::Signer;

use super::model::Change;
use std::collections::VecDeque;

/// The last changes that were applied, without gaps: what the log of the cache is continued with.
#[derive(Debug, Default)]
pub struct RecentChanges(VecDeque<Change>);

impl RecentChanges {
    /// Adds changes that follow.
    pub fn extend(&mut self, changes: &[Change]) {
        for change in changes {
            self.0.push_back(change.clone());
        }
        let excess = self.0.len().saturating_sub(RECENT_MAX);
        self.0.drain(..excess);
    }

    /// Forgets all and adds changes.
    pub fn replace(&mut self, changes: &[Change]) {
        self.0.clear();
        self.extend(changes);
    }

    /// The changes after a revision; none if there is a gap after it.
    pub fn after(&self, revision: u64) -> Option<Vec<Change>> {
        let after: Vec<Change> = self
            .0
            .iter()
            .filter(|change| change.revision > revision)
            .cloned()
            .collect();
        let starts = after.first().is_none_or(|first| first.revision == revision + 1);
        starts.then_some(after)
    }

    /// All of them.
    pub fn all(&self) -> Vec<Change> {
        self.0.iter().cloned().collect()
    }
}

const RECENT_MAX: usize = 5_000;
