//! Everything that has arrived is decided, and answered in order.

use super::Front;
use super::check::{self, Check};
use super::decode::{Arguments, Fault, decode};
use super::session::{Ask, Session};
use super::throttle::{Quantity, STORE_ERROR, Throttle};
use super::write::{Protocol, Replies};
use crate::server::telemetry::Door;
use futures_util::future::join_all;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use tollgate_limiter::core::Charge;
use tollgate_limiter::{Fingerprint, ThrottleLimiter};

/// What is needed to answer, kept from one time to the next.
#[derive(Debug, Default)]
pub(super) struct Desk {
    pub(super) out: Vec<u8>,
    /// Calls of `CL.THROTTLE` whose replies come next.
    charges: Vec<Charge<Fingerprint>>,
}

/// How many calls are settled together: those whose places in memory are fetched together.
const TOGETHER: usize = 16;

/// Answers all whole commands of `input`, and says how many bytes they take. For the embedded store, which never waits.
pub(super) fn at_once(
    front: &Front,
    throttles: &ThrottleLimiter,
    session: &mut Session,
    input: &[u8],
    desk: &mut Desk,
) -> Result<usize, Fault> {
    let mut arguments = Arguments::new();
    let mut used = 0;
    let end = loop {
        let rest = input.get(used..).unwrap_or_default();
        match decode(rest, &mut arguments) {
            Ok(Some(bytes)) => used += bytes,
            Ok(None) => break Ok(used),
            Err(fault) => break Err(fault),
        }
        let asked = session.sort(arguments.all());
        if let Ok(Ask::Throttle(Throttle { key, terms, quantity })) = &asked
            && let (Quantity::Take(cost), 0) = (*quantity, terms.beyond)
        {
            desk.charges.push(throttles.charge(key, terms.cell, cost));
            if desk.charges.len() == TOGETHER {
                desk.settle(front, throttles);
            }
            continue;
        }
        desk.settle(front, throttles);
        let mut replies = Replies(&mut desk.out);
        let later = match asked {
            Err(refusal) => {
                replies.error(&refusal);
                continue;
            }
            Ok(Ask::Plain) => {
                session.answer(arguments.all(), &front.settings, &mut replies);
                if session.is_leaving {
                    break Ok(used);
                }
                continue;
            }
            Ok(Ask::Throttle(call)) => Later::Throttle(call),
            Ok(Ask::Check(check)) => Later::Check(check),
        };
        match pin!(later.reply(front, session.protocol)).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(reply) => desk.out.extend(reply),
            Poll::Pending => unreachable!("the embedded store never waits"),
        }
    };
    desk.settle(front, throttles);
    end
}

impl Desk {
    /// Leaves nothing for the next turn.
    pub(super) fn clear(&mut self) {
        self.out.clear();
        self.charges.clear();
    }

    #[inline]
    fn settle(&mut self, front: &Front, throttles: &ThrottleLimiter) {
        if self.charges.is_empty() {
            return;
        }
        let Self { out, charges } = self;
        let mut replies = Replies(out);
        front
            .gate
            .throttle_each(throttles, charges, Door::Resp, |reply| replies.throttled(reply));
        charges.clear();
    }
}

/// The same for a store that is asked over a network: all at once, so that they go there together.
pub(super) async fn together(front: &Front, session: &mut Session, input: &[u8]) -> (Vec<u8>, Result<usize, Fault>) {
    let mut arguments = Arguments::new();
    let mut later = Vec::new();
    let mut used = 0;
    let end = loop {
        match decode(input.get(used..).unwrap_or_default(), &mut arguments) {
            Ok(Some(bytes)) => used += bytes,
            Ok(None) => break Ok(used),
            Err(fault) => break Err(fault),
        }
        let mut now = Vec::new();
        let reply = match session.sort(arguments.all()) {
            Err(refusal) => {
                Replies(&mut now).error(&refusal);
                Later::Known(now)
            }
            Ok(Ask::Plain) => {
                session.answer(arguments.all(), &front.settings, &mut Replies(&mut now));
                Later::Known(now)
            }
            Ok(Ask::Throttle(call)) => Later::Throttle(call),
            Ok(Ask::Check(check)) => Later::Check(check),
        };
        later.push((reply, session.protocol));
        if session.is_leaving {
            break Ok(used);
        }
    };
    let mut replies = Vec::new();
    let mut together = Vec::new();
    for (later, protocol) in later {
        // What is given back is there for those behind it, and not for those before it.
        let is_alone = later.gives_back();
        if is_alone {
            replies.extend(join_all(together.drain(..)).await);
        }
        together.push(later.reply(front, protocol));
        if is_alone {
            replies.extend(join_all(together.drain(..)).await);
        }
    }
    replies.extend(join_all(together).await);
    (replies.concat(), end)
}

/// A reply that is known, or must be asked for.
enum Later<'a> {
    Known(Vec<u8>),
    Throttle(Throttle<'a>),
    Check(Check<'a>),
}

impl Later<'_> {
    fn gives_back(&self) -> bool {
        matches!(self, Self::Throttle(call) if matches!(call.quantity, Quantity::GiveBack(_)))
    }

    async fn reply(self, front: &Front, protocol: Protocol) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut replies = Replies(&mut bytes);
        match self {
            Self::Known(bytes) => return bytes,
            Self::Throttle(Throttle { key, terms, quantity }) => {
                let reply = match quantity {
                    Quantity::Take(cost) => front.gate.throttle(key, terms.cell, cost, Door::Resp).await,
                    Quantity::GiveBack(cost) => front.gate.throttles().refund(key, terms.cell, cost).await,
                };
                match reply {
                    Ok(reply) => replies.throttled(&terms.complete(reply)),
                    Err(error) => replies.error(&format!("{STORE_ERROR}{error}")),
                }
            }
            Self::Check(check) => {
                let sitting = front.gate.snapshot(Door::Resp);
                let checked = sitting.check(&check.attempt()).await;
                check::write(&checked.verdict, &mut replies, protocol);
            }
        }
        bytes
    }
}
