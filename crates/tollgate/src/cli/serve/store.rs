//! The store of a server, from its opening to its closing.

use super::primary_file::PrimaryFile;
use super::{memory_store, shared_store};
use std::path::Path;
use std::sync::Arc;
use tollgate::config::{DataDir, StoreSettings};
use tollgate::data_dir::{DirLock, LockError};
use tollgate::server::store::{AnyStore, SharedStore};

/// A store that is open.
pub(super) enum OpenStore {
    /// The embedded one.
    Memory(memory_store::MemoryHandle),
    /// The shared one.
    Redis {
        store: Arc<SharedStore>,
        /// Where it is kept which primary sentinels name.
        primary: Option<PrimaryFile>,
        /// The folder that was named, also while nothing is written to it.
        _folder: Option<DirLock>,
    },
}

impl OpenStore {
    /// Opens what the settings name. One that cannot be reached is opened all the same: it is dialled until it can.
    ///
    /// # Errors
    /// What keeps it from being opened.
    pub(super) fn open(settings: &StoreSettings, data_dir: &DataDir) -> Result<Self, String> {
        match settings {
            StoreSettings::Memory(memory) => Ok(Self::Memory(memory_store::MemoryHandle::open(memory, data_dir)?)),
            StoreSettings::Redis(redis) => {
                let options = redis.options()?;
                // A folder that nobody named may be anybody's: two servers may be started beside each other.
                let (folder, primary) = match options.has_sentinels() && data_dir.is_configured {
                    true => open_primary_file(&data_dir.path)?,
                    false => (lock_data_dir(data_dir, false)?, None),
                };
                let options = match primary.as_ref().and_then(PrimaryFile::text) {
                    Some(text) => options.last_primary(text),
                    None => options,
                };
                Ok(Self::Redis {
                    store: Arc::new(SharedStore::new(Arc::new(options.open()), redis.fallback)),
                    primary,
                    _folder: folder,
                })
            }
        }
    }

    /// The store itself.
    pub(super) fn counters(&self) -> AnyStore {
        match self {
            Self::Memory(memory) => AnyStore::Memory(memory.counters()),
            Self::Redis { store, .. } => AnyStore::Redis(Arc::clone(store)),
        }
    }

    /// Tells other instances that this one ends.
    pub(super) async fn deregister(&self) {
        match self {
            Self::Memory(_) => {}
            Self::Redis { store, .. } => store.deregister().await,
        }
    }

    /// Keeps what must outlast the server.
    ///
    /// # Errors
    /// What the file system refuses.
    pub(super) fn close(self) -> Result<(), String> {
        match self {
            Self::Memory(memory) => memory.close(),
            Self::Redis { .. } => Ok(()),
        }
    }

    /// Has a first look at the store, and then does what it needs to have done from time to time, without end.
    pub(super) async fn maintain(&mut self) -> impl Future<Output = ()> + Send + 'static {
        let primary = match self {
            Self::Memory(_) => None,
            Self::Redis { primary, .. } => primary.take(),
        };
        let store = self.counters();
        let is_diagnosed = match &store {
            AnyStore::Memory(_) => true,
            AnyStore::Redis(shared) => shared_store::initial_diagnostics(shared.inner()).await,
        };
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

/// Holds the folder in which it is kept which primary sentinels name. One that cannot be written to is told of, and done without.
///
/// # Errors
/// That another server holds it.
fn open_primary_file(folder: &Path) -> Result<(Option<DirLock>, Option<PrimaryFile>), String> {
    match DirLock::acquire(folder) {
        Ok(lock) => Ok((Some(lock), Some(PrimaryFile::read(folder)))),
        Err(error @ LockError::InUse(..)) => Err(error.to_string()),
        Err(error @ LockError::Io(..)) => {
            tracing::warn!("which primary sentinels name is not kept: {error}");
            Ok((None, None))
        }
    }
}

/// Holds the folder a server writes to, if it does. One that somebody named is his even while nothing is written to it.
///
/// # Errors
/// That another server holds it.
pub(super) fn lock_data_dir(data_dir: &DataDir, is_needed: bool) -> Result<Option<DirLock>, String> {
    if is_needed || (data_dir.is_configured && data_dir.path.is_dir()) {
        return DirLock::acquire(&data_dir.path)
            .map(Some)
            .map_err(|error| error.to_string());
    }
    Ok(None)
}
