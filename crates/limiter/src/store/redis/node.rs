//! One server: calls of the script, and what is learned of the server by them.
//!
//! On a cluster each call of the script holds keys of one tag; those that go together are sent in one write all the same.

use super::Time;
use super::breaker::{Breaker, BreakerState, Went};
use super::call::{Answer, Call, Clock as Timing, Mode, Told};
use super::key::RedisKey;
use super::line::{Failure, Line, Ready};
use super::link::Link;
use super::near::Exchange;
use super::probe;
use super::reach::{Place, Watched};
use super::replicas::Replicas;
use super::turns::Queue;
use super::work::{Deadline, Done, Manner, Reply, Shared, Work};
use crate::clock;
use crate::store::{Refusal, StoreError};
use redis::{Cmd, Value};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::time::{Instant, timeout_at};
use tollgate_core::{Charge, Timestamp};

/// The most charges of one call: more would keep the server from others for too long.
pub(super) const BATCH: usize = 128;

/// The most that go in one write where it holds a call for each tag.
const WRITE: usize = 256;

/// One server.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) link: Arc<Link>,
    pub(super) shared: Arc<Shared>,
    /// Who may be looked at in its place.
    pub(super) replicas: Option<Replicas>,
    pub(super) breaker: Breaker,
    /// The tag that was asked for last: a probe asks for the same.
    pub(super) last_tag: AtomicU16,
    /// What went wrong last.
    failed_by: Mutex<Option<StoreError>>,
    /// One more than the number of the connection whose failure was noted last.
    pub(super) told_of: AtomicU64,
    /// How many writes are under way that do not go in turns.
    at_once: AtomicUsize,
    /// Whether somebody looks later if there is a connection by then.
    pub(super) is_awaited: AtomicBool,
    /// Whether a call is waited for whose caller has left.
    pub(super) is_followed: AtomicBool,
    /// For what goes on in the background.
    pub(super) me: Weak<Self>,
    pub(super) span: Span,
    pub(super) queue: Mutex<Queue>,
}

/// What one call of the script may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Span {
    /// Any keys.
    All,
    /// Keys of one tag: those of another may lie in another slot.
    OneTag,
}

impl Span {
    /// How many charges go together at most.
    pub(super) const fn most(self) -> usize {
        match self {
            Self::All => BATCH,
            Self::OneTag => WRITE,
        }
    }
}

/// A call, and whose works are in it, by their places.
struct Batch {
    call: Call,
    manner: Manner,
    works: Vec<usize>,
}

impl Node {
    /// A server at the other end of `link`.
    pub(super) fn new(link: Arc<Link>, shared: Arc<Shared>, span: Span, replicas: Option<Replicas>) -> Arc<Self> {
        let node = Arc::new_cyclic(|me| Self {
            link,
            breaker: Breaker::new(shared.breaking, shared.deadline),
            last_tag: AtomicU16::new(0),
            failed_by: Mutex::default(),
            told_of: AtomicU64::new(0),
            at_once: AtomicUsize::new(0),
            is_awaited: AtomicBool::new(false),
            is_followed: AtomicBool::new(false),
            me: Weak::clone(me),
            shared,
            span,
            replicas,
            queue: Mutex::default(),
        });
        Replicas::watch(&node);
        node
    }

    /// Why it is not asked, if it is not.
    pub(super) fn fault(&self) -> Option<String> {
        self.link.fault().or_else(|| {
            let failed_by = self.failed_by.lock().unwrap_or_else(PoisonError::into_inner);
            let is_closed = self.breaker.state() == BreakerState::Closed;
            failed_by.filter(|_| !is_closed).map(|error| error.to_string())
        })
    }

    /// Makes the calls for works, in one write. They do nothing if they begin after the first of them has given
    /// up, and are waited for until the last of them has.
    pub(super) async fn call(&self, works: &[&Work], first: Deadline, until: Instant) -> Vec<Done> {
        let batches = self.batches(works);
        let mut done: Vec<Done> = works.iter().map(|_| Err(StoreError::Nonsense.into())).collect();
        let mut watched = Watched::new(self, until);
        let answers = self.exchange(&batches, first.ours, until, &mut watched).await;
        watched.went(&answers);
        for (batch, answer) in batches.iter().zip(answers) {
            let told = answer.and_then(|(answer, when)| match answer.told {
                Some(told) => Ok((told, when)),
                None => Err(StoreError::Late.into()),
            });
            if let Ok((told, _)) = &told {
                self.shared.figures.charges.add(told.len() as u64);
                for _ in told.iter().filter(|told| **told == Told::Foreign) {
                    self.shared.count(StoreError::Foreign);
                }
            }
            let mut told = told.map(|(told, when)| (told.into_iter(), when));
            for &place in &batch.works {
                let (Some(work), Some(done)) = (works.get(place), done.get_mut(place)) else {
                    continue;
                };
                *done = match &mut told {
                    Ok((told, when)) => {
                        let told: Vec<Told> = told.by_ref().take(work.charges.len()).collect();
                        self.learn(work, &told, *when);
                        Ok(Reply::Told(when.now, told))
                    }
                    Err(failure) => Err(failure.clone()),
                };
            }
        }
        done
    }

