//! Versions of the rule set, their files, and the history of single rules.

use super::Database;
use super::connection::{Connection, ResultRow, parameters};
use super::error::{DatabaseError, DatabaseResult};
use super::query::record::{Column, Columns, Record as _, record};
use super::query::{PARAMETERS, Select, value_rows};
use super::requests::{NewVersion, RuleHistoryEntry};
use super::writer::ledger::Ledger;
use super::writer::{WriteReply, WriteRequest};
use crate::control::chain::{digest_of, set_digest};
use crate::control::model::{Author, Digest, Grammar, SetFile, VersionMeta, VersionState};
use sqlx::AssertSqlSafe;
use std::collections::BTreeSet;

/// The most bytes of text in one version.
pub const MAX_SET_BYTES: usize = 16 << 20;

impl Database {
    /// Saves a version and returns it with its number.
    ///
    /// # Errors
    /// [`DatabaseError::TooLarge`] for too much text, [`DatabaseError::Invalid`] for a path that appears twice; an unavailable or damaged
    /// database.
    pub async fn save_version(&self, version: NewVersion, author: &Author) -> DatabaseResult<VersionMeta> {
        let bytes = version.text_bytes();
        if bytes > MAX_SET_BYTES {
            return Err(DatabaseError::TooLarge(format!(
                "the files have {bytes} bytes; use at most {MAX_SET_BYTES}"
            )));
        }
        let mut paths = BTreeSet::new();
        if let Some(twice) = version.files.iter().find(|file| !paths.insert(&file.path)) {
            return Err(DatabaseError::Invalid(format!("the path {} appears twice", twice.path)));
        }
        match self
            .write(WriteRequest::SaveVersion(Box::new(version), author.clone()))
            .await?
        {
            WriteReply::Version(meta) => Ok(*meta),
            other => Err(other.unexpected()),
        }
    }

    /// Changes the state of a version that is not published.
    ///
    /// # Errors
    /// [`DatabaseError::Missing`] if there is no such version or it is published; an unavailable or damaged database.
    pub async fn set_version_state(&self, number: u64, state: VersionState) -> DatabaseResult<()> {
        self.change(WriteRequest::VersionState(number, state)).await
    }

    /// Returns versions below a number, the newest first.
    ///
    /// # Errors
    /// An unavailable or damaged database.
    pub async fn versions(&self, before: Option<u64>, limit: usize) -> DatabaseResult<Vec<VersionMeta>> {
        let mut select = Select::records::<VersionMeta>();
        if let Some(before) = before {
            select.and("number < ", before);
        }
        self.records(select.order_by("number DESC", limit)).await
    }

    /// Returns one version.
    ///
    /// # Errors
    /// An unavailable or damaged database.
    pub async fn version(&self, number: u64) -> DatabaseResult<Option<VersionMeta>> {
        self.record_where("number = ", number, "number").await
    }

    /// Returns the newest version with these files.
    ///
    /// # Errors
    /// An unavailable or damaged database.
    pub async fn version_by_digest(&self, digest: &Digest) -> DatabaseResult<Option<VersionMeta>> {
        self.record_where("digest = ", digest, "number DESC").await
    }

    /// Returns the files of a version, by path.
    ///
    /// # Errors
    /// An unavailable database, or files that do not have the digest of the version.
    pub async fn version_files(&self, number: u64) -> DatabaseResult<Vec<SetFile>> {
        // A database that is unavailable is noticed here.
        let Some(mut connection) = super::within_deadline(self.reader()).await? else {
            return Ok(Vec::new());
        };
        super::within(super::LONG_DEADLINE, async {
            connection.allow_long().await?;
            match find_version(&mut connection, number).await? {
                Some((meta, _)) => files_of(&mut connection, &meta).await,
                None => Ok(Vec::new()),
            }
        })
        .await
    }

    /// Returns the revision of the last publish; 0: none.
    ///
    /// # Errors
    /// An unavailable or damaged database.
    pub async fn set_revision(&self) -> DatabaseResult<u64> {
        let sql = "SELECT version.revision FROM version JOIN head ON head.live_version = version.number";
        let revisions = self.list(sql, &[], |row| row.number(0)).await?;
        Ok(revisions.first().copied().unwrap_or(0))
    }

    /// Returns the changes of one rule, the newest first.
    ///
    /// # Errors
    /// An unavailable or damaged database.
    pub async fn rule_history(&self, domain: &str, rule: &str, limit: usize) -> DatabaseResult<Vec<RuleHistoryEntry>> {
        // Entries whose audit entry was pruned have no author.
        let sql = "SELECT c.revision, c.kind, c.path, c.line, coalesce(a.at, 0), coalesce(a.actor, ''), coalesce(a.reason, '')
                   FROM rule_change c LEFT JOIN audit a ON a.revision = c.revision AND a.revision > 0
                   WHERE c.domain = $1 AND c.rule = $2 ORDER BY c.revision DESC LIMIT $3";
        self.list(sql, parameters![domain, rule, limit as u64], |row| {
            Ok(RuleHistoryEntry {
                revision: row.number(0)?,
                kind: row.text(1)?,
                path: row.text(2)?,
                line: row.number(3)?,
                at: row.number(4)?,
                actor: row.text(5)?,
                reason: row.text(6)?,
            })
        })
        .await
    }
}

