//! One server: calls of the script, and what is learned of the server by them.
//!
//! On a cluster each call of the script holds keys of one tag; those that go together are sent in one write all the same.

pub(crate) mod batcher;
pub(crate) mod breaker;
pub(crate) mod in_flight;
mod probe;
pub(crate) mod request;

use crate::clock;
use crate::store::BreakerState;
use crate::store::redis::ClockSource;
use crate::store::redis::connection::connector::Connector;
use crate::store::redis::connection::{Failure, ScriptCall, ScriptConnection};
use crate::store::redis::key::RedisKey;
use crate::store::redis::near_cache::RoundTrip;
use crate::store::redis::node::batcher::BatchQueue;
use crate::store::redis::node::breaker::{Breaker, CallResult};
use crate::store::redis::node::in_flight::{CallGuard, WritePermit};
use crate::store::redis::node::request::{Deadline, NodeReply, NodeRequest, NodeResult, Routing, StoreContext};
use crate::store::redis::script::call::{Call, CallTiming as Timing, ChargeReply, ScriptOp, ScriptReply};
use crate::store::redis::topology::replicas::Replicas;
use crate::store::{RedisErrorCode, StoreError};
use redis::{Cmd, Value};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::time::{Instant, timeout_at};
use tollgate_core::{Charge, Timestamp};

/// The most charges of one call: more would keep the server from others for too long.
pub(crate) const CHARGES_PER_CALL_MAX: usize = 128;

/// The most that go in one write where it holds a call for each tag.
const CHARGES_PER_WRITE_MAX: usize = 256;

/// One server.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) connector: Arc<Connector>,
    pub(crate) context: Arc<StoreContext>,
    /// Who may be looked at in its place.
    pub(crate) replicas: Option<Replicas>,
    pub(crate) breaker: Breaker,
    /// The tag that was asked for last: a probe asks for the same.
    pub(crate) last_tag: AtomicU16,
    /// What went wrong last.
    last_error: Mutex<Option<StoreError>>,
    /// One more than the number of the connection whose failure was noted last.
    pub(crate) last_reported: AtomicU64,
    /// How many writes are under way that do not go in turns.
    writes_in_flight: AtomicUsize,
    /// Whether somebody looks later if there is a connection by then.
    pub(crate) recheck_scheduled: AtomicBool,
    /// Whether a call is waited for whose caller has left.
    pub(crate) follow_up_running: AtomicBool,
    /// For what goes on in the background.
    pub(crate) weak_self: Weak<Self>,
    pub(crate) scope: KeyScope,
    pub(crate) queue: Mutex<BatchQueue>,
}

/// What one call of the script may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyScope {
    /// Any keys.
    All,
    /// Keys of one tag: those of another may lie in another slot.
    OneTag,
}

impl KeyScope {
    /// How many charges go together at most.
    pub(crate) const fn charges_max(self) -> usize {
        match self {
            Self::All => CHARGES_PER_CALL_MAX,
            Self::OneTag => CHARGES_PER_WRITE_MAX,
        }
    }
}

/// A call, and whose works are in it, by their places.
struct BatchCall {
    call: Call,
    routing: Routing,
    requests: Vec<usize>,
}

impl Node {
    /// A server at the other end of `link`.
    pub(crate) fn new(
        connector: Arc<Connector>,
        context: Arc<StoreContext>,
        scope: KeyScope,
        replicas: Option<Replicas>,
    ) -> Arc<Self> {
        let node = Arc::new_cyclic(|weak_self| Self {
            connector,
            breaker: Breaker::new(context.breaker_config, context.deadline),
            last_tag: AtomicU16::new(0),
            last_error: Mutex::default(),
            last_reported: AtomicU64::new(0),
            writes_in_flight: AtomicUsize::new(0),
            recheck_scheduled: AtomicBool::new(false),
            follow_up_running: AtomicBool::new(false),
            weak_self: Weak::clone(weak_self),
            context,
            scope,
            replicas,
            queue: Mutex::default(),
        });
        Replicas::watch(&node);
        node
    }

    /// Why it is not asked, if it is not.
    pub(crate) fn error(&self) -> Option<String> {
        self.connector.error().or_else(|| {
            let last_error = self.last_error.lock().unwrap_or_else(PoisonError::into_inner);
            let is_closed = self.breaker.state() == BreakerState::Closed;
            last_error.filter(|_| !is_closed).map(|error| error.to_string())
        })
    }

