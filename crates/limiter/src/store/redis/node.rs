//! One server: what is asked of it goes together.
//!
//! There is one call at a time. Whoever comes while none is under way goes at once, and alone; whoever comes meanwhile
//! waits, and all who wait go as the next call. So a quiet store answers as fast as it can, and the busier it is, the more
//! each call settles. There is no timer.

use super::call::{Answer, Call, Clock as Timing, Mode, Told};
use super::key::{Keys, RedisKey};
use super::link::Link;
use super::near::{Exchange, Near};
use super::{Figures, Time};
use crate::clock::{self, Clock};
use crate::store::{Refusal, Settled, StoreError};
use std::collections::VecDeque;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};
use tollgate_core::{Charge, LeaseId, Micros, Receipt, Timestamp};

/// The most charges of one call: more would keep the server from others for too long.
pub(super) const BATCH: usize = 64;

/// The most charges of one request: more could not be read by one command of the script.
const REQUEST_MOST: usize = 4_096;

/// The most that may wait for the next calls.
const WAITING_MOST: usize = 16_384;

/// One server.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) link: Arc<Link>,
    pub(super) near: Option<Near>,
    pub(super) keys: Keys,
    pub(super) figures: Arc<Figures>,
    pub(super) runtime: Handle,
    pub(super) clock: Clock,
    pub(super) time: Time,
    pub(super) slack: Micros,
    pub(super) deadline: Duration,
    pub(super) queue: Mutex<Queue>,
    /// How many leases are being given back that were asked for and not answered.
    pub(super) orphans: AtomicUsize,
}

/// Who waits for the next call.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: VecDeque<Job>,
    /// The call under way. Whoever made it, or the task behind it, sees to those who wait.
    under_way: Option<UnderWay>,
    /// How many turns there have been.
    turns: u64,
}

/// A call that is under way.
#[derive(Clone, Copy, Debug)]
struct UnderWay {
    turn: u64,
    /// When it must long be over, on our clock. Whoever makes a call may be a future that nobody polls; the next to come
    /// then goes in its place.
    overdue: Timestamp,
}

/// One thing to do.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) mode: Mode,
    /// The charges of a request. In other modes there is one, and of a counter to clear only its key counts.
    pub(super) charges: Vec<Charge<RedisKey>>,
    /// Of a request only its lease.
    pub(super) receipt: Receipt,
}

/// What came of it.
#[derive(Debug)]
pub(super) enum Reply {
    /// What the store told of each charge.
    Told(Timestamp, Vec<Told>),
    /// A refusal that needed no asking.
    Near(Settled),
}

/// What becomes of work that comes in.
enum Entered<'n> {
    /// It goes at once, and whoever brought it makes the call.
    Goes(Work, Turn<'n>),
    /// Somebody will tell.
    Waits(oneshot::Receiver<Result<Reply, StoreError>>),
}

#[derive(Debug)]
struct Job {
    work: Work,
    deadline: Deadline,
    reply: oneshot::Sender<Result<Reply, StoreError>>,
}

/// When whoever asked gives up.
#[derive(Clone, Copy, Debug)]
struct Deadline {
    /// On our clock.
    ours: Timestamp,
    /// For waiting.
    until: Instant,
}

impl Node {
    /// Does `work` by the next call.
    pub(super) async fn ask(self: &Arc<Self>, work: Work) -> Result<Reply, StoreError> {
        let done = self.ask_uncounted(work).await;
        if let Err(error) = &done {
            self.figures.count(*error);
        }
        done
    }

    async fn ask_uncounted(self: &Arc<Self>, work: Work) -> Result<Reply, StoreError> {
        if work.charges.len() > REQUEST_MOST {
            return Err(StoreError::Overloaded);
        }
        let deadline = Deadline {
            ours: self.clock.now() + Micros::from(self.deadline),
            until: Instant::now() + self.deadline,
        };
        let reply = match self.enter(work, deadline)? {
            Entered::Goes(work, _turn) => {
                let mut done = self.call(&[&work], deadline, deadline.until).await;
                // Nothing was done, and there is time left: the server's clock was set, and now we know.
                if matches!(done, Err(StoreError::Late)) && self.clock.now() < deadline.ours {
                    done = self.call(&[&work], deadline, deadline.until).await;
                }
                return done?.pop().ok_or(StoreError::Nonsense);
            }
            Entered::Waits(reply) => reply,
        };
        match timeout_at(deadline.until, reply).await {
            Ok(Ok(reply)) => reply,
            Ok(Err(_)) => Err(StoreError::Lost),
            Err(_) => Err(StoreError::Timeout),
        }
    }

