//! Executes the commands that have arrived, and answers them in order.

use super::RespService;
use super::check::{self, Check};
use super::decode::{Arguments, DecodeError, decode};
use super::reply_writer::{ReplyWriter, RespVersion};
use super::session::{Command, Session};
use super::throttle::{STORE_ERROR, Throttle, ThrottleOp};
use super::transaction::{Transaction, TransactionStep};
use crate::server::panic_guard::{PANIC_TEXT, guard, guard_now};
use crate::server::telemetry::Protocol;
use futures_util::future::join_all;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use tollgate_limiter::core::Charge;
use tollgate_limiter::{Fingerprint, ThrottleLimiter};

/// Buffers for replies, kept by the thread.
#[derive(Debug, Default)]
pub(super) struct ReplyBatch {
    pub(super) out: Vec<u8>,
    /// The length of `out` up to the last complete reply.
    complete: usize,
    /// Commands whose reply is not complete.
    unanswered: usize,
    /// Charges of `CL.THROTTLE` whose replies come next.
    charges: Vec<Charge<Fingerprint>>,
}

/// Charges that are settled at once: their slots in memory are prefetched at once.
const PREFETCH_BATCH: usize = 16;

/// Executes all complete commands of `input` in one poll, and returns the bytes they take. A command that panics is
/// answered with an error, and so are the calls of its batch.
pub(super) fn run_inline(
    service: &RespService,
    throttles: &ThrottleLimiter,
    session: &mut Session,
    input: &[u8],
    batch: &mut ReplyBatch,
) -> Result<usize, DecodeError> {
    let mut used = 0;
    loop {
        let had_transaction = session.has_transaction();
        let run = || run_commands(service, throttles, session, input, &mut used, batch);
        if let Some(end) = guard_now(&service.gate, Protocol::Resp, run) {
            return end.map(|()| used);
        }
        if had_transaction {
            session.abort_transaction();
        }
        if !batch.recover() {
            // The next command cannot be parsed.
            session.is_closing = true;
            return Ok(used);
        }
    }
}

/// Executes all complete commands of `input` behind the first `used` bytes, and moves `used` behind each.
fn run_commands(
    service: &RespService,
    throttles: &ThrottleLimiter,
    session: &mut Session,
    input: &[u8],
    used: &mut usize,
    batch: &mut ReplyBatch,
) -> Result<(), DecodeError> {
    let mut arguments = Arguments::new();
    let end = loop {
        let rest = input.get(*used..).unwrap_or_default();
        let bytes = match decode(rest, &mut arguments) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        };
        let next = *used + bytes;
        if session.has_transaction() {
            // No charges are pending: `MULTI` has settled those before it.
            (*used, batch.unanswered) = (next, 1);
            let mut replies = ReplyWriter(&mut batch.out);
            let bytes = rest.get(..bytes).unwrap_or_default();
            match session.step_transaction(arguments.all(), bytes, &mut replies) {
                TransactionStep::Answered => {
                    batch.complete();
                    continue;
                }
                TransactionStep::Immediate => {}
                TransactionStep::Execute(transaction) => {
                    replies.array(transaction.commands() as u64);
                    batch.complete();
                    // No further level: `MULTI` and `EXEC` are never queued.
                    let executed = run_inline(service, throttles, session, transaction.queue(), batch);
                    debug_assert_eq!(
                        executed,
                        Ok(transaction.queue().len()),
                        "the queue holds whole commands"
                    );
                    if session.is_closing {
                        break Ok(());
                    }
                    continue;
                }
            }
        }
        let command = session.parse_command(arguments.all());
        if let Ok(Command::Throttle(Throttle { key, cell, op })) = &command
            && let ThrottleOp::Consume(cost) = *op
        {
            batch.charges.push(throttles.charge(key, *cell, cost));
            (*used, batch.unanswered) = (next, batch.charges.len());
            if batch.charges.len() == PREFETCH_BATCH {
                batch.settle(service, throttles);
            }
            continue;
        }
        // First, so that a panic of the calls before it leaves this command to be executed.
        batch.settle(service, throttles);
        (*used, batch.unanswered) = (next, 1);
        let mut replies = ReplyWriter(&mut batch.out);
        let pending = match command {
            Err(error) => {
                replies.error(&error);
                batch.complete();
                continue;
            }
            Ok(Command::Immediate) => {
                session.execute(arguments.all(), &service.settings, &mut replies);
                batch.complete();
                if session.is_closing {
                    break Ok(());
                }
                continue;
            }
            Ok(Command::Throttle(call)) => PendingReply::Throttle(call),
            Ok(Command::Check(check)) => PendingReply::Check(check),
        };
        match pin!(pending.reply(service, session.version)).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(reply) => {
                batch.out.extend(reply);
                batch.complete();
            }
            Poll::Pending => unreachable!("the memory store completes in one poll"),
        }
    };
    batch.settle(service, throttles);
    end
}

