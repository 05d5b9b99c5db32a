//! The control plane of one instance: rules, override rows and subject attributes in a database, and the task that keeps the
//! active rules at them.
//!
//! [`Control`] is what the admin API and `tollgate serve` use. `control/database.rs` keeps the truth, `control/follower.rs` applies it,
//! `control/disk.rs` keeps the last good state for a start without the database, `control/write.rs` changes it. Decisions
//! never wait for any of it: they read the active rules of the gate.

pub mod chain;
pub mod database;
pub mod disk;
mod error;
pub mod feed;
mod fleet;
mod follower;
mod layers;
pub mod model;
pub mod plan;
mod start;
mod state;
mod tables;
mod write;

pub use error::{ControlError, InstanceProblems, SetProblem};
pub use fleet::{FleetInstance, FleetView, InstanceStatus};
pub use start::{ControlSecret, DatabaseChoice};
pub use state::{
    CacheStatus, ControlStatus, DatabaseStatus, LiveState, RejectedRow, RuleCounts, RuleLayer, RuleText, RulesOrigin,
};
pub use write::{
    AttributeWrite, CheckedSet, PlannedSet, PublishOptions, PublishSet, Published, RowWrite, WriteOptions, Written,
    with_idempotency_key,
};

use self::database::{AttributeFilter, AttributeKey, AuditFilter, Database, DatabaseResult, RowFilter, RowKey};
use self::follower::expiry;
use self::layers::ControlParts;
use self::model::{Author, OverrideRow, SetFile, SubjectAttribute, SubjectValues, VersionMeta};
use self::tables::RowTables;
use self::write::{publish, rows, rule_edit};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// The result of a call of the control plane.
pub type ControlResult<T> = Result<T, ControlError>;

/// The control plane of one instance. Cheap to clone.
///
/// Principals, sessions, the audit log, stored responses, versions and their files are read and written through
/// [`Control::database`]; a write needs [`Control::writable_database`] first. Rules, rows and attributes are written here only, because
/// they are validated against the active rules first; reads of them go on from memory while the database is unavailable.
#[derive(Clone, Debug)]
pub struct Control {
    parts: Arc<ControlParts>,
}

/// Settings of the control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlOptions {
    /// The secret that instances sign with what they share in the cache; none: they do not.
    pub secret: Option<ControlSecret>,
    /// The interval of reads of the cache.
    pub poll: Duration,
    /// The interval of reads of the database's head.
    pub database_poll: Duration,
    /// The TTL of cached keys, and the greatest age of a cached head.
    pub cache_ttl: Duration,
    /// The longest wait for the votes of instances before a publish.
    pub prepare_timeout: Duration,
    /// True if the file layer is served when managed rules are expected and cannot be found.
    pub start_without: bool,
    /// True if managed rules are expected though there is no database file: PostgreSQL, or another source, is configured.
    pub is_managed: bool,
    /// True if only a push creates versions.
    pub git_only: bool,
    /// Versions that are kept.
    pub keep_versions: u64,
    /// The age of audit entries that are kept.
    pub audit_keep: Duration,
    /// The format of rules and rows that this instance writes, and the newest that it reads: that of the program, or a lower one, as
    /// an older program has.
    pub format: u32,
}

impl Default for ControlOptions {
    fn default() -> Self {
        Self {
            secret: None,
            poll: Duration::from_secs(1),
            database_poll: Duration::from_secs(5),
            cache_ttl: Duration::from_secs(86_400),
            prepare_timeout: Duration::from_secs(30),
            start_without: false,
            is_managed: false,
            git_only: false,
            keep_versions: 1_000,
            audit_keep: Duration::from_secs(400 * 86_400),
            format: plan::FORMAT,
        }
    }
}

impl Control {
    /// The database, for reads that concern no rules. None with `database: none`.
    pub fn database(&self) -> Option<&Database> {
        self.parts.database.as_ref()
    }

