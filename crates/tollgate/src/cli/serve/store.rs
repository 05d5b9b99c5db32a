//! The store of a server, from its opening to its closing.

use super::{memory, shared};
use std::sync::Arc;
use tollgate::config::{DataDir, StoreSettings};
use tollgate::data_dir::Held;
use tollgate::server::store::Store;
use tollgate_limiter::core::rules::{OnStoreFailure, Rule, RuleSet};
use tollgate_limiter::store::redis::Redis;

/// A store that is open.
pub(super) enum Opened {
    /// The embedded one.
    Memory(memory::Store),
    /// The shared one, and the folder that was named though nothing is written to it.
    Redis(
        Arc<Redis>,
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
                let options = redis.options()?;
                Ok(Self::Redis(Arc::new(options.open()), folder))
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

    /// Says what rules want that this store does not do.
    pub(super) fn warn_of(&self, rules: &RuleSet) {
        let is_local = |rule: &&Rule| matches!(rule.on_store_failure(), OnStoreFailure::Local);
        let local = rules.rules().iter().filter(is_local).count();
        if matches!(self, Self::Redis(..)) && local > 0 {
            tracing::warn!(
                rules = local,
                "`on_store_failure: local` acts as `open` for now: while the store is away these rules let everything pass"
            );
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
        Store::Redis(redis) => shared::survey(redis).await,
    };
    async move {
        match store {
            Store::Memory(memory) => memory::sweep(memory).await,
            Store::Redis(redis) => shared::watch(redis, is_known).await,
        }
    }
}
