//! Adoption: a database that is behind what instances have applied, or has another history, becomes the one they follow.
//!
//! It keeps its rules, rows and attributes, and gets a new id, a higher epoch, and a revision and version numbers above all that were
//! seen, so that nothing named by an old number is taken for something new.

use super::ledger::{AuditDraft, Ledger};
use super::{WriteReply, WriteRequest};
use crate::control::chain::set_digest;
use crate::control::database::connection::parameters;
use crate::control::database::error::{DatabaseError, DatabaseResult, StaleItem};
use crate::control::database::requests::{AdoptRequest, Committed, SeenNumbers};
use crate::control::database::{Database, schema, versions};
use crate::control::model::{Author, ChangeBody, DatabaseHead};

impl Database {
    /// A random id for a database that is about to be adopted: claim it first.
    ///
    /// # Errors
    /// A system without random numbers.
    pub fn new_id() -> DatabaseResult<String> {
        schema::random_id()
    }

    /// Starts a new epoch, in one audited transaction. A database without any write is created.
    ///
    /// Instances load a snapshot then. The first change of the epoch is an anchor; revisions between it and those before do not exist.
    ///
    /// # Errors
    /// [`DatabaseError::Stale`] if it is no longer the database that the request replaces; an unavailable or full database.
    pub async fn adopt(&self, request: AdoptRequest) -> DatabaseResult<Committed> {
        request.check()?;
        match self.write(WriteRequest::Adopt(Box::new(request))).await? {
            WriteReply::Committed(committed) => Ok(*committed),
            other => Err(other.unexpected()),
        }
    }
}

impl AdoptRequest {
    /// Rejects numbers and ids that cannot be those of a database.
    fn check(&self) -> DatabaseResult<()> {
        let SeenNumbers {
            epoch,
            revision,
            version,
        } = self.seen;
        if let Some(number) = [epoch, revision, version].into_iter().find(|number| *number > SEEN_MAX) {
            return Err(DatabaseError::Invalid(format!(
                "{number} is no epoch, revision or version that can be adopted; find the instance that reports it"
            )));
        }
        let is_id = self.database_id.len() == 32 && self.database_id.bytes().all(|byte| byte.is_ascii_hexdigit());
        match is_id {
            true => Ok(()),
            false => Err(DatabaseError::Invalid(
                "the id of a database has 32 hexadecimal digits".to_owned(),
            )),
        }
    }
}

/// Adopts the database.
pub(super) async fn adopt(ledger: &mut Ledger, request: &AdoptRequest) -> DatabaseResult<Committed> {
    let before = ledger.head().await?.clone();
    let is_other = |id: &String| *id != before.database_id;
    if request.replaces.as_ref().is_some_and(is_other) {
        return Err(DatabaseError::Stale(Box::new(StaleItem {
            epoch: before.epoch,
            revision: before.revision,
            author: Author::default(),
            at: 0,
            item: head_json(&before),
        })));
    }
    let seconds = ledger.now / 1_000;
    let head = ledger.head().await?;
    head.database_id.clone_from(&request.database_id);
    head.epoch = (before.epoch.max(request.seen.epoch) + 1).max(seconds);
    // The next revision is the first of the epoch.
    head.revision = before.revision.max(request.seen.revision);
    let revision = head.revision + 1;
    let live_version = renumber(ledger, &before, request, revision).await?;
    ledger.head().await?.live_version = live_version;
    let (seq, hash) = ledger.audit_end().await?;
    let target = format!("database {}", request.database_id);
    let change = ledger.append(&target, ChangeBody::Anchor { seq, hash }).await?;
    let after = ledger.head().await?.clone();
    ledger
        .audit(AuditDraft {
            author: &request.author,
            action: "adopt",
            target: &target,
            before: &head_json(&before),
            after: &head_json(&after),
            revision,
        })
        .await?;
    Ok(Committed {
        head: after,
        revision,
        changes: vec![change],
    })
}

/// Saves the live version under a number above all seen, and returns it; 0: none is live.
///
/// Without a live version, a rejected one without files takes the number, so that later ones are above it.
async fn renumber(
    ledger: &mut Ledger,
    before: &DatabaseHead,
    request: &AdoptRequest,
    revision: u64,
) -> DatabaseResult<u64> {
    let number = versions::last_number(&mut ledger.connection)
        .await?
        .max(request.seen.version)
        + 1;
    let live = versions::find_version(&mut ledger.connection, before.live_version).await?;
    if live.is_none() && before.live_version > 0 {
        return Err(DatabaseError::Corrupt(format!(
            "the live version {} is missing",
            before.live_version
        )));
    }
    let (digest, format, state, published) = match &live {
        Some((meta, _)) => (meta.digest, u64::from(meta.format), "published", revision),
        None => (set_digest(&[]), 0, "rejected", 0),
    };
    let Author { actor, reason, .. } = &request.author;
    let now = ledger.now;
    ledger
        .connection
        .execute(
            "INSERT INTO version (number, parent, digest, format, state, actor, source, reason, created_at, revision)
             VALUES ($1, $2, $3, $4, $5, $6, 'adopt', $7, $8, $9)",
            parameters![
                number,
                before.live_version,
                &digest,
                format,
                state,
                actor,
                reason,
                now,
                published,
            ],
        )
        .await?;
    ledger
        .connection
        .execute(
            "INSERT INTO version_file (version, path, grammar, blob)
             SELECT $1, path, grammar, blob FROM version_file WHERE version = $2",
            parameters![number, before.live_version],
        )
        .await?;
    Ok(if live.is_some() { number } else { 0 })
}

/// The JSON text of a head, as the audit log has it.
fn head_json(head: &DatabaseHead) -> String {
    serde_json::json!({
        "database_id": head.database_id, "epoch": head.epoch, "revision": head.revision, "version": head.live_version,
    })
    .to_string()
}

/// The highest number that another instance may have seen: far above any real one, far below what a column holds.
const SEEN_MAX: u64 = 1 << 60;