    /// The database, for writes that change no rules: principals, sessions, audit entries. A file is locked for this process first.
    ///
    /// # Errors
    /// No database, or another process has it.
    pub async fn writable_database(&self) -> ControlResult<&Database> {
        self.parts.writable().await
    }

    /// True if this instance has the lease of some background work, acquired or renewed for a while now. None if the database does not
    /// answer. Without a database every instance has it.
    pub async fn hold_lease(&self, name: &str, length: Duration) -> Option<bool> {
        let Some(database) = self.database() else {
            return Some(true);
        };
        if !self.parts.may_read() {
            return Some(true);
        }
        let until = database::now_ms().saturating_add(u64::try_from(length.as_millis()).unwrap_or(u64::MAX));
        database.acquire_lease(name, self.instance(), until).await.ok()
    }

    /// The silences of alerts; none while the database is away.
    pub async fn silences(&self) -> Option<Vec<database::StoredSilence>> {
        let database = self.readable_database()?;
        database.silences(database::now_ms()).await.ok()
    }

    /// The number and the hash of the last entry of the audit log; none without one, or while the database is away.
    pub async fn audit_end(&self) -> Option<(u64, model::Digest)> {
        let filter = AuditFilter::default();
        let entries = self.readable_database()?.audit(&filter, None, 1).await;
        let last = entries.ok()?.pop()?;
        Some((last.seq, last.hash))
    }

    /// The source of the version in use: `api`, `push` or `rollback`. None without one, or while the database is away.
    pub async fn live_source(&self) -> Option<String> {
        let version = self.live().version;
        let meta = self.readable_database()?.version(version);
        Some(meta.await.ok()??.source)
    }

    /// The managed state that the active rules were made of.
    pub fn live(&self) -> Arc<LiveState> {
        self.parts.live.load_full()
    }

    /// The status of this instance.
    pub fn status(&self) -> ControlStatus {
        start::status(&self.parts)
    }

    /// The id of this instance, random per start.
    pub fn instance(&self) -> &str {
        &self.parts.instance
    }

    /// Settings.
    pub fn options(&self) -> &ControlOptions {
        &self.parts.options
    }

    /// Waits until this instance has applied a revision of its epoch. False after the timeout.
    pub async fn wait_applied(&self, revision: u64, timeout: Duration) -> bool {
        self.parts.wait_applied(revision, timeout).await
    }

    /// The epoch and the revision that are applied, as they change.
    pub fn applied(&self) -> watch::Receiver<(u64, u64)> {
        self.parts.applied.subscribe()
    }

    /// Runs the follower, expiry, retention and the cache without end.
    pub async fn run(self) {
        tokio::join!(
            follower::follow(&self.parts),
            expiry::expire_rows(&self.parts),
            expiry::prune(&self.parts),
            expiry::keep_synced(&self.parts),
            feed::refill::refill(&self.parts),
            feed::refill::preload(&self.parts),
            self.parts.gate.recent_attempts().keep_recording(),
            self.parts.gate.keep_sampling(),
            fleet::report(&self.parts),
            fleet::vote(&self.parts),
            fleet::report_figures(&self.parts),
        );
    }

    /// Makes the database of this instance the one that all instances follow, in a new epoch: after a restored backup, or a failover that
    /// lost commits.
    ///
    /// # Errors
    /// No database, or it or the shared store does not answer.
    pub async fn adopt(&self, author: Author) -> ControlResult<model::DatabaseHead> {
        self.parts.adopt(author).await
    }

    /// Verifies the audit log, and shows the result in the metrics. An anchor that is not in an intact log is a finding about the
    /// anchor as much as about the log: it is reported only.
    ///
    /// # Errors
    /// No database, or it does not answer.
    pub async fn verify_audit(&self, anchor: Option<model::Digest>) -> ControlResult<database::AuditReport> {
        let database = self.parts.database.as_ref().ok_or(ControlError::NoDatabase)?;
        let report = database.verify_audit(anchor).await?;
        if report.is_intact() || anchor.is_none() {
            let is_broken = !report.is_intact();
            self.parts.gate.metrics().control.audit_broken.set(is_broken.into());
        }
        Ok(report)
    }

