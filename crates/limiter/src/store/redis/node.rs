//! One server: its connector, circuit breaker, batcher and replicas.
//!
//! The parts know nothing of each other; this file composes them. On a cluster each call of the script holds keys of one
//! tag, and calls for several tags share one write.

pub(crate) mod batcher;
pub(crate) mod breaker;
pub(crate) mod call_group;
pub(crate) mod in_flight;
pub(crate) mod probe;
pub(crate) mod replica_set;
pub(crate) mod request;

use self::batcher::{BatchLimits, BatchRole, Batcher, QueuedRequest};
use self::breaker::{Breaker, CallResult};
use self::call_group::{CHARGES_PER_PIPELINED_CALL_MAX, CallGroup, KeyScope, group};
use self::in_flight::{CallGuard, CallStage, InFlight};
use self::replica_set::ReplicaSet;
use self::request::{NodeReply, NodeRequest, NodeResult, Routing, is_deadline_passed};
use super::connection::connector::Connector;
use super::connection::keepalive::with_keepalives;
use super::connection::{Failure, ScriptCall, ScriptConnection};
use super::context::{ClockSource, Deadline, ReadFrom, StoreContext};
use super::near_cache::RoundTrip;
use super::script::call::{CallTiming, ChargeReply, ScriptOp, ScriptReply};
use crate::clock;
use crate::store::{BreakerState, RedisErrorCode, ServerStatus, StoreError};
use redis::{Cmd, Value};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::time::{Instant, sleep, timeout_at};
use tollgate_core::{Micros, Timestamp};

/// The most charges of one request: one command of the script cannot read more keys.
const CHARGES_PER_REQUEST_MAX: usize = 4_096;

/// The time a pipeline waits for those before it, in deadlines of one call.
pub(crate) const PIPELINE_WAIT_CALLS: u32 = 16;

/// One server.
#[derive(Debug)]
pub(crate) struct Node {
    context: Arc<StoreContext>,
    connector: Arc<Connector>,
    breaker: Breaker,
    batcher: Batcher,
    in_flight: InFlight,
    /// Held by the pipeline in flight. Replies arrive in order, so requests of the batcher wait for it.
    pipeline_turn: tokio::sync::Mutex<()>,
    /// Absent if peeks are to be answered by the primary.
    replicas: Option<ReplicaSet<Self>>,
    scope: KeyScope,
    /// The tag of the last request: a probe uses the same.
    last_tag: AtomicU16,
    last_error: Mutex<Option<StoreError>>,
    /// For background tasks.
    weak_self: Weak<Self>,
}

impl Node {
    /// A primary.
    pub(crate) fn new(connector: Arc<Connector>, context: Arc<StoreContext>, scope: KeyScope) -> Arc<Self> {
        let replicas = match context.read_from {
            ReadFrom::Primary => None,
            ReadFrom::Replica => Some(ReplicaSet::default()),
        };
        Self::with_replicas(connector, context, scope, replicas)
    }

    /// A replica.
    pub(crate) fn replica(connector: Arc<Connector>, context: Arc<StoreContext>, scope: KeyScope) -> Arc<Self> {
        Self::with_replicas(connector, context, scope, None)
    }

