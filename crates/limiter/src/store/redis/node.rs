//! One server: what is asked of it goes together.
//!
//! There is one call at a time. Whoever comes while none is under way goes at once, and alone; whoever comes meanwhile
//! waits, and all who wait go as the next call. So a quiet store answers as fast as it can, and the busier it is, the more
//! each call settles. There is no timer. On a cluster each call of the script holds keys of one tag; those that go together
//! are sent in one write all the same.

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
use super::work::{Deadline, Done, Manner, Reply, Shared, Work};
use crate::clock;
use crate::store::{Refusal, Settled, StoreError};
use redis::{Cmd, Value};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};
use tollgate_core::{Charge, Micros, Timestamp};

/// The most charges of one call: more would keep the server from others for too long.
pub(super) const BATCH: usize = 128;

/// The most that go in one write where it holds a call for each tag.
const WRITE: usize = 256;

/// The most charges of one request: more could not be read by one command of the script.
const REQUEST_MOST: usize = 4_096;

/// The most that may wait for the next calls.
const WAITING_MOST: usize = 16_384;

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
    queue: Mutex<Queue>,
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
    const fn most(self) -> usize {
        match self {
            Self::All => BATCH,
            Self::OneTag => WRITE,
        }
    }
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

/// What becomes of work that comes in.
enum Entered<'n> {
    /// It goes at once, and whoever brought it makes the call.
    Goes(Vec<Work>, Turn<'n>),
    /// Somebody will tell.
    Waits(Vec<oneshot::Receiver<Done>>),
}

#[derive(Debug)]
struct Job {
    work: Work,
    deadline: Deadline,
    reply: oneshot::Sender<Done>,
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

    /// Does works of one mode by the next call.
    pub(super) async fn ask(self: &Arc<Self>, works: Vec<Work>, deadline: Deadline) -> Vec<Done> {
        let count = works.len();
        let failed = |error: StoreError| (0..count).map(|_| Err(error.into())).collect();
        if works.iter().map(|work| work.charges.len()).sum::<usize>() > REQUEST_MOST {
            return failed(StoreError::Overloaded);
        }
        if !self.breaker.lets_pass(self.shared.clock.now()) {
            return failed(StoreError::BreakerOpen);
        }
        let tag = works.first().map_or(0, Work::tag);
        self.last_tag.store(tag, Ordering::Relaxed);
        match self.enter(works, deadline) {
            Ok(Entered::Goes(works, _turn)) => self.go(&works, deadline).await,
            Ok(Entered::Waits(replies)) => {
                let mut done = Vec::with_capacity(count);
                for reply in replies {
                    done.push(match timeout_at(deadline.until, reply).await {
                        Ok(Ok(reply)) => reply,
                        Ok(Err(_)) => Err(StoreError::Lost.into()),
                        Err(_) => Err(StoreError::Timeout.into()),
                    });
                }
                done
            }
            Err(error) => failed(error),
        }
    }

    /// Makes a call at once.
    async fn go(&self, works: &[Work], deadline: Deadline) -> Vec<Done> {
        let all: Vec<&Work> = works.iter().collect();
        let mut done = self.call(&all, deadline, deadline.until).await;
        // Nothing was done, and there is time left: the server's clock was set, and now we know.
        if done.iter().any(is_late) && self.shared.clock.now() < deadline.ours {
            let late = done.iter().zip(&all).filter(|(done, _)| is_late(done));
            let late: Vec<&Work> = late.map(|(_, work)| *work).collect();
            let again = self.call(&late, deadline, deadline.until).await;
            for (done, again) in done.iter_mut().filter(|done| is_late(done)).zip(again) {
                *done = again;
            }
        }
        done
    }

    /// Goes if no call is under way, else waits for the next.
    fn enter<'n>(self: &'n Arc<Self>, works: Vec<Work>, deadline: Deadline) -> Result<Entered<'n>, StoreError> {
        let now = deadline.ours - Micros::from(self.shared.deadline);
        let mut queue = self.queue();
        if queue.under_way.is_none_or(|call| call.overdue <= now) {
            queue.turns += 1;
            let number = queue.turns;
            queue.under_way = Some(self.under_way(number, deadline));
            return Ok(Entered::Goes(works, Turn { node: self, number }));
        }
        if queue.waiting.len() >= WAITING_MOST {
            return Err(StoreError::Overloaded);
        }
        let wait = |work| {
            let (sender, reply) = oneshot::channel();
            queue.waiting.push_back(Job {
                work,
                deadline,
                reply: sender,
            });
            reply
        };
        Ok(Entered::Waits(works.into_iter().map(wait).collect()))
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
            // A call is of one mode, and a counter is cleared once, whoever else wants it cleared.
            let is_other = self.span == Span::All && (job.work.mode != mode || mode == Mode::Forget);
            if !batch.is_empty() && (is_other || charges > self.span.most()) {
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
            overdue: deadline.ours + Micros::from(self.shared.deadline),
        }
    }

    /// Makes one call for those who go together, and tells each of them. If it was too late for the first who gave up, the
    /// others go again.
    async fn settle_together(&self, mut jobs: Vec<Job>) {
        if self.breaker.is_shut(self.shared.clock.now()) {
            // It opened while they waited.
            for job in jobs {
                let _ = job.reply.send(Err(StoreError::BreakerOpen.into()));
            }
            return;
        }
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
            let done = self.call(&works, first, last).await;
            let mut again = Vec::new();
            for (job, done) in jobs.into_iter().zip(done) {
                if is_late(&done) {
                    again.push(job);
                } else {
                    // Whoever gave up just now needs no answer.
                    let _ = job.reply.send(done);
                }
            }
            (jobs, late) = (again, first.ours);
        }
    }

    /// Those who must be asked for. Who has given up, by now or by `late`, is not charged; and what came back since may be
    /// enough to refuse.
    fn still_to_ask(&self, jobs: Vec<Job>, late: Timestamp) -> Vec<Job> {
        let now = self.shared.clock.now();
        let mut still = Vec::with_capacity(jobs.len());
        for job in jobs {
            if job.reply.is_closed() {
                continue;
            }
            let answer = if job.deadline.ours <= now.max(late) {
                Some(Err(StoreError::Late.into()))
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
            Mode::Settle => self.shared.near.as_ref()?.refusal(&work.charges, now),
            _ => None,
        }
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

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_late(done: &Done) -> bool {
    matches!(
        done,
        Err(Failure {
            error: StoreError::Late,
            ..
        })
    )
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
            self.node
                .shared
                .runtime
                .spawn(see_to(Arc::clone(self.node), self.number));
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
