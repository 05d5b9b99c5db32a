//! The queue of one server's requests: one batch in flight, and the requests that arrive meanwhile form the
//! next. Pipelines of large requests and plain commands bypass it.
//!
//! With no call in flight a request is sent immediately, and its caller is the leader of that call. Otherwise it joins the
//! next batch, which is sent when the current call returns. So an idle store answers without delay, and the busier it is,
//! the more each call settles. There is no batching timer.
//!
//! The batcher reads no clock, spawns no task and sends nothing: [`Node`](super::Node) drives it.

use super::request::{NodeReply, NodeRequest, NodeResult, is_deadline_passed};
use crate::store::StoreError;
use crate::store::redis::context::Deadline;
use crate::store::redis::script::call::ScriptOp;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;
use tollgate_core::{Micros, Timestamp};

/// The most requests in the queue.
const QUEUE_MAX: usize = 16_384;

/// The queue of one server.
#[derive(Debug, Default)]
pub(crate) struct Batcher {
    queue: Mutex<BatchQueue>,
}

#[derive(Debug, Default)]
struct BatchQueue {
    waiting: VecDeque<QueuedRequest>,
    /// Requests in `waiting`, of which an entry may hold several.
    waiting_requests: usize,
    in_flight: Option<InFlightCall>,
    /// The number of the last leader.
    generation: u64,
}

/// The call in flight. Its leader, or the task that drains the queue in its place, sends the next batch.
#[derive(Clone, Copy, Debug)]
struct InFlightCall {
    generation: u64,
    /// The local time at which it must be over. A leader may be a future that is no longer polled; from then on the next
    /// request takes over.
    overdue_at: Timestamp,
}

/// The part a caller has in sending its requests.
#[derive(Debug)]
pub(crate) enum BatchRole {
    /// It sends its requests at once, and afterwards has the queue drained: [`Batcher::finish`] with this generation.
    Leader(Vec<NodeRequest>, u64),
    /// Its requests are in the queue.
    Follower(oneshot::Receiver<Vec<NodeResult>>),
}

/// Requests of one caller in the queue.
#[derive(Debug)]
pub(crate) struct QueuedRequest {
    requests: Vec<NodeRequest>,
    /// Empty until the first call returns.
    results: Vec<NodeResult>,
    pub(crate) deadline: Deadline,
    reply: oneshot::Sender<Vec<NodeResult>>,
}

/// The largest batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchLimits {
    pub(crate) charges_max: usize,
    /// All its requests are of one operation, and counters are cleared one per batch.
    pub(crate) one_op: bool,
}

impl Batcher {
    /// Makes the caller the leader if no call is in flight, or puts its requests into the queue. `overdue_at` is the time
    /// at which its own call would be overdue.
    ///
    /// # Errors
    /// The queue is full.
    pub(crate) fn join(
        &self,
        requests: Vec<NodeRequest>,
        deadline: Deadline,
        now: Timestamp,
        overdue_at: Timestamp,
    ) -> Result<BatchRole, StoreError> {
        let mut queue = self.queue();
        if queue.in_flight.is_none_or(|call| call.overdue_at <= now) {
            queue.generation += 1;
            let generation = queue.generation;
            queue.in_flight = Some(InFlightCall { generation, overdue_at });
            return Ok(BatchRole::Leader(requests, generation));
        }
        if queue.waiting_requests >= QUEUE_MAX {
            return Err(StoreError::Overloaded);
        }
        let (reply, receiver) = oneshot::channel();
        queue.waiting_requests += requests.len();
        queue.waiting.push_back(QueuedRequest {
            requests,
            results: Vec::new(),
            deadline,
            reply,
        });
        Ok(BatchRole::Follower(receiver))
    }