impl ReplyBatch {
    /// Clears it for the next poll.
    pub(super) fn clear(&mut self) {
        self.out.clear();
        self.charges.clear();
        (self.complete, self.unanswered) = (0, 0);
    }

    /// Notes that the replies of all commands so far are complete.
    #[inline]
    fn complete(&mut self) {
        (self.complete, self.unanswered) = (self.out.len(), 0);
    }

    /// Answers the commands without a complete reply with an error, after one of them panicked. False if there are none.
    #[cold]
    fn recover(&mut self) -> bool {
        let unanswered = std::mem::take(&mut self.unanswered);
        self.charges.clear();
        self.out.truncate(self.complete);
        for _ in 0..unanswered.max(1) {
            self.out.extend(panic_reply());
        }
        self.complete = self.out.len();
        unanswered > 0
    }

    #[inline]
    fn settle(&mut self, service: &RespService, throttles: &ThrottleLimiter) {
        if self.charges.is_empty() {
            return;
        }
        let Self { out, charges, .. } = self;
        let mut replies = ReplyWriter(out);
        service
            .gate
            .throttle_each(throttles, charges, Protocol::Resp, |reply| replies.throttle(reply));
        charges.clear();
        self.complete();
    }
}

/// The same for a store on the network: all commands at once, so that they share batches.
pub(super) async fn run_pipelined(
    service: &RespService,
    session: &mut Session,
    input: &[u8],
) -> (Vec<u8>, Result<usize, DecodeError>) {
    let mut replies = Vec::new();
    let mut used = 0;
    loop {
        let rest = input.get(used..).unwrap_or_default();
        let (bytes, end) = run_until_exec(service, session, rest, &mut replies).await;
        used += bytes;
        match end {
            SegmentEnd::Input => return (replies, Ok(used)),
            SegmentEnd::Invalid(error) => return (replies, Err(error)),
            SegmentEnd::Exec(transaction) => {
                ReplyWriter(&mut replies).array(transaction.commands() as u64);
                run_until_exec(service, session, transaction.queue(), &mut replies).await;
            }
        }
    }
}

/// The reason why a segment of a pipeline ends.
enum SegmentEnd {
    /// No further command is complete, or the client closes.
    Input,
    Invalid(DecodeError),
    /// `EXEC`: the queued commands come next.
    Exec(Transaction),
}

