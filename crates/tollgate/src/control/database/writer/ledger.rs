//! The head and the audit log inside a transaction that writes: each change gets the next revision, each entry the next number.

use crate::control::chain::{audit_hash, change_text, next_chain_of_text};
use crate::control::database::connection::{Connection, Parameter, parameters};
use crate::control::database::error::{DatabaseError, DatabaseResult};
use crate::control::database::query::record::{Columns, Record as _, record};
use crate::control::database::query::value_rows;
use crate::control::database::schema;
use crate::control::model::{AuditEntry, Author, ChangeBody, DatabaseHead, Digest, LoggedChange};
use sqlx::AssertSqlSafe;

/// A transaction that writes.
pub(in crate::control::database) struct Ledger {
    pub(in crate::control::database) connection: Connection,
    /// Unix time in milliseconds, the same for all of the transaction.
    pub(in crate::control::database) now: u64,
    state: Option<LedgerState>,
    sizes: Option<TableSizes>,
}

/// The numbers of rows and attributes, as they are stored and as they are now.
#[derive(Clone, Copy)]
struct TableSizes {
    stored: [u64; 2],
    current: [u64; 2],
}

/// A table of bounded size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::control::database) enum SizedTable {
    Rows,
    Attributes,
}

/// The locked head and the end of the audit log.
struct LedgerState {
    head: DatabaseHead,
    stored_revision: u64,
    audit_seq: u64,
    audit_end: Digest,
}

/// The subject of an audit entry that is about to be written.
pub(in crate::control::database) struct AuditDraft<'a> {
    pub(in crate::control::database) author: &'a Author,
    pub(in crate::control::database) action: &'a str,
    pub(in crate::control::database) target: &'a str,
    pub(in crate::control::database) before: &'a str,
    pub(in crate::control::database) after: &'a str,
    pub(in crate::control::database) revision: u64,
}

/// The most rows, and the most attributes.
pub(in crate::control::database) const ITEMS_MAX: u64 = 1_000_000;

impl Ledger {
    pub(in crate::control::database) const fn new(connection: Connection, now: u64) -> Self {
        Self {
            connection,
            now,
            state: None,
            sizes: None,
        }
    }

    /// The head, locked until the end of the transaction: revisions are committed in order.
    pub(in crate::control::database) async fn head(&mut self) -> DatabaseResult<&mut DatabaseHead> {
        Ok(&mut self.locked().await?.head)
    }

    /// Appends a change to the log and returns it.
    pub(in crate::control::database) async fn append(
        &mut self,
        key: &str,
        body: ChangeBody,
    ) -> DatabaseResult<LoggedChange> {
        let at = self.now;
        let text = change_text(&body);
        let head = self.head().await?;
        head.revision += 1;
        head.chain = next_chain_of_text(&head.chain, head.revision, &text);
        let (revision, chain) = (head.revision, head.chain);
        self.connection
            .execute(
                "INSERT INTO change (revision, kind, key, body, chain, at) VALUES ($1, $2, $3, $4, $5, $6)",
                parameters![revision, kind_of(&body), key, text, &chain, at],
            )
            .await?;
        Ok(LoggedChange {
            revision,
            body,
            chain,
            at,
        })
    }

    /// Appends an entry to the audit log and returns it.
    pub(in crate::control::database) async fn audit(&mut self, draft: AuditDraft<'_>) -> DatabaseResult<AuditEntry> {
        let at = self.now;
        let state = self.locked().await?;
        let mut entry = AuditEntry {
            seq: state.audit_seq + 1,
            at,
            actor: draft.author.actor.clone(),
            via: draft.author.via.clone(),
            address: draft.author.address.clone(),
            request: draft.author.request.clone(),
            action: draft.action.to_owned(),
            target: draft.target.to_owned(),
            reason: draft.author.reason.clone(),
            before: draft.before.to_owned(),
            after: draft.after.to_owned(),
            revision: draft.revision,
            prev: state.audit_end,
            hash: Digest::default(),
        };
        entry.hash = audit_hash(&entry);
        state.audit_seq = entry.seq;
        state.audit_end = entry.hash;
        let mut parameters: Vec<Parameter<'_>> = vec![entry.seq.into(), entry.at.into()];
        parameters.extend(entry.texts().map(Parameter::from));
        parameters.extend([entry.revision.into(), (&entry.prev).into(), (&entry.hash).into()]);
        let sql = format!(
            "INSERT INTO {} ({}) VALUES {}",
            AuditEntry::TABLE,
            AuditEntry::COLUMNS,
            value_rows(self.connection.placeholder(), 1, parameters.len())
        );
        self.connection.execute(AssertSqlSafe(sql), &parameters).await?;
        Ok(entry)
    }

    /// Appends the audit entry of a change without a revision.
    pub(in crate::control::database) async fn note(
        &mut self,
        author: &Author,
        action: &str,
        target: &str,
        (before, after): (&str, &str),
    ) -> DatabaseResult<()> {
        let draft = AuditDraft {
            author,
            action,
            target,
            before,
            after,
            revision: 0,
        };
        self.audit(draft).await.map(|_| ())
    }

