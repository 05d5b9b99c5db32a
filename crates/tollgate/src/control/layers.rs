//! The parts of a control plane, and the one way in which managed state becomes active: compiled or amended under the loader's lock,
//! written to disk, installed in the gate, reported.

use super::database::{Database, DatabaseSnapshot};
use super::disk::{Disk, FoundState, SavedState, published_version};
use super::model::{Change, DatabaseHead, Digest, SetFile, VersionMeta};
use super::state::{LiveState, RuleLayer, RulesOrigin};
use super::tables::{RowTables, TableEdits};
use super::{ControlError, ControlOptions, ControlResult, chain};
use crate::data_dir::LockError;
use crate::reload::{error_lines, one_line};
use crate::rule_source::{ConfigLoader, MANAGED_PREFIX, RowLayer, SharedLoader};
use crate::server::gate::Gate;
use crate::server::telemetry::LiveSummary;
use arc_swap::ArcSwap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch};
use tollgate_limiter::core::problem::Problem;
use tollgate_limiter::core::rules::{Rule, RuleSet};

/// The parts of a control plane.
#[derive(Debug)]
pub(super) struct ControlParts {
    pub(super) options: ControlOptions,
    pub(super) database: Option<Database>,
    pub(super) gate: Arc<Gate>,
    pub(super) loader: SharedLoader,
    pub(super) tables: Arc<RowTables>,
    /// Changed under the loader's lock only.
    pub(super) live: ArcSwap<LiveState>,
    /// The epoch and revision that are applied.
    pub(super) applied: watch::Sender<(u64, u64)>,
    /// Wakes the follower.
    pub(super) wake: Notify,
    pub(super) disk: Mutex<Disk>,
    /// A set that was compiled for a publish, until it is applied.
    pub(super) prepared: Mutex<Option<PreparedSet>>,
    pub(super) health: Mutex<FollowerHealth>,
    /// The id of this instance.
    pub(super) instance: String,
}

/// A compiled set of files, without rows.
#[derive(Clone, Debug)]
pub(super) struct PreparedSet {
    pub(super) digest: Digest,
    /// That of the loader when it was compiled.
    pub(super) generation: u64,
    pub(super) rules: RuleSet,
}

/// The follower's view of the database.
#[derive(Debug, Default)]
pub(super) struct FollowerHealth {
    /// The reason why the newest state is not applied.
    pub(super) error: Option<String>,
    /// True while the database has another history than the one applied.
    pub(super) is_forked: bool,
    /// False while the last call failed.
    pub(super) is_up: bool,
    /// The time since which there is a newer head.
    pub(super) behind_since: Option<Instant>,
    /// The version that was rejected, and the generation of the file layer it was compiled with.
    pub(super) rejected: Option<(u64, u64)>,
    /// The warning about the disk was logged.
    pub(super) disk_failed: bool,
}

/// New managed state.
pub(super) enum Incoming {
    /// Changes that extend the applied state, with the files of a version that is live now.
    Changes {
        changes: Vec<Change>,
        set: Option<(VersionMeta, Vec<SetFile>)>,
    },
    /// A whole state of the database.
    Snapshot(Box<DatabaseSnapshot>),
    /// A whole state of the disk.
    Disk(Box<FoundState>),
}

/// A set that is tried: its version, its digest and its files.
type NextSet = (u64, Digest, Vec<SetFile>);

impl ControlParts {
    /// The disk.
    pub(super) fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The follower's view.
    pub(super) fn health(&self) -> MutexGuard<'_, FollowerHealth> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The set that was compiled last.
    pub(super) fn prepared(&self) -> MutexGuard<'_, Option<PreparedSet>> {
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if the database is this process's to read: a file that exists belongs to it, or it is a server.
    pub(super) fn may_read(&self) -> bool {
        match &self.database {
            None => false,
            Some(database) => database.kind() != "sqlite" || self.disk().is_acquired(),
        }
    }

