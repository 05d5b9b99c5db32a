//! The audit log: entries without a revision, lists, and the verification of its chain.

use super::Database;
use super::error::{DatabaseError, DatabaseResult};
use super::query::record::record;
use super::query::{Select, begins_with};
use super::requests::{AuditFilter, AuditProblem, AuditRecord, AuditReport, Committed};
use super::writer::{WriteReply, WriteRequest};
use crate::control::chain::audit_hash;
use crate::control::model::{AuditEntry, Author, ChangeBody, Digest};
use std::collections::BTreeMap;

/// Entries that a verification reads at once.
const PAGE: usize = 1_000;

impl Database {
    /// Writes an entry without a revision.
    ///
    /// # Errors
    /// An unavailable or full database.
    pub async fn record(&self, record: AuditRecord) -> DatabaseResult<AuditEntry> {
        match self.write(WriteRequest::Record(Box::new(record))).await? {
            WriteReply::Entry(entry) => Ok(*entry),
            other => Err(other.unexpected()),
        }
    }

    /// Writes the end of the audit chain into the log of changes, so that a shortened audit log is found.
    ///
    /// # Errors
    /// An unavailable or full database.
    pub async fn anchor_audit(&self, author: &Author) -> DatabaseResult<Committed> {
        match self.write(WriteRequest::Anchor(author.clone())).await? {
            WriteReply::Committed(committed) => Ok(*committed),
            other => Err(other.unexpected()),
        }
    }

    /// Returns entries below a sequence number, the newest first.
    ///
    /// # Errors
    /// An unavailable or damaged database.
    pub async fn audit(
        &self,
        filter: &AuditFilter,
        before: Option<u64>,
        limit: usize,
    ) -> DatabaseResult<Vec<AuditEntry>> {
        let mut select = Select::records::<AuditEntry>();
        if let Some(before) = before {
            select.and("seq < ", before);
        }
        if let Some(actor) = &filter.actor {
            select.and("actor = ", actor);
        }
        match &filter.action {
            Some(action) if action.ends_with('.') => select.and_like("action", &begins_with(action)),
            Some(action) => select.and("action = ", action),
            None => {}
        }
        if let Some(target) = &filter.target {
            select.and_like("target", &begins_with(target));
        }
        if let Some(revision) = filter.revision {
            select.and("revision = ", revision);
        }
        if let Some(since) = filter.since {
            select.and("at >= ", since);
        }
        if let Some(until) = filter.until {
            select.and("at < ", until);
        }
        self.records(select.order_by("seq DESC", limit)).await
    }

    /// Verifies the chain of the audit log from its base to its end, and against the anchors in the log of changes.
    ///
    /// An anchor from outside, the hash of an earlier end, must still be in the chain: it finds a log that was shortened or
    /// written anew. Entries that are written meanwhile are read too.
    ///
    /// # Errors
    /// An unavailable database. A damaged log is a finding of the report.
    pub async fn verify_audit(&self, anchor: Option<Digest>) -> DatabaseResult<AuditReport> {
        let mut anchors = self.anchors().await?;
        let base = self
            .list("SELECT seq, hash FROM audit_base", &[], |row| {
                Ok((row.number(0)?, row.parsed(1, Digest::parse)?))
            })
            .await;
        let (seq, hash) = match found(base)? {
            Ok(base) => base.first().copied().unwrap_or_default(),
            Err(text) => return Ok(AuditReport::broken(0, text)),
        };
        let mut report = AuditReport {
            entries: 0,
            last: seq,
            end: hash,
            problem: None,
        };
        // Read first: an entry that is written later can only be newer than this head.
        let revision = self.head().await?.map_or(0, |head| head.revision);
        let mut last_revision = 0;
        let mut outside = anchor.filter(|&anchor| anchor != hash);
        // Anchors of entries that were pruned cannot be compared any more.
        anchors.retain(|&anchored, _| anchored > seq);
        loop {
            let mut select = Select::records::<AuditEntry>();
            select.and("seq > ", report.last);
            // A long log takes longer than one call; each page has the time of one.
            let page = self.records::<AuditEntry>(select.order_by("seq", PAGE));
            let page = super::with_shared_deadline(page).await;
            let page = match found(page)? {
                Ok(page) => page,
                Err(text) => return Ok(report.with_problem(0, text)),
            };
            let is_last = page.len() < PAGE;
            for entry in page {
                let expected = report.last + 1;
                if let Some(text) = problem_of(&entry, expected, &report.end) {
                    return Ok(report.with_problem(expected, text));
                }
                if anchors.remove(&entry.seq).is_some_and(|hash| hash != entry.hash) {
                    return Ok(report.with_problem(entry.seq, "its anchor in the log of changes has another hash"));
                }
                outside = outside.filter(|&hash| hash != entry.hash);
                last_revision = last_revision.max(entry.revision);
                report.entries += 1;
                report.last = entry.seq;
                report.end = entry.hash;
            }
            if is_last {
                break;
            }
        }
        let next = report.last + 1;
        Ok(if let Some((seq, _)) = anchors.pop_first() {
            report.with_problem(seq, "the log of changes has an anchor of this entry, and it is missing")
        } else if outside.is_some() {
            report.with_problem(
                0,
                "no entry has the hash of the anchor: the log was shortened or written anew",
            )
        } else if last_revision < revision && (seq == 0 || last_revision > 0) {
            let text = format!("revision {revision} has no entry, the last one is of revision {last_revision}");
            report.with_problem(next, text)
        } else {
            report
        })
    }

    /// The anchors in the log of changes.
    async fn anchors(&self) -> DatabaseResult<BTreeMap<u64, Digest>> {
        let sql = "SELECT body FROM change WHERE kind = 'anchor' ORDER BY revision DESC LIMIT 1000";
        let bodies = self.list(sql, &[], |row| row.text(0)).await?;
        Ok(bodies
            .iter()
            .filter_map(|body| match serde_json::from_str(body) {
                Ok(ChangeBody::Anchor { seq, hash }) => Some((seq, hash)),
                _ => None,
            })
            .collect())
    }
}

impl AuditReport {
    fn broken(seq: u64, text: impl Into<String>) -> Self {
        Self {
            entries: 0,
            last: 0,
            end: Digest::default(),
            problem: None,
        }
        .with_problem(seq, text)
    }

    fn with_problem(self, seq: u64, text: impl Into<String>) -> Self {
        let problem = Some(AuditProblem { seq, text: text.into() });
        Self { problem, ..self }
    }
}

/// A damaged value is a finding; anything else ends the verification.
fn found<T>(result: DatabaseResult<T>) -> DatabaseResult<Result<T, String>> {
    match result {
        Ok(value) => Ok(Ok(value)),
        Err(DatabaseError::Corrupt(text)) => Ok(Err(format!("an entry cannot be read: {text}"))),
        Err(error) => Err(error),
    }
}

/// The first difference between an entry and the chain before it.
fn problem_of(entry: &AuditEntry, seq: u64, end: &Digest) -> Option<&'static str> {
    if entry.seq != seq {
        Some("the entry is missing")
    } else if entry.prev != *end {
        Some("the entry does not continue the chain before it")
    } else if audit_hash(entry) != entry.hash {
        Some("the entry does not have its hash: it was changed")
    } else {
        None
    }
}

record!(
    AuditEntry, "audit": seq, at, actor, via, address, request, action, target, reason, before, after, revision, prev, hash
);
