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
#[cfg(test)]
mod cache_tests;

pub use signer::Signer;

use super::layers::ControlParts;
use super::model::{ChangeBody, LoggedChange};
use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::Instant;

impl ControlParts {
    /// Publishes a hint. One that fails is as one that is lost: polls find the change a little later. It is logged once a minute.
    pub(in crate::control) async fn send_hint(&self, hint: &str) {
        let Some(cache) = &self.cache else { return };
        let Err(error) = cache.publish(hint).await else { return };
        let mut health = self.health();
        let logged = health.hint_failure_logged;
        if logged.is_none_or(|at| at.elapsed() >= HINT_LOG_INTERVAL) {
            health.hint_failure_logged = Some(Instant::now());
            tracing::warn!(%error, "a hint cannot be published; instances find changes by polling");
        }
    }
}

/// The last changes that were applied, without gaps: what the log of the cache is continued with.
#[derive(Debug, Default)]
pub struct RecentChanges {
    changes: VecDeque<LoggedChange>,
    /// The number of rows and attributes in them.
    items: usize,
}

impl RecentChanges {
    /// Adds changes that follow.
    pub fn extend(&mut self, changes: &[LoggedChange]) {
        for change in changes {
            self.items += items(&change.body);
            self.changes.push_back(change.clone());
        }
        while self.items > ITEMS_MAX
            && let Some(oldest) = self.changes.pop_front()
        {
            self.items -= items(&oldest.body);
        }
    }

    /// Forgets all and adds changes.
    pub fn replace(&mut self, changes: &[LoggedChange]) {
        *self = Self::default();
        self.extend(changes);
    }

    /// The changes after a revision; none if there is a gap after it.
    pub fn after(&self, revision: u64) -> Option<Vec<LoggedChange>> {
        let after = self.changes.iter().filter(|change| change.revision > revision);
        let after: Vec<LoggedChange> = after.cloned().collect();
        let starts = after.first().is_none_or(|first| first.revision == revision + 1);
        starts.then_some(after)
    }

    /// All of them.
    pub fn all(&self) -> Vec<LoggedChange> {
        self.changes.iter().cloned().collect()
    }
}

fn items(body: &ChangeBody) -> usize {
    match body {
        ChangeBody::Batch { changes } => changes.len().max(1),
        _ => 1,
    }
}

/// As many as revisions between two snapshots: older ones are read from the database, or are in a snapshot.
const ITEMS_MAX: usize = 5_000;
const HINT_LOG_INTERVAL: Duration = Duration::from_secs(60);