    /// Counts items that are added and removed.
    ///
    /// # Errors
    /// [`DatabaseError::TooLarge`] if more are added than are kept.
    pub(in crate::control::database) async fn resize(
        &mut self,
        table: SizedTable,
        added: u64,
        removed: u64,
    ) -> DatabaseResult<()> {
        if (added, removed) == (0, 0) {
            return Ok(());
        }
        self.head().await?;
        if self.sizes.is_none() {
            let mut stored = [0; 2];
            let found = self.connection.fetch("SELECT name, items FROM table_size", &[]).await?;
            for row in &found {
                let name = row.text(0)?;
                for (table, size) in [SizedTable::Rows, SizedTable::Attributes].into_iter().zip(&mut stored) {
                    if table.name() == name {
                        *size = row.number(1)?;
                    }
                }
            }
            self.sizes = Some(TableSizes {
                stored,
                current: stored,
            });
        }
        let sizes = self.sizes.as_mut().map(|sizes| &mut sizes.current);
        let size = match (sizes, table) {
            (Some([rows, _]), SizedTable::Rows) => rows,
            (Some([_, attributes]), SizedTable::Attributes) => attributes,
            (None, _) => return Err(DatabaseError::Corrupt("the sizes of tables are missing".to_owned())),
        };
        *size = (*size + added).saturating_sub(removed);
        if *size > ITEMS_MAX && added > removed {
            return Err(DatabaseError::TooLarge(format!(
                "there would be {size} {}; at most {ITEMS_MAX} are kept",
                table.items()
            )));
        }
        Ok(())
    }

    /// The number and the hash of the last audit entry.
    pub(in crate::control::database) async fn audit_end(&mut self) -> DatabaseResult<(u64, Digest)> {
        let state = self.locked().await?;
        Ok((state.audit_seq, state.audit_end))
    }

    /// Commits, and returns the last revision if there is a new one.
    pub(in crate::control::database) async fn commit(mut self) -> DatabaseResult<Option<u64>> {
        let moved = self
            .state
            .as_ref()
            .filter(|state| state.head.revision != state.stored_revision);
        let revision = moved.map(|state| state.head.revision);
        if let Some(LedgerState { head, .. }) = moved {
            self.connection
                .execute(
                    "UPDATE head SET database_id = $1, epoch = $2, revision = $3, live_version = $4, chain = $5 WHERE one = 1",
                    parameters![
                        &head.database_id,
                        head.epoch,
                        head.revision,
                        head.live_version,
                        &head.chain,
                    ],
                )
                .await?;
        }
        if let Some(TableSizes { stored, current }) = self.sizes {
            let tables = [SizedTable::Rows, SizedTable::Attributes].into_iter();
            for (table, (before, now)) in tables.zip(stored.into_iter().zip(current)) {
                if before != now {
                    self.connection
                        .execute(
                            "UPDATE table_size SET items = $1 WHERE name = $2",
                            parameters![now, table.name()],
                        )
                        .await?;
                }
            }
        }
        self.connection.commit().await?;
        Ok(revision)
    }

    async fn locked(&mut self) -> DatabaseResult<&mut LedgerState> {
        if self.state.is_none() {
            // With the last migration: another program may have migrated the tables since this one did.
            let sql = format!(
                "SELECT (SELECT max(number) FROM migration), {} FROM head WHERE one = 1{}",
                DatabaseHead::COLUMNS,
                if self.connection.is_postgres() {
                    " FOR UPDATE"
                } else {
                    ""
                }
            );
            let row = self
                .connection
                .fetch_one(AssertSqlSafe(sql), &[])
                .await?
                .ok_or_else(no_head)?;
            let mut columns = Columns::of(&row);
            schema::check_migration(columns.take()?)?;
            let head = DatabaseHead::take(&mut columns)?;
            // Read after the lock: another writer may have appended until then.
            let end = self
                .connection
                .fetch_one("SELECT seq, hash FROM audit ORDER BY seq DESC LIMIT 1", &[])
                .await?;
            let end = match end {
                Some(row) => Some(row),
                None => {
                    self.connection
                        .fetch_one("SELECT seq, hash FROM audit_base", &[])
                        .await?
                }
            };
            let end = end.ok_or_else(|| DatabaseError::Corrupt("the base of the audit log is missing".to_owned()))?;
            self.state = Some(LedgerState {
                stored_revision: head.revision,
                head,
                audit_seq: end.number(0)?,
                audit_end: end.parsed(1, Digest::parse)?,
            });
        }
        self.state.as_mut().ok_or_else(no_head)
    }
}

impl SizedTable {
    const fn name(self) -> &'static str {
        match self {
            Self::Rows => "override_row",
            Self::Attributes => "subject_attribute",
        }
    }

    const fn items(self) -> &'static str {
        match self {
            Self::Rows => "override rows",
            Self::Attributes => "subject attributes",
        }
    }
}

/// Reads the head.
pub(in crate::control::database) async fn read_head(connection: &mut Connection) -> DatabaseResult<DatabaseHead> {
    let sql = format!("{} WHERE one = 1", DatabaseHead::select());
    let row = connection
        .fetch_one(AssertSqlSafe(sql), &[])
        .await?
        .ok_or_else(no_head)?;
    DatabaseHead::read(&row)
}

record!(DatabaseHead, "head": database_id, epoch, revision, live_version, chain);

fn no_head() -> DatabaseError {
    DatabaseError::Corrupt("the head is missing".to_owned())
}

/// The kind of a change that is an anchor.
pub(in crate::control::database) const ANCHOR: &str = "anchor";

/// The kind of a change, as the log names it.
pub(in crate::control::database) const fn kind_of(body: &ChangeBody) -> &'static str {
    match body {
        ChangeBody::Publish { .. } => "publish",
        ChangeBody::Row { .. } => "row",
        ChangeBody::Attribute { .. } => "attribute",
        ChangeBody::Batch { .. } => "batch",
        ChangeBody::Anchor { .. } => ANCHOR,
    }
}