    /// Takes the next batch from the queue; its call is overdue `grace` after the last deadline in it. `None` ends the
    /// leader's work: the queue is empty, or another leader has taken over.
    pub(crate) fn next_batch(&self, generation: u64, limits: BatchLimits, grace: Micros) -> Option<Vec<QueuedRequest>> {
        let mut queue = self.queue();
        if queue.in_flight.is_none_or(|call| call.generation != generation) {
            return None;
        }
        let mut batch: Vec<QueuedRequest> = Vec::new();
        let mut charges = 0;
        while let Some(next) = queue.waiting.front() {
            let op = batch.first().map_or(next.op(), QueuedRequest::op);
            charges += next.requests.iter().map(|request| request.charges.len()).sum::<usize>();
            let differs = limits.one_op && (next.op() != op || op == Some(ScriptOp::Forget));
            if !batch.is_empty() && (differs || charges > limits.charges_max) {
                break;
            }
            batch.extend(queue.waiting.pop_front());
        }
        queue.waiting_requests -= batch.iter().map(|item| item.requests.len()).sum::<usize>();
        let last = batch.iter().map(|item| item.deadline.local).max();
        queue.in_flight = last.map(|last| InFlightCall {
            generation,
            overdue_at: last + grace,
        });
        (!batch.is_empty()).then_some(batch)
    }

    /// Ends a leader's own call. True if requests are waiting and the caller must have the queue drained.
    pub(crate) fn finish(&self, generation: u64) -> bool {
        let mut queue = self.queue();
        if queue.in_flight.is_none_or(|call| call.generation != generation) {
            return false;
        }
        if queue.waiting.is_empty() {
            queue.in_flight = None;
            return false;
        }
        true
    }

    fn queue(&self) -> MutexGuard<'_, BatchQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueuedRequest {
    fn op(&self) -> Option<ScriptOp> {
        self.requests.first().map(|request| request.op)
    }

    /// True if the caller no longer waits.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.reply.is_closed()
    }

    /// Its request, if there is only one.
    pub(crate) fn single(&self) -> Option<&NodeRequest> {
        match &*self.requests {
            [request] => Some(request),
            _ => None,
        }
    }

    /// The requests that have no result, or whose call reached the server after the deadline and did nothing.
    pub(crate) fn unanswered(&self) -> impl Iterator<Item = &NodeRequest> {
        let has_none = self.results.is_empty();
        let passed = self.results.iter().map(is_deadline_passed);
        let unanswered = passed.chain(std::iter::repeat(has_none));
        let requests = self.requests.iter().zip(unanswered);
        requests
            .filter(|(_, unanswered)| *unanswered)
            .map(|(request, _)| request)
    }

    /// Records the results of [`unanswered`](Self::unanswered) requests, in their order. Returns itself if requests are left
    /// that may be sent again; otherwise the caller has its reply.
    pub(crate) fn record(mut self, results: &mut impl Iterator<Item = NodeResult>) -> Option<Self> {
        if self.results.is_empty() {
            self.results.extend(results.take(self.requests.len()));
        } else {
            let passed = self.results.iter_mut().filter(|result| is_deadline_passed(result));
            passed.zip(results).for_each(|(result, again)| *result = again);
        }
        if self.results.iter().any(is_deadline_passed) {
            return Some(self);
        }
        self.answer(None);
        None
    }

    /// Sends the caller this reply to its only request, whatever the result of an earlier call was.
    pub(crate) fn answer_single(mut self, reply: NodeReply) {
        self.results.clear();
        self.answer(Some(Ok(reply)));
    }

    /// Sends the caller its results, with this one for requests that have none.
    pub(crate) fn answer(mut self, missing: Option<NodeResult>) {
        if self.results.is_empty()
            && let Some(missing) = missing
        {
            let error = missing.as_ref().err().cloned();
            self.results.push(missing);
            let others = self.requests.len().saturating_sub(1);
            self.results.extend(
                error
                    .into_iter()
                    .flat_map(|error| std::iter::repeat_n(error, others))
                    .map(Err),
            );
        }
        // A caller that has just left needs no reply.
        let _ = self.reply.send(self.results);
    }
}
