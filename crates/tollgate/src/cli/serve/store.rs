//! The store of a server, from its opening to its closing.

use super::{memory, shared};
use std::sync::Arc;
use tollgate::config::{DataDir, StoreSettings};
use tollgate::data_dir::Held;
use tollgate::server::store::{Shared, Store};

/// A store that is open.
pub(super) enum Opened {
    /// The embedded one.
    Memory(memory::Store),
    /// The shared one, and the folder that was named though nothing is written to it.
    Redis(
        Arc<Shared>,
        #[expect(dead_code, reason = "held until the server ends")] Option<Held>,
    ),
}

impl Opened {
    /// Opens what the settings name. One that cannot be reached is opened all the same: it is dialled until it can.
    ///
    /// # Errors
    /// What keeps it from being opened.
    pub(super) fn open(settings: &StoreSettings, data_dir: &DataDir) -> Result<Self, String> {
        match settings {
            StoreSettings::Memory(memory) => Ok(Self::Memory(memory::Store::open(memory, data_dir)?)),
            StoreSettings::Redis(redis) => {
                let folder = hold(data_dir, false)?;
                let store = Arc::new(redis.options()?.open());
                Ok(Self::Redis(Arc::new(Shared::around(store, redis.local)), folder))
            }
        }
    }

    /// The store itself.
    pub(super) fn counters(&self) -> Store {
        match self {
            Self::Memory(memory) => Store::Memory(memory.counters()),
            Self::Redis(redis, _) => Store::Redis(Arc::clone(redis)),
        }
    }

    /// Tells other instances that this one ends.
    pub(super) async fn leave(&self) {
        match self {
            Self::Memory(_) => {}
            Self::Redis(redis, _) => redis.leave().await,
        }
    }

    /// Keeps what must outlast the server.
    ///
    /// # Errors
    /// What the file system refuses.
    pub(super) fn close(self) -> Result<(), String> {
        match self {
            Self::Memory(memory) => memory.close(),
            Self::Redis(..) => Ok(()),
        }
    }
}

/// Holds the folder a server writes to, if it does. One that somebody named is his even while nothing is written to it.
///
/// # Errors
/// That another server holds it.
pub(super) fn hold(data_dir: &DataDir, is_written: bool) -> Result<Option<Held>, String> {
    if is_written || (data_dir.is_named && data_dir.path.is_dir()) {
        return Held::take(&data_dir.path).map(Some).map_err(|error| error.to_string());
    }
    Ok(None)
}

/// Has a first look at a store, and then does what it needs to have done from time to time, without end.
pub(super) async fn look(store: Store) -> impl Future<Output = ()> + Send {
    let is_known = match &store {
        Store::Memory(_) => true,
        Store::Redis(shared) => shared::survey(shared.inner()).await,
    };
    async move {
        match store {
            Store::Memory(memory) => memory::sweep(memory).await,
            Store::Redis(shared) => shared::watch(shared, is_known).await,
        }
    }
}