    fn with_replicas(
        connector: Arc<Connector>,
        context: Arc<StoreContext>,
        scope: KeyScope,
        replicas: Option<ReplicaSet<Self>>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|weak_self| Self {
            breaker: Breaker::new(context.breaker_config, context.deadline),
            context,
            connector,
            batcher: Batcher::default(),
            in_flight: InFlight::default(),
            pipeline_turn: tokio::sync::Mutex::default(),
            replicas,
            scope,
            last_tag: AtomicU16::new(0),
            last_error: Mutex::default(),
            weak_self: Weak::clone(weak_self),
        })
    }

    pub(crate) const fn context(&self) -> &Arc<StoreContext> {
        &self.context
    }

    pub(crate) const fn connector(&self) -> &Arc<Connector> {
        &self.connector
    }

    pub(crate) const fn breaker(&self) -> &Breaker {
        &self.breaker
    }

    /// The replicas that may answer peeks. `None` if the primary is to.
    pub(crate) const fn replicas(&self) -> Option<&ReplicaSet<Self>> {
        self.replicas.as_ref()
    }

    pub(crate) const fn scope(&self) -> KeyScope {
        self.scope
    }

    /// The reason why no call is made, if none is.
    pub(crate) fn error(&self) -> Option<String> {
        self.connector.error().or_else(|| {
            let last_error = self.last_error.lock().unwrap_or_else(PoisonError::into_inner);
            let is_closed = self.breaker.state() == BreakerState::Closed;
            last_error.filter(|_| !is_closed).map(|error| error.to_string())
        })
    }

    /// The findings that operators should know of.
    pub(crate) fn status(&self) -> ServerStatus {
        let endpoint = self.connector.endpoint();
        ServerStatus {
            address: endpoint.map(|endpoint| endpoint.to_string()).unwrap_or_default(),
            is_replica: self.connector.is_replica(),
            breaker: self.breaker.state(),
            error: self.error(),
            round_trip: self.connector.round_trips().status().map(|status| status.median),
        }
    }

    /// Sends requests of one operation; peeks go to a replica where one is healthy, with half the deadline.
    pub(crate) async fn read(self: &Arc<Self>, requests: Vec<NodeRequest>, deadline: Deadline) -> Vec<NodeResult> {
        let Some(replica) = self.replica_for(&requests) else {
            return self.send(requests, deadline).await;
        };
        let half = deadline.earlier_by(self.context.deadline / 2);
        let mut results = replica.send(requests.clone(), half).await;
        let failed = requests.into_iter().zip(&results).filter(|(_, result)| result.is_err());
        let failed: Vec<NodeRequest> = failed.map(|(request, _)| request).collect();
        let metrics = &self.context.metrics;
        metrics.replica_reads.add((results.len() - failed.len()) as u64);
        if !failed.is_empty() {
            metrics.replica_misses.add(failed.len() as u64);
            let replies = self.send(failed, deadline).await;
            let missing = results.iter_mut().filter(|result| result.is_err());
            missing.zip(replies).for_each(|(result, reply)| *result = reply);
        }
        results
    }

    fn replica_for(&self, requests: &[NodeRequest]) -> Option<Arc<Self>> {
        let is_peek = |request: &NodeRequest| request.op == ScriptOp::Peek && request.routing == Routing::Batched;
        let replicas = self.replicas.as_ref().filter(|_| requests.iter().all(is_peek))?;
        let now = self.context.clock.now();
        replicas.pick(|node| node.connector.is_connected() && !node.breaker.is_open(now))
    }

    /// Sends requests of one operation: at once if no call is in flight, otherwise with the next batch.
    pub(crate) async fn send(self: &Arc<Self>, requests: Vec<NodeRequest>, deadline: Deadline) -> Vec<NodeResult> {
        let count = requests.len();
        let failed = |error: StoreError| (0..count).map(|_| Err(error.into())).collect();
        let now = match self.admit(&requests) {
            Ok(now) => now,
            Err(error) => return failed(error),
        };
        let overdue_at = deadline.local + Micros::from(self.context.deadline);
        match self.batcher.join(requests, deadline, now, overdue_at) {
            Ok(BatchRole::Leader(requests, generation)) => {
                let _guard = LeaderGuard { node: self, generation };
                self.send_now(&requests, deadline).await
            }
            Ok(BatchRole::Follower(reply)) => match timeout_at(deadline.instant, reply).await {
                Ok(Ok(results)) => results,
                Ok(Err(_)) => failed(StoreError::ConnectionLost),
                Err(_) => failed(StoreError::Timeout),
            },
            Err(error) => failed(error),
        }
    }

    /// Sends requests of one operation in order: with the next batch if they fit into one, otherwise as a pipeline of their
    /// own, one at a time.
    pub(crate) async fn send_pipeline(self: &Arc<Self>, requests: Vec<NodeRequest>) -> Vec<NodeResult> {
        let charges: usize = requests.iter().map(|request| request.charges.len()).sum();
        if charges <= self.scope.charges_max() {
            return self.send(requests, self.context.deadline()).await;
        }
        let failed = |error: StoreError| requests.iter().map(|_| Err(error.into())).collect();
        let wait = self.context.deadline_of(PIPELINE_WAIT_CALLS).instant;
        let Ok(_turn) = timeout_at(wait, self.pipeline_turn.lock()).await else {
            return failed(StoreError::Overloaded);
        };
        let calls = u32::try_from(charges.div_ceil(CHARGES_PER_PIPELINED_CALL_MAX)).unwrap_or(u32::MAX);
        match self.admit(&requests) {
            Ok(_) => self.send_now(&requests, self.context.deadline_of(calls)).await,
            Err(error) => failed(error),
        }
    }

    /// Rejects requests that are too large, or that the circuit breaker lets no call through for. Returns the time.
    fn admit(&self, requests: &[NodeRequest]) -> Result<Timestamp, StoreError> {
        if requests
            .iter()
            .any(|request| request.charges.len() > CHARGES_PER_REQUEST_MAX)
        {
            return Err(StoreError::Overloaded);
        }
        let now = self.context.clock.now();
        if !self.breaker.try_acquire(now) {
            return Err(StoreError::BreakerOpen);
        }
        let tag = requests.first().map_or(0, NodeRequest::tag);
        self.last_tag.store(tag, Ordering::Relaxed);
        Ok(now)
    }

    /// Makes a call at once. If the server says that the deadline has passed although it has not, its clock was set: the
    /// offset is known now, nothing was done, and the request is sent once more.
    async fn send_now(&self, requests: &[NodeRequest], deadline: Deadline) -> Vec<NodeResult> {
        let all: Vec<&NodeRequest> = requests.iter().collect();
        let mut results = self.call(&all, deadline, deadline.instant).await;
        if results.iter().any(is_deadline_passed) && self.context.clock.now() < deadline.local {
            let passed = results
                .iter()
                .zip(&all)
                .filter(|(result, _)| is_deadline_passed(result));
            let passed: Vec<&NodeRequest> = passed.map(|(_, request)| *request).collect();
            let again = self.call(&passed, deadline, deadline.instant).await;
            let passed = results.iter_mut().filter(|result| is_deadline_passed(result));
            passed.zip(again).for_each(|(result, again)| *result = again);
        }
        results
    }

    /// Makes one call for a batch and answers each caller. If it reached the server too late for the first deadline in it,
    /// nothing was done, and the others are sent again.
    async fn send_batch(&self, mut batch: Vec<QueuedRequest>) {
        if self.breaker.is_open(self.context.clock.now()) {
            // It opened while they waited.
            for item in batch {
                item.answer(Some(Err(StoreError::BreakerOpen.into())));
            }
            return;
        }
        let mut expired_before = Timestamp::EPOCH;
        loop {
            batch = self.drop_expired(batch, expired_before);
            let deadlines = || batch.iter().map(|item| item.deadline);
            let (Some(first), Some(last)) = (
                deadlines().min_by_key(|deadline| deadline.local),
                deadlines().map(|deadline| deadline.instant).max(),
            ) else {
                return;
            };
            let requests: Vec<&NodeRequest> = batch.iter().flat_map(QueuedRequest::unanswered).collect();
            let mut results = self.call(&requests, first, last).await.into_iter();
            batch = batch.into_iter().filter_map(|item| item.record(&mut results)).collect();
            expired_before = first.local;
        }
    }

    /// The requests that must be sent. Callers that have given up, by now or by `expired_before`, are not charged; and since
    /// they were queued the near cache may have learned enough to deny.
    fn drop_expired(&self, batch: Vec<QueuedRequest>, expired_before: Timestamp) -> Vec<QueuedRequest> {
        let now = self.context.clock.now();
        let mut remaining = Vec::with_capacity(batch.len());
        for item in batch {
            if item.is_abandoned() {
                continue;
            }
            if item.deadline.local <= now.max(expired_before) {
                item.answer(Some(Err(StoreError::DeadlinePassed.into())));
                continue;
            }
            match item.single().and_then(|request| self.near_denial(request, now)) {
                Some(denial) => item.answer_single(denial),
                None => remaining.push(item),
            }
        }
        remaining
    }

    fn near_denial(&self, request: &NodeRequest, now: Timestamp) -> Option<NodeReply> {
        match request.op {
            ScriptOp::Settle => {
                let near_cache = self.context.near_cache.as_ref()?;
                near_cache.denial(&request.charges, now).map(NodeReply::NearCache)
            }
            _ => None,
        }
    }

    /// Makes the calls for requests, in one write. A call does nothing if it starts after the `first` deadline, and is
    /// waited for until `until`.
    async fn call(&self, requests: &[&NodeRequest], first: Deadline, until: Instant) -> Vec<NodeResult> {
        let groups = group(requests, self.scope, &self.context.keyspace);
        let mut results: Vec<NodeResult> = requests.iter().map(|_| Err(StoreError::InvalidReply.into())).collect();
        let mut guard = CallGuard::new(|stage| self.abandoned(stage, until));
        let replies = match self.connection_before(until).await {
            Ok(connection) => {
                let connection = guard.mark_sent(connection);
                self.round_trip(connection, &groups, first.local, until).await
            }
            Err(error) => vec![Err(error.into()); groups.len()],
        };
        self.record(&replies, guard.finish().as_ref());
        for (group, reply) in groups.iter().zip(replies) {
            let reply = reply.and_then(|(reply, round_trip)| match reply.replies {
                Some(charge_replies) => Ok((charge_replies, round_trip)),
                None => Err(StoreError::DeadlinePassed.into()),
            });
            if let Ok((charge_replies, _)) = &reply {
                self.context.metrics.charges.add(charge_replies.len() as u64);
                for _ in charge_replies
                    .iter()
                    .filter(|reply| **reply == ChargeReply::ForeignValue)
                {
                    self.context.count_error(StoreError::ForeignValue);
                }
            }
            let mut reply = reply.map(|(charge_replies, round_trip)| (charge_replies.into_iter(), round_trip));
            for &index in &group.members {
                let (Some(request), Some(result)) = (requests.get(index), results.get_mut(index)) else {
                    continue;
                };
                *result = match &mut reply {
                    Ok((charge_replies, round_trip)) => {
                        let its: Vec<ChargeReply> = charge_replies.by_ref().take(request.charges.len()).collect();
                        self.update_near_cache(request, &its, *round_trip);
                        Ok(NodeReply::Script(round_trip.now, its))
                    }
                    Err(failure) => Err(failure.clone()),
                };
            }
        }
        results
    }

    /// Sends calls on a connection and reads their replies.
    async fn round_trip(
        &self,
        connection: &mut ScriptConnection,
        groups: &[CallGroup],
        not_after: Timestamp,
        until: Instant,
    ) -> Vec<Result<(ScriptReply, RoundTrip), Failure>> {
        let StoreContext { clock, metrics, .. } = &*self.context;
        let timing = CallTiming {
            caller: match self.context.clock_source {
                ClockSource::Server => None,
                ClockSource::Client { skew_tolerance } => Some((clock::wall(), skew_tolerance)),
            },
            slack: self.context.slack,
            not_after: connection.server_time(not_after),
            around: connection.server_time(clock.now()).unwrap_or_else(clock::wall),
        };
        let sent = clock.now();
        let calls = groups.iter().map(|group| ScriptCall {
            keys: group.call.keys(),
            arguments: group.call.arguments(timing),
            is_asking: group.routing == Routing::Asking,
        });
        let calls: Vec<ScriptCall<'_>> = calls.collect();
        // Where the server has not reported its time, the reply to a keepalive could be taken for one of the script.
        let keepalive_on = timing.not_after.map(|_| connection.multiplexed());
        let replies = connection.run(&calls, metrics);
        let replies = match with_keepalives(keepalive_on, self.context.deadline, until, replies).await {
            Some(replies) => replies,
            None => vec![Err(StoreError::Timeout.into()); groups.len()],
        };
        let received = clock.now();
        metrics.record_calls(received.since(sent), groups.len() as u64);
        let read = |(group, reply): (&CallGroup, Result<Vec<u8>, Failure>)| {
            reply.and_then(|reply| {
                let reply = group.call.read(&reply);
                reply.ok_or_else(|| StoreError::InvalidReply.into())
            })
        };
        let replies: Vec<Result<ScriptReply, Failure>> = groups.iter().zip(replies).map(read).collect();
        let mut errors = replies.iter().filter_map(|reply| reply.as_ref().err());
        if errors.any(|failure| failure.error == StoreError::InvalidReply) {
            // A reply may have been swallowed, so any of the others may belong to another call.
            return vec![Err(StoreError::InvalidReply.into()); groups.len()];
        }
        // Several calls in one write take longer than a round trip.
        if let [Ok(_)] = &*replies {
            self.connector.round_trips().record_reply(sent, received);
        }
        for reply in replies.iter().flatten() {
            connection.record_time(sent, received, reply.server_now);
            // A call that was too late does not show that the server accepts writes.
            if reply.replies.is_some() {
                self.connector.record_reply();
            }
        }
        let with_round_trip = |reply: ScriptReply| {
            let now = reply.now;
            (reply, RoundTrip { sent, received, now })
        };
        replies.into_iter().map(|reply| reply.map(with_round_trip)).collect()
    }

    fn update_near_cache(&self, request: &NodeRequest, replies: &[ChargeReply], round_trip: RoundTrip) {
        if let (ScriptOp::Settle, Some(near_cache)) = (request.op, &self.context.near_cache) {
            for (charge, reply) in request.charges.iter().zip(replies) {
                near_cache.record(charge, &request.charges, reply, round_trip);
            }
        }
    }

    /// Sends commands other than the script, in one write that does not wait for the batcher.
    pub(crate) async fn send_commands(&self, commands: &[&Cmd], deadline: Deadline) -> Vec<Result<Value, Failure>> {
        let failed = |error: StoreError| vec![Err(error.into()); commands.len()];
        let Some(_permit) = self.in_flight.try_write() else {
            return failed(StoreError::Overloaded);
        };
        if !self.breaker.try_acquire(self.context.clock.now()) {
            return failed(StoreError::BreakerOpen);
        }
        let mut guard = CallGuard::new(|stage| self.abandoned(stage, deadline.instant));
        let replies = match self.connection_before(deadline.instant).await {
            Err(error) => failed(error),
            Ok(connection) => {
                let connection = guard.mark_sent(connection);
                let sent = self.context.clock.now();
                let replies = timeout_at(deadline.instant, connection.send_all(commands)).await;
                let mut replies = replies.unwrap_or_else(|_| failed(StoreError::Timeout));
                if replies.iter().any(|reply| matches!(reply, Ok(Value::Array(_)))) {
                    // None of these commands is answered by an array, but a keepalive behind them is: a reply was swallowed.
                    replies = failed(StoreError::InvalidReply);
                }
                let is_healthy = |reply: &Result<Value, Failure>| match reply {
                    Ok(_) => true,
                    Err(failure) => !is_connection_error(failure.error),
                };
                if replies.iter().all(is_healthy) {
                    let received = self.context.clock.now();
                    self.connector.round_trips().record_reply(sent, received);
                    self.connector.record_reply();
                }
                replies
            }
        };
        self.record(&replies, guard.finish().as_ref());
        replies
    }

    /// The connection, if there is one in time. During a reconnect callers wait at most half a deadline from the loss, and
    /// for the first connection a whole one: most attempts succeed by then, and how long the others take is unknown.
    async fn connection_before(&self, until: Instant) -> Result<ScriptConnection, StoreError> {
        if let Some(connection) = self.connector.current() {
            return Ok(connection);
        }
        let wait_max = match self.connector.was_connected() {
            true => self.context.deadline / 2,
            false => self.context.deadline,
        };
        let until = match self.breaker.state() {
            BreakerState::Closed => until.min(self.connector.disconnected_since() + wait_max),
            // A trial or a probe is there to find out.
            BreakerState::HalfOpen | BreakerState::Open => until,
        };
        if until <= Instant::now() {
            return Err(StoreError::Unavailable);
        }
        let connection = timeout_at(until, self.connector.connection()).await;
        connection.map_err(|_| StoreError::Unavailable)
    }

    /// Records how a call went, on its connection if there was one. A connection that does not answer, or not with a valid
    /// reply, is closed: the next reply on it could belong to another call.
    fn record<T>(&self, replies: &[Result<T, Failure>], connection: Option<&ScriptConnection>) {
        let errors = || replies.iter().filter_map(|reply| reply.as_ref().err());
        if let Some(failure) = errors().next() {
            *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure.error);
        }
        let mut result = call_result(replies);
        if let Some(connection) = connection
            && let Some(failure) = errors().find(|failure| is_connection_error(failure.error))
        {
            self.connector.disconnect(connection.id(), &failure.error.to_string());
            result = result.filter(|result| *result == CallResult::Ok || self.in_flight.is_first_failure(connection));
        }
        let Some(result) = result else { return };
        if self.breaker.record(result, self.context.clock.now()) {
            probe::spawn(Weak::clone(&self.weak_self), &self.context.runtime);
        } else if result == CallResult::Unreachable {
            self.schedule_recheck();
        }
    }

    /// Checks the connection once more after the time in which a reconnect usually succeeds: this caller may be the last for
    /// long, and without another one nothing would show that the server is unreachable.
    fn schedule_recheck(&self) {
        if self.breaker.state() == BreakerState::Closed && self.in_flight.schedule_recheck() {
            let (node, wait) = (Weak::clone(&self.weak_self), self.breaker.unreachable_max());
            self.context.runtime.spawn(async move {
                sleep(wait).await;
                let Some(node) = node.upgrade() else { return };
                node.in_flight.recheck_done();
                if !node.connector.is_connected() {
                    node.record::<()>(&[Err(StoreError::Unavailable.into())], None);
                }
            });
        }
    }

    /// Finds out what a call would have shown whose caller has left.
    fn abandoned(&self, stage: CallStage, until: Instant) {
        match stage {
            CallStage::Connecting => self.record::<()>(&[Err(StoreError::Unavailable.into())], None),
            CallStage::Sent(connection) => {
                if self.in_flight.start_follow_up() {
                    let follow_up = await_abandoned_reply(Weak::clone(&self.weak_self), connection, until);
                    self.context.runtime.spawn(follow_up);
                }
            }
        }
    }
}