    /// The database, locked for this process if it is a file.
    ///
    /// # Errors
    /// No database, or another process has it.
    pub(super) async fn writable(self: &Arc<Self>) -> ControlResult<&Database> {
        let database = self.database.as_ref().ok_or(ControlError::NoDatabase)?;
        if self.health().is_forked {
            let text = "another history of it is applied here; nothing is written until it is adopted";
            return Err(ControlError::Regressed(text.to_owned()));
        }
        if database.kind() == "sqlite" && !self.disk().is_acquired() {
            let parts = Arc::clone(self);
            let acquired = tokio::task::spawn_blocking(move || parts.disk().acquire()).await;
            match acquired {
                Ok(Ok(())) => {}
                Ok(Err(error @ LockError::InUse(..))) => return Err(ControlError::OtherDatabase(error.to_string())),
                Ok(Err(error @ LockError::Io(..))) => return Err(ControlError::Unavailable(error.to_string())),
                Err(error) => return Err(ControlError::Unavailable(error.to_string())),
            }
        }
        Ok(database)
    }

    /// Applies new state on a blocking thread. A panic ends this attempt only.
    pub(super) async fn apply(self: &Arc<Self>, incoming: Incoming) -> Result<(), String> {
        let mut loader = Arc::clone(&self.loader).lock_owned().await;
        let parts = Arc::clone(self);
        let task = tokio::task::spawn_blocking(move || match incoming {
            Incoming::Changes { changes, set } => {
                let set = set.map(|(meta, files)| (meta.number, meta.digest, files));
                parts.apply_changes(&mut loader, &changes, set);
            }
            Incoming::Snapshot(snapshot) => parts.apply_snapshot(&mut loader, *snapshot),
            Incoming::Disk(found) => parts.apply_found(&mut loader, *found),
        });
        task.await
            .map_err(|error| format!("the rules cannot be applied: {error}"))
    }

    fn apply_changes(&self, loader: &mut ConfigLoader, changes: &[Change], set: Option<NextSet>) {
        let compiled = set.and_then(|set| self.compile(loader, set));
        let mut live = LiveState::clone(&self.live.load());
        advance(&mut live, changes);
        let edits = self.tables.apply(changes);
        live.source = RulesOrigin::Database;
        self.finish(loader, live, compiled, Some((changes, edits)));
    }

    fn apply_snapshot(&self, loader: &mut ConfigLoader, snapshot: DatabaseSnapshot) {
        let mut live = LiveState::clone(&self.live.load());
        let set = snapshot.version.map(|meta| (meta.number, meta.digest, snapshot.files));
        let compiled = set.and_then(|set| self.compile(loader, set));
        self.tables.replace(snapshot.rows, snapshot.attributes);
        live.head = Some(snapshot.head);
        live.set_revision = snapshot.set_revision;
        live.source = RulesOrigin::Database;
        self.finish(loader, live, compiled, None);
    }

    fn apply_found(&self, loader: &mut ConfigLoader, found: FoundState) {
        let mut live = LiveState::clone(&self.live.load());
        let state = found.state;
        let digest = chain::set_digest(&state.files);
        let set = (state.version > 0).then_some((state.version, digest, state.files));
        let compiled = set.and_then(|set| self.compile(loader, set));
        self.tables.replace(state.rows, state.attributes);
        live.head = Some(state.head);
        live.set_revision = state.set_revision;
        live.source = RulesOrigin::Disk;
        advance(&mut live, &found.changes);
        self.tables.apply(&found.changes);
        self.finish(loader, live, compiled, None);
    }

