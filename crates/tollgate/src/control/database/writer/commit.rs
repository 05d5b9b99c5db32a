//! The application of one commit: conditions, then changes, each with its revision and its audit entry.

use super::ledger::{AuditDraft, Ledger};
use crate::control::database::connection::parameters;
use crate::control::database::error::{DatabaseError, DatabaseResult, StaleItem};
use crate::control::database::query::{PARAMETERS, record, value_rows};
use crate::control::database::requests::{
    CommitRequest, Committed, IdempotencyKey, ItemCondition, ItemKey, RowCheck, RuleChange,
};
use crate::control::database::{access, rows, versions};
use crate::control::model::{Author, ChangeBody, Digest, LoggedChange, OverrideRow, Precondition, SubjectAttribute};
use sqlx::AssertSqlSafe;

mod batch;

/// Rows and attributes in one change.
const BATCH: usize = 500;
/// Changes of the log in one read.
const CHANGES_PER_READ: u64 = 1_000;

/// Commits one request.
pub(super) async fn commit(ledger: &mut Ledger, request: &CommitRequest) -> DatabaseResult<Committed> {
    for condition in &request.conditions {
        check(ledger, condition).await?;
    }
    let judged = match &request.row_check {
        Some(row_check) => judge_rows(ledger, row_check).await?,
        None => None,
    };
    let requested = judged.as_deref().unwrap_or(&request.changes);
    // All that can be refused is refused before the first write.
    for change in requested {
        check_change(ledger, change).await?;
    }
    let mut changes = Vec::new();
    let mut unchanged = 0;
    let mut rest = requested;
    while let Some(first) = rest.first() {
        if is_batched(first) {
            let length = rest.iter().take(BATCH).take_while(|change| is_batched(change)).count();
            let (group, after) = rest.split_at(length);
            let (change, revision) = batch::apply(ledger, request, group).await?;
            changes.extend(change);
            unchanged = unchanged.max(revision);
            rest = after;
        } else {
            if let ChangeBody::Publish { version, digest } = first {
                match publish(ledger, request, *version, *digest).await? {
                    Some(change) => changes.push(change),
                    None => unchanged = item_state(ledger, &ItemKey::Set).await?.0,
                }
            }
            rest = rest.get(1..).unwrap_or_default();
        }
    }
    let head = ledger.head().await?.clone();
    let revision = changes
        .last()
        .map_or(unchanged, |change: &LoggedChange| change.revision);
    Ok(Committed {
        head,
        revision,
        changes,
    })
}

/// Commits one request, unless it was committed before with the same key.
pub(super) async fn commit_once(
    ledger: &mut Ledger,
    key: &IdempotencyKey,
    request: &CommitRequest,
) -> DatabaseResult<Committed> {
    // The lock first: it orders those with the same key.
    let head = ledger.head().await?.clone();
    if let Some(revision) = access::committed_revision(ledger, key).await? {
        return Ok(Committed {
            head,
            revision,
            changes: Vec::new(),
        });
    }
    let committed = commit(ledger, request).await?;
    access::remember_commit(ledger, key, committed.revision).await?;
    Ok(committed)
}

/// Writes the end of the audit chain into the log. The entry about it follows. If that is the last one, there is nothing to anchor.
pub(super) async fn anchor(ledger: &mut Ledger, author: &Author) -> DatabaseResult<Committed> {
    let (seq, hash) = ledger.audit_end().await?;
    let sql = "SELECT revision FROM audit WHERE seq = $1 AND action = 'audit.anchor'";
    if let Some(row) = ledger.connection.fetch_one(sql, parameters![seq]).await? {
        return Ok(Committed {
            head: ledger.head().await?.clone(),
            revision: row.number(0)?,
            changes: Vec::new(),
        });
    }
    let target = format!("audit {seq}");
    let change = ledger.append(&target, ChangeBody::Anchor { seq, hash }).await?;
    ledger
        .audit(AuditDraft {
            author,
            action: "audit.anchor",
            target: &target,
            before: "",
            after: &hash.to_string(),
            revision: change.revision,
        })
        .await?;
    Ok(Committed {
        head: ledger.head().await?.clone(),
        revision: change.revision,
        changes: vec![change],
    })
}