    /// Makes the calls for works, in one write. They do nothing if they begin after the first of them has given
    /// up, and are waited for until the last of them has.
    pub(crate) async fn call(&self, requests: &[&NodeRequest], first: Deadline, until: Instant) -> Vec<NodeResult> {
        let calls = self.group_calls(requests);
        let mut results: Vec<NodeResult> = requests.iter().map(|_| Err(StoreError::InvalidReply.into())).collect();
        let mut guard = CallGuard::new(self, until);
        let replies = self.round_trip(&calls, first.local, until, &mut guard).await;
        guard.finish(&replies);
        for (batch, reply) in calls.iter().zip(replies) {
            let charge_replies = reply.and_then(|(reply, round_trip)| match reply.replies {
                Some(charge_replies) => Ok((charge_replies, round_trip)),
                None => Err(StoreError::DeadlinePassed.into()),
            });
            if let Ok((charge_replies, _)) = &charge_replies {
                self.context.metrics.charges.add(charge_replies.len() as u64);
                for _ in charge_replies
                    .iter()
                    .filter(|reply| **reply == ChargeReply::ForeignValue)
                {
                    self.context.count_error(StoreError::ForeignValue);
                }
            }
            let mut charge_replies =
                charge_replies.map(|(charge_replies, round_trip)| (charge_replies.into_iter(), round_trip));
            for &index in &batch.requests {
                let (Some(request), Some(result)) = (requests.get(index), results.get_mut(index)) else {
                    continue;
                };
                *result = match &mut charge_replies {
                    Ok((charge_replies, round_trip)) => {
                        let replies: Vec<ChargeReply> = charge_replies.by_ref().take(request.charges.len()).collect();
                        self.update_near_cache(request, &replies, *round_trip);
                        Ok(NodeReply::Script(round_trip.now, replies))
                    }
                    Err(failure) => Err(failure.clone()),
                };
            }
        }
        results
    }

    /// Sends commands other than the script, in one write and at once, and gives what is answered to each.
    pub(crate) async fn send_all(&self, commands: &[&Cmd], deadline: Deadline) -> Vec<Result<Value, Failure>> {
        let failed = |error: StoreError| vec![Err(error.into()); commands.len()];
        let Some(_permit) = WritePermit::try_acquire(&self.writes_in_flight) else {
            return failed(StoreError::Overloaded);
        };
        if !self.breaker.try_acquire(self.context.clock.now()) {
            return failed(StoreError::BreakerOpen);
        }
        let mut guard = CallGuard::new(self, deadline.instant);
        let replies = match self.connection_before(deadline.instant).await {
            Err(error) => failed(error),
            Ok(connection) => {
                let connection = guard.mark_sent(connection);
                let replies = timeout_at(deadline.instant, connection.send_all(commands)).await;
                let mut replies = replies.unwrap_or_else(|_| failed(StoreError::Timeout));
                if replies.iter().any(|reply| matches!(reply, Ok(Value::Array(_)))) {
                    // Of these commands none is answered so, but the time is, which somebody may have asked for behind them: one
                    // of their answers was swallowed.
                    replies = failed(StoreError::InvalidReply);
                }
                let is_healthy = |reply: &Result<Value, Failure>| match reply {
                    Ok(_) => true,
                    Err(failure) => !is_connection_error(failure.error),
                };
                if replies.iter().all(is_healthy) {
                    self.connector.record_reply();
                }
                replies
            }
        };
        guard.finish(&replies);
        replies
    }