/// A version with the revision of its last publish.
pub(super) async fn find_version(
    connection: &mut Connection,
    number: u64,
) -> DatabaseResult<Option<(VersionMeta, u64)>> {
    let sql = format!(
        "SELECT {}, revision FROM version WHERE number = $1",
        VersionMeta::COLUMNS
    );
    match connection.fetch_one(AssertSqlSafe(sql), parameters![number]).await? {
        Some(row) => {
            let mut columns = Columns::of(&row);
            Ok(Some((VersionMeta::take(&mut columns)?, columns.take()?)))
        }
        None => Ok(None),
    }
}

/// The highest number of a version; 0: no version exists.
pub(super) async fn last_number(connection: &mut Connection) -> DatabaseResult<u64> {
    let last = connection
        .fetch_one("SELECT coalesce(max(number), 0) FROM version", &[])
        .await?;
    last.map_or(Ok(0), |row| row.number(0))
}

/// The files of a version, compared with its digest.
pub(super) async fn files_of(connection: &mut Connection, version: &VersionMeta) -> DatabaseResult<Vec<SetFile>> {
    let sql =
        "SELECT f.path, f.grammar, b.text FROM version_file f JOIN blob b ON b.digest = f.blob WHERE f.version = $1
               ORDER BY f.path";
    let found = connection.fetch(sql, parameters![version.number]).await?;
    let files: Vec<SetFile> = found
        .iter()
        .map(|row| {
            Ok(SetFile {
                path: row.text(0)?,
                grammar: row.parsed(1, grammar_of)?,
                text: row.text(2)?,
            })
        })
        .collect::<DatabaseResult<_>>()?;
    if set_digest(&files) != version.digest {
        return Err(DatabaseError::Corrupt(format!(
            "the files of version {} do not have its digest",
            version.number
        )));
    }
    Ok(files)
}

/// Writes a version.
pub(super) async fn save(ledger: &mut Ledger, version: &NewVersion, author: &Author) -> DatabaseResult<VersionMeta> {
    // The lock of the head orders the numbers.
    ledger.head().await?;
    let meta = VersionMeta {
        number: last_number(&mut ledger.connection).await? + 1,
        parent: version.parent,
        digest: set_digest(&version.files),
        format: version.format,
        state: version.state,
        actor: author.actor.clone(),
        source: version.source.clone(),
        reason: author.reason.clone(),
        created_at: ledger.now,
    };
    ledger
        .connection
        .execute(
            "INSERT INTO version (number, parent, digest, format, state, actor, source, reason, created_at, revision)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, 0)",
            parameters![
                meta.number,
                meta.parent,
                &meta.digest,
                u64::from(meta.format),
                state_name(meta.state),
                &meta.actor,
                &meta.source,
                &meta.reason,
                meta.created_at,
            ],
        )
        .await?;
    for files in version.files.chunks(PARAMETERS / 4) {
        save_files(&mut ledger.connection, meta.number, files).await?;
    }
    let target = format!("version {}", meta.number);
    let after = serde_json::to_string(&meta).expect("a version has only texts and numbers");
    ledger.note(author, "version.save", &target, ("", &after)).await?;
    Ok(meta)
}

/// Changes the state of a version that is not published.
pub(super) async fn set_state(ledger: &mut Ledger, number: u64, state: VersionState) -> DatabaseResult<()> {
    let changed = ledger
        .connection
        .execute(
            "UPDATE version SET state = $1 WHERE number = $2 AND state <> 'published'",
            parameters![state_name(state), number],
        )
        .await?;
    if changed == 0 {
        return Err(DatabaseError::Missing(format!("an unpublished version {number}")));
    }
    Ok(())
}

async fn save_files(connection: &mut Connection, version: u64, files: &[SetFile]) -> DatabaseResult<()> {
    // PostgreSQL does not accept a key twice in one statement.
    let mut digests = BTreeSet::new();
    let mut blobs = Vec::new();
    let mut entries = Vec::new();
    for file in files {
        let digest = digest_of(file.text.as_bytes());
        if digests.insert(digest) {
            blobs.extend_from_slice(parameters![&digest, &file.text]);
        }
        let grammar = match file.grammar {
            Grammar::Own => "own",
            Grammar::Envoy => "envoy",
        };
        entries.extend_from_slice(parameters![version, &file.path, grammar, &digest]);
    }
    let sql = format!(
        "INSERT INTO blob (digest, text) VALUES {} ON CONFLICT (digest) DO NOTHING",
        value_rows(connection.placeholder(), digests.len(), 2)
    );
    connection.execute(AssertSqlSafe(sql), &blobs).await?;
    let sql = format!(
        "INSERT INTO version_file (version, path, grammar, blob) VALUES {}",
        value_rows(connection.placeholder(), files.len(), 4)
    );
    connection.execute(AssertSqlSafe(sql), &entries).await?;
    Ok(())
}

record!(VersionMeta, "version": number, parent, digest, format, state, actor, source, reason, created_at);

impl Column for VersionState {
    fn read(row: &ResultRow, column: usize) -> DatabaseResult<Self> {
        row.parsed(column, state_of)
    }
}

const fn state_name(state: VersionState) -> &'static str {
    match state {
        VersionState::Draft => "draft",
        VersionState::Prepared => "prepared",
        VersionState::Published => "published",
        VersionState::Rejected => "rejected",
    }
}

fn state_of(name: &str) -> Option<VersionState> {
    Some(match name {
        "draft" => VersionState::Draft,
        "prepared" => VersionState::Prepared,
        "published" => VersionState::Published,
        "rejected" => VersionState::Rejected,
        _ => return None,
    })
}

fn grammar_of(name: &str) -> Option<Grammar> {
    match name {
        "own" => Some(Grammar::Own),
        "envoy" => Some(Grammar::Envoy),
        _ => None,
    }
}
