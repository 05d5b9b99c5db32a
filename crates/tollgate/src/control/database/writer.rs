//! The one writer of a process: a bounded queue, whose waiting requests are committed in one transaction.
//!
//! A request that is refused writes nothing, so the others of its transaction go on. An error of the database rolls all of them
//! back; if one of them may have caused it, each is tried alone. Every write is answered within two seconds, except imports and large
//! sets: those have a transaction of their own, and once the head is locked for them, half a minute.
//!
//! A transaction that exceeds its deadline is dropped, and rolled back by the database. One whose `COMMIT` was sent already may be done
//! all the same; its callers get the error of an unavailable database.

mod adopt;
mod commit;
pub(super) mod ledger;

use self::ledger::{AuditDraft, Ledger};
use super::connection::DEADLINE;
use super::error::{DatabaseError, DatabaseResult};
use super::fleet::StoredSilence;
use super::requests::{
    AdoptRequest, AuditRecord, CommitRequest, Committed, IdempotencyKey, NewVersion, Retention, StoredResponse,
};
use super::{Database, LONG_DEADLINE, Shared, access, fleet, retention, schema, versions};
use crate::control::model::{AuditEntry, Author, Digest, Principal, Session, VersionMeta, VersionState};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// Requests that wait for the writer.
const QUEUE: usize = 1_024;
/// Requests in one transaction.
const MERGED: usize = 256;
/// Changes in one request above which it has the long deadline.
const LARGE: usize = 500;
/// Bytes of text in one version above which it has the long deadline.
const LARGE_TEXT: usize = 1 << 20;

/// A write.
#[derive(Debug)]
pub(super) enum WriteRequest {
    Commit(Box<CommitRequest>),
    CommitOnce(Box<(IdempotencyKey, CommitRequest)>),
    Anchor(Author),
    Adopt(Box<AdoptRequest>),
    SaveVersion(Box<NewVersion>, Author),
    VersionState(u64, VersionState),
    Record(Box<AuditRecord>),
    AddPrincipal(Box<Principal>, Author),
    AddFirstPrincipal(Box<Principal>, Author),
    DisablePrincipal(String, Author),
    TouchPrincipal(String, u64),
    AddSession(Box<Session>, Author),
    TouchSession(Digest, u64),
    DeleteSession(Digest, Author),
    DeleteSessionsOf(String, Author),
    Remember(Box<(IdempotencyKey, StoredResponse)>),
    AcquireLease { name: String, holder: String, until: u64 },
    ReportInstance { id: String, status: String },
    AddSilence(Box<StoredSilence>, Author),
    DeleteSilence(String, Author),
    Prune(Retention),
}

/// The result of a write.
#[derive(Debug)]
pub(super) enum WriteReply {
    Committed(Box<Committed>),
    Version(Box<VersionMeta>),
    Entry(Box<AuditEntry>),
    Count(u64),
    Done,
}

/// A write in the queue.
pub(super) struct Job {
    request: WriteRequest,
    deadline: Instant,
    /// The time for the start of its transaction: a database that is unavailable is noticed there, in time for a long request too.
    start_limit: Duration,
    reply: oneshot::Sender<DatabaseResult<WriteReply>>,
}

impl Database {
    /// Writes what has no result but its commit.
    pub(super) async fn change(&self, request: WriteRequest) -> DatabaseResult<()> {
        match self.write(request).await? {
            WriteReply::Done => Ok(()),
            other => Err(other.unexpected()),
        }
    }

    /// Sends a request through the queue and waits for its commit.
    pub(super) async fn write(&self, request: WriteRequest) -> DatabaseResult<WriteReply> {
        let (is_long, start_limit) = (request.is_long(), super::time_left());
        if start_limit.is_zero() {
            return Err(super::no_answer());
        }
        let limit = if is_long { LONG_DEADLINE } else { start_limit };
        let (reply, replied) = oneshot::channel();
        let job = Job {
            request,
            deadline: Instant::now() + limit,
            start_limit,
            reply,
        };
        self.enqueue(job)?;
        let reply = async {
            replied.await.unwrap_or_else(|_| {
                // Its runtime was stopped, or it has panicked; the next write starts another one.
                Err(DatabaseError::Unavailable(
                    "the writer has stopped; try again".to_owned(),
                ))
            })
        };
        match is_long {
            true => super::within(limit, reply).await,
            false => super::within_deadline(reply).await,
        }
    }

