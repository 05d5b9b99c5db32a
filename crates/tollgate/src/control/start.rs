//! The start of a control plane: the last good state from disk, then the database, within a deadline.

#[cfg(test)]
pub(in crate::control) mod testing;

use super::database::Database;
use super::disk::Disk;
use super::feed::Signer;
use super::fleet::Fleet;
use super::follower;
use super::layers::{Applier, ControlParts, FollowerHealth, Incoming, LiveRows, WholeState, layer_of};
use super::state::{CacheStatus, ControlStatus, DatabaseStatus, LiveState, RuleCounts, RuleLayer};
use super::tables::RowTables;
use super::{Control, ControlOptions};
use crate::config::DataDir;
use crate::rule_source::{RowLayer, SharedLoader};
use crate::server::gate::Gate;
use arc_swap::ArcSwap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};
use tollgate_limiter::store::redis::ConfigCache;

/// The place where changes are kept.
#[derive(Clone, Default, PartialEq, Eq)]
pub enum DatabaseChoice {
    /// A file in the data directory.
    #[default]
    DataDir,
    /// A PostgreSQL server, by its URL.
    Postgres(String),
    /// None.
    None,
}

/// The secret that all instances of a fleet have. Its bytes are in no log.
#[derive(Clone, PartialEq, Eq)]
pub struct ControlSecret(Box<[u8]>);

impl ControlSecret {
    /// A secret of at least 32 characters; none if it is shorter.
    pub fn new(text: &str) -> Option<Self> {
        (text.chars().count() >= Self::CHARACTERS_MIN).then(|| Self(text.as_bytes().into()))
    }

    /// Its bytes, for a MAC.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The least number of characters.
    pub const CHARACTERS_MIN: usize = 32;
}

impl fmt::Debug for DatabaseChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without a URL, which may have a password.
        f.write_str(match self {
            Self::DataDir => "DataDir",
            Self::Postgres(_) => "Postgres(..)",
            Self::None => "None",
        })
    }
}

impl fmt::Debug for ControlSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ControlSecret(..)")
    }
}

impl Control {
    /// Starts with the last good state, and with that of the database if it answers in time. Nothing is written.
    ///
    /// # Errors
    /// A URL that cannot be read, or a configured data directory that another process has, or that is not writable.
    pub async fn start(
        choice: &DatabaseChoice,
        data_dir: &DataDir,
        options: ControlOptions,
        gate: Arc<Gate>,
        loader: SharedLoader,
        cache: Option<ConfigCache>,
    ) -> Result<Self, String> {
        let mut disk = Disk::new(data_dir.path.clone());
        let mut database = match choice {
            DatabaseChoice::DataDir => Some(Database::sqlite(disk.database_path())),
            DatabaseChoice::Postgres(url) => Some(Database::postgres(url).map_err(|error| error.to_string())?),
            DatabaseChoice::None => None,
        };
        let mut is_managed = options.is_managed || *choice != DatabaseChoice::DataDir && database.is_some();
        let found = match disk.has_state().then(|| disk.acquire()) {
            None => None,
            Some(Ok(())) => {
                is_managed |= *choice == DatabaseChoice::DataDir && disk.database_path().exists();
                disk.load()
            }
            Some(Err(error)) if data_dir.is_configured => return Err(error.to_string()),
            Some(Err(error)) => {
                tracing::warn!("managed rules will not be saved, nor read from disk: {error}");
                if *choice == DatabaseChoice::DataDir {
                    database = None;
                }
                None
            }
        };
        let is_new_file = *choice == DatabaseChoice::DataDir && database.is_some() && !disk.database_path().exists();
        gate.metrics().control.database_up.set(is_new_file.into());
        let scope = cache.as_ref().map(ConfigCache::prefix).unwrap_or_default();
        let signer = Signer::new(options.secret.as_ref().map(ControlSecret::bytes), scope);
        if cache.is_some() && !signer.has_secret() {
            tracing::warn!("write access to the shared store is write access to rules; set control.secret");
            gate.metrics().control.unsigned.set(1);
        }
        let parts = Arc::new(ControlParts {
            options: ControlOptions { is_managed, ..options },
            database,
            cache,
            signer,
            recent: Mutex::default(),
            gate,
            loader,
            tables: Arc::new(RowTables::default()),
            live: ArcSwap::from_pointee(LiveState::empty()),
            applied: watch::Sender::new((0, 0)),
            wake: Notify::new(),
            applier: Applier::default(),
            is_disk_acquired: disk.acquired(),
            disk: Mutex::new(disk),
            prepared: Mutex::new(None),
            health: Mutex::new(FollowerHealth {
                // A file that does not exist yet answers: there is nothing in it.
                is_up: is_new_file,
                ..FollowerHealth::default()
            }),
            fleet: Fleet::default(),
            instance: format!("{:016x}", fastrand::u64(..)),
        });
        let files = {
            let mut loader = parts.loader.lock().await;
            let rows: Arc<dyn RowLayer> = Arc::new(LiveRows(Arc::downgrade(&parts)));
            loader.set_row_layer(rows);
            loader.file_digest()
        };
        parts.set_live(LiveState::empty(), files);
        if let Some(found) = found {
            let whole = WholeState::from_disk(found);
            if let Err(error) = parts.apply(Incoming::Whole(Box::new(whole))).await {
                tracing::error!(error, "saved rules cannot be used; waiting for the database");
            }
        }
        // The follower goes on where this ends. With saved rules the server does not wait long for newer ones.
        let is_ready = || parts.live.load().head.is_some();
        let limit = || if is_ready() { READY_TIMEOUT } else { START_TIMEOUT };
        let _ = timeout(limit(), follower::follow_cache(&parts)).await;
        let _ = timeout(limit(), follower::follow_database(&parts)).await;
        Ok(Self { parts })
    }