const fn is_batched(change: &ChangeBody) -> bool {
    matches!(change, ChangeBody::Row { .. } | ChangeBody::Attribute { .. })
}

/// Refuses a change that cannot be committed.
async fn check_change(ledger: &mut Ledger, change: &ChangeBody) -> DatabaseResult<()> {
    match change {
        ChangeBody::Row { .. } | ChangeBody::Attribute { .. } => Ok(()),
        ChangeBody::Publish { version, digest } => {
            let found = versions::find_version(&mut ledger.connection, *version).await?;
            match found {
                Some((meta, _)) if meta.digest == *digest => Ok(()),
                _ => Err(DatabaseError::Missing(format!("version {version} with this digest"))),
            }
        }
        ChangeBody::Batch { .. } | ChangeBody::Anchor { .. } => Err(DatabaseError::Invalid(
            "a commit has rows, attributes and publishes only".to_owned(),
        )),
    }
}

/// The changes to be committed, after a check of the rows written since; none: there are no such rows.
async fn judge_rows(ledger: &mut Ledger, row_check: &RowCheck) -> DatabaseResult<Option<Vec<ChangeBody>>> {
    // Locked: nothing is written until the commit.
    let head = ledger.head().await?.revision;
    let mut since = row_check.since;
    let mut written = Vec::new();
    while since < head {
        let sql = "SELECT revision, kind, body FROM change WHERE revision > $1 ORDER BY revision LIMIT $2";
        let found = ledger
            .connection
            .fetch(sql, parameters![since, CHANGES_PER_READ])
            .await?;
        let before = since;
        for row in &found {
            if row.number(0)? != since + 1 {
                break;
            }
            since += 1;
            if ["row", "batch"].contains(&row.text(1)?.as_str()) {
                match row.parsed(2, |text| serde_json::from_str(text).ok())? {
                    ChangeBody::Batch { changes } => written.extend(changes),
                    change => written.push(change),
                }
            }
        }
        if since == before {
            let text = format!("revision {} is not in the log of changes; try again", since + 1);
            return Err(DatabaseError::Unavailable(text));
        }
    }
    written.retain(|change| matches!(change, ChangeBody::Row { .. }));
    match written.is_empty() {
        true => Ok(None),
        false => (row_check.judge)(&written)
            .map(Some)
            .map_err(DatabaseError::RowsInvalid),
    }
}

/// Refuses a commit whose condition does not hold.
async fn check(ledger: &mut Ledger, condition: &ItemCondition) -> DatabaseResult<()> {
    let epoch = ledger.head().await?.epoch;
    let expected = match condition.precondition {
        Precondition::Any => return Ok(()),
        // Revision 0 is that of an item that does not exist, in any epoch: before the first write none is known.
        Precondition::Absent | Precondition::Unchanged { revision: 0, .. } => None,
        Precondition::Unchanged { epoch, revision } => Some((epoch, revision)),
    };
    let (revision, item) = item_state(ledger, &condition.item).await?;
    if expected.unwrap_or((epoch, 0)) == (epoch, revision) {
        return Ok(());
    }
    let sql = "SELECT actor, via, address, request, reason, at FROM audit WHERE revision = $1 AND revision > 0
               ORDER BY seq DESC LIMIT 1";
    let (author, at) = match ledger.connection.fetch_one(sql, parameters![revision]).await? {
        Some(row) => {
            let author = Author {
                actor: row.text(0)?,
                via: row.text(1)?,
                address: row.text(2)?,
                request: row.text(3)?,
                reason: row.text(4)?,
            };
            (author, row.number(5)?)
        }
        None => (Author::default(), 0),
    };
    Err(DatabaseError::Stale(Box::new(StaleItem {
        epoch,
        revision,
        author,
        at,
        item,
    })))
}