    /// Sends commands other than the script, in one write and at once, and gives what is answered to each.
    pub(super) async fn send_all(&self, commands: &[&Cmd], deadline: Deadline) -> Vec<Result<Value, Failure>> {
        let failed = |error: StoreError| vec![Err(error.into()); commands.len()];
        let Some(_place) = Place::take(&self.at_once) else {
            return failed(StoreError::Overloaded);
        };
        if !self.breaker.lets_pass(self.shared.clock.now()) {
            return failed(StoreError::BreakerOpen);
        }
        let mut watched = Watched::new(self, deadline.until);
        let answers = match self.line_by(deadline.until).await {
            Err(error) => failed(error),
            Ok(line) => {
                let line = watched.sent(line);
                let answers = timeout_at(deadline.until, line.send_all(commands)).await;
                let mut answers = answers.unwrap_or_else(|_| failed(StoreError::Timeout));
                if answers.iter().any(|answer| matches!(answer, Ok(Value::Array(_)))) {
                    // Of these commands none is answered so, but the time is, which somebody may have asked for behind them: one
                    // of their answers was swallowed.
                    answers = failed(StoreError::Nonsense);
                }
                let is_well = |answer: &Result<Value, Failure>| match answer {
                    Ok(_) => true,
                    Err(failure) => !is_the_connections(failure.error),
                };
                if answers.iter().all(is_well) {
                    self.link.answered();
                }
                answers
            }
        };
        watched.went(&answers);
        answers
    }