    /// Notes how a call went, on its connection if there was one. A connection that does not answer, or not with an answer,
    /// is given up: what came next on it could be taken for the answer to something else.
    pub(crate) fn record<T>(&self, replies: &[Result<T, Failure>], connection: Option<&ScriptConnection>) {
        let errors = || replies.iter().filter_map(|reply| reply.as_ref().err());
        if let Some(failure) = errors().next() {
            *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure.error);
        }
        let mut result = call_result(replies);
        if let Some(connection) = connection
            && let Some(failure) = errors().find(|failure| is_connection_error(failure.error))
        {
            self.connector.disconnect(connection.id(), &failure.error.to_string());
            result = result.filter(|result| *result == CallResult::Ok || !self.already_reported(connection));
        }
        let Some(result) = result else { return };
        if self.breaker.record(result, self.context.clock.now()) {
            probe::spawn(Weak::clone(&self.weak_self), &self.context.runtime);
        } else if result == CallResult::Unreachable {
            self.schedule_recheck();
        }
    }

    /// Which works go in which call.
    fn group_calls(&self, requests: &[&NodeRequest]) -> Vec<BatchCall> {
        let mut calls: Vec<BatchCall> = Vec::new();
        let mut by_tag: HashMap<(u16, ScriptOp), usize> = HashMap::new();
        for (index, request) in requests.iter().enumerate() {
            let with_others = request.routing == Routing::Batched && request.op != ScriptOp::Forget;
            let open = match self.scope {
                KeyScope::All => calls.len().checked_sub(1),
                KeyScope::OneTag if with_others => by_tag.get(&(request.tag(), request.op)).copied(),
                KeyScope::OneTag => None,
            };
            let call_index = open.unwrap_or_else(|| {
                if with_others && self.scope == KeyScope::OneTag {
                    by_tag.insert((request.tag(), request.op), calls.len());
                }
                calls.push(BatchCall {
                    call: Call::new(request.op),
                    routing: request.routing,
                    requests: Vec::new(),
                });
                calls.len() - 1
            });
            if let Some(batch) = calls.get_mut(call_index) {
                self.encode(request, &mut batch.call);
                batch.requests.push(index);
            }
        }
        calls
    }

    fn encode(&self, request: &NodeRequest, call: &mut Call) {
        let keys = &self.context.keyspace;
        match (request.op, &*request.charges) {
            (ScriptOp::Settle | ScriptOp::Peek, charges) => {
                let texts: Vec<Charge<_>> = charges.iter().map(|charge| self.with_key_text(charge)).collect();
                call.request(&texts, request.receipt.lease);
            }
            (ScriptOp::Forget, [charge, ..]) => call.forget(keys.text(charge.key).as_ref()),
            (_, [charge, ..]) => call.modify(keys.text(charge.key).as_ref(), &charge.limit, &request.receipt),
            // Nothing is asked for, and nothing will be told.
            (_, []) => {}
        }
    }

    fn update_near_cache(&self, request: &NodeRequest, replies: &[ChargeReply], round_trip: RoundTrip) {
        if let (ScriptOp::Settle, Some(near_cache)) = (request.op, &self.context.near_cache) {
            for (charge, reply) in request.charges.iter().zip(replies) {
                near_cache.record(charge, &request.charges, reply, round_trip);
            }
        }
    }

    /// Sends calls and waits for their answers.
    async fn round_trip(
        &self,
        batched: &[BatchCall],
        not_after: Timestamp,
        until: Instant,
        guard: &mut CallGuard<'_>,
    ) -> Vec<Result<(ScriptReply, RoundTrip), Failure>> {
        let connection = match self.connection_before(until).await {
            Ok(connection) => guard.mark_sent(connection),
            Err(error) => return vec![Err(error.into()); batched.len()],
        };
        let StoreContext { clock, metrics, .. } = &*self.context;
        let timing = Timing {
            caller: match self.context.clock_source {
                ClockSource::Server => None,
                ClockSource::Client { skew_tolerance } => Some((clock::wall(), skew_tolerance)),
            },
            slack: self.context.slack,
            not_after: connection.server_time(not_after),
        };
        let sent = clock.now();
        let calls = batched.iter().map(|batch| ScriptCall {
            keys: batch.call.keys(),
            arguments: batch.call.arguments(timing),
            is_asking: batch.routing == Routing::Asking,
        });
        let calls: Vec<ScriptCall<'_>> = calls.collect();
        let keepalive_on = timing.not_after.map(|_| connection.connection());
        let replies = match self
            .reply_before(until, keepalive_on, connection.run(&calls, metrics))
            .await
        {
            Ok(replies) => replies,
            Err(error) => vec![Err(error.into()); batched.len()],
        };
        let received = clock.now();
        let read = |(batch, reply): (&BatchCall, Result<Vec<u8>, Failure>)| {
            reply.and_then(|reply| batch.call.read(&reply).ok_or_else(|| StoreError::InvalidReply.into()))
        };
        let replies: Vec<Result<ScriptReply, Failure>> = batched.iter().zip(replies).map(read).collect();
        let errors = || replies.iter().filter_map(|reply| reply.as_ref().err());
        if errors().any(|failure| failure.error == StoreError::InvalidReply) {
            // Any of the others may be the answer to something else: one may have been swallowed.
            return vec![Err(StoreError::InvalidReply.into()); batched.len()];
        }
        for reply in replies.iter().flatten() {
            connection.record_time(sent, received, reply.server_now);
            // One that came too late says nothing of whether the server takes writes.
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

    fn with_key_text(&self, charge: &Charge<RedisKey>) -> Charge<crate::store::redis::key::KeyText> {
        Charge {
            key: self.context.keyspace.text(charge.key),
            limit: charge.limit,
            cost: charge.cost,
            policy: charge.policy,
            on_failure: charge.on_failure,
        }
    }
}

/// How a call went, if that says anything of the server: it did well if it did any of what it was asked. That a slot is
/// elsewhere, or that nobody has it, or what one key holds, says nothing.
pub(crate) fn call_result<T>(replies: &[Result<T, Failure>]) -> Option<CallResult> {
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

/// Whether another connection could do better: this one fell silent or speaks of something else, or leads to a server that
/// is not to be written to.
const fn is_connection_error(error: StoreError) -> bool {
    matches!(
        error,
        StoreError::Timeout
            | StoreError::ConnectionLost
            | StoreError::InvalidReply
            | StoreError::Server(RedisErrorCode::ReadOnly | RedisErrorCode::NoAuth | RedisErrorCode::WrongPass)
    )
}