impl probe::ProbeTarget for Node {
    async fn probe(self: Arc<Self>) -> CallResult {
        let key = self.context.keyspace.probe_key(self.last_tag.load(Ordering::Relaxed));
        let request = probe::request(key, self.connector.is_replica());
        let deadline = self.context.deadline();
        let results = self.call(&[&request], deadline, deadline.instant).await;
        for error in results.iter().filter_map(|result| result.as_ref().err()) {
            self.context.count_error(error.error);
        }
        // A server that redirects is healthy.
        call_result(&results).unwrap_or(CallResult::Ok)
    }

    fn record_probe(&self, result: CallResult) -> bool {
        self.breaker.record_probe(result, self.context.clock.now())
    }
}

/// A leader's duty to have the queue drained: when its call ends, and also when its caller leaves or panics.
struct LeaderGuard<'n> {
    node: &'n Arc<Node>,
    generation: u64,
}

impl Drop for LeaderGuard<'_> {
    fn drop(&mut self) {
        if self.node.batcher.finish(self.generation) {
            let drain = drain_queue(Arc::clone(self.node), self.generation);
            self.node.context.runtime.spawn(drain);
        }
    }
}

/// Sends batches until the queue is empty.
async fn drain_queue(node: Arc<Node>, generation: u64) {
    let _guard = LeaderGuard {
        node: &node,
        generation,
    };
    let limits = BatchLimits {
        charges_max: node.scope.charges_max(),
        one_op: node.scope == KeyScope::All,
    };
    let grace = Micros::from(node.context.deadline);
    while let Some(batch) = node.batcher.next_batch(generation, limits, grace) {
        node.send_batch(batch).await;
    }
}