    fn enqueue(&self, job: Job) -> DatabaseResult<()> {
        let mut queue = self.queue.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if queue.as_ref().is_none_or(mpsc::Sender::is_closed) {
            let (sender, jobs) = mpsc::channel(QUEUE);
            tokio::spawn(run(Arc::clone(&self.shared), jobs));
            *queue = Some(sender);
        }
        let sender = queue.as_ref().expect("set above");
        sender
            .try_send(job)
            .map_err(|_| DatabaseError::Unavailable(format!("{QUEUE} writes are waiting already; try again later")))
    }
}

/// Executes requests until the last sender is dropped.
async fn run(shared: Arc<Shared>, mut queue: mpsc::Receiver<Job>) {
    let mut jobs = Vec::with_capacity(MERGED);
    while queue.recv_many(&mut jobs, MERGED).await > 0 {
        // A long one would keep the others past their deadlines, and after an adoption they mean another state.
        let is_alone = |job: &Job| job.request.is_long() || matches!(job.request, WriteRequest::Adopt(_));
        let (alone, mut short): (Vec<Job>, Vec<Job>) = jobs.drain(..).partition(is_alone);
        if let Err(error) = commit_merged(&shared, &mut short).await {
            if short.len() > 1 && error.is_of_one_request() {
                commit_each(&shared, short).await;
            } else {
                fail(short, &error);
            }
        }
        commit_each(&shared, alone).await;
    }
}

/// Commits each request in a transaction of its own.
async fn commit_each(shared: &Shared, jobs: Vec<Job>) {
    for job in jobs {
        let mut alone = vec![job];
        if let Err(error) = commit_merged(shared, &mut alone).await {
            fail(alone, &error);
        }
    }
}

/// Commits all requests in one transaction and replies. On an error the jobs are left as they were.
async fn commit_merged(shared: &Shared, jobs: &mut Vec<Job>) -> DatabaseResult<()> {
    // A caller that has given up must not find its write done later.
    jobs.retain(Job::is_wanted);
    let Some(deadline) = jobs.iter().map(|job| job.deadline).max() else {
        return Ok(());
    };
    let transaction = tokio::time::timeout_at(deadline, transact(shared, jobs));
    let (replies, revision) = transaction
        .await
        .unwrap_or_else(|_| Err(DatabaseError::Unavailable("no commit within the deadline".to_owned())))?;
    for (job, reply) in jobs.drain(..).zip(replies) {
        // The caller may have given up meanwhile.
        let _ = job.reply.send(reply);
    }
    if let Some(revision) = revision {
        shared.hint();
        match tokio::time::timeout(DEADLINE, shared.backend.notify(revision)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::debug!(%error, revision, "cannot notify other instances; they find the change by polling");
            }
            Err(_) => {
                tracing::debug!(
                    revision,
                    "cannot notify other instances in time; they find the change by polling"
                );
            }
        }
    }
    Ok(())
}

/// Applies all requests. Returns their results and the last revision, if there is a new one.
async fn transact(shared: &Shared, jobs: &[Job]) -> DatabaseResult<(Vec<DatabaseResult<WriteReply>>, Option<u64>)> {
    if shared.has_schema.load(Ordering::Relaxed) && shared.backend.is_missing() {
        let is_adoption = |job: &Job| matches!(job.request, WriteRequest::Adopt(_));
        if !jobs.iter().any(is_adoption) {
            // A new file would silently start a new history.
            return Err(DatabaseError::Unavailable(
                "its file was removed; restore a backup and restart, or adopt an empty one".to_owned(),
            ));
        }
        shared.backend.forget_file();
        shared.is_migrated.store(false, Ordering::Relaxed);
    }
    let is_long = jobs.iter().any(|job| job.request.is_long());
    let start_limit = jobs.iter().map(|job| job.start_limit).max().unwrap_or(DEADLINE);
    let mut ledger = super::within(start_limit, begin(shared, is_long)).await?;
    let mut replies = Vec::with_capacity(jobs.len());
    for job in jobs {
        match apply(&mut ledger, &job.request).await {
            Err(error) if !error.is_refusal() => return Err(error),
            reply => replies.push(reply),
        }
    }
    let revision = ledger.commit().await?;
    Ok((replies, revision))
}

/// Starts a transaction, after the tables were created where they are missing.
async fn begin(shared: &Shared, is_long: bool) -> DatabaseResult<Ledger> {
    let now = (shared.clock)();
    if !shared.is_migrated.load(Ordering::Relaxed) {
        let id = match shared.proposed_id().clone() {
            Some(id) => id,
            None => schema::random_id()?,
        };
        schema::migrate(shared.backend.write().await?, now, &id).await?;
        shared.has_schema.store(true, Ordering::Relaxed);
        shared.is_migrated.store(true, Ordering::Relaxed);
    }
    let mut ledger = Ledger::new(shared.backend.write().await?, now);
    if is_long {
        ledger.connection.allow_long().await?;
        ledger.head().await?;
    }
    Ok(ledger)
}