    /// Compiles a set. One that cannot be used is reported, and the set before it stays.
    fn compile(&self, loader: &ConfigLoader, set: NextSet) -> Option<(NextSet, RuleSet)> {
        let generation = loader.generation();
        let is_same = |prepared: &PreparedSet| prepared.digest == set.1 && prepared.generation == generation;
        if chain::set_digest(&set.2) != set.1 {
            self.reject(set.0, generation, &["its files have another digest".to_owned()]);
            return None;
        }
        if let Some(prepared) = self.prepared().take().filter(is_same) {
            return Some((set, prepared.rules));
        }
        match loader.compile_managed(Some(set.2.clone().into())) {
            Ok(snapshot) => {
                for warning in &snapshot.warnings {
                    tracing::debug!("{}", one_line(warning));
                }
                Some((set, snapshot.rules))
            }
            Err(problems) => {
                self.reject(set.0, generation, &error_lines(&problems));
                None
            }
        }
    }

    fn reject(&self, version: u64, generation: u64, errors: &[String]) {
        for error in errors {
            tracing::error!("{error}");
        }
        tracing::error!(
            version,
            "the published rules cannot be used here; keeping the previous rules"
        );
        let text = format!("version {version} cannot be used: {}", errors.join("; "));
        self.gate.record_reload_failure(&text);
        self.gate.metrics().control.rejected_sets.add(1);
        let mut health = self.health();
        health.rejected = Some((version, generation));
        health.error = Some(text);
    }

    /// Writes to disk, installs, reports.
    fn finish(
        &self,
        loader: &mut ConfigLoader,
        mut live: LiveState,
        compiled: Option<(NextSet, RuleSet)>,
        changed: Option<(&[Change], TableEdits)>,
    ) {
        let rules = compiled.map(|((version, digest, files), rules)| {
            live.version = version;
            live.set_digest = digest;
            live.files = files.into();
            loader.set_managed(Some(Arc::clone(&live.files)));
            self.health().rejected = None;
            rules
        });
        let is_confirmed = live.source != RulesOrigin::Disk;
        live.since = Instant::now();
        match (rules, changed) {
            (None, Some((changes, edits))) => {
                self.journal(&live, changes);
                let problems = self.gate.amend_rules(&edits.rows, &edits.attributes);
                for problem in &problems {
                    tracing::error!(text = problem.text, "override row rejected; the other rows are in use");
                }
                self.gate
                    .metrics()
                    .control
                    .rejected_row_count
                    .add(problems.len() as u64);
                self.tables.record_problems(&edits.rows, &problems);
            }
            (rules, _) => {
                if is_confirmed {
                    self.save(&live);
                }
                let rules = match rules {
                    Some(rules) => Ok(rules),
                    None => loader.compile_managed(live.managed()).map(|snapshot| snapshot.rules),
                };
                match rules {
                    Ok(rules) => self.gate.install_rules(self.amend_all(&rules)),
                    Err(problems) => self.report_file_layer(&problems),
                }
            }
        }
        if self.health().rejected.is_none() {
            self.health().error = None;
        }
        self.set_live(live, loader.file_digest());
    }

    fn report_file_layer(&self, problems: &[Problem]) {
        let text = error_lines(problems).join("; ");
        tracing::error!(error = text, "rows cannot be applied; keeping the previous rules");
        self.health().error = Some(text);
    }

    /// A set with all rows and attributes. Rows that it cannot use are recorded.
    fn amend_all(&self, rules: &RuleSet) -> RuleSet {
        let (amended, edits, problems) = self.tables.amended(rules);
        self.gate
            .metrics()
            .control
            .rejected_row_count
            .add(problems.len() as u64);
        self.tables.record_problems(&edits, &problems);
        amended
    }

    /// Makes a state the live one, for readers.
    pub(super) fn set_live(&self, mut live: LiveState, files: [u8; 32]) {
        live.digest = layers_digest(&live, files);
        let (rows, _, rejected) = self.tables.counts();
        let head = live.head.as_ref();
        self.gate.metrics().control.set_live(LiveSummary {
            version: head.map(|_| live.version),
            revision: head.map(|head| head.revision),
            digest: live.digest.to_string(),
            source: live.source.name(),
            since: live.since,
            rows,
            rejected_rows: rejected,
        });
        let position = head.map_or((0, 0), |head| (head.epoch, head.revision));
        self.live.store(Arc::new(live));
        self.applied.send_replace(position);
    }

