//! Checking, planning and publishing sets of files.

use super::{CheckedSet, PlannedSet, PublishOptions, PublishSet, Published, commit};
use crate::control::database::{CommitRequest, Database, ItemCondition, ItemKey, NewVersion, RowCheck, RuleChange};
use crate::control::layers::{ControlParts, PreparedSet};
use crate::control::model::{Author, ChangeBody, Digest, Precondition, SetFile, VersionMeta, VersionState};
use crate::control::plan::{ChangePlan, PlanOp};
use crate::control::state::{LiveState, RejectedRow, RuleLayer};
use crate::control::tables::{RowTables, row_edit};
use crate::control::{ControlError, ControlResult, SetProblem, chain, fleet, layers};
use crate::rule_source::{ConfigSnapshot, MANAGED_PREFIX, path_problem};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use tokio::task::JoinError;
use tokio::time::Instant;
use tollgate_limiter::core::problem::Problem;
use tollgate_limiter::core::rules::{RowEdit, RowProblem, RuleSet};

/// A set that this instance can use.
pub(super) struct ReadySet {
    files: Vec<SetFile>,
    digest: Digest,
    /// Without rows.
    rules: RuleSet,
    generation: u64,
}

impl ReadySet {
    /// The rules, without rows.
    pub(super) const fn rules(&self) -> &RuleSet {
        &self.rules
    }

    fn into_prepared(self) -> PreparedSet {
        PreparedSet {
            digest: self.digest,
            generation: self.generation,
            rules: self.rules,
        }
    }
}

/// Compiles files and returns their problems.
pub(in crate::control) async fn check_set(parts: &Arc<ControlParts>, files: Vec<SetFile>) -> ControlResult<CheckedSet> {
    check_files(&files)?;
    let result = compile(parts, files).await?;
    Ok(match result {
        Ok((snapshot, _)) => CheckedSet {
            problems: managed_problems(&snapshot.warnings),
            rules: snapshot.rules.rules().len(),
        },
        Err(problems) => CheckedSet {
            problems: set_problems(&problems),
            rules: 0,
        },
    })
}

pub(in crate::control) async fn plan(parts: &Arc<ControlParts>, files: Vec<SetFile>) -> ControlResult<PlannedSet> {
    let set = ready(parts, files).await?;
    let rows = parts.tables.all().0;
    let (amended, _, problems) = parts.tables.amended(&set.rules);
    let invalid: HashSet<usize> = problems.iter().map(|problem| problem.index).collect();
    let live = parts.gate.active_rules();
    let is_invalid = |index| invalid.contains(&index);
    let rows = rows.iter().map(Arc::as_ref);
    let mut plan = ChangePlan::between(&live, &amended).with_rows(&amended, rows, is_invalid);
    plan.format = parts.options.format;
    let fleet = fleet::view(parts).await.instances;
    let reading = fleet.iter().filter(|instance| instance.status.formats >= plan.format);
    (plan.supported, plan.instances) = (reading.count().max(1), fleet.len().max(1));
    Ok(PlannedSet {
        digest: set.digest,
        plan,
    })
}

pub(in crate::control) async fn save_version(
    parts: &Arc<ControlParts>,
    files: Vec<SetFile>,
    options: &PublishOptions,
    author: Author,
) -> ControlResult<(VersionMeta, bool)> {
    check_files(&files)?;
    check_git(parts, options)?;
    let database = parts.writable().await?;
    let digest = chain::set_digest(&files);
    let newest = database.versions(None, SAME_DIGEST_SEARCHED).await?;
    if let Some(same) = newest.into_iter().find(|version| version.digest == digest) {
        return Ok((same, false));
    }
    let version = new_version(parts, &parts.live.load(), files, options, VersionState::Draft);
    Ok((database.save_version(version, &author).await?, true))
}

pub(in crate::control) async fn publish(
    parts: &Arc<ControlParts>,
    set: PublishSet,
    options: &PublishOptions,
    author: Author,
) -> ControlResult<Published> {
    let live = parts.live.load_full();
    let (version, files) = match set {
        PublishSet::Files(files) => {
            check_git(parts, options)?;
            (None, files)
        }
        PublishSet::Version(number) => {
            let database = parts.database.as_ref().ok_or(ControlError::NoDatabase)?;
            let (meta, files) = stored(database, number).await?;
            check_source(parts, options, &meta.source)?;
            (Some(meta), files)
        }
    };
    let source = version.as_ref().map_or(&options.source, |version| &version.source);
    // From here on it says that a push replaces what was not pushed.
    let force = replaces_drift(parts, &live, options, source, &files).await?;
    let options = PublishOptions {
        force,
        ..options.clone()
    };
    let set = ready(parts, files).await?;
    publish_set(parts, &live, set, version, ItemKey::Set, &options, author).await
}