async fn apply(ledger: &mut Ledger, request: &WriteRequest) -> DatabaseResult<WriteReply> {
    match request {
        WriteRequest::CommitOnce(request) => {
            let committed = commit::commit_once(ledger, &request.0, &request.1).await?;
            return Ok(WriteReply::Committed(Box::new(committed)));
        }
        WriteRequest::Commit(request) => {
            let committed = commit::commit(ledger, request).await?;
            return Ok(WriteReply::Committed(Box::new(committed)));
        }
        WriteRequest::Anchor(author) => {
            let committed = commit::anchor(ledger, author).await?;
            return Ok(WriteReply::Committed(Box::new(committed)));
        }
        WriteRequest::Adopt(request) => {
            let committed = adopt::adopt(ledger, request).await?;
            return Ok(WriteReply::Committed(Box::new(committed)));
        }
        WriteRequest::SaveVersion(version, author) => {
            let meta = versions::save(ledger, version, author).await?;
            return Ok(WriteReply::Version(Box::new(meta)));
        }
        WriteRequest::Record(record) => {
            let entry = ledger.audit(draft_of(record)).await?;
            return Ok(WriteReply::Entry(Box::new(entry)));
        }
        WriteRequest::DeleteSessionsOf(principal, author) => {
            return Ok(WriteReply::Count(
                access::delete_sessions_of(ledger, principal, author).await?,
            ));
        }
        WriteRequest::AcquireLease { name, holder, until } => {
            return Ok(WriteReply::Count(
                fleet::acquire_lease(ledger, name, holder, *until).await?,
            ));
        }
        WriteRequest::VersionState(number, state) => versions::set_state(ledger, *number, *state).await?,
        WriteRequest::AddPrincipal(principal, author) => access::add_principal(ledger, principal, author).await?,
        WriteRequest::AddFirstPrincipal(principal, author) => {
            access::add_first_principal(ledger, principal, author).await?;
        }
        WriteRequest::DisablePrincipal(id, author) => access::disable_principal(ledger, id, author).await?,
        WriteRequest::TouchPrincipal(id, at) => access::touch_principal(ledger, id, *at).await?,
        WriteRequest::AddSession(session, author) => access::add_session(ledger, session, author).await?,
        WriteRequest::TouchSession(id_hash, at) => access::touch_session(ledger, id_hash, *at).await?,
        WriteRequest::DeleteSession(id_hash, author) => access::delete_session(ledger, id_hash, author).await?,
        WriteRequest::Remember(remembered) => access::remember(ledger, &remembered.0, &remembered.1).await?,
        WriteRequest::ReportInstance { id, status } => fleet::report_instance(ledger, id, status).await?,
        WriteRequest::AddSilence(silence, author) => fleet::add_silence(ledger, silence, author).await?,
        WriteRequest::DeleteSilence(id, author) => fleet::delete_silence(ledger, id, author).await?,
        WriteRequest::Prune(retention) => {
            let is_more = retention::prune(ledger, *retention).await?;
            return Ok(WriteReply::Count(is_more.into()));
        }
    }
    Ok(WriteReply::Done)
}

fn draft_of(record: &AuditRecord) -> AuditDraft<'_> {
    AuditDraft {
        author: &record.author,
        action: &record.action,
        target: &record.target,
        before: &record.before,
        after: &record.after,
        revision: 0,
    }
}

fn fail(jobs: Vec<Job>, error: &DatabaseError) {
    for job in jobs {
        // The caller may have given up meanwhile.
        let _ = job.reply.send(Err(error.clone()));
    }
}

impl Job {
    /// True if its caller still waits.
    fn is_wanted(&self) -> bool {
        !self.reply.is_closed() && Instant::now() < self.deadline
    }
}

impl WriteRequest {
    /// True for an import or a large set.
    fn is_long(&self) -> bool {
        let is_large = |request: &CommitRequest| request.changes.len() + request.rules.len() > LARGE;
        match self {
            Self::Commit(request) => is_large(request),
            Self::CommitOnce(request) => is_large(&request.1),
            Self::SaveVersion(version, _) => version.text_bytes() > LARGE_TEXT,
            _ => false,
        }
    }
}

impl WriteReply {
    pub(super) fn count(self) -> DatabaseResult<u64> {
        match self {
            Self::Count(count) => Ok(count),
            other => Err(other.unexpected()),
        }
    }

    /// The error for a result of another kind of write.
    pub(super) fn unexpected(&self) -> DatabaseError {
        DatabaseError::Corrupt(format!("unexpected result of a write: {self:?}"))
    }
}
