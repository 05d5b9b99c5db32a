//! The client side of a limit: waits instead of being denied, and retries so that it helps.
//!
//! Sans-I/O: a client asks [`Pacer::before`] it sends, reports to [`Pacer::after`] what came back, and does the waiting
//! itself. Everything a server says is input from outside: it can slow this client down, for a time that is bounded, and
//! nothing else.

mod key;
mod learned;
mod pace;
mod transit;

pub use self::learned::PolicyReport;
pub use self::pace::PaceLimit;

use self::key::PacedKey;
use crate::protect::adaptive_throttle::AdaptiveThrottle;
use crate::protect::retry_budget::RetryBudget;
use crate::units::time::Micros;
use std::collections::HashMap;

/// Paces the requests to any number of services, each with a key.
#[derive(Clone, Debug)]
pub struct Pacer {
    config: PacerConfig,
    budget: RetryBudget,
    keys: HashMap<u64, PacedKey>,
}

/// The settings of a pacer.
#[derive(Clone, Copy, Debug)]
pub struct PacerConfig {
    /// The limit of each key, where it is known.
    pub limit: Option<PaceLimit>,
    /// Policies that responses report.
    pub policies: PolicySource,
    /// The longest wait before a request, and the longest `Retry-After` that is waited for.
    pub wait_max: Micros,
    /// The retries of a request.
    pub retries: u32,
    /// The time in which a request reaches the server. A request without a response counts as in transit for this long.
    pub transit: Micros,
    /// The budget of all retries.
    pub budget: RetryBudget,
    /// The treatment of a service that accepts less than half of its requests.
    pub rejection: LocalRejection,
}

/// The source of limits besides the configured one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PolicySource {
    /// None: reports of policies are ignored.
    #[default]
    Configured,
    /// The reports in responses.
    Learned,
}

/// The treatment of a service that accepts less than half of its requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LocalRejection {
    /// It is sent all of them.
    #[default]
    Off,
    /// It is sent about twice what it accepts: see [`AdaptiveThrottle`].
    Adaptive,
}

/// The answer to a request that is about to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clearance {
    /// Send it now; it is counted.
    Send,
    /// Wait this long, and call [`Pacer::before`] again.
    Wait(Micros),
    /// The wait is longer than the longest: do not send it.
    TooLong(Micros),
}

/// The answer to a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryDecision {
    /// The response is the result.
    Done,
    /// Wait this long, call [`Pacer::before`], and send the request again.
    Retry(Micros),
    /// The failure is the result: it would not help to send the request again, or it must not be sent again.
    GiveUp,
}

/// The end of one attempt, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseSummary {
    /// The time at which [`Pacer::before`] let it pass.
    pub sent_at: Micros,
    /// Its number: 1 for the first of a request.
    pub attempt: u32,
    /// Its result.
    pub outcome: ExchangeOutcome,
    /// The condition under which the request may be sent again.
    pub repeatability: Repeatability,
    /// The wait that the server asks for.
    pub retry_after: Option<Micros>,
    /// The policies that the response reports.
    pub policies: Vec<PolicyReport>,
}

/// The result of one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExchangeOutcome {
    /// The service answered. Errors of the caller are answers too.
    Answered,
    /// 429: a limit denied it, and it was not executed.
    Throttled,
    /// 503.
    Unavailable,
    /// 502 or 504.
    GatewayFailed,
    /// No response: no connection, or a connection that was lost.
    Lost,
}

/// The condition under which a request may be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeatability {
    /// Never: its body is gone.
    Never,
    /// Only if it was certainly not executed.
    Unexecuted,
    /// Always: it is idempotent.
    Always,
}

impl Default for PacerConfig {
    fn default() -> Self {
        Self {
            limit: None,
            policies: PolicySource::Configured,
            wait_max: Micros::from_secs(30),
            retries: 2,
            transit: Micros::from_millis(100),
            budget: RetryBudget::default(),
            rejection: LocalRejection::Off,
        }
    }
}

impl Pacer {
    /// A pacer without any knowledge of services but its settings.
    pub fn new(config: PacerConfig) -> Self {
        Self {
            config,
            budget: config.budget,
            keys: HashMap::new(),
        }
    }

    /// The clearance of a request that is about to be sent. One that may be sent is counted as sent now, and ends with
    /// [`Pacer::after`] or [`Pacer::cancel`].
    pub fn before(&mut self, now: Micros, key: u64) -> Clearance {
        let clearance = self.clearance(now, key);
        if clearance != Clearance::Send {
            return clearance;
        }
        let state = self.key(now, key);
        if state.throttle.as_mut().is_some_and(|throttle| throttle.rejects(now)) {
            return Clearance::TooLong(AdaptiveThrottle::SPAN);
        }
        state.send(now);
        Clearance::Send
    }

    /// The clearance as [`Pacer::before`] would give it, without counting a request.
    pub fn clearance(&mut self, now: Micros, key: u64) -> Clearance {
        let wait_max = self.config.wait_max;
        let Some(state) = self.keys.get_mut(&key) else {
            return Clearance::Send;
        };
        state.advance(now);
        state.last_asked = now;
        state.clearance(now, wait_max)
    }

