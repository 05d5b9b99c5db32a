//! The store of a server, from its opening to its closing.

use super::primary::KeptPrimary;
use super::{memory, shared};
use std::sync::Arc;
use tollgate::config::{DataDir, StoreSettings};
use tollgate::data_dir::Held;
use tollgate::server::store::{Shared, Store};

/// A store that is open.
pub(super) enum Opened {
    /// The embedded one.
    Memory(memory::Store),
    /// The shared one.
    Redis {
        store: Arc<Shared>,
        /// Where it is kept which primary sentinels name.
        primary: Option<KeptPrimary>,
        /// The folder that was named, also while nothing is written to it.
        _folder: Option<Held>,
    },
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
                // A folder that nobody named may be anybody's: two servers may be started beside each other.
                let is_kept = redis.has_sentinels() && data_dir.is_named;
                let folder = hold(data_dir, is_kept)?;
                let primary = is_kept.then(|| KeptPrimary::read(&data_dir.path));
                let options = redis.options()?;
                let options = match primary.as_ref().and_then(KeptPrimary::text) {
                    Some(text) => options.last_primary(text),
                    None => options,
                };
                Ok(Self::Redis {
                    store: Arc::new(Shared::around(Arc::new(options.open()), redis.local)),
                    primary,
                    _folder: folder,
                })
            }
        }
    }

    /// The store itself.
    pub(super) fn counters(&self) -> Store {
        match self {
            Self::Memory(memory) => Store::Memory(memory.counters()),
            Self::Redis { store, .. } => Store::Redis(Arc::clone(store)),
        }
    }

    /// Tells other instances that this one ends.
    pub(super) async fn leave(&self) {
        match self {
            Self::Memory(_) => {}
            Self::Redis { store, .. } => store.leave().await,
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
    pub(super) async fn look(&mut self) -> impl Future<Output = ()> + Send + 'static {
        let primary = match self {
            Self::Memory(_) => None,
            Self::Redis { primary, .. } => primary.take(),
        };
        let store = self.counters();
        let is_known = match &store {
            Store::Memory(_) => true,
            Store::Redis(shared) => shared::first_look(shared.inner()).await,
        };
        async move {
            match store {
                Store::Memory(memory) => memory::sweep(memory).await,
                Store::Redis(shared) => shared::watch(shared, is_known, primary).await,
            }
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