    /// Appends changes to the journal, or writes the whole state.
    fn journal(&self, live: &LiveState, changes: &[Change]) {
        let appended = {
            let mut disk = self.disk();
            !disk.needs_save() && disk.append(changes).is_ok()
        };
        if !appended {
            self.save(live);
        }
    }

    /// Writes the whole state to disk. A failure is logged once: decisions do not need it.
    fn save(&self, live: &LiveState) {
        let Some(head) = live.head.clone() else { return };
        let (rows, attributes) = self.tables.all();
        let state = SavedState {
            head,
            set_revision: live.set_revision,
            version: live.version,
            files: live.files.to_vec(),
            rows,
            attributes,
        };
        let result = self.disk().save(&state);
        let mut health = self.health();
        match result {
            Ok(()) => health.disk_failed = false,
            Err(error) if !health.disk_failed => {
                health.disk_failed = true;
                tracing::warn!(%error, "rules cannot be saved in data_dir; a start without the database will lack them");
            }
            Err(_) => {}
        }
    }

    /// Waits until a revision of the current epoch is applied. False after the timeout.
    pub(super) async fn wait_applied(&self, revision: u64, timeout: Duration) -> bool {
        let mut applied = self.applied.subscribe();
        let reached = applied.wait_for(|(_, current)| *current >= revision);
        tokio::time::timeout(timeout, reached)
            .await
            .is_ok_and(|reached| reached.is_ok())
    }

    /// True if the active rules have a rule of this name.
    pub(super) fn has_rule(&self, domain: &str, rule: &str) -> bool {
        let rules = self.gate.active_rules();
        rules
            .rules()
            .iter()
            .any(|other| other.id() == rule && other.domain() == domain)
    }
}

/// Rows and attributes of every set that files are loaded to.
#[derive(Debug)]
pub(super) struct LiveRows(pub(super) std::sync::Weak<ControlParts>);

impl RowLayer for LiveRows {
    fn amend(&self, rules: RuleSet, files: [u8; 32]) -> RuleSet {
        let Some(parts) = self.0.upgrade() else { return rules };
        let amended = parts.amend_all(&rules);
        parts.set_live(LiveState::clone(&parts.live.load()), files);
        // The new files may fit a set that was rejected.
        parts.wake.notify_one();
        amended
    }
}

/// The layer of a rule, by the text it was read from.
pub(super) fn layer_of(rule: &Rule) -> RuleLayer {
    let name = &*rule.location().origin.name;
    match name {
        "quickstart.yaml" => RuleLayer::Quickstart,
        _ if name.starts_with(MANAGED_PREFIX) => RuleLayer::Managed,
        _ => RuleLayer::File,
    }
}

/// Moves the position of a state over changes.
fn advance(live: &mut LiveState, changes: &[Change]) {
    let Some(head) = live.head.as_mut() else { return };
    for change in changes {
        if let Some(version) = published_version(&change.body) {
            head.live_version = version;
            live.set_revision = change.revision;
        }
        (head.revision, head.chain) = (change.revision, change.chain);
    }
}

/// The digest of the file layer, the version in use, and everything in the log.
fn layers_digest(live: &LiveState, files: [u8; 32]) -> Digest {
    let none = DatabaseHead {
        database_id: String::new(),
        epoch: 0,
        revision: 0,
        live_version: 0,
        chain: Digest::default(),
    };
    let head = live.head.as_ref().unwrap_or(&none);
    let parts = [&files[..], &live.set_digest.0, &head.epoch.to_be_bytes(), &head.chain.0];
    chain::digest_of(&parts.concat())
}