/// Executes the commands up to and without the next `EXEC`, and returns the bytes they take with that `EXEC`.
async fn run_until_exec(
    service: &RespService,
    session: &mut Session,
    input: &[u8],
    replies: &mut Vec<u8>,
) -> (usize, SegmentEnd) {
    let mut arguments = Arguments::new();
    let mut pending = Vec::new();
    let mut used = 0;
    let end = loop {
        let rest = input.get(used..).unwrap_or_default();
        let length = match decode(rest, &mut arguments) {
            Ok(Some(length)) => length,
            Ok(None) => break SegmentEnd::Input,
            Err(error) => break SegmentEnd::Invalid(error),
        };
        used += length;
        if session.has_transaction() {
            let mut bytes = Vec::new();
            let command = rest.get(..length).unwrap_or_default();
            let step = || session.step_transaction(arguments.all(), command, &mut ReplyWriter(&mut bytes));
            let step = guard_now(&service.gate, Protocol::Resp, step).unwrap_or_else(|| {
                session.abort_transaction();
                TransactionStep::Answered
            });
            match step {
                TransactionStep::Answered => {
                    pending.push((PendingReply::Ready(bytes), session.version));
                    continue;
                }
                TransactionStep::Immediate => {}
                TransactionStep::Execute(transaction) => break SegmentEnd::Exec(transaction),
            }
        }
        let start = || {
            let mut bytes = Vec::new();
            match session.parse_command(arguments.all()) {
                Err(error) => {
                    ReplyWriter(&mut bytes).error(&error);
                    PendingReply::Ready(bytes)
                }
                Ok(Command::Immediate) => {
                    session.execute(arguments.all(), &service.settings, &mut ReplyWriter(&mut bytes));
                    PendingReply::Ready(bytes)
                }
                Ok(Command::Throttle(call)) => PendingReply::Throttle(call),
                Ok(Command::Check(check)) => PendingReply::Check(check),
            }
        };
        let reply = guard_now(&service.gate, Protocol::Resp, start);
        let reply = reply.unwrap_or_else(|| PendingReply::Ready(panic_reply()));
        pending.push((reply, session.version));
        if session.is_closing {
            break SegmentEnd::Input;
        }
    };
    let mut in_flight = Vec::new();
    for (reply, version) in pending {
        // A refund is visible to the commands behind it, and not to those before it.
        let is_refund = reply.is_refund();
        if is_refund {
            replies.extend(join_all(in_flight.drain(..)).await.concat());
        }
        in_flight.push(reply.guarded(service, version));
        if is_refund {
            replies.extend(join_all(in_flight.drain(..)).await.concat());
        }
    }
    replies.extend(join_all(in_flight).await.concat());
    (used, end)
}

/// The reply to a command that panicked.
fn panic_reply() -> Vec<u8> {
    let mut bytes = Vec::new();
    ReplyWriter(&mut bytes).error(&format!("ERR {PANIC_TEXT}"));
    bytes
}

/// A reply that is ready, or needs a decision.
enum PendingReply<'a> {
    Ready(Vec<u8>),
    Throttle(Throttle<'a>),
    Check(Check<'a>),
}

impl PendingReply<'_> {
    fn is_refund(&self) -> bool {
        matches!(self, Self::Throttle(call) if matches!(call.op, ThrottleOp::Refund(_)))
    }

    /// The reply; an error if the command panics.
    async fn guarded(self, service: &RespService, version: RespVersion) -> Vec<u8> {
        let reply = guard(&service.gate, Protocol::Resp, pin!(self.reply(service, version))).await;
        reply.unwrap_or_else(panic_reply)
    }

    async fn reply(self, service: &RespService, version: RespVersion) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut replies = ReplyWriter(&mut bytes);
        match self {
            Self::Ready(bytes) => return bytes,
            Self::Throttle(Throttle { key, cell, op }) => {
                let reply = match op {
                    ThrottleOp::Consume(cost) => service.gate.throttle(key, cell, cost, Protocol::Resp).await,
                    ThrottleOp::Refund(cost) => service.gate.throttles().refund(key, cell, cost).await,
                };
                match reply {
                    Ok(reply) => replies.throttle(&reply),
                    Err(error) => replies.error(&format!("{STORE_ERROR}{error}")),
                }
            }
            Self::Check(check) => {
                let snapshot = service.gate.snapshot(Protocol::Resp);
                let checked = snapshot.check(&check.attempt()).await;
                check::write_verdict(&checked.verdict, &mut replies, version);
            }
        }
        bytes
    }
}