    /// The rows after a key, in the order of their keys: from the database, or from memory while it is unavailable.
    pub async fn rows(&self, filter: &RowFilter, after: Option<&RowKey>, limit: usize) -> Vec<OverrideRow> {
        self.read(
            async |database| database.rows(filter, after, limit).await,
            |tables| tables.rows(filter, after, limit),
        )
        .await
    }

    /// One row, likewise.
    pub async fn row(&self, key: &RowKey) -> Option<OverrideRow> {
        self.read(async |database| database.row(key).await, |tables| tables.row(key))
            .await
    }

    /// The reason why the active rules do not use a row; none if they do, or if it does not exist.
    pub fn row_error(&self, domain: &str, rule: &str, subject: &SubjectValues) -> Option<String> {
        self.parts.tables.row_error(domain, rule, subject)
    }

    /// Warnings about subjects of rows, which are stored all the same: attributes that are probably misspelt. One for each, with the
    /// index of the first such row, from 1, as its line.
    pub fn row_warnings<'r>(
        &self,
        rows: impl IntoIterator<Item = (&'r str, &'r str, &'r SubjectValues)>,
    ) -> Vec<SetProblem> {
        rows::warnings(&self.parts.gate.active_rules(), rows)
    }

    /// True if the active rules have a rule of this name that rows can belong to.
    pub fn has_rule(&self, domain: &str, rule: &str) -> bool {
        self.parts.has_rule(domain, rule)
    }

    /// The attributes after a key, in the order of their keys: from the database, or from memory while it is unavailable.
    pub async fn attributes(
        &self,
        filter: &AttributeFilter,
        after: Option<&AttributeKey>,
        limit: usize,
    ) -> Vec<SubjectAttribute> {
        self.read(
            async |database| database.attributes(filter, after, limit).await,
            |tables| tables.attributes(filter, after, limit),
        )
        .await
    }

    /// One attribute, likewise.
    pub async fn attribute(&self, key: &AttributeKey) -> Option<SubjectAttribute> {
        self.read(
            async |database| database.attribute(key).await,
            |tables| tables.attribute(key),
        )
        .await
    }

    /// Reads rows or attributes from the database, or from memory while it is unavailable.
    async fn read<T>(
        &self,
        stored: impl AsyncFnOnce(&Database) -> DatabaseResult<T>,
        in_memory: impl FnOnce(&RowTables) -> T,
    ) -> T {
        let stored = match self.readable_database() {
            Some(database) => stored(database).await.ok(),
            None => None,
        };
        stored.unwrap_or_else(|| in_memory(&self.parts.tables))
    }

    /// The database, if rows are better read from it than from memory.
    fn readable_database(&self) -> Option<&Database> {
        let is_readable = self.parts.may_read() && self.parts.health().is_up;
        self.parts.database.as_ref().filter(|_| is_readable)
    }

    /// The layer of an active rule.
    pub fn layer_of(&self, rule: &tollgate_limiter::core::rules::Rule) -> RuleLayer {
        layers::layer_of(rule)
    }

    /// The text and position of an active rule. Its revision is read from the database, or is that of the last publish.
    pub async fn rule_text(&self, domain: &str, id: &str) -> Option<RuleText> {
        rule_edit::rule_text(&self.parts, domain, id).await
    }

    /// Sets or deletes one row.
    ///
    /// # Errors
    /// Terms that its rule cannot have, an unknown rule, a precondition that does not hold, or no database.
    pub async fn write_row(&self, row: RowWrite, options: &WriteOptions, author: Author) -> ControlResult<Written> {
        rows::write_rows(&self.parts, vec![row], options, author).await
    }