pub(in crate::control) async fn rollback(
    parts: &Arc<ControlParts>,
    version: Option<u64>,
    options: &PublishOptions,
    author: Author,
) -> ControlResult<Published> {
    check_source(parts, options, "rollback")?;
    let database = parts.database.as_ref().ok_or(ControlError::NoDatabase)?;
    let live = parts.live.load_full();
    let number = match version {
        Some(number) => number,
        None => {
            check_set_condition(&live, &ItemKey::Set, options)?;
            version_before(database, live.head.as_ref().map_or(0, |head| head.live_version)).await?
        }
    };
    let (_, files) = stored(database, number).await?;
    let set = ready(parts, files).await?;
    let options = PublishOptions {
        source: format!("rollback {number}"),
        ..options.clone()
    };
    publish_set(parts, &live, set, None, ItemKey::Set, &options, author).await
}

/// The version that was live before this one. That of a rollback is the one that was left: who repeats a rollback whose response was
/// lost would return to it.
async fn version_before(database: &Database, live: u64) -> ControlResult<u64> {
    let meta = database.version(live).await?;
    match meta.filter(|meta| meta.parent > 0) {
        None => Err(ControlError::NotFound("version before the live one".to_owned())),
        Some(meta) if meta.source.starts_with("rollback") => Err(ControlError::Drift {
            text: format!(
                "version {live}, which is live, is a {} already: by {} ({}); name the version to return to",
                meta.source.replacen(' ', " to version ", 1),
                meta.actor,
                meta.reason
            ),
            live: None,
        }),
        Some(meta) => Ok(meta.parent),
    }
}

/// Makes a compiled set live, if the live one is still that of `live`: the state that it was made of.
pub(super) async fn publish_set(
    parts: &Arc<ControlParts>,
    live: &LiveState,
    set: ReadySet,
    version: Option<VersionMeta>,
    item: ItemKey,
    options: &PublishOptions,
    author: Author,
) -> ControlResult<Published> {
    if options.expect_digest.is_some_and(|expected| expected != set.digest) {
        return Err(ControlError::Drift {
            text: "the files are not those of the plan; plan again".to_owned(),
            live: None,
        });
    }
    check_set_condition(live, &item, options)?;
    // The set of the head, and not the one in use: an instance that cannot use the live version must still be able to replace it.
    let is_head = live
        .head
        .as_ref()
        .is_some_and(|head| head.live_version > 0 && head.live_version == live.version);
    if is_head && live.head_set == set.digest && !options.force {
        return Ok(Published {
            version: live.version,
            revision: live.set_revision,
            epoch: live.epoch(),
            changed: false,
            prepared: 1,
            applied: 1,
            ..Published::default()
        });
    }
    let rows = TriedRows::new(parts, &set.rules, live.revision());
    if !rows.invalid.is_empty() && !options.drop_rows {
        return Err(ControlError::RowsInvalid(rows.invalid));
    }
    if options.dry_run {
        return Ok(Published {
            version: version.map_or(live.version + 1, |version| version.number),
            revision: live.revision(),
            epoch: live.epoch(),
            changed: true,
            prepared: 1,
            ..Published::default()
        });
    }
    let (digest, rules) = (set.digest, rule_changes(&parts.gate.active_rules(), &set.rules));
    let database = parts.writable().await?;
    let format = version.as_ref().map_or(parts.options.format, |version| version.format);
    if !options.skip_prepare {
        fleet::prepare::check_format(parts, format).await?;
    }
    let number = match version {
        Some(version) => version.number,
        None => {
            let version = new_version(parts, live, set.files.clone(), options, VersionState::Prepared);
            database.save_version(version, &author).await?.number
        }
    };
    let mut prepared = 1;
    let started = Instant::now();
    if !options.skip_prepare {
        let candidate = fleet::prepare::Candidate {
            version: number,
            digest: set.digest,
            format,
            files: &set.files,
            is_rollback: options.source.starts_with("rollback"),
        };
        match fleet::prepare::prepare(parts, &candidate).await {
            Ok(others) => prepared += others,
            Err(error) => {
                // For people who look at it later; that nothing is live does not depend on it.
                let _ = database.set_version_state(number, VersionState::Rejected).await;
                return Err(error);
            }
        }
    }
    let prepared_ms = elapsed_ms(started);
    *parts.prepared() = Some(set.into_prepared());
    let publish = ChangeBody::Publish {
        version: number,
        digest,
    };
    // Rows may change meanwhile; the set may not.
    let guard = ItemCondition {
        item: ItemKey::Set,
        precondition: match live.set_revision {
            0 => Precondition::Absent,
            revision => Precondition::Unchanged {
                epoch: live.epoch(),
                revision,
            },
        },
    };
    let condition = ItemCondition {
        item,
        precondition: options.precondition.clone(),
    };
    let request = CommitRequest {
        author,
        conditions: vec![condition, guard],
        changes: rows.changes(&publish),
        rules,
        row_check: Some(rows.into_check(parts, publish, options.drop_rows)),
        action: options.source.starts_with("rollback").then(|| "rollback".to_owned()),
    };
    let committed = commit(parts, request).await?;
    let mut published = Published {
        // A retry of what was committed before changes nothing.
        version: if committed.changes.is_empty() {
            committed.head.live_version
        } else {
            number
        },
        revision: committed.revision,
        epoch: committed.head.epoch,
        changed: true,
        prepared,
        prepared_ms,
        ..Published::default()
    };
    let started = Instant::now();
    fleet::prepare::wait_applied(parts, &mut published, options.wait).await;
    published.applied_ms = elapsed_ms(started);
    Ok(published)
}

