//! Writes: validated against the active rules, committed to the database, and applied by the follower.

pub(super) mod publish;
mod request;
pub(super) mod rows;
pub(super) mod rule_edit;
mod rule_lines;

pub use request::{
    AttributeWrite, CheckedSet, PlannedSet, PublishOptions, PublishSet, Published, RowWrite, WriteOptions, Written,
};

use super::database::{CommitRequest, Committed, IdempotencyKey};
use super::layers::ControlParts;
use super::{ControlError, ControlResult};
use std::sync::Arc;

tokio::task_local! {
    /// The idempotency key of the request that this task serves.
    static KEY: IdempotencyKey;
}

/// Runs a call whose commit is done once per key: a retry of it returns the revision of the first, even if that was never answered.
///
/// The key accompanies the task and not the arguments, because every write below may be the one that commits.
pub async fn with_idempotency_key<T>(key: IdempotencyKey, call: impl Future<Output = T>) -> T {
    KEY.scope(key, call).await
}

/// Commits, wakes the follower and counts the result.
async fn commit(parts: &Arc<ControlParts>, request: CommitRequest) -> ControlResult<Committed> {
    let result = match (parts.writable().await, KEY.try_with(Clone::clone)) {
        (Ok(database), Ok(key)) => database.commit_once(&key, request).await.map_err(ControlError::from),
        (Ok(database), Err(_)) => database.commit(request).await.map_err(ControlError::from),
        (Err(error), _) => Err(error),
    };
    count(parts, result.as_ref().err());
    if result.is_ok() {
        // It has answered: reads go to it, and show what was written before it is applied.
        parts.health().is_up = true;
    }
    parts.wake.notify_one();
    result
}

/// Counts a write that was committed, refused or failed.
fn count(parts: &ControlParts, error: Option<&ControlError>) {
    let metrics = &parts.gate.metrics().control;
    match error {
        None => metrics.writes_done.add(1),
        Some(ControlError::Unavailable(_) | ControlError::Full) => metrics.writes_failed.add(1),
        Some(_) => metrics.writes_refused.add(1),
    }
}