    /// Goes if no call is under way, else waits for the next.
    fn enter<'n>(self: &'n Arc<Self>, work: Work, deadline: Deadline) -> Result<Entered<'n>, StoreError> {
        let now = deadline.ours - Micros::from(self.deadline);
        let mut queue = self.queue();
        if queue.under_way.is_none_or(|call| call.overdue <= now) {
            queue.turns += 1;
            let number = queue.turns;
            queue.under_way = Some(self.under_way(number, deadline));
            return Ok(Entered::Goes(work, Turn { node: self, number }));
        }
        if queue.waiting.len() >= WAITING_MOST {
            return Err(StoreError::Overloaded);
        }
        let (sender, reply) = oneshot::channel();
        queue.waiting.push_back(Job {
            work,
            deadline,
            reply: sender,
        });
        Ok(Entered::Waits(reply))
    }

    /// Those who go together next. Nothing if nobody waits: then no call is under way any more. Nothing also if somebody
    /// else sees to them by now.
    fn next(&self, turn: u64) -> Option<Vec<Job>> {
        let mut queue = self.queue();
        if queue.under_way.is_none_or(|call| call.turn != turn) {
            return None;
        }
        let mut batch: Vec<Job> = Vec::new();
        let mut charges = 0;
        while let Some(job) = queue.waiting.front() {
            let mode = batch.first().map_or(job.work.mode, |first| first.work.mode);
            charges += job.work.charges.len();
            // A counter is cleared once, whoever else wants it cleared.
            if !batch.is_empty() && (job.work.mode != mode || mode == Mode::Forget || charges > BATCH) {
                break;
            }
            batch.extend(queue.waiting.pop_front());
        }
        let last = batch
            .iter()
            .map(|job| job.deadline)
            .max_by_key(|deadline| deadline.ours);
        queue.under_way = last.map(|deadline| self.under_way(turn, deadline));
        (!batch.is_empty()).then_some(batch)
    }

    fn under_way(&self, turn: u64, deadline: Deadline) -> UnderWay {
        UnderWay {
            turn,
            overdue: deadline.ours + Micros::from(self.deadline),
        }
    }

    /// Makes one call for those who go together, and tells each of them. If it was too late for the first who gave up, the
    /// others go again.
    async fn settle_together(&self, mut jobs: Vec<Job>) {
        let mut late = Timestamp::EPOCH;
        loop {
            jobs = self.still_to_ask(jobs, late);
            let deadlines = || jobs.iter().map(|job| job.deadline);
            let (Some(first), Some(last)) = (
                deadlines().min_by_key(|deadline| deadline.ours),
                deadlines().map(|deadline| deadline.until).max(),
            ) else {
                return;
            };
            let works: Vec<&Work> = jobs.iter().map(|job| &job.work).collect();
            // Whoever gave up just now needs no answer.
            match self.call(&works, first, last).await {
                Ok(replies) => {
                    for (job, reply) in jobs.into_iter().zip(replies) {
                        let _ = job.reply.send(Ok(reply));
                    }
                    return;
                }
                Err(StoreError::Late) => late = first.ours,
                Err(error) => {
                    for job in jobs {
                        let _ = job.reply.send(Err(error));
                    }
                    return;
                }
            }
        }
    }

    /// Those who must be asked for. Who has given up, by now or by `late`, is not charged; and what came back since may be
    /// enough to refuse.
    fn still_to_ask(&self, jobs: Vec<Job>, late: Timestamp) -> Vec<Job> {
        let now = self.clock.now();
        let mut still = Vec::with_capacity(jobs.len());
        for job in jobs {
            if job.reply.is_closed() {
                continue;
            }
            let answer = if job.deadline.ours <= now.max(late) {
                Some(Err(StoreError::Late))
            } else {
                self.refusal(&job.work, now).map(|settled| Ok(Reply::Near(settled)))
            };
            match answer {
                Some(answer) => drop(job.reply.send(answer)),
                None => still.push(job),
            }
        }
        still
    }

    fn refusal(&self, work: &Work, now: Timestamp) -> Option<Settled> {
        match work.mode {
            Mode::Settle => self.near.as_ref()?.refusal(&work.charges, now),
            _ => None,
        }
    }

    /// Makes one call of works of one mode. It does nothing if it begins after the first of them has given up, and is
    /// waited for until the last of them has.
    async fn call(&self, works: &[&Work], first: Deadline, until: Instant) -> Result<Vec<Reply>, StoreError> {
        let mode = works.first().map_or(Mode::Peek, |work| work.mode);
        let mut call = Call::new(mode);
        for work in works {
            match (mode, &*work.charges) {
                (Mode::Settle | Mode::Peek, charges) => {
                    let texts: Vec<Charge<_>> = charges.iter().map(|charge| self.in_words(charge)).collect();
                    call.request(&texts, work.receipt.lease);
                }
                (Mode::Forget, [charge, ..]) => call.forget(self.keys.text(charge.key).as_ref()),
                (_, [charge, ..]) => {
                    call.give_back(self.keys.text(charge.key).as_ref(), &charge.limit, &work.receipt);
                }
                (_, []) => return Err(StoreError::Nonsense),
            }
        }
        let (answer, when) = self.exchange(&call, first.ours, until).await?;
        let told = answer.told.ok_or(StoreError::Late)?;
        self.figures.charges.add(told.len() as u64);
        for _ in told.iter().filter(|told| **told == Told::Foreign) {
            self.figures.count(StoreError::Foreign);
        }
        if let (Mode::Settle, Some(near)) = (mode, &self.near) {
            let mut told = told.iter();
            for Work { charges, .. } in works {
                for (charge, told) in charges.iter().zip(told.by_ref()) {
                    near.learn(charge, charges, told, when);
                }
            }
        }
        let mut told = told.into_iter();
        let mut reply = |work: &&Work| Reply::Told(answer.now, told.by_ref().take(work.charges.len()).collect());
        Ok(works.iter().map(&mut reply).collect())
    }

    /// Sends a call and waits for its answer. A connection that does not answer, or not with an answer, is given up: what
    /// came next on it could be taken for the answer to something else.
    async fn exchange(
        &self,
        call: &Call,
        not_after: Timestamp,
        until: Instant,
    ) -> Result<(Answer, Exchange), StoreError> {
        let line = timeout_at(until, self.link.line()).await;
        let mut line = line.map_err(|_| StoreError::Unavailable)?;
        let timing = Timing {
            caller: match self.time {
                Time::Server => None,
                Time::Client { skew_tolerance } => Some((clock::wall(), skew_tolerance)),
            },
            slack: self.slack,
            not_after: line.server_time(not_after),
        };
        let sent = self.clock.now();
        let arguments = call.arguments(timing);
        let running = line.run(call.keys(), &arguments, &self.figures);
        let answer = match timeout_at(until, running).await {
            Ok(answer) => answer,
            Err(_) => Err(StoreError::Timeout),
        };
        let answer = answer.and_then(|answer| call.read(&answer).ok_or(StoreError::Nonsense));
        match answer {
            Ok(answer) => {
                let received = self.clock.now();
                line.learn(sent, received, answer.server_now);
                self.link.answered();
                let now = answer.now;
                Ok((answer, Exchange { sent, received, now }))
            }
            Err(error) => {
                if is_the_connections(error) {
                    self.link.hang_up(line.number(), &error.to_string());
                }
                Err(error)
            }
        }
    }

    fn in_words(&self, charge: &Charge<RedisKey>) -> Charge<super::key::KeyText> {
        Charge {
            key: self.keys.text(charge.key),
            limit: charge.limit,
            cost: charge.cost,
            policy: charge.policy,
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
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

/// The turn of whoever makes a call. When it ends, also because nobody waits for it any more or because it failed, those
/// who wait are seen to.
struct Turn<'n> {
    node: &'n Arc<Node>,
    number: u64,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut queue = self.node.queue();
        if queue.under_way.is_none_or(|call| call.turn != self.number) {
            return;
        }
        if queue.waiting.is_empty() {
            queue.under_way = None;
        } else {
            drop(queue);
            self.node.runtime.spawn(see_to(Arc::clone(self.node), self.number));
        }
    }
}

/// Makes calls until nobody waits.
async fn see_to(node: Arc<Node>, number: u64) {
    let _turn = Turn { node: &node, number };
    while let Some(batch) = node.next(number) {
        node.settle_together(batch).await;
    }
}

impl Work {
    /// Of one counter.
    pub(super) fn of_one(mode: Mode, charge: Charge<RedisKey>, receipt: Receipt) -> Self {
        Self {
            mode,
            charges: vec![charge],
            receipt,
        }
    }

    /// A request.
    pub(super) fn request(mode: Mode, charges: &[Charge<RedisKey>], lease: LeaseId) -> Self {
        let receipt = Receipt {
            cost: tollgate_core::Cost::ZERO,
            mark: Default::default(),
            lease,
        };
        Self {
            mode,
            charges: charges.to_vec(),
            receipt,
        }
    }
}
