//! Who goes when: what is asked of a server goes together.
//!
//! There is one call at a time. Whoever comes while none is under way goes at once, and alone; whoever comes meanwhile
//! waits, and all who wait go as the next call. So a quiet store answers as fast as it can, and the busier it is, the more
//! each call settles. There is no timer.

use crate::store::redis::connection::Failure;
use crate::store::redis::node::request::{Deadline, NodeReply, NodeRequest, NodeResult};
use crate::store::redis::node::{KeyScope, Node};
use crate::store::redis::script::call::ScriptOp;
use crate::store::{Settlement, StoreError};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use tokio::sync::oneshot;
use tokio::time::timeout_at;
use tollgate_core::{Micros, Timestamp};

/// The most charges of one request: more could not be read by one command of the script.
const CHARGES_PER_REQUEST_MAX: usize = 4_096;

/// The most that may wait for the next calls.
const QUEUE_MAX: usize = 16_384;

/// Who waits for the next call.
#[derive(Debug, Default)]
pub(crate) struct BatchQueue {
    waiting: VecDeque<QueuedRequest>,
    /// The call under way. Whoever made it, or the task behind it, sees to those who wait.
    in_flight: Option<InFlightCall>,
    /// How many turns there have been.
    generation: u64,
}

/// A call that is under way.
#[derive(Clone, Copy, Debug)]
struct InFlightCall {
    generation: u64,
    /// When it must long be over, on our clock. Whoever makes a call may be a future that nobody polls; the next to come
    /// then goes in its place.
    overdue_at: Timestamp,
}

/// What becomes of work that comes in.
enum BatchRole<'n> {
    /// It goes at once, and whoever brought it makes the call.
    Leader(Vec<NodeRequest>, LeaderGuard<'n>),
    /// Somebody will tell.
    Follower(Vec<oneshot::Receiver<NodeResult>>),
}

#[derive(Debug)]
struct QueuedRequest {
    request: NodeRequest,
    deadline: Deadline,
    reply: oneshot::Sender<NodeResult>,
}

impl Node {
    /// Does works of one mode by the next call.
    pub(crate) async fn send(self: &Arc<Self>, requests: Vec<NodeRequest>, deadline: Deadline) -> Vec<NodeResult> {
        let count = requests.len();
        let failed = |error: StoreError| (0..count).map(|_| Err(error.into())).collect();
        if requests.iter().map(|request| request.charges.len()).sum::<usize>() > CHARGES_PER_REQUEST_MAX {
            return failed(StoreError::Overloaded);
        }
        if !self.breaker.try_acquire(self.context.clock.now()) {
            return failed(StoreError::BreakerOpen);
        }
        let tag = requests.first().map_or(0, NodeRequest::tag);
        self.last_tag.store(tag, Ordering::Relaxed);
        match self.enqueue(requests, deadline) {
            Ok(BatchRole::Leader(requests, _guard)) => self.send_now(&requests, deadline).await,
            Ok(BatchRole::Follower(replies)) => {
                let mut results = Vec::with_capacity(count);
                for reply in replies {
                    results.push(match timeout_at(deadline.instant, reply).await {
                        Ok(Ok(reply)) => reply,
                        Ok(Err(_)) => Err(StoreError::ConnectionLost.into()),
                        Err(_) => Err(StoreError::Timeout.into()),
                    });
                }
                results
            }
            Err(error) => failed(error),
        }
    }

    /// Makes a call at once.
    async fn send_now(&self, requests: &[NodeRequest], deadline: Deadline) -> Vec<NodeResult> {
        let all: Vec<&NodeRequest> = requests.iter().collect();
        let mut results = self.call(&all, deadline, deadline.instant).await;
        // Nothing was done, and there is time left: the server's clock was set, and now we know.
        if results.iter().any(is_deadline_passed) && self.context.clock.now() < deadline.local {
            let expired = results
                .iter()
                .zip(&all)
                .filter(|(result, _)| is_deadline_passed(result));
            let expired: Vec<&NodeRequest> = expired.map(|(_, request)| *request).collect();
            let resend = self.call(&expired, deadline, deadline.instant).await;
            for (result, resend) in results
                .iter_mut()
                .filter(|result| is_deadline_passed(result))
                .zip(resend)
            {
                *result = resend;
            }
        }
        results
    }

