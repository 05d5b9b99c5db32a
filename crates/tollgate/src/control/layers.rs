//! The parts of a control plane, and the one way in which managed state becomes active: compiled or amended under the loader's lock,
//! written to disk, installed in the gate, reported.

mod applier;

pub(super) use self::applier::Applier;

use super::database::{Database, DatabaseSnapshot};
use super::disk::{Disk, FoundState, SavedState};
use super::feed::head::{CacheHead, Judgement, judge};
use super::feed::reader::{CacheReader, Fetched};
use super::feed::snapshot::RowSnapshot;
use super::feed::{RecentChanges, Signer};
use super::fleet::Fleet;
use super::model::{ChangeBody, DatabaseHead, Digest, LoggedChange, OverrideRow, SetFile, SubjectAttribute};
use super::state::{LiveState, RuleLayer, RulesOrigin};
use super::tables::{RowTables, TableEdits};
use super::{ControlOptions, chain};
use crate::reload::{error_lines, one_line};
use crate::rule_source::{ConfigLoader, MANAGED_PREFIX, RowLayer, SharedLoader};
use crate::server::gate::Gate;
use crate::server::telemetry::LiveSummary;
use arc_swap::ArcSwap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tollgate_limiter::core::problem::Problem;
use tollgate_limiter::core::rules::{Rule, RuleSet};
use tollgate_limiter::store::redis::ConfigCache;

/// The parts of a control plane.
#[derive(Debug)]
pub(super) struct ControlParts {
    pub(super) options: ControlOptions,
    pub(super) database: Option<Database>,
    /// None: no shared store.
    pub(super) cache: Option<ConfigCache>,
    /// Of the cache's values.
    pub(super) signer: Signer,
    pub(super) gate: Arc<Gate>,
    pub(super) loader: SharedLoader,
    pub(super) tables: Arc<RowTables>,
    /// Changed under the loader's lock only.
    pub(super) live: ArcSwap<LiveState>,
    /// The epoch and revision that are applied.
    pub(super) applied: watch::Sender<(u64, u64)>,
    /// Wakes the follower.
    pub(super) wake: Notify,
    pub(super) applier: Applier,
    /// Locked on blocking threads and by the applier only: files are synced under it.
    pub(super) disk: Mutex<Disk>,
    /// True if this process has locked the data directory.
    pub(super) is_disk_acquired: Arc<AtomicBool>,
    /// A set that was compiled for a publish, until it is applied.
    pub(super) prepared: Mutex<Option<PreparedSet>>,
    /// The last changes, for the log of the cache.
    pub(super) recent: Mutex<RecentChanges>,
    pub(super) health: Mutex<FollowerHealth>,
    pub(super) fleet: Fleet,
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

/// The follower's view of its sources.
#[derive(Debug, Default)]
pub(super) struct FollowerHealth {
    /// The reason why a state that was read is not in use.
    pub(super) error: Option<String>,
    /// The reason why the database has nothing to apply, and that of the cache.
    pub(super) source_errors: [Option<String>; 2],
    /// The source that has another history than the one applied, and what shows it.
    pub(super) forked: Option<(Source, String)>,
    /// The database is behind what was applied, or seen in the cache: the reason.
    pub(super) regressed: Option<String>,
    /// The database of this instance is not the one it follows: the reason.
    pub(super) other_database: Option<String>,
    /// False while the last call of the database failed.
    pub(super) is_up: bool,
    /// The id of the database, once it was read.
    pub(super) database_id: Option<String>,
    /// False while the last call of the cache failed.
    pub(super) is_cache_up: bool,
    /// The cache has answered that there is neither a head nor a claim.
    pub(super) is_cache_empty: bool,
    /// The highest valid head of the cache.
    pub(super) seen: Option<CacheHead>,
    /// The highest epoch and revision that live instances of the same database report.
    pub(super) reported: (u64, u64),
    /// The last round of refilling the cache failed.
    pub(super) refill_failed: bool,
    /// The time since which there is a newer head.
    pub(super) behind_since: Option<Instant>,
    /// The digest of the set that was rejected, and the generation of the file layer it was compiled with.
    pub(super) rejected: Option<(Digest, u64)>,
    /// The warning about the disk was logged.
    pub(super) disk_failed: bool,
    /// The last time that a hint which could not be published was logged.
    pub(super) hint_failure_logged: Option<Instant>,
}

impl FollowerHealth {
    /// The reason why the newest state is not applied; none: it is.
    pub(super) fn first_error(&self) -> Option<String> {
        let mut errors = self.error.iter().chain(self.source_errors.iter().flatten());
        errors.next().cloned()
    }
}

/// A source of managed state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Database,
    Cache,
}

