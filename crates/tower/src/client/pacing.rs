//! The parts that all requests of a client share: the pacer, the limits, and the queues of those that wait.

use super::learner::PolicyLearner;
use super::shared_limits::{Grant, SharedLimits};
use super::turns::Turns;
use http::{HeaderMap, Method, StatusCode};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tollgate_limiter::clock::Clock;
use tollgate_limiter::core::protect::{
    Clearance, ExchangeOutcome, PaceLimit, Pacer, PacerConfig, PolicyReport, PolicySource, Repeatability,
    ResponseSummary, RetryDecision,
};
use tollgate_limiter::core::{Micros, Timestamp};
use tollgate_limiter::store::Store;
use tollgate_limiter::store::memory::Memory;

/// The pace of a client, shared by all its clones. A [`PacerLayer`](super::PacerLayer) has it too, for what is learned
/// elsewhere than in headers.
pub struct Pacing<S: Store = Memory> {
    inner: Arc<Inner<S>>,
}

/// The error of a paced request.
#[derive(Debug)]
#[non_exhaustive]
pub enum PacingError<E> {
    /// The request was not sent: it would have waited longer than `max_wait`.
    TooLong {
        /// The wait.
        wait: Duration,
    },
    /// The error of the service.
    Service(E),
}

struct Inner<S: Store> {
    pacer: Mutex<Pacer>,
    limits: SharedLimits<S>,
    turns: Turns,
    clock: Clock,
    wall: Clock,
    keys: RandomState,
    wait_max: Micros,
    transit: Micros,
    policies: PolicySource,
}

/// A request that was sent. It counts as cancelled when it is dropped without a result.
pub(super) struct SentRequest<S: Store> {
    inner: Arc<Inner<S>>,
    key: u64,
    sent_at: Micros,
    ended: bool,
}

/// The end of an attempt, as a client sees it.
pub(super) struct Exchange<'r> {
    pub(super) attempt: u32,
    pub(super) repeatability: Repeatability,
    /// None if there was no response.
    pub(super) response: Option<(StatusCode, &'r HeaderMap)>,
}

/// The step after asking all limits.
enum Step<S: Store> {
    Send(SentRequest<S>),
    Wait(Micros),
    TooLong(Micros),
}

impl<S: Store> Pacing<S> {
    pub(super) fn new(config: PacerConfig, limits: SharedLimits<S>) -> Self {
        let inner = Inner {
            pacer: Mutex::new(Pacer::new(config)),
            limits,
            turns: Turns::default(),
            clock: Clock::start(Timestamp::EPOCH),
            wall: Clock::wall(),
            keys: RandomState::new(),
            wait_max: config.wait_max,
            transit: config.transit,
            policies: config.policies,
        };
        Self { inner: Arc::new(inner) }
    }

    /// Records a policy that a service reported elsewhere than in headers, such as a [`ThrottleStatus`] in a body.
    ///
    /// [`ThrottleStatus`]: super::ThrottleStatus
    pub fn learn(&self, host: &str, report: impl Into<PolicyReport>) {
        let inner = &*self.inner;
        let key = inner.keys.hash_one(host);
        inner.pacer().learn(inner.now(), key, report.into());
    }

    /// Waits until a request to `host` may be sent, and counts it as sent. An error is the wait that is too long.
    pub(super) async fn clear(&self, host: &str) -> Result<SentRequest<S>, Duration> {
        let inner = &*self.inner;
        let key = inner.keys.hash_one(host);
        let started = inner.now();
        let mut granted_at = None;
        let mut first_wait = Micros::ZERO;
        if !inner.turns.is_waited_for(key) {
            match self.ask(key, host, started, &mut granted_at).await {
                Step::Send(sent) => return Ok(sent),
                Step::TooLong(wait) => return Err(wait.into()),
                Step::Wait(wait) => first_wait = wait,
            }
        }
        let (interval, clearance) = {
            let mut pacer = inner.pacer();
            (
                pacer.interval(key).unwrap_or_default(),
                pacer.clearance(inner.now(), key),
            )
        };
        if let Clearance::Wait(wait) | Clearance::TooLong(wait) = clearance {
            first_wait = first_wait.max(wait);
        }
        let at_a_time = (ASKING_SPAN.get() / interval.get().max(1)).clamp(1, ASKING_MAX);
        let Some(turn) = inner.turns.join(key, usize::try_from(at_a_time).unwrap_or(1)) else {
            return Err(inner.wait_max.into());
        };
        // The first of the queue waits for the next unit, each other one for a unit more.
        let queue_wait = first_wait
            .get()
            .saturating_add(interval.get().saturating_mul(turn.ahead));
        inner.check_total(started, Micros::new(queue_wait))?;
        let left = inner.total_max().get().saturating_sub(inner.waited(started));
        let Ok(Ok(_turn)) = tokio::time::timeout(Micros::new(left).into(), turn.queue.turns.acquire()).await else {
            return Err(inner.total_max().into());
        };
        loop {
            let wait = match self.ask(key, host, started, &mut granted_at).await {
                Step::Send(sent) => return Ok(sent),
                Step::TooLong(wait) => return Err(wait.into()),
                Step::Wait(wait) => wait,
            };
            inner.check_total(started, wait)?;
            tokio::time::sleep(wait.into()).await;
        }
    }