/// The revision of an item and its JSON text; 0 and no text if it does not exist.
async fn item_state(ledger: &mut Ledger, item: &ItemKey) -> DatabaseResult<(u64, String)> {
    let live = ledger.head().await?.live_version;
    let connection = &mut ledger.connection;
    Ok(match item {
        ItemKey::Set => versions::find_version(connection, live)
            .await?
            .map(|(meta, revision)| (revision, batch::version_json(meta.number, &meta.digest))),
        ItemKey::Rule { domain, rule } => {
            let sql = "SELECT revision, kind, path, line FROM rule_change WHERE domain = $1 AND rule = $2
                       ORDER BY revision DESC LIMIT 1";
            match connection.fetch_one(sql, parameters![domain, rule]).await? {
                Some(row) if row.text(1)? != "removed" => {
                    let json = serde_json::json!({ "path": row.text(2)?, "line": row.number(3)? });
                    Some((row.number(0)?, json.to_string()))
                }
                _ => None,
            }
        }
        ItemKey::Row(key) => {
            let subject = rows::subject_text(&key.subject);
            let found: Vec<OverrideRow> = record::find(connection, &[[&key.domain, &key.rule, &subject]]).await?;
            found.first().map(|row| (row.revision, batch::row_json(row)))
        }
        ItemKey::Attribute(key) => {
            let key = [&*key.source, &key.subject, &key.name];
            let found: Vec<SubjectAttribute> = record::find(connection, &[key]).await?;
            found
                .first()
                .map(|attribute| (attribute.revision, batch::attribute_json(attribute)))
        }
    }
    .unwrap_or_default())
}

/// Makes a version live; none if it is already.
async fn publish(
    ledger: &mut Ledger,
    request: &CommitRequest,
    version: u64,
    digest: Digest,
) -> DatabaseResult<Option<LoggedChange>> {
    let before = ledger.head().await?.live_version;
    if before == version {
        return Ok(None);
    }
    let before = match versions::find_version(&mut ledger.connection, before).await? {
        Some((meta, _)) => batch::version_json(meta.number, &meta.digest),
        None => String::new(),
    };
    let source = versions::find_version(&mut ledger.connection, version).await?;
    let is_rollback = source.is_some_and(|(meta, _)| meta.source.starts_with("rollback"));
    let target = format!("version {version}");
    let change = ledger.append(&target, ChangeBody::Publish { version, digest }).await?;
    ledger.head().await?.live_version = version;
    ledger
        .connection
        .execute(
            "UPDATE version SET state = 'published', revision = $1 WHERE number = $2",
            parameters![change.revision, version],
        )
        .await?;
    for rules in request.rules.chunks(PARAMETERS / 6) {
        add_history(ledger, rules, change.revision).await?;
    }
    let action = if is_rollback { "rollback" } else { "publish" };
    let after = batch::version_json(version, &digest);
    audit(ledger, request, action, (&target, change.revision), (&before, &after)).await?;
    Ok(Some(change))
}

/// Appends the audit entry of a change, with the action that the request gives it, or else this one.
async fn audit(
    ledger: &mut Ledger,
    request: &CommitRequest,
    action: &str,
    (target, revision): (&str, u64),
    (before, after): (&str, &str),
) -> DatabaseResult<()> {
    let draft = AuditDraft {
        author: &request.author,
        action: request.action.as_deref().unwrap_or(action),
        target,
        before,
        after,
        revision,
    };
    ledger.audit(draft).await.map(|_| ())
}

async fn add_history(ledger: &mut Ledger, rules: &[RuleChange], revision: u64) -> DatabaseResult<()> {
    let sql = format!(
        "INSERT INTO rule_change (domain, rule, revision, kind, path, line) VALUES {} ON CONFLICT DO NOTHING",
        value_rows(ledger.connection.placeholder(), rules.len(), 6)
    );
    let values: Vec<_> = rules
        .iter()
        .flat_map(|rule| parameters![&rule.domain, &rule.rule, revision, &rule.kind, &rule.path, rule.line].to_vec())
        .collect();
    ledger.connection.execute(AssertSqlSafe(sql), &values).await?;
    Ok(())
}