/// New managed state.
pub(super) enum Incoming {
    /// Changes that extend the applied state, with the files of a version that is live now.
    Changes {
        changes: Vec<LoggedChange>,
        set: Option<NextSet>,
        origin: RulesOrigin,
    },
    /// A whole state, which replaces everything.
    Whole(Box<WholeState>),
}

/// A whole state: everything at a position, and changes after it.
pub(super) struct WholeState {
    pub(super) head: DatabaseHead,
    /// The digest of the live version's files at that position, if it is known.
    pub(super) head_set: Digest,
    pub(super) set_revision: u64,
    pub(super) rows: Vec<Arc<OverrideRow>>,
    pub(super) attributes: Vec<Arc<SubjectAttribute>>,
    pub(super) changes: Vec<LoggedChange>,
    /// The set that is live after the changes; none: nothing was published, or it stays the one in use.
    pub(super) set: Option<NextSet>,
    pub(super) origin: RulesOrigin,
}

/// A set that is tried: its version, its digest and its files.
pub(super) type NextSet = (u64, Digest, Vec<SetFile>);

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

    /// The last changes.
    pub(super) fn recent(&self) -> MutexGuard<'_, RecentChanges> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if nothing is known that speaks against writing the database: no other history, no lack, no other database.
    pub(super) fn is_database_current(&self) -> bool {
        let health = self.health();
        health.forked.is_none() && health.regressed.is_none() && health.other_database.is_none()
    }

    /// A reader of the cache.
    pub(super) fn reader(&self) -> Option<CacheReader> {
        let cache = self.cache.clone()?;
        Some(CacheReader::with_signer(cache, self.signer.clone()))
    }

    /// True if the database is this process's to read: a file that exists belongs to it, or it is a server.
    pub(super) fn may_read(&self) -> bool {
        match &self.database {
            None => false,
            Some(database) => database.kind() != "sqlite" || self.is_disk_acquired.load(Ordering::Acquire),
        }
    }

    /// Applies new state on a thread of its own. State that does not lead forward from what is applied by then is dropped. A panic ends this
    /// attempt only.
    pub(super) async fn apply(self: &Arc<Self>, incoming: Incoming) -> Result<(), String> {
        let mut loader = Arc::clone(&self.loader).lock_owned().await;
        let parts = Arc::clone(self);
        let applied = self.applier.run(move || match incoming {
            Incoming::Changes { changes, set, origin } => parts.apply_changes(&mut loader, &changes, set, origin),
            Incoming::Whole(state) => parts.apply_whole(&mut loader, *state),
        });
        applied
            .await
            .map_err(|error| format!("the rules cannot be applied: {error}"))
    }

    fn apply_changes(
        &self,
        loader: &mut ConfigLoader,
        changes: &[LoggedChange],
        set: Option<NextSet>,
        origin: RulesOrigin,
    ) {
        let mut live = LiveState::clone(&self.live.load());
        if !extends(live.head.as_ref(), changes) {
            return;
        }
        let compiled = set.and_then(|set| self.compile(loader, set));
        advance(&mut live, changes);
        let edits = self.tables.apply(changes);
        if !changes.is_empty() || live.source == RulesOrigin::Disk {
            live.source = origin;
        }
        if self.database.is_some() && self.cache.is_some() {
            self.recent().extend(changes);
        }
        self.finish(loader, live, compiled, Some((changes, edits)));
    }

    fn apply_whole(&self, loader: &mut ConfigLoader, state: WholeState) {
        let mut live = LiveState::clone(&self.live.load());
        let before = live.head.clone();
        live.head = Some(state.head);
        live.head_set = state.head_set;
        live.set_revision = state.set_revision;
        live.source = state.origin;
        advance(&mut live, &state.changes);
        let is_forward = live
            .head
            .as_ref()
            .is_some_and(|head| matches!(judge(before.as_ref(), head), Judgement::Extend | Judgement::Replace));
        if !is_forward {
            return;
        }
        if live.head.as_ref().is_some_and(|head| head.live_version == 0) {
            // A new epoch in which nothing is published: rules of the one before are in no version.
            (live.version, live.files, live.set_digest) = (0, Arc::new([]), Digest::default());
            loader.set_managed(None);
            self.health().rejected = None;
        }
        let compiled = state.set.and_then(|set| self.compile(loader, set));
        self.tables.replace(state.rows, state.attributes);
        self.tables.apply(&state.changes);
        self.recent().replace(&state.changes);
        self.finish(loader, live, compiled, None);
    }

    /// Compiles a set. One that cannot be used is reported, and the set before it stays.
    fn compile(&self, loader: &ConfigLoader, set: NextSet) -> Option<(NextSet, RuleSet)> {
        let generation = loader.generation();
        let is_same = |prepared: &PreparedSet| prepared.digest == set.1 && prepared.generation == generation;
        if chain::set_digest(&set.2) != set.1 {
            self.reject(
                (set.0, set.1),
                generation,
                &["its files have another digest".to_owned()],
            );
            return None;
        }
        if let Some(prepared) = self.prepared().take().filter(is_same) {
            return Some((set, prepared.rules));
        }
        let compiled = catch_unwind(AssertUnwindSafe(|| loader.compile_managed(Some(set.2.clone().into()))));
        match compiled {
            Ok(Ok(snapshot)) => {
                for warning in &snapshot.warnings {
                    tracing::debug!("{}", one_line(warning));
                }
                Some((set, snapshot.rules))
            }
            Ok(Err(problems)) => {
                self.reject((set.0, set.1), generation, &error_lines(&problems));
                None
            }
            Err(_) => {
                self.reject(
                    (set.0, set.1),
                    generation,
                    &["the compiler panicked; report this".to_owned()],
                );
                None
            }
        }
    }

    /// Rejects the set of a version whose format this instance does not read.
    pub(super) async fn reject_format(&self, (version, digest): (u64, Digest), format: u32) {
        let generation = self.loader.lock().await.generation();
        let newest = self.options.format;
        let error = format!("it has format {format}, and this instance reads up to {newest}: it needs a newer version");
        self.reject((version, digest), generation, &[error]);
    }

    fn reject(&self, (version, digest): (u64, Digest), generation: u64, errors: &[String]) {
        for error in errors {
            tracing::error!("{error}");
        }
        tracing::error!(
            version,
            "the published rules cannot be used here; keeping the previous rules"
        );
        let text = format!("version {version} cannot be used: {}", errors.join("; "));
        self.gate.record_managed_failure(&text);
        self.gate.metrics().control.rejected_sets.add(1);
        let mut health = self.health();
        health.rejected = Some((digest, generation));
        health.error = Some(text);
    }

    /// Adds the rows to a compiled set and tries it on the last attempts. A set that panics is rejected.
    fn probe(&self, loader: &ConfigLoader, compiled: (NextSet, RuleSet)) -> Option<(NextSet, RuleSet)> {
        let (set, rules) = compiled;
        let probed = catch_unwind(AssertUnwindSafe(|| {
            let amended = self.amend_all(&rules);
            self.gate.recent_attempts().plan_all(&amended);
            amended
        }));
        match probed {
            Ok(amended) => Some((set, amended)),
            Err(_) => {
                let error = "planning one of the last attempts panicked; report this".to_owned();
                self.reject((set.0, set.1), loader.generation(), &[error]);
                None
            }
        }
    }

    /// Writes to disk, installs, reports.
    fn finish(
        &self,
        loader: &mut ConfigLoader,
        mut live: LiveState,
        compiled: Option<(NextSet, RuleSet)>,
        changed: Option<(&[LoggedChange], TableEdits)>,
    ) {
        let compiled = compiled.and_then(|compiled| self.probe(loader, compiled));
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
                self.amend(&edits);
            }
            (rules, _) => {
                if is_confirmed {
                    self.save(&live);
                }
                let rules = match rules {
                    Some(rules) => Ok(rules),
                    None => loader
                        .compile_managed(live.managed())
                        .map(|snapshot| self.amend_all(&snapshot.rules)),
                };
                match rules {
                    Ok(rules) => self.gate.install_managed_rules(rules),
                    Err(problems) => self.report_file_layer(&problems),
                }
            }
        }
        if self.health().rejected.is_none() {
            self.health().error = None;
            self.gate.clear_managed_failure();
        }
        self.set_live(live, loader.file_digest());
    }

    /// Applies edits to the active rules. Those that cannot be applied are recorded.
    fn amend(&self, edits: &TableEdits) {
        let problems = self.gate.amend_rules(&edits.rows, &edits.attributes);
        for problem in &problems.rows {
            tracing::error!(text = problem.text, "override row rejected; the other rows are in use");
        }
        for problem in &problems.attributes {
            tracing::error!(text = problem.text, "subject attribute rejected; the others are in use");
        }
        let metrics = &self.gate.metrics().control;
        metrics.rejected_row_count.add(problems.rows.len() as u64);
        metrics.rejected_attributes.add(problems.attributes.len() as u64);
        self.tables.record_problems(&edits.rows, &problems.rows);
    }

    fn report_file_layer(&self, problems: &[Problem]) {
        let text = error_lines(problems).join("; ");
        tracing::error!(error = text, "rows cannot be applied; keeping the previous rules");
        self.health().error = Some(text);
    }

    /// A set with all rows and attributes. Rows that it cannot use are recorded.
    fn amend_all(&self, rules: &RuleSet) -> RuleSet {
        let (amended, edits, problems) = self.tables.amended(rules);
        let metrics = &self.gate.metrics().control;
        metrics.rejected_row_count.add(problems.len() as u64);
        let (_, attributes, _) = self.tables.counts();
        let rejected_attributes = attributes.saturating_sub(amended.attribute_count());
        if rejected_attributes > 0 {
            tracing::error!(
                count = rejected_attributes,
                "subject attributes rejected; the others are in use"
            );
            metrics.rejected_attributes.add(rejected_attributes as u64);
        }
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
    fn journal(&self, live: &LiveState, changes: &[LoggedChange]) {
        let appended = {
            let mut disk = self.disk();
            !disk.needs_save() && disk.append(changes).is_ok()
        };
        if !appended {
            self.save(live);
        }
    }

    /// Writes the whole state to disk. A failure is logged once: decisions do not need it.
    pub(super) fn save(&self, live: &LiveState) {
        let Some(head) = live.head.clone() else { return };
        let (rows, attributes) = self.tables.all();
        let state = SavedState {
            head,
            head_set: live.head_set,
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

    /// Takes the digest of a head's version from a source, if the state of the disk did not have it.
    pub(super) async fn learn_head_set(&self, head: &DatabaseHead, set: Digest) {
        let loader = self.loader.lock().await;
        let mut live = LiveState::clone(&self.live.load());
        if live.head.as_ref() == Some(head) && live.head_set == Digest::default() {
            live.head_set = set;
            self.set_live(live, loader.file_digest());
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
        self.gate.active_rules().rule(domain, rule).is_some()
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

impl WholeState {
    /// A state of the database.
    pub(super) fn from_database(snapshot: DatabaseSnapshot) -> Self {
        let set = snapshot.version.map(|meta| (meta.number, meta.digest, snapshot.files));
        Self {
            head: snapshot.head,
            head_set: set.as_ref().map(|set| set.1).unwrap_or_default(),
            set_revision: snapshot.set_revision,
            rows: snapshot.rows.into_iter().map(Arc::new).collect(),
            attributes: snapshot.attributes.into_iter().map(Arc::new).collect(),
            changes: Vec::new(),
            set,
            origin: RulesOrigin::Database,
        }
    }

    /// A state of the cache.
    pub(super) fn from_cache(snapshot: RowSnapshot, changes: Vec<LoggedChange>, set: Option<NextSet>) -> Self {
        Self {
            head: snapshot.head,
            head_set: snapshot.set,
            set_revision: snapshot.set_revision,
            rows: snapshot.rows,
            attributes: snapshot.attributes,
            changes,
            set,
            origin: RulesOrigin::Cache,
        }
    }

    /// A state of the disk.
    pub(super) fn from_disk(found: FoundState) -> Self {
        let state = found.state;
        let digest = chain::set_digest(&state.files);
        let is_live = state.version == state.head.live_version;
        let set = (state.version > 0).then_some((state.version, digest, state.files));
        Self {
            head_set: if is_live && set.is_some() {
                digest
            } else {
                state.head_set
            },
            head: state.head,
            set_revision: state.set_revision,
            rows: state.rows,
            attributes: state.attributes,
            changes: found.changes,
            set,
            origin: RulesOrigin::Disk,
        }
    }
}

/// The version and digest that are live after what was fetched. `live` is the state before.
pub(super) fn live_set_after(live: &LiveState, fetched: &Fetched) -> (u64, Digest) {
    let before = match &fetched.snapshot {
        Some(snapshot) => (snapshot.head.live_version, snapshot.set),
        None => (live.head.as_ref().map_or(0, |head| head.live_version), live.head_set),
    };
    let published = fetched
        .changes
        .iter()
        .rev()
        .find_map(|change| published_set(&change.body));
    published.unwrap_or(before)
}

/// The version and digest that a change makes live, if it is a publish.
pub(super) const fn published_set(body: &ChangeBody) -> Option<(u64, Digest)> {
    match body {
        ChangeBody::Publish { version, digest } => Some((*version, *digest)),
        _ => None,
    }
}

/// True if changes continue a position. None always do.
fn extends(head: Option<&DatabaseHead>, changes: &[LoggedChange]) -> bool {
    let Some(first) = changes.first() else { return true };
    head.is_some_and(|head| {
        first.revision == head.revision + 1
            && chain::next_chain(&head.chain, first.revision, &first.body) == first.chain
    })
}

/// Moves the position of a state over changes.
fn advance(live: &mut LiveState, changes: &[LoggedChange]) {
    let Some(head) = live.head.as_mut() else { return };
    for change in changes {
        if let Some((version, digest)) = published_set(&change.body) {
            head.live_version = version;
            live.head_set = digest;
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
