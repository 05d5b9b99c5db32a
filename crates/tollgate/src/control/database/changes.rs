//! The head, the log of changes, and one consistent read of everything.

use super::connection::parameters;
use super::error::{DatabaseError, DatabaseResult};
use super::query::record;
use super::requests::{CommitRequest, Committed, DatabaseSnapshot, IdempotencyKey};
use super::writer::ledger::{ANCHOR, read_head};
use super::writer::{WriteReply, WriteRequest};
use super::{Database, LONG_DEADLINE, versions, within, within_deadline};
use crate::control::chain::{change_text, next_chain_of_text};
use crate::control::model::{ChangeBody, DatabaseHead, Digest, LoggedChange};

impl Database {
    /// Returns the head; none: nothing has been written yet.
    ///
    /// # Errors
    /// An unavailable or damaged database.
    pub async fn head(&self) -> DatabaseResult<Option<DatabaseHead>> {
        within_deadline(async {
            match self.reader().await? {
                Some(mut connection) => Ok(Some(read_head(&mut connection).await?)),
                None => Ok(None),
            }
        })
        .await
    }

    /// Commits changes, each with the next revision and an audit entry, in one transaction.
    ///
    /// # Errors
    /// [`DatabaseError::Stale`] if a condition does not hold; [`DatabaseError::Missing`] for a version that does not exist;
    /// [`DatabaseError::TooLarge`] for more rows or attributes than are kept; an unavailable or full database. Then nothing is
    /// changed, all or nothing, except that an unavailable one may have committed: the answer was lost, not the order. Read the item
    /// again, or use [`Database::commit_once`].
    pub async fn commit(&self, request: CommitRequest) -> DatabaseResult<Committed> {
        match self.write(WriteRequest::Commit(Box::new(request))).await? {
            WriteReply::Committed(committed) => Ok(*committed),
            other => Err(other.unexpected()),
        }
    }

    /// Commits changes once per idempotency key: the key is stored in the same transaction, so that a retry after an unavailable
    /// database does nothing twice. A retry returns the first revision, the present head, and no changes.
    ///
    /// # Errors
    /// [`DatabaseError::KeyReused`] if the key was used with another request; those of a commit.
    pub async fn commit_once(&self, key: &IdempotencyKey, request: CommitRequest) -> DatabaseResult<Committed> {
        let request = WriteRequest::CommitOnce(Box::new((key.clone(), request)));
        match self.write(request).await? {
            WriteReply::Committed(committed) => Ok(*committed),
            other => Err(other.unexpected()),
        }
    }

    /// Returns changes after a revision, in order and without gaps. Their chain is verified from the first to the last.
    ///
    /// # Errors
    /// [`DatabaseError::Pruned`] if the log begins later or the database was adopted since, [`DatabaseError::Newer`] if the next change is of an unknown kind, and
    /// an unavailable or damaged database.
    pub async fn changes_since(&self, revision: u64, limit: usize) -> DatabaseResult<Vec<LoggedChange>> {
        let sql = "SELECT revision, body, chain, at, kind FROM change WHERE revision >= $1 ORDER BY revision LIMIT $2";
        // With the change before them, whose chain theirs continue.
        let found = self
            .list(sql, parameters![revision, (limit as u64).saturating_add(1)], |row| {
                Ok((
                    row.number(0)?,
                    row.text(1)?,
                    row.parsed(2, Digest::parse)?,
                    row.number(3)?,
                    row.text(4)?,
                ))
            })
            .await?;
        let mut chain = (revision == 0).then(Digest::default);
        let mut next = revision;
        let mut changes = Vec::new();
        for (number, text, stored, at, kind) in found {
            if number == revision {
                chain = Some(stored);
                continue;
            }
            next += 1;
            if number != next {
                if changes.is_empty() {
                    return Err(DatabaseError::Pruned { first: number });
                }
                // The first change after an adoption is an anchor, above all revisions that were seen.
                if kind == ANCHOR {
                    break;
                }
                return Err(DatabaseError::Corrupt(format!(
                    "revision {next} is missing in the log of changes"
                )));
            }
            if chain.is_some_and(|before| next_chain_of_text(&before, number, &text) != stored) {
                return Err(DatabaseError::Corrupt(format!("the chain breaks at revision {number}")));
            }
            let body = serde_json::from_str::<ChangeBody>(&text).ok();
            let Some(body) = body.filter(|body| change_text(body) == text) else {
                // Those before it can be applied.
                if !changes.is_empty() {
                    break;
                }
                return Err(DatabaseError::Newer(format!(
                    "revision {number} is a change of the kind `{}`",
                    kind.escape_debug()
                )));
            };
            chain = Some(stored);
            changes.push(LoggedChange {
                revision: number,
                body,
                chain: stored,
                at,
            });
        }
        changes.truncate(limit);
        Ok(changes)
    }

    /// Returns everything that an instance serves, of one moment; none: nothing has been written yet. Its deadline is 30 s.
    ///
    /// # Errors
    /// An unavailable or damaged database.
    pub async fn snapshot(&self) -> DatabaseResult<Option<DatabaseSnapshot>> {
        within(LONG_DEADLINE, async {
            let Some(mut connection) = self.reader().await? else {
                return Ok(None);
            };
            connection.allow_long().await?;
            let head = read_head(&mut connection).await?;
            let live = versions::find_version(&mut connection, head.live_version).await?;
            let (version, set_revision) = match live {
                Some((version, revision)) => (Some(version), revision),
                None if head.live_version == 0 => (None, 0),
                None => {
                    return Err(DatabaseError::Corrupt(format!(
                        "the live version {} is missing",
                        head.live_version
                    )));
                }
            };
            let files = match &version {
                Some(version) => versions::files_of(&mut connection, version).await?,
                None => Vec::new(),
            };
            Ok(Some(DatabaseSnapshot {
                files,
                version,
                set_revision,
                rows: record::all(&mut connection).await?,
                attributes: record::all(&mut connection).await?,
                head,
            }))
        })
        .await
    }
}
