//! The store of a server: opening, background tasks, closing.

use super::primary_file::PrimaryFile;
use super::{memory_store, shared_store};
use crate::config::{DataDir, StoreSettings};
use crate::data_dir::{DirLock, LockError};
use crate::server::store::{AnyStore, RedisStore};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};
use tollgate_limiter::store::fallback::{FallbackOptions, Registration};

/// An open store.
pub(super) enum OpenStore {
    /// In this process.
    Memory(memory_store::MemoryHandle),
    /// On Redis or Valkey.
    Redis {
        store: Arc<RedisStore>,
        /// The longest wait for the store at start.
        start_wait: Duration,
        /// True once its diagnostics are logged.
        is_diagnosed: bool,
        /// The last primary that sentinels reported.
        primary: Option<PrimaryFile>,
        /// The configured directory, locked even if nothing is written to it.
        _folder: Option<DirLock>,
    },
}

impl OpenStore {
    /// Opens the store of the settings. An unreachable one opens too: it is connected to in the background.
    ///
    /// # Errors
    /// Invalid options, or a directory that another server has locked.
    pub(super) fn open(settings: &StoreSettings, data_dir: &DataDir) -> Result<Self, String> {
        match settings {
            StoreSettings::Memory(memory) => Ok(Self::Memory(memory_store::MemoryHandle::open(memory, data_dir)?)),
            StoreSettings::Redis(redis) => {
                let options = redis.options()?;
                // Without `data_dir` nothing is locked: two servers may start in one directory.
                let (folder, primary) = match options.has_sentinels() && data_dir.is_configured {
                    true => open_primary_file(&data_dir.path)?,
                    false => (lock_data_dir(data_dir, false)?, None),
                };
                let options = match primary.as_ref().and_then(PrimaryFile::text) {
                    Some(text) => options.last_primary(text),
                    None => options,
                };
                // A start that fails, because a port is taken, must not count as an instance.
                let fallback = FallbackOptions {
                    registration: Registration::Deferred,
                    ..redis.fallback
                };
                Ok(Self::Redis {
                    store: Arc::new(RedisStore::new(Arc::new(options.open()), fallback)),
                    start_wait: redis.start_wait,
                    is_diagnosed: false,
                    primary,
                    _folder: folder,
                })
            }
        }
    }

    /// The store, for the gate.
    pub(super) fn counters(&self) -> AnyStore {
        match self {
            Self::Memory(memory) => AnyStore::Memory(memory.counters()),
            Self::Redis { store, .. } => AnyStore::Redis(Arc::clone(store)),
        }
    }

    /// Waits until the store has answered and this instance is registered, at most as long as the settings say, so that
    /// the first requests are decided by the store. Logs the initial diagnostics. Nothing may keep the server from
    /// starting after it.
    pub(super) async fn wait_until_answered(&mut self) {
        let Self::Redis {
            store,
            start_wait,
            is_diagnosed,
            ..
        } = self
        else {
            return;
        };
        let until = Instant::now() + *start_wait;
        *is_diagnosed = shared_store::initial_diagnostics(store, until).await;
        // Without an answer heartbeats go on in the background.
        let _ = timeout_at(until, store.register()).await;
    }

    /// Saves what must outlast the server.
    ///
    /// # Errors
    /// The snapshot cannot be written.
    pub(super) fn close(self) -> Result<(), String> {
        match self {
            Self::Memory(memory) => memory.close(),
            Self::Redis { .. } => Ok(()),
        }
    }

    /// The background task of the store.
    pub(super) fn maintain(&mut self) -> impl Future<Output = ()> + Send + 'static {
        let (primary, is_diagnosed) = match self {
            Self::Memory(_) => (None, true),
            Self::Redis {
                primary, is_diagnosed, ..
            } => (primary.take(), *is_diagnosed),
        };
        let store = self.counters();
        async move {
            match store {
                AnyStore::Memory(memory) => memory_store::sweep(memory).await,
                AnyStore::Redis(shared) => {
                    let primary_file_task = async {
                        if let Some(primary) = primary {
                            primary.keep_current(shared.inner()).await;
                        }
                    };
                    tokio::join!(shared_store::watch(&shared, is_diagnosed), primary_file_task);
                }
            }
        }
    }
}

/// Locks the directory of the primary file. If it is not writable, logs that and goes on without.
///
/// # Errors
/// Another server has locked it.
fn open_primary_file(folder: &Path) -> Result<(Option<DirLock>, Option<PrimaryFile>), String> {
    match DirLock::acquire(folder) {
        Ok(lock) => Ok((Some(lock), Some(PrimaryFile::read(folder)))),
        Err(error @ LockError::InUse(..)) => Err(error.to_string()),
        Err(error @ LockError::Io(..)) => {
            tracing::warn!("the primary reported by sentinels will not be saved: {error}");
            Ok((None, None))
        }
    }
}

/// Locks the data directory if it is needed, or if it is configured and exists.
///
/// # Errors
/// Another server has locked it.
pub(super) fn lock_data_dir(data_dir: &DataDir, is_needed: bool) -> Result<Option<DirLock>, String> {
    if is_needed || (data_dir.is_configured && data_dir.path.is_dir()) {
        return DirLock::acquire(&data_dir.path)
            .map(Some)
            .map_err(|error| error.to_string());
    }
    Ok(None)
}
