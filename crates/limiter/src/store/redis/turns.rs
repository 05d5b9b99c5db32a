//! Who goes when: what is asked of a server goes together.
//!
//! There is one call at a time. Whoever comes while none is under way goes at once, and alone; whoever comes meanwhile
//! waits, and all who wait go as the next call. So a quiet store answers as fast as it can, and the busier it is, the more
//! each call settles. There is no timer.

use super::call::Mode;
use super::line::Failure;
use super::node::{Node, Span};
use super::work::{Deadline, Done, Reply, Work};
use crate::store::{Settled, StoreError};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use tokio::sync::oneshot;
use tokio::time::timeout_at;
use tollgate_core::{Micros, Timestamp};

/// The most charges of one request: more could not be read by one command of the script.
const REQUEST_MOST: usize = 4_096;

/// The most that may wait for the next calls.
const WAITING_MOST: usize = 16_384;

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

impl Node {
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