fn elapsed_ms(started: Instant) -> u64 {
    u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// Compiles files on a blocking thread with the file layer of this instance.
pub(super) async fn ready(parts: &Arc<ControlParts>, files: Vec<SetFile>) -> ControlResult<ReadySet> {
    check_files(&files)?;
    let digest = chain::set_digest(&files);
    match compile(parts, files.clone()).await? {
        Ok((snapshot, generation)) => Ok(ReadySet {
            files,
            digest,
            rules: snapshot.rules,
            generation,
        }),
        Err(problems) => Err(ControlError::Invalid(set_problems(&problems))),
    }
}

/// Compiles files as a set that another instance is about to publish, with the rows of this one.
///
/// # Errors
/// It cannot be used here.
pub(in crate::control) async fn prepare_here(
    parts: &Arc<ControlParts>,
    files: Vec<SetFile>,
) -> ControlResult<PreparedSet> {
    let prepared = ready(parts, files).await?.into_prepared();
    let (owned, rules) = (Arc::clone(parts), prepared.rules.clone());
    // Rows that do not fit are the publisher's to judge; that they can be tried is ours.
    let probe = tokio::task::spawn_blocking(move || {
        let (amended, _, _) = owned.tables.amended(&rules);
        owned.gate.recent_attempts().plan_all(&amended);
    });
    probe.await.map_err(|error| rejected(&error))?;
    Ok(prepared)
}

type Compiled = Result<(ConfigSnapshot, u64), Vec<Problem>>;

/// A panic of the compiler is a rejection.
async fn compile(parts: &Arc<ControlParts>, files: Vec<SetFile>) -> ControlResult<Compiled> {
    let loader = Arc::clone(&parts.loader).lock_owned().await;
    let task = tokio::task::spawn_blocking(move || {
        let compiled = loader.compile_managed(Some(files.into()));
        compiled.map(|snapshot| (snapshot, loader.generation()))
    });
    task.await.map_err(|error| rejected(&error))
}

fn rejected(error: &JoinError) -> ControlError {
    let text = format!("the rules cannot be compiled: {error}");
    ControlError::PrepareRejected(vec![SetProblem::error(text)])
}

fn new_version(
    parts: &ControlParts,
    live: &LiveState,
    files: Vec<SetFile>,
    options: &PublishOptions,
    state: VersionState,
) -> NewVersion {
    NewVersion {
        parent: live.head.as_ref().map_or(0, |head| head.live_version),
        format: parts.options.format,
        state,
        source: options.source.clone(),
        files,
    }
}

async fn stored(database: &Database, number: u64) -> ControlResult<(VersionMeta, Vec<SetFile>)> {
    let missing = || ControlError::NotFound(format!("version {number}"));
    let meta = database.version(number).await?.ok_or_else(missing)?;
    Ok((meta, database.version_files(number).await?))
}

/// `edits: git`: only a push creates versions.
pub(super) fn check_git(parts: &ControlParts, options: &PublishOptions) -> ControlResult<()> {
    check_source(parts, options, &options.source)
}

/// `edits: git`: only what has the source of a push is made live.
fn check_source(parts: &ControlParts, options: &PublishOptions, source: &str) -> ControlResult<()> {
    let is_allowed = !parts.options.git_only || options.break_glass || source.starts_with("push");
    if is_allowed { Ok(()) } else { Err(ControlError::GitOnly) }
}

/// True if a push replaces a version that was not pushed. Without `force` it may do so with the same files only: the repository has then
/// taken the change over, and the new version says so.
async fn replaces_drift(
    parts: &Arc<ControlParts>,
    live: &LiveState,
    options: &PublishOptions,
    source: &str,
    files: &[SetFile],
) -> ControlResult<bool> {
    let live = live.head.as_ref().map_or(0, |head| head.live_version);
    if !source.starts_with("push") || live == 0 {
        return Ok(false);
    }
    let database = parts.database.as_ref().ok_or(ControlError::NoDatabase)?;
    match database.version(live).await? {
        Some(meta) if meta.source.starts_with("push") => Ok(false),
        Some(meta) if options.force || meta.digest == chain::set_digest(files) => Ok(true),
        Some(meta) => Err(ControlError::Drift {
            text: format!(
                "version {live} was not pushed: {} by {} ({})",
                meta.source, meta.actor, meta.reason
            ),
            live: Some(Box::new(meta)),
        }),
        None => Ok(false),
    }
}

/// The condition on the set is checked here too, so that an equal set, or a dry run, answers as a publish would.
fn check_set_condition(live: &LiveState, item: &ItemKey, options: &PublishOptions) -> ControlResult<()> {
    if *item != ItemKey::Set {
        return Ok(());
    }
    match options.precondition.holds(live.epoch(), live.set_revision) {
        true => Ok(()),
        false => Err(ControlError::stale(live.epoch(), live.set_revision)),
    }
}

/// A set with the rows of one moment, and those that it cannot use.
struct TriedRows {
    /// The revision of the rows, or one before it.
    since: u64,
    amended: RuleSet,
    invalid: Vec<RejectedRow>,
}

impl TriedRows {
    /// Tries the rows that are applied. They are those of the revision, or newer ones.
    fn new(parts: &ControlParts, rules: &RuleSet, revision: u64) -> Self {
        let (amended, edits, problems) = parts.tables.amended(rules);
        Self {
            since: revision,
            amended,
            invalid: new_problems(parts, &edits, &problems),
        }
    }

    /// The deletion of the rows that do not fit, and the publish.
    fn changes(&self, publish: &ChangeBody) -> Vec<ChangeBody> {
        let deletions = self.invalid.iter().cloned().map(deletion);
        deletions.chain([publish.clone()]).collect()
    }

    /// The check of rows that are written until the commit.
    fn into_check(self, parts: &Arc<ControlParts>, publish: ChangeBody, drop_rows: bool) -> RowCheck {
        let parts = Arc::clone(parts);
        RowCheck {
            since: self.since,
            judge: Arc::new(move |written: &[ChangeBody]| {
                let invalid = self.invalid_after(&parts, written);
                match invalid.is_empty() || drop_rows {
                    true => Ok(invalid.into_iter().map(deletion).chain([publish.clone()]).collect()),
                    false => Err(invalid),
                }
            }),
        }
    }

    /// The rows that the set cannot use after these changes. Of several changes of one row the last counts.
    fn invalid_after(&self, parts: &ControlParts, written: &[ChangeBody]) -> Vec<RejectedRow> {
        let mut last = BTreeMap::new();
        for change in written {
            if let ChangeBody::Row {
                domain,
                rule,
                subject,
                terms,
                ..
            } = change
            {
                last.insert((domain, rule, subject), terms.as_deref());
            }
        }
        let edits: Vec<RowEdit> = last
            .iter()
            .map(|((domain, rule, subject), terms)| row_edit(domain, rule, subject, *terms))
            .collect();
        let (_, mut problems) = self.amended.amend(&edits);
        problems.retain(|problem| edits.get(problem.index).is_some_and(|edit| edit.terms.is_some()));
        let is_unchanged = |row: &&RejectedRow| !last.contains_key(&(&row.domain, &row.rule, &row.subject));
        let mut invalid: Vec<RejectedRow> = self.invalid.iter().filter(is_unchanged).cloned().collect();
        invalid.extend(new_problems(parts, &edits, &problems));
        invalid
    }
}

/// The rows of edits with problems. Those that no set could use are left out: they are reported already.
fn new_problems(parts: &ControlParts, edits: &[RowEdit], problems: &[RowProblem]) -> Vec<RejectedRow> {
    let rows = RowTables::rejected_by(edits, problems);
    let is_new = |row: &RejectedRow| parts.tables.row_error(&row.domain, &row.rule, &row.subject).is_none();
    rows.into_iter().filter(is_new).collect()
}

fn deletion(row: RejectedRow) -> ChangeBody {
    ChangeBody::Row {
        domain: row.domain,
        rule: row.rule,
        subject: row.subject,
        terms: None,
        note: String::new(),
        expires_at: 0,
    }
}

/// The rules that differ, for their history.
fn rule_changes(live: &RuleSet, next: &RuleSet) -> Vec<RuleChange> {
    let mut seen = HashSet::new();
    let mut changes = Vec::new();
    for line in ChangePlan::between(live, next).lines {
        if !seen.insert((line.domain.clone(), line.rule.clone())) {
            continue;
        }
        let set = if line.op == PlanOp::Removed { live } else { next };
        let mut rules = set.rules().iter();
        let rule = rules.find(|rule| rule.id() == line.rule && rule.domain() == line.domain);
        let Some(rule) = rule.filter(|rule| layers::layer_of(rule) == RuleLayer::Managed) else {
            continue;
        };
        let location = rule.location();
        let path = &*location.origin.name;
        changes.push(RuleChange {
            domain: line.domain,
            rule: line.rule,
            kind: match line.op {
                PlanOp::Changed => "changed",
                PlanOp::Added => "added",
                PlanOp::Removed => "removed",
            }
            .to_owned(),
            path: path.strip_prefix(MANAGED_PREFIX).unwrap_or(path).to_owned(),
            line: match line.op {
                PlanOp::Removed => 0,
                _ => location.line.into(),
            },
        });
    }
    changes
}

/// Checks what the compiler does not see: sizes and paths.
pub(super) fn check_files(files: &[SetFile]) -> ControlResult<()> {
    let bytes: usize = files.iter().map(|file| file.text.len()).sum();
    if bytes > SET_BYTES_MAX || files.len() > FILES_MAX {
        let text = format!("a set has at most {FILES_MAX} files and {} MiB", SET_BYTES_MAX >> 20);
        return Err(ControlError::TooLarge(text));
    }
    let mut paths = HashSet::new();
    for file in files {
        let problem = match file.path.len() > PATH_MAX {
            true => Some("must have at most 512 bytes"),
            false => path_problem(&file.path),
        };
        if let Some(problem) = problem {
            return Err(ControlError::Malformed(format!(
                "the path `{}` of a rule file {problem}",
                file.path.escape_default().take(PATH_MAX).collect::<String>()
            )));
        }
        if !paths.insert(&file.path) {
            return Err(ControlError::Malformed(format!(
                "the path `{}` is there twice",
                file.path
            )));
        }
    }
    Ok(())
}

fn set_problems(problems: &[Problem]) -> Vec<SetProblem> {
    problems.iter().map(SetProblem::from).collect()
}

/// The problems of managed files: those of this instance's own files are none of the set.
fn managed_problems(problems: &[Problem]) -> Vec<SetProblem> {
    let is_managed = |problem: &&Problem| problem.location.origin.name.starts_with(MANAGED_PREFIX);
    problems.iter().filter(is_managed).map(SetProblem::from).collect()
}

const SET_BYTES_MAX: usize = 16 << 20;
const FILES_MAX: usize = 1_000;
const PATH_MAX: usize = 512;
const SAME_DIGEST_SEARCHED: usize = 100;
