//! A policy of a server, as its responses report it.

use super::pace::{Pace, PaceLimit};
use crate::units::rate::{PERIOD_MAX, PERIOD_MIN, Rate};
use crate::units::time::Micros;

/// The numbers that one response has of one policy. All of it comes from outside: what is out of range is ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyReport {
    /// The name of the policy, as a hash.
    pub id: u64,
    /// Its quota: `q`, or `X-RateLimit-Limit`.
    pub quota: Option<u64>,
    /// The time in which the quota refills: `w`.
    pub window: Option<Micros>,
    /// The units that remain: `r`.
    pub remaining: Option<u64>,
    /// The time for which no more than those can be used: `t`.
    pub reset: Option<Micros>,
}

/// A policy that responses repeat. One that they do not repeat is dropped after [`LearnedPolicy::TTL`].
#[derive(Clone, Copy, Debug)]
pub(super) struct LearnedPolicy {
    pub(super) id: u64,
    pub(super) last_report: Micros,
    quota: Option<u64>,
    /// None while the window is not known.
    pace: Option<Pace>,
    quota_left: Option<QuotaLeft>,
    /// Until then what remains binds until the reset also where the pace would allow more: the server denied a request
    /// that the pace had allowed, as a fixed window does.
    strict_until: Micros,
}

/// The units that may be used until a time.
#[derive(Clone, Copy, Debug)]
struct QuotaLeft {
    units: u64,
    resets_at: Micros,
    /// The longest time to a reset that was reported: the window, where it is not known.
    window: Micros,
}

impl PolicyReport {
    /// The report without what is out of range. None if nothing is left of it.
    fn checked(self) -> Option<Self> {
        let quota = self.quota.filter(|quota| (1..=QUOTA_MAX).contains(quota));
        let remaining = self
            .remaining
            .filter(|remaining| *remaining <= quota.unwrap_or(QUOTA_MAX));
        let window = self
            .window
            .filter(|window| PERIOD_MIN <= *window && *window <= PERIOD_MAX);
        let reset = self.reset.filter(|reset| *reset <= PERIOD_MAX);
        let says_something = (quota.is_some() && window.is_some()) || remaining.is_some();
        says_something.then_some(Self {
            id: self.id,
            quota,
            window: window.filter(|_| quota.is_some()),
            remaining,
            reset,
        })
    }
}

impl LearnedPolicy {
    /// Without a report for this long, a policy is dropped.
    pub(super) const TTL: Micros = Micros::from_secs(600);

    /// A policy by its first report. None if that has no number in range.
    pub(super) fn new(now: Micros, report: PolicyReport) -> Option<Self> {
        report.checked()?;
        let mut policy = Self {
            id: report.id,
            last_report: now,
            quota: None,
            pace: None,
            quota_left: None,
            strict_until: Micros::ZERO,
        };
        policy.update(now, report);
        Some(policy)
    }

    /// Takes over what a response reports.
    pub(super) fn update(&mut self, now: Micros, report: PolicyReport) {
        let Some(report) = report.checked() else { return };
        self.last_report = now;
        self.quota = report.quota.or(self.quota);
        if let (Some(quota), Some(window)) = (report.quota, report.window)
            && let Ok(rate) = Rate::new(quota, window)
        {
            let limit = PaceLimit::new(rate, quota);
            let pace = self.pace.unwrap_or_else(|| Pace::new(limit));
            self.pace = Some(if pace.limit() == limit {
                pace
            } else {
                pace.with_limit(limit)
            });
        }
        if let Some(remaining) = report.remaining {
            if let Some(pace) = &mut self.pace {
                pace.lower(now, remaining);
            }
            if let Some(reset) = report.reset {
                self.report_left(now, remaining, reset);
            }
        }
    }

    fn report_left(&mut self, now: Micros, remaining: u64, reset: Micros) {
        let resets_at = plus(now, reset);
        self.quota_left = Some(match self.quota_left {
            // The same window: seconds are rounded, and responses overtake each other.
            Some(left) if resets_at <= plus(left.resets_at, SAME_WINDOW) => QuotaLeft {
                units: left.units.min(remaining),
                resets_at,
                window: left.window.max(reset),
            },
            left => QuotaLeft {
                units: remaining,
                resets_at,
                window: left.map_or(reset, |left| left.window.max(reset)),
            },
        });
    }

    /// Starts the next window of a quota whose reset has passed.
    pub(super) fn advance(&mut self, now: Micros) {
        if let Some(left) = &mut self.quota_left
            && left.resets_at <= now
        {
            left.units = self.quota.unwrap_or(u64::MAX);
            left.resets_at = plus(now, left.window.max(WINDOW_MIN));
        }
    }

    /// The wait until it allows one more request, with this many in transit.
    pub(super) fn wait(&self, now: Micros, in_transit: u64) -> Micros {
        let pace = self.pace.map_or(Micros::ZERO, |pace| pace.wait(now, in_transit));
        let binds = self.pace.is_none() || now < self.strict_until;
        let left = self.quota_left.filter(|left| binds && left.units <= in_transit);
        let until_reset = left.map_or(0, |left| left.resets_at.get().saturating_sub(now.get()));
        pace.max(Micros::new(until_reset))
    }

    /// Charges requests that the server has counted.
    pub(super) fn charge(&mut self, at: Micros, count: u64) {
        if let Some(pace) = &mut self.pace {
            pace.charge(at, count);
        }
        if let Some(left) = &mut self.quota_left {
            left.units = left.units.saturating_sub(count);
        }
    }

    /// A request was denied that this policy had allowed.
    pub(super) fn record_throttle(&mut self, now: Micros) {
        let windows = self.pace.map_or(0, |pace| pace.limit().rate().period().get());
        let span = windows.saturating_mul(STRICT_WINDOWS);
        let span = Micros::new(span).clamp(STRICT_MIN, STRICT_MAX);
        self.strict_until = plus(now, span);
    }

    /// Leaves one unit at `at`.
    pub(super) fn restart(&mut self, at: Micros) {
        if let Some(pace) = &mut self.pace {
            pace.restart(at);
        }
    }

    /// Its rate and burst, once they are known.
    pub(super) fn pace_limit(&self) -> Option<PaceLimit> {
        self.pace.map(|pace| pace.limit())
    }
}

fn plus(at: Micros, span: Micros) -> Micros {
    Micros::new(at.get().saturating_add(span.get()))
}

/// The largest quota that is believed. A larger one limits nothing.
const QUOTA_MAX: u64 = 1_000_000_000;
/// Two resets this close to each other are one.
const SAME_WINDOW: Micros = Micros::from_millis(1_500);
const WINDOW_MIN: Micros = Micros::from_secs(1);
/// The time after a denial for which what remains binds until the reset.
const STRICT_WINDOWS: u64 = 10;
const STRICT_MIN: Micros = Micros::from_secs(10);
const STRICT_MAX: Micros = Micros::from_secs(3_600);