    /// Records the end of an attempt, and decides about the next one. `draw` is a random number.
    pub fn after(&mut self, now: Micros, key: u64, response: ResponseSummary, draw: u32) -> RetryDecision {
        if response.attempt <= 1 {
            self.budget.deposit();
        }
        let learns = self.config.policies == PolicySource::Learned;
        let throttled = response.is_throttle();
        let asked = response.retry_after.filter(|_| throttled);
        let closes_for = asked.map(|asked| asked.min(self.config.wait_max));
        let state = self.key(now, key);
        state.finish(now, response.sent_at);
        if learns {
            for report in response.policies.iter().take(REPORTS_MAX) {
                state.learn(now, *report);
            }
        }
        if throttled {
            // A denial that asks for no more than an earlier one did closes nothing longer.
            let longer = closes_for.filter(|closes_for| plus(now, *closes_for) > state.closed_until);
            let opens_at = longer.map(|closes_for| plus(plus(now, closes_for), spread(closes_for, draw)));
            state.record_throttle(now, opens_at);
        }
        if response.outcome == ExchangeOutcome::Answered {
            state.record_answer(now);
            return RetryDecision::Done;
        }
        let closed_for = Micros::new(state.closed_until.get().saturating_sub(now.get()));
        let wait = match asked {
            Some(asked) if asked > self.config.wait_max => return RetryDecision::GiveUp,
            Some(_) => closed_for,
            None => jitter(&response, draw),
        };
        if response.attempt > self.config.retries || !response.may_be_repeated() || !self.budget.withdraw() {
            return RetryDecision::GiveUp;
        }
        RetryDecision::Retry(wait)
    }

    /// Ends a request whose result is not known: its caller does not wait for it any more.
    pub fn cancel(&mut self, now: Micros, key: u64, sent_at: Micros) {
        self.key(now, key).finish(now, sent_at);
    }

    /// Records a policy that a service reported elsewhere, such as in the body of a response.
    pub fn learn(&mut self, now: Micros, key: u64, report: PolicyReport) {
        self.key(now, key).learn(now, report);
    }

    /// The longest time between two requests that the limits of a key ask for. None while it has none.
    pub fn interval(&self, key: u64) -> Option<Micros> {
        self.keys.get(&key)?.interval()
    }

    /// The policies of a key whose rate has been learned, each with the hash of its name.
    pub fn learned(&self, key: u64) -> impl Iterator<Item = (u64, PaceLimit)> {
        let policies = self.keys.get(&key).map(|state| state.policies.as_slice());
        let known = policies.unwrap_or_default().iter();
        known.filter_map(|policy| Some((policy.id, policy.pace_limit()?)))
    }

    /// The number of keys it knows, at most [`Pacer::KEYS_MAX`].
    pub fn keys(&self) -> usize {
        self.keys.len()
    }

    /// The most keys it knows. A further one replaces the one that was used and waited for least recently, and a closed
    /// one only if all are closed.
    pub const KEYS_MAX: usize = 1_024;

    fn key(&mut self, now: Micros, key: u64) -> &mut PacedKey {
        if self.keys.len() >= Self::KEYS_MAX && !self.keys.contains_key(&key) {
            // A key that is forgotten is open again.
            let order = |state: &PacedKey| (state.closed_until > now, state.last_used.max(state.last_asked));
            let idle = self.keys.iter().min_by_key(|(key, state)| (order(state), **key));
            if let Some(idle) = idle.map(|(key, _)| *key) {
                self.keys.remove(&idle);
            }
        }
        let Self { config, keys, .. } = self;
        let adaptive = config.rejection == LocalRejection::Adaptive;
        let new = || PacedKey::new(now, config.transit, config.limit, adaptive);
        let state = keys.entry(key).or_insert_with(new);
        state.advance(now);
        state
    }
}

impl ResponseSummary {
    /// True if the service denied it to protect itself or a limit.
    fn is_throttle(&self) -> bool {
        match self.outcome {
            ExchangeOutcome::Throttled => true,
            ExchangeOutcome::Unavailable => self.retry_after.is_some(),
            ExchangeOutcome::Answered | ExchangeOutcome::GatewayFailed | ExchangeOutcome::Lost => false,
        }
    }

    fn may_be_repeated(&self) -> bool {
        match self.repeatability {
            Repeatability::Never => false,
            Repeatability::Unexecuted => self.outcome == ExchangeOutcome::Throttled,
            Repeatability::Always => true,
        }
    }
}

/// The time beyond `Retry-After` at which a key opens: at least a second of spread, because that header has whole seconds
/// and all its callers have the same.
fn spread(asked: Micros, draw: u32) -> Micros {
    uniform(Micros::new(asked.get() / 10).max(SPREAD_MIN), draw)
}

/// The wait before a retry where the server asked for none: full jitter over a time that doubles.
fn jitter(response: &ResponseSummary, draw: u32) -> Micros {
    let base = if response.is_throttle() {
        THROTTLE_BASE
    } else {
        FAILURE_BASE
    };
    let doublings = response.attempt.saturating_sub(1).min(32);
    let most = Micros::new(base.get().saturating_mul(1 << doublings)).min(JITTER_MAX);
    uniform(most, draw)
}

/// From zero to below `most`.
fn uniform(most: Micros, draw: u32) -> Micros {
    let part = (u128::from(most.get()) * u128::from(draw)) >> 32;
    Micros::new(u64::try_from(part).unwrap_or(0))
}

fn plus(at: Micros, span: Micros) -> Micros {
    Micros::new(at.get().saturating_add(span.get()))
}

const SPREAD_MIN: Micros = Micros::from_secs(1);
const THROTTLE_BASE: Micros = Micros::from_secs(1);
const FAILURE_BASE: Micros = Micros::from_millis(50);
const JITTER_MAX: Micros = Micros::from_secs(20);
/// The policies of one response that are read.
const REPORTS_MAX: usize = 8;

#[cfg(test)]
mod tests;