    /// Goes if no call is under way, else waits for the next.
    fn enqueue<'n>(
        self: &'n Arc<Self>,
        requests: Vec<NodeRequest>,
        deadline: Deadline,
    ) -> Result<BatchRole<'n>, StoreError> {
        let now = deadline.local - Micros::from(self.context.deadline);
        let mut queue = self.queue();
        if queue.in_flight.is_none_or(|call| call.overdue_at <= now) {
            queue.generation += 1;
            let generation = queue.generation;
            queue.in_flight = Some(self.in_flight(generation, deadline));
            return Ok(BatchRole::Leader(requests, LeaderGuard { node: self, generation }));
        }
        if queue.waiting.len() >= QUEUE_MAX {
            return Err(StoreError::Overloaded);
        }
        let wait = |request| {
            let (sender, reply) = oneshot::channel();
            queue.waiting.push_back(QueuedRequest {
                request,
                deadline,
                reply: sender,
            });
            reply
        };
        Ok(BatchRole::Follower(requests.into_iter().map(wait).collect()))
    }

    /// Those who go together next. Nothing if nobody waits: then no call is under way any more. Nothing also if somebody
    /// else sees to them by now.
    fn next_batch(&self, generation: u64) -> Option<Vec<QueuedRequest>> {
        let mut queue = self.queue();
        if queue.in_flight.is_none_or(|call| call.generation != generation) {
            return None;
        }
        let mut batch: Vec<QueuedRequest> = Vec::new();
        let mut charges = 0;
        while let Some(item) = queue.waiting.front() {
            let op = batch.first().map_or(item.request.op, |first| first.request.op);
            charges += item.request.charges.len();
            // A call is of one mode, and a counter is cleared once, whoever else wants it cleared.
            let differs = self.scope == KeyScope::All && (item.request.op != op || op == ScriptOp::Forget);
            if !batch.is_empty() && (differs || charges > self.scope.charges_max()) {
                break;
            }
            batch.extend(queue.waiting.pop_front());
        }
        let last = batch
            .iter()
            .map(|item| item.deadline)
            .max_by_key(|deadline| deadline.local);
        queue.in_flight = last.map(|deadline| self.in_flight(generation, deadline));
        (!batch.is_empty()).then_some(batch)
    }

    fn in_flight(&self, generation: u64, deadline: Deadline) -> InFlightCall {
        InFlightCall {
            generation,
            overdue_at: deadline.local + Micros::from(self.context.deadline),
        }
    }

    /// Makes one call for those who go together, and tells each of them. If it was too late for the first who gave up, the
    /// others go again.
    async fn send_batch(&self, mut queued: Vec<QueuedRequest>) {
        if self.breaker.is_open(self.context.clock.now()) {
            // It opened while they waited.
            for item in queued {
                let _ = item.reply.send(Err(StoreError::BreakerOpen.into()));
            }
            return;
        }
        let mut expired_before = Timestamp::EPOCH;
        loop {
            queued = self.drop_expired(queued, expired_before);
            let deadlines = || queued.iter().map(|item| item.deadline);
            let (Some(first), Some(last)) = (
                deadlines().min_by_key(|deadline| deadline.local),
                deadlines().map(|deadline| deadline.instant).max(),
            ) else {
                return;
            };
            let requests: Vec<&NodeRequest> = queued.iter().map(|item| &item.request).collect();
            let results = self.call(&requests, first, last).await;
            let mut resend = Vec::new();
            for (item, result) in queued.into_iter().zip(results) {
                if is_deadline_passed(&result) {
                    resend.push(item);
                } else {
                    // Whoever gave up just now needs no answer.
                    let _ = item.reply.send(result);
                }
            }
            (queued, expired_before) = (resend, first.local);
        }
    }

    /// Those who must be asked for. Who has given up, by now or by `late`, is not charged; and what came back since may be
    /// enough to refuse.
    fn drop_expired(&self, queued: Vec<QueuedRequest>, expired_before: Timestamp) -> Vec<QueuedRequest> {
        let now = self.context.clock.now();
        let mut remaining = Vec::with_capacity(queued.len());
        for item in queued {
            if item.reply.is_closed() {
                continue;
            }
            let result = if item.deadline.local <= now.max(expired_before) {
                Some(Err(StoreError::DeadlinePassed.into()))
            } else {
                self.near_denial(&item.request, now)
                    .map(|settlement| Ok(NodeReply::NearCache(settlement)))
            };
            match result {
                Some(result) => drop(item.reply.send(result)),
                None => remaining.push(item),
            }
        }
        remaining
    }

    fn near_denial(&self, request: &NodeRequest, now: Timestamp) -> Option<Settlement> {
        match request.op {
            ScriptOp::Settle => self.context.near_cache.as_ref()?.denial(&request.charges, now),
            _ => None,
        }
    }

    fn queue(&self) -> MutexGuard<'_, BatchQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_deadline_passed(result: &NodeResult) -> bool {
    matches!(
        result,
        Err(Failure {
            error: StoreError::DeadlinePassed,
            ..
        })
    )
}

/// The turn of whoever makes a call. When it ends, also because nobody waits for it any more or because it failed, those
/// who wait are seen to.
struct LeaderGuard<'n> {
    node: &'n Arc<Node>,
    generation: u64,
}

impl Drop for LeaderGuard<'_> {
    fn drop(&mut self) {
        let mut queue = self.node.queue();
        if queue.in_flight.is_none_or(|call| call.generation != self.generation) {
            return;
        }
        if queue.waiting.is_empty() {
            queue.in_flight = None;
        } else {
            drop(queue);
            self.node
                .context
                .runtime
                .spawn(drain_queue(Arc::clone(self.node), self.generation));
        }
    }
}

/// Makes calls until nobody waits.
async fn drain_queue(node: Arc<Node>, generation: u64) {
    let _guard = LeaderGuard {
        node: &node,
        generation,
    };
    while let Some(batch) = node.next_batch(generation) {
        node.send_batch(batch).await;
    }
}
