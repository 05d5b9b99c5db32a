//! The memory store of a server: restored from a snapshot at the start, saved to it at the end.

use super::store::lock_data_dir;
use crate::config::{DataDir, MemorySettings, SnapshotPath};
use crate::data_dir::DirLock;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::MissedTickBehavior;
use tollgate_limiter::store::memory::Memory;

/// The store, and the snapshot file that outlasts a restart.
pub(super) struct MemoryHandle {
    counters: Arc<Memory>,
    snapshot: Option<PathBuf>,
    /// Locked until the snapshot is written.
    _folder: Option<DirLock>,
}

impl MemoryHandle {
    /// The store with the counters of the snapshot, or an empty one.
    ///
    /// # Errors
    /// A directory that another server has locked, or a snapshot that cannot be read.
    pub(super) fn open(settings: &MemorySettings, data_dir: &DataDir) -> Result<Self, String> {
        let snapshot = settings.snapshot.as_ref().map(|snapshot| match snapshot {
            SnapshotPath::InDataDir(name) => data_dir.path.join(name),
            SnapshotPath::At(path) => path.clone(),
        });
        let folder = lock_data_dir(data_dir, snapshot.is_some())?;
        let options = Memory::options()
            .max_memory(settings.max_memory - allocator_reserve(settings.max_memory))
            .overflow(settings.overflow);
        let counters = match &snapshot {
            Some(path) if path.exists() => {
                let counters = options.restore(path).map_err(|error| {
                    format!(
                        "cannot restore the snapshot {}: {error}; move it away to start with fresh counters",
                        path.display()
                    )
                })?;
                tracing::info!(keys = counters.usage().keys, file = %path.display(), "snapshot restored");
                counters
            }
            _ => options.build(),
        };
        Ok(Self {
            counters: Arc::new(counters),
            snapshot,
            _folder: folder,
        })
    }

    /// The store itself.
    pub(super) fn counters(&self) -> Arc<Memory> {
        Arc::clone(&self.counters)
    }

    /// Writes the snapshot, if one is configured.
    ///
    /// # Errors
    /// The snapshot cannot be written.
    pub(super) fn close(self) -> Result<(), String> {
        let Some(path) = &self.snapshot else { return Ok(()) };
        let snapshot = self.counters.snapshot(path);
        let keys = snapshot.map_err(|error| format!("cannot write the snapshot {}: {error}", path.display()))?;
        tracing::info!(keys, file = %path.display(), "snapshot written");
        Ok(())
    }
}

/// The part of `max_memory` reserved for the allocator, which keeps freed tables for a while.
fn allocator_reserve(max_memory: usize) -> usize {
    (max_memory / 4).min(ALLOCATOR_RESERVE_MAX)
}

const ALLOCATOR_RESERVE_MAX: usize = 8 << 20;

/// Removes fresh keys in the background, a few at a time, without end.
pub(super) async fn sweep(counters: Arc<Memory>) {
    let mut ticker = tokio::time::interval(SWEEP_INTERVAL);
    ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticker.tick().await;
        let counters = Arc::clone(&counters);
        // It takes locks. A panic is reported by the runtime and ends this round only.
        let _ = tokio::task::spawn_blocking(move || counters.sweep(SWEEP_SLOTS)).await;
    }
}

const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Per shard and round: a million keys are visited in about a minute.
const SWEEP_SLOTS: usize = 16;