    /// Notes how a call went, on its connection if there was one. A connection that does not answer, or not with an answer,
    /// is given up: what came next on it could be taken for the answer to something else.
    pub(super) fn note<T>(&self, answers: &[Result<T, Failure>], line: Option<&Line>) {
        let errors = || answers.iter().filter_map(|answer| answer.as_ref().err());
        if let Some(failure) = errors().next() {
            *self.failed_by.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure.error);
        }
        let mut went = went(answers);
        if let Some(line) = line
            && let Some(failure) = errors().find(|failure| is_the_connections(failure.error))
        {
            self.link.hang_up(line.number(), &failure.error.to_string());
            went = went.filter(|went| *went == Went::Well || !self.is_told(line));
        }
        let Some(went) = went else { return };
        if self.breaker.note(went, self.shared.clock.now()) {
            probe::begin(Weak::clone(&self.me), &self.shared.runtime);
        } else if went == Went::Unreached {
            self.await_line();
        }
    }

    /// Which works go in which call.
    fn batches(&self, works: &[&Work]) -> Vec<Batch> {
        let mut batches: Vec<Batch> = Vec::new();
        let mut of_tag: HashMap<(u16, Mode), usize> = HashMap::new();
        for (place, work) in works.iter().enumerate() {
            let with_others = work.manner == Manner::Together && work.mode != Mode::Forget;
            let open = match self.span {
                Span::All => batches.len().checked_sub(1),
                Span::OneTag if with_others => of_tag.get(&(work.tag(), work.mode)).copied(),
                Span::OneTag => None,
            };
            let number = open.unwrap_or_else(|| {
                if with_others && self.span == Span::OneTag {
                    of_tag.insert((work.tag(), work.mode), batches.len());
                }
                batches.push(Batch {
                    call: Call::new(work.mode),
                    manner: work.manner,
                    works: Vec::new(),
                });
                batches.len() - 1
            });
            if let Some(batch) = batches.get_mut(number) {
                self.add(work, &mut batch.call);
                batch.works.push(place);
            }
        }
        batches
    }

    fn add(&self, work: &Work, call: &mut Call) {
        let keys = &self.shared.keys;
        match (work.mode, &*work.charges) {
            (Mode::Settle | Mode::Peek, charges) => {
                let texts: Vec<Charge<_>> = charges.iter().map(|charge| self.in_words(charge)).collect();
                call.request(&texts, work.receipt.lease);
            }
            (Mode::Forget, [charge, ..]) => call.forget(keys.text(charge.key).as_ref()),
            (_, [charge, ..]) => call.give_back(keys.text(charge.key).as_ref(), &charge.limit, &work.receipt),
            // Nothing is asked for, and nothing will be told.
            (_, []) => {}
        }
    }

    fn learn(&self, work: &Work, told: &[Told], when: Exchange) {
        if let (Mode::Settle, Some(near)) = (work.mode, &self.shared.near) {
            for (charge, told) in work.charges.iter().zip(told) {
                near.learn(charge, &work.charges, told, when);
            }
        }
    }

    /// Sends calls and waits for their answers.
    async fn exchange(
        &self,
        batches: &[Batch],
        not_after: Timestamp,
        until: Instant,
        watched: &mut Watched<'_>,
    ) -> Vec<Result<(Answer, Exchange), Failure>> {
        let line = match self.line_by(until).await {
            Ok(line) => watched.sent(line),
            Err(error) => return vec![Err(error.into()); batches.len()],
        };
        let Shared { clock, figures, .. } = &*self.shared;
        let timing = Timing {
            caller: match self.shared.time {
                Time::Server => None,
                Time::Client { skew_tolerance } => Some((clock::wall(), skew_tolerance)),
            },
            slack: self.shared.slack,
            not_after: line.server_time(not_after),
        };
        let sent = clock.now();
        let calls = batches.iter().map(|batch| Ready {
            keys: batch.call.keys(),
            arguments: batch.call.arguments(timing),
            is_asking: batch.manner == Manner::Asking,
        });
        let calls: Vec<Ready<'_>> = calls.collect();
        let knocking_on = timing.not_after.map(|_| line.connection());
        let answers = match self.answer_by(until, knocking_on, line.run(&calls, figures)).await {
            Ok(answers) => answers,
            Err(error) => vec![Err(error.into()); batches.len()],
        };
        let received = clock.now();
        let read = |(batch, answer): (&Batch, Result<Vec<u8>, Failure>)| {
            answer.and_then(|answer| batch.call.read(&answer).ok_or_else(|| StoreError::Nonsense.into()))
        };
        let answers: Vec<Result<Answer, Failure>> = batches.iter().zip(answers).map(read).collect();
        let errors = || answers.iter().filter_map(|answer| answer.as_ref().err());
        if errors().any(|failure| failure.error == StoreError::Nonsense) {
            // Any of the others may be the answer to something else: one may have been swallowed.
            return vec![Err(StoreError::Nonsense.into()); batches.len()];
        }
        for answer in answers.iter().flatten() {
            line.learn(sent, received, answer.server_now);
            // One that came too late says nothing of whether the server takes writes.
            if answer.told.is_some() {
                self.link.answered();
            }
        }
        let exchanged = |answer: Answer| {
            let now = answer.now;
            (answer, Exchange { sent, received, now })
        };
        answers.into_iter().map(|answer| answer.map(exchanged)).collect()
    }

    fn in_words(&self, charge: &Charge<RedisKey>) -> Charge<super::key::KeyText> {
        Charge {
            key: self.shared.keys.text(charge.key),
            limit: charge.limit,
            cost: charge.cost,
            policy: charge.policy,
            on_failure: charge.on_failure,
        }
    }
}

/// How a call went, if that says anything of the server: it did well if it did any of what it was asked. That a slot is
/// elsewhere, or that nobody has it, or what one key holds, says nothing.
pub(super) fn went<T>(answers: &[Result<T, Failure>]) -> Option<Went> {
    let judged = answers.iter().filter_map(|answer| match answer {
        Ok(_) => Some(Went::Well),
        Err(Failure { error, .. }) if *error == StoreError::Unavailable => Some(Went::Unreached),
        Err(Failure { error, .. }) => is_failure(*error).then_some(Went::Badly),
    });
    judged.min_by_key(|went| *went != Went::Well)
}

const fn is_failure(error: StoreError) -> bool {
    match error {
        StoreError::Timeout | StoreError::Lost | StoreError::Nonsense => true,
        StoreError::Refused(refusal) => !matches!(
            refusal,
            Refusal::Moved
                | Refusal::Ask
                | Refusal::TryAgain
                | Refusal::CrossSlot
                | Refusal::ClusterDown
                | Refusal::WrongType
        ),
        StoreError::Unavailable
        | StoreError::Late
        | StoreError::Overloaded
        | StoreError::BreakerOpen
        | StoreError::Unasked
        | StoreError::Foreign => false,
    }
}

/// Whether another connection could do better: this one fell silent or speaks of something else, or leads to a server that
/// is not to be written to.
const fn is_the_connections(error: StoreError) -> bool {
    matches!(
        error,
        StoreError::Timeout
            | StoreError::Lost
            | StoreError::Nonsense
            | StoreError::Refused(Refusal::ReadOnly | Refusal::NoAuth | Refusal::WrongPass)
    )
}
