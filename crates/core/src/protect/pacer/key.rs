//! The knowledge of a pacer about one key: when it opens, its limits, and the requests that are out.

use super::Clearance;
use super::learned::{LearnedPolicy, PolicyReport};
use super::pace::{Pace, PaceLimit};
use super::transit::InTransit;
use crate::protect::adaptive_throttle::AdaptiveThrottle;
use crate::units::time::Micros;
use smallvec::SmallVec;

/// One key.
#[derive(Clone, Debug)]
pub(super) struct PacedKey {
    /// The time of the last request or answer.
    pub(super) last_used: Micros,
    /// The time at which a request last asked whether it may be sent. Apart from the other, because one that waits for
    /// answers that never come asks all the time.
    pub(super) last_asked: Micros,
    /// Closed before this time, for every task.
    pub(super) closed_until: Micros,
    /// Its limits still have to restart when it opens.
    restarts: bool,
    transit: InTransit,
    pace: Option<Pace>,
    pub(super) policies: SmallVec<[LearnedPolicy; 2]>,
    trickle: Option<Trickle>,
    unanswered: u32,
    pub(super) throttle: Option<Box<AdaptiveThrottle>>,
}

/// The number of requests at once after a denial of a service whose rate is not known: one, and one more after each
/// round of answers.
#[derive(Clone, Copy, Debug)]
struct Trickle {
    at_once: u32,
    answered: u32,
}

impl PacedKey {
    pub(super) fn new(now: Micros, transit: Micros, limit: Option<PaceLimit>, throttle: bool) -> Self {
        Self {
            last_used: now,
            last_asked: now,
            closed_until: Micros::ZERO,
            restarts: false,
            transit: InTransit::new(transit),
            pace: limit.map(Pace::new),
            policies: SmallVec::new(),
            trickle: None,
            unanswered: 0,
            throttle: throttle.then(Box::default),
        }
    }

    /// Brings it to `now`: charges what has arrived by now, and drops policies that are not repeated.
    pub(super) fn advance(&mut self, now: Micros) {
        while let Some((at, count)) = self.transit.take_expired(now) {
            self.charge(at, count);
        }
        self.policies
            .retain(|policy| now.get().saturating_sub(policy.last_report.get()) <= LearnedPolicy::TTL.get());
        for policy in &mut self.policies {
            policy.advance(now);
        }
        if self.restarts && self.closed_until <= now {
            self.restarts = false;
            if let Some(pace) = &mut self.pace {
                pace.restart(self.closed_until);
            }
            for policy in &mut self.policies {
                policy.restart(self.closed_until);
            }
        }
        // Answers that never came, or a caller that never reported them.
        if now.get().saturating_sub(self.last_used.get()) > UNANSWERED_TTL.get() {
            self.unanswered = 0;
        }
    }

    /// The clearance of one more request.
    pub(super) fn clearance(&self, now: Micros, wait_max: Micros) -> Clearance {
        if now < self.closed_until {
            return Clearance::Wait(Micros::new(self.closed_until.get() - now.get()));
        }
        let in_transit = self.transit.count();
        let paces = self.pace.iter().map(|pace| pace.wait(now, in_transit));
        let policies = self.policies.iter().map(|policy| policy.wait(now, in_transit));
        let trickle = self
            .trickle
            .filter(|trickle| self.unanswered >= trickle.at_once)
            .map(|_| TRICKLE_POLL);
        match paces.chain(policies).chain(trickle).max() {
            None | Some(Micros::ZERO) => Clearance::Send,
            Some(wait) if wait > wait_max => Clearance::TooLong(wait),
            Some(wait) => Clearance::Wait(wait),
        }
    }

    pub(super) fn send(&mut self, now: Micros) {
        self.last_used = now;
        self.unanswered = self.unanswered.saturating_add(1);
        self.transit.add(now);
    }

    /// Ends a request: it was counted by now at the latest.
    pub(super) fn finish(&mut self, now: Micros, sent_at: Micros) {
        self.last_used = now;
        self.unanswered = self.unanswered.saturating_sub(1);
        if self.transit.remove(sent_at) {
            self.charge(now, 1);
        }
    }

    pub(super) fn learn(&mut self, now: Micros, report: PolicyReport) {
        if let Some(known) = self.policies.iter_mut().find(|policy| policy.id == report.id) {
            known.update(now, report);
            return;
        }
        let Some(policy) = LearnedPolicy::new(now, report) else {
            return;
        };
        if self.policies.len() < POLICIES_MAX {
            self.policies.push(policy);
        } else if let Some(oldest) = self.policies.iter_mut().min_by_key(|policy| policy.last_report) {
            *oldest = policy;
        }
    }

    /// Records that the service denied a request. With `opens_at`, the key is closed until then.
    pub(super) fn record_throttle(&mut self, now: Micros, opens_at: Option<Micros>) {
        for policy in &mut self.policies {
            policy.record_throttle(now);
        }
        let knows_rate = self.pace.is_some() || self.policies.iter().any(|policy| policy.pace_limit().is_some());
        if !knows_rate {
            self.trickle = Some(Trickle {
                at_once: 1,
                answered: 0,
            });
        }
        if let Some(opens_at) = opens_at {
            self.closed_until = self.closed_until.max(opens_at);
            self.restarts = true;
        }
    }

    /// Records that the service answered a request, and neither denied it nor failed.
    pub(super) fn record_answer(&mut self, now: Micros) {
        if let Some(throttle) = &mut self.throttle {
            throttle.record_accepted(now);
        }
        let Some(trickle) = &mut self.trickle else { return };
        trickle.answered += 1;
        if trickle.answered >= trickle.at_once {
            trickle.answered = 0;
            trickle.at_once += 1;
        }
        if trickle.at_once > TRICKLE_MAX {
            self.trickle = None;
        }
    }

    /// The longest time between two requests that its limits ask for.
    pub(super) fn interval(&self) -> Option<Micros> {
        let pace = self.pace.iter().map(|pace| pace.limit().interval());
        let policies = self.policies.iter().filter_map(LearnedPolicy::pace_limit);
        pace.chain(policies.map(|limit| limit.interval())).max()
    }

    fn charge(&mut self, at: Micros, count: u64) {
        if let Some(pace) = &mut self.pace {
            pace.charge(at, count);
        }
        for policy in &mut self.policies {
            policy.charge(at, count);
        }
    }
}

/// The policies of one key. A further one replaces the one that was reported longest ago.
const POLICIES_MAX: usize = 8;
/// The interval at which a request waits for the answer to another.
const TRICKLE_POLL: Micros = Micros::from_millis(5);
/// More requests at once than this are no trickle.
const TRICKLE_MAX: u32 = 64;
/// Requests without an answer are forgotten when nothing was sent or answered for this long.
const UNANSWERED_TTL: Micros = Micros::from_secs(60);