    /// Asks the pacer, then the limits, and counts the request if all agree.
    async fn ask(&self, key: u64, host: &str, started: Micros, granted_at: &mut Option<Micros>) -> Step<S> {
        let inner = &*self.inner;
        let (clearance, learned) = {
            let mut pacer = inner.pacer();
            let learned: Vec<(u64, PaceLimit)> = pacer.learned(key).collect();
            (pacer.clearance(inner.now(), key), learned)
        };
        match clearance {
            Clearance::Send => {}
            Clearance::Wait(wait) => return Step::Wait(wait),
            Clearance::TooLong(wait) => return Step::TooLong(wait),
        }
        // A charge that another task's request then overtook is still a charge, unless it is long ago.
        let is_granted = granted_at.is_some_and(|at| inner.now().get().saturating_sub(at.get()) < inner.transit.get());
        if !is_granted {
            match inner.limits.charge(host, &learned).await {
                Grant::After(delay) if delay > inner.wait_max => return Step::TooLong(delay),
                Grant::After(Micros::ZERO) => {}
                Grant::After(delay) => {
                    if inner.check_total(started, delay).is_err() {
                        return Step::TooLong(Micros::new(inner.waited(started).saturating_add(delay.get())));
                    }
                    tokio::time::sleep(delay.into()).await;
                }
                Grant::Wait(wait) if wait > inner.wait_max => return Step::TooLong(wait),
                Grant::Wait(wait) => return Step::Wait(wait),
                Grant::Never => return Step::TooLong(Micros::MAX),
            }
            *granted_at = Some(inner.now());
        }
        let now = inner.now();
        match inner.pacer().before(now, key) {
            Clearance::Send => Step::Send(SentRequest {
                inner: Arc::clone(&self.inner),
                key,
                sent_at: now,
                ended: false,
            }),
            Clearance::Wait(wait) => Step::Wait(wait),
            Clearance::TooLong(wait) => Step::TooLong(wait),
        }
    }
}

impl<S: Store> SentRequest<S> {
    /// Ends it with a result, and decides about the next attempt.
    pub(super) fn end(mut self, exchange: &Exchange<'_>) -> RetryDecision {
        self.ended = true;
        let inner = &*self.inner;
        let wall = inner.wall.now();
        let headers = exchange.response.map(|(_, headers)| headers);
        let learns = headers.filter(|_| inner.policies == PolicySource::Learned);
        let response = ResponseSummary {
            sent_at: self.sent_at,
            attempt: exchange.attempt,
            outcome: outcome(exchange.response.map(|(status, _)| status)),
            repeatability: exchange.repeatability,
            retry_after: headers.and_then(|headers| PolicyLearner::retry_after(headers, wall)),
            policies: learns.map_or_else(Vec::new, |headers| PolicyLearner::policies(headers, wall)),
        };
        inner.pacer().after(inner.now(), self.key, response, fastrand::u32(..))
    }
}

impl<S: Store> Drop for SentRequest<S> {
    fn drop(&mut self) {
        if !self.ended {
            self.inner.pacer().cancel(self.inner.now(), self.key, self.sent_at);
        }
    }
}

impl<S: Store> Inner<S> {
    /// The monotonic time of this process.
    fn now(&self) -> Micros {
        Micros::new(self.clock.now().as_micros())
    }

    /// The time since a request came, in microseconds.
    fn waited(&self, started: Micros) -> u64 {
        self.now().get().saturating_sub(started.get())
    }

    /// The longest wait of a request in all. A closed key opens with a spread beyond the longest single wait.
    fn total_max(&self) -> Micros {
        let spread = (self.wait_max.get() / 10).max(SPREAD_MIN.get());
        Micros::new(self.wait_max.get().saturating_add(spread))
    }

    /// Checks that a request that came at `started` may wait this much longer. An error is its wait in all.
    fn check_total(&self, started: Micros, wait: Micros) -> Result<(), Duration> {
        let total = Micros::new(self.waited(started).saturating_add(wait.get()));
        if total > self.total_max() {
            return Err(total.into());
        }
        Ok(())
    }

    /// Never held across an await.
    fn pacer(&self) -> MutexGuard<'_, Pacer> {
        self.pacer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The outcome by the status of a response, or without one.
fn outcome(status: Option<StatusCode>) -> ExchangeOutcome {
    match status {
        None => ExchangeOutcome::Lost,
        Some(StatusCode::TOO_MANY_REQUESTS) => ExchangeOutcome::Throttled,
        Some(StatusCode::SERVICE_UNAVAILABLE) => ExchangeOutcome::Unavailable,
        Some(StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT) => ExchangeOutcome::GatewayFailed,
        Some(_) => ExchangeOutcome::Answered,
    }
}

/// The condition under which a request may be sent again, if its body can be.
pub(super) fn repeatability(method: &Method, headers: &HeaderMap, has_copy: bool) -> Repeatability {
    if !has_copy {
        Repeatability::Never
    } else if method.is_idempotent() || headers.contains_key("idempotency-key") {
        Repeatability::Always
    } else {
        Repeatability::Unexecuted
    }
}

impl<S: Store> Clone for Pacing<S> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
        }
    }
}

impl<S: Store> fmt::Debug for Pacing<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pacing").finish_non_exhaustive()
    }
}

impl<E: fmt::Display> fmt::Display for PacingError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { wait } => write!(
                f,
                "not sent: it would have waited {wait:?} for its limit; raise max_wait, or send less"
            ),
            Self::Service(error) => error.fmt(f),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for PacingError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::TooLong { .. } => None,
            Self::Service(error) => Some(error),
        }
    }
}

/// As many requests ask the limits at a time as pass in this time, so that a reply of a store is no bottleneck.
const ASKING_SPAN: Micros = Micros::from_millis(20);
const ASKING_MAX: u64 = 64;
/// The least by which a closed key opens later than it was asked to.
const SPREAD_MIN: Micros = Micros::from_secs(1);

#[cfg(test)]
mod tests;