    /// True while managed rules are expected and none are in use: the server is not ready then.
    pub fn is_waiting(&self) -> bool {
        let options = &self.parts.options;
        if options.start_without || !options.is_managed {
            return false;
        }
        let live = self.parts.live.load();
        match &live.head {
            None => !self.is_known_empty(),
            Some(head) => head.live_version > 0 && live.version == 0,
        }
    }

    /// True if a source has answered that nothing was ever written. A cache without a head says so only if no database has claimed the
    /// fleet and the database of this instance answers, and never to an instance that has none.
    fn is_known_empty(&self) -> bool {
        let health = self.parts.health();
        match &self.parts.database {
            None => false,
            Some(database) if self.parts.cache.is_none() || database.kind() == "postgres" => health.is_up,
            Some(_) => health.is_cache_empty && health.is_up,
        }
    }

    /// Waits until the managed rules are in use.
    pub async fn wait_ready(&self) {
        while self.is_waiting() {
            sleep(READY_INTERVAL).await;
        }
    }
}

/// The status of an instance.
pub(super) fn status(parts: &ControlParts) -> ControlStatus {
    let live = parts.live.load_full();
    let rules = parts.gate.active_rules();
    let managed = rules.rules().iter();
    let managed = managed.filter(|rule| layer_of(rule) == RuleLayer::Managed).count();
    let total = rules.rules().len();
    let (override_rows, attributes, rejected_count) = parts.tables.counts();
    let health = parts.health();
    ControlStatus {
        instance: parts.instance.clone(),
        epoch: live.epoch(),
        revision: live.revision(),
        version: live.version,
        set_revision: live.set_revision,
        chain: live.head.as_ref().map(|head| head.chain).unwrap_or_default(),
        digest: live.digest,
        source: live.source,
        age_seconds: live.since.elapsed().as_secs(),
        database: DatabaseStatus {
            kind: parts.database.as_ref().map_or("none", Database::kind),
            up: health.is_up,
            id: live.head.as_ref().map(|head| head.database_id.clone()),
        },
        edits: if parts.options.git_only { "git" } else { "both" },
        rules: RuleCounts {
            managed,
            file: total - managed,
            total,
        },
        override_rows,
        orphan_rows: rules.orphan_rows(),
        attributes,
        rejected_rows: parts.tables.rejected(REJECTED_SHOWN_MAX),
        rejected_count,
        error: health.first_error(),
        forked: health.forked.is_some(),
        regressed: health.regressed.clone(),
        cache: parts.cache.as_ref().map(|_| CacheStatus {
            up: health.is_cache_up,
            signed: parts.signer.has_secret(),
            epoch: health.seen.as_ref().map_or(0, |seen| seen.head.epoch),
            revision: health.seen.as_ref().map_or(0, |seen| seen.head.revision),
        }),
    }
}

/// The wait for a source while there is nothing to serve.
const START_TIMEOUT: Duration = Duration::from_secs(3);
/// The wait for a source while there are rules.
const READY_TIMEOUT: Duration = Duration::from_millis(700);
const READY_INTERVAL: Duration = Duration::from_millis(200);
const REJECTED_SHOWN_MAX: usize = 100;