    /// Sets and deletes rows, all or none. Problems carry the index of their row, from 1, as their line.
    ///
    /// # Errors
    /// As for one row.
    pub async fn import_rows(
        &self,
        rows: Vec<RowWrite>,
        options: &WriteOptions,
        author: Author,
    ) -> ControlResult<Written> {
        rows::write_rows(&self.parts, rows, options, author).await
    }

    /// Sets or deletes one subject attribute.
    ///
    /// # Errors
    /// A name or value that is too long, a precondition that does not hold, or no database.
    pub async fn write_attribute(
        &self,
        attribute: AttributeWrite,
        options: &WriteOptions,
        author: Author,
    ) -> ControlResult<Written> {
        rows::write_attributes(&self.parts, vec![attribute], options, author).await
    }

    /// Sets and deletes subject attributes, all or none. Problems carry the index, from 1, as their line.
    ///
    /// # Errors
    /// As for one attribute.
    pub async fn import_attributes(
        &self,
        attributes: Vec<AttributeWrite>,
        options: &WriteOptions,
        author: Author,
    ) -> ControlResult<Written> {
        rows::write_attributes(&self.parts, attributes, options, author).await
    }

    /// Compiles files with the file layer and the rows of this instance, and reports every problem.
    ///
    /// # Errors
    /// Files that are too large or have bad paths. Problems of rules are the result, not an error.
    pub async fn check_set(&self, files: Vec<SetFile>) -> ControlResult<CheckedSet> {
        publish::check_set(&self.parts, files).await
    }

    /// The plan that would make files live.
    ///
    /// # Errors
    /// Files that cannot be used.
    pub async fn plan(&self, files: Vec<SetFile>) -> ControlResult<PlannedSet> {
        publish::plan(&self.parts, files).await
    }

    /// Stores files as a draft. Files of an equal digest are stored once: then the existing version is returned, and false.
    ///
    /// # Errors
    /// Files that are too large, `edits: git`, or no database. A draft may have errors.
    pub async fn save_version(
        &self,
        files: Vec<SetFile>,
        options: &PublishOptions,
        author: Author,
    ) -> ControlResult<(VersionMeta, bool)> {
        publish::save_version(&self.parts, files, options, author).await
    }

    /// Makes a set live: compiled here first, then committed.
    ///
    /// # Errors
    /// Everything that keeps it from being live; then nothing has changed.
    pub async fn publish(&self, set: PublishSet, options: &PublishOptions, author: Author) -> ControlResult<Published> {
        publish::publish(&self.parts, set, options, author).await
    }

    /// Makes an older version live again; without a number, the one before the live one, unless that is a rollback itself.
    ///
    /// # Errors
    /// As for a publish.
    pub async fn rollback(
        &self,
        version: Option<u64>,
        options: &PublishOptions,
        author: Author,
    ) -> ControlResult<Published> {
        publish::rollback(&self.parts, version, options, author).await
    }

    /// Replaces or adds one rule, written as a mapping, and publishes the set with it. A new rule lives in
    /// `managed/<domain>/<id>.yaml`.
    ///
    /// # Errors
    /// As for a publish, and a rule of the file layer.
    pub async fn put_rule(
        &self,
        domain: &str,
        id: &str,
        yaml: &str,
        options: &PublishOptions,
        author: Author,
    ) -> ControlResult<Published> {
        rule_edit::put_rule(&self.parts, domain, id, yaml, options, author).await
    }

    /// Deletes one rule and publishes the set without it.
    ///
    /// # Errors
    /// As for a publish, and a rule of the file layer.
    pub async fn delete_rule(
        &self,
        domain: &str,
        id: &str,
        options: &PublishOptions,
        author: Author,
    ) -> ControlResult<Published> {
        rule_edit::delete_rule(&self.parts, domain, id, options, author).await
    }
}