/// Waits for a reply in place of a caller that has left. A server answers in order: a reply to `PING`, whatever it says,
/// shows that the call before it was answered.
async fn await_abandoned_reply(node: Weak<Node>, mut connection: ScriptConnection, until: Instant) {
    let reply = timeout_at(until, connection.query(&redis::cmd("PING"))).await;
    let Some(node) = node.upgrade() else { return };
    node.in_flight.follow_up_done();
    let error = match reply {
        Err(_) => StoreError::Timeout,
        Ok(Err(error @ (StoreError::ConnectionLost | StoreError::InvalidReply))) => error,
        Ok(_) => return,
    };
    node.context.count_error(error);
    node.record::<()>(&[Err(error.into())], Some(&connection));
}

/// The result of a call, if it shows the server's health: it is healthy if it did any part of the call. A redirect, an
/// unassigned slot or the value of one key shows nothing.
fn call_result<T>(replies: &[Result<T, Failure>]) -> Option<CallResult> {
    let results = replies.iter().filter_map(|reply| match reply {
        Ok(_) => Some(CallResult::Ok),
        Err(Failure { error, .. }) if *error == StoreError::Unavailable => Some(CallResult::Unreachable),
        Err(Failure { error, .. }) => is_failure(*error).then_some(CallResult::Failed),
    });
    results.min_by_key(|result| *result != CallResult::Ok)
}

const fn is_failure(error: StoreError) -> bool {
    match error {
        StoreError::Timeout | StoreError::ConnectionLost | StoreError::InvalidReply => true,
        StoreError::Server(code) => !matches!(
            code,
            RedisErrorCode::Moved
                | RedisErrorCode::Ask
                | RedisErrorCode::TryAgain
                | RedisErrorCode::CrossSlot
                | RedisErrorCode::ClusterDown
                | RedisErrorCode::WrongType
        ),
        StoreError::Unavailable
        | StoreError::DeadlinePassed
        | StoreError::Overloaded
        | StoreError::BreakerOpen
        | StoreError::Skipped
        | StoreError::ForeignValue => false,
    }
}

/// True if another connection could do better: this one is silent or out of step, or its server must not be written to.
const fn is_connection_error(error: StoreError) -> bool {
    matches!(
        error,
        StoreError::Timeout
            | StoreError::ConnectionLost
            | StoreError::InvalidReply
            | StoreError::Server(RedisErrorCode::ReadOnly | RedisErrorCode::NoAuth | RedisErrorCode::WrongPass)
    )
}
