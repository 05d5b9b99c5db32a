//! The effects of a change: a fixed list, so that people and programs can rely on the words.

use serde::{Deserialize, Serialize};
use std::fmt;
use tollgate_limiter::core::rules::{Dimension, Terms};
use tollgate_limiter::core::{Limit, Micros};

/// The effect of one difference on requests and counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// No request is decided in another way, or only the text knows.
    None,
    /// Less is allowed; counters continue.
    Stricter,
    /// More is allowed; counters continue.
    Looser,
    /// Counters start anew, so that each subject may use this much more, once.
    Restart {
        /// The capacity of the new counters.
        units: u64,
        /// The attributes of a subject; empty: one counter for all requests.
        per: Vec<String>,
    },
    /// The counters of a removed rule expire within this time.
    Expire(Micros),
    /// A rule that allowed everything denies from now on.
    StartsToDeny,
    /// A rule that denied allows everything from now on.
    NoLongerDenies,
    /// The rule matches other requests than before.
    OtherRequests,
}

/// The kind of an effect, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EffectKind {
    /// See [`Effect::None`].
    None,
    /// See [`Effect::Stricter`].
    Stricter,
    /// See [`Effect::Looser`].
    Looser,
    /// See [`Effect::Restart`].
    Restart,
    /// See [`Effect::Expire`].
    Expire,
    /// See [`Effect::StartsToDeny`].
    StartsToDeny,
    /// See [`Effect::NoLongerDenies`].
    NoLongerDenies,
    /// See [`Effect::OtherRequests`].
    OtherRequests,
}

impl Effect {
    /// Its kind.
    pub const fn kind(&self) -> EffectKind {
        match self {
            Self::None => EffectKind::None,
            Self::Stricter => EffectKind::Stricter,
            Self::Looser => EffectKind::Looser,
            Self::Restart { .. } => EffectKind::Restart,
            Self::Expire(_) => EffectKind::Expire,
            Self::StartsToDeny => EffectKind::StartsToDeny,
            Self::NoLongerDenies => EffectKind::NoLongerDenies,
            Self::OtherRequests => EffectKind::OtherRequests,
        }
    }

    /// The restart of the counters of these limits; no effect without a limit.
    ///
    /// The largest capacity bounds what a subject can gain, also where several windows apply at once: a smaller window
    /// refills, and what then still holds the subject back is the largest.
    pub(super) fn restart(limits: impl Iterator<Item = Limit>, per: &[Dimension]) -> Self {
        let Some(units) = limits.map(|limit| limit.capacity()).max() else {
            return Self::None;
        };
        let per = per.iter().map(|dimension| dimension.attribute().to_owned()).collect();
        Self::Restart { units, per }
    }

    /// The effect of other terms for the same subjects.
    pub(super) fn of_terms(live: &Terms, next: &Terms, per: &[Dimension]) -> Self {
        match (live, next) {
            (Terms::Unlimited, Terms::Unlimited) | (Terms::Banned(_), Terms::Banned(_)) => Self::None,
            (Terms::Unlimited, _) => Self::StartsToDeny,
            (_, Terms::Unlimited) => Self::NoLongerDenies,
            (_, Terms::Banned(_)) => Self::Stricter,
            // A ban counts nothing, so there is nothing to restart.
            (Terms::Banned(_), _) => Self::Looser,
            (Terms::Limited(live), Terms::Limited(next)) => {
                let (live, next) = (live.as_slice(), next.as_slice());
                let limits = |windows: &[_]| -> Vec<Limit> { windows.iter().map(window_limit).collect() };
                Self::of_limits(&limits(live), &limits(next), per)
            }
        }
    }

    fn of_limits(live: &[Limit], next: &[Limit], per: &[Dimension]) -> Self {
        let find = |list: &[Limit], limit: &Limit| list.iter().find(|other| same_counter(other, limit)).copied();
        let is_missing = |list: &[Limit], limit: &&Limit| find(list, limit).is_none();
        let fresh: Vec<Limit> = next.iter().filter(|limit| is_missing(live, limit)).copied().collect();
        let has_lost = live.iter().any(|limit| is_missing(next, &limit));
        let mut is_stricter = !fresh.is_empty();
        // A window that is only added counts from zero, but the others still hold.
        if has_lost && is_stricter {
            return Self::restart(fresh.into_iter(), per);
        }
        let mut is_looser = has_lost;
        for limit in next {
            if let Some(before) = find(live, limit) {
                let (stricter, looser) = compare(&before, limit);
                is_stricter |= stricter;
                is_looser |= looser;
            }
        }
        match (is_stricter, is_looser) {
            // Both, as with a lower rate and a higher burst: the part that denies more is the one to know of.
            (true, _) => Self::Stricter,
            (false, true) => Self::Looser,
            (false, false) => Self::None,
        }
    }
}

fn window_limit(window: &tollgate_limiter::core::rules::Window) -> Limit {
    *window.limit()
}

/// True if two limits of one rule charge the same counter.
fn same_counter(one: &Limit, other: &Limit) -> bool {
    one.algorithm() == other.algorithm() && one.counter_period() == other.counter_period()
}

/// Compares two limits of one counter: stricter in some number, looser in some number.
fn compare(live: &Limit, next: &Limit) -> (bool, bool) {
    let units = |limit: &Limit| limit.rate().map_or(0, |rate| rate.units());
    // The time for which one request keeps others out.
    let hold = |limit: &Limit| match limit {
        Limit::SlidingLog(log) => log.min_interval(),
        Limit::Concurrency(slots) => slots.lease_ttl(),
        _ => Micros::ZERO,
    };
    let (capacity, rate, held) = (
        next.capacity().cmp(&live.capacity()),
        units(next).cmp(&units(live)),
        hold(live).cmp(&hold(next)),
    );
    let numbers = [capacity, rate, held];
    (
        numbers.iter().any(|number| number.is_lt()),
        numbers.iter().any(|number| number.is_gt()),
    )
}

/// The time after which a counter that is charged no more equals a fresh one, at most.
pub(super) fn lifetime(limit: &Limit) -> Micros {
    match limit {
        // The last window counts in part until the next one ends.
        Limit::SlidingCounter(counter) => Micros::new(counter.rate().period().get().saturating_mul(2)),
        Limit::Concurrency(slots) => slots.lease_ttl(),
        _ => limit.fill().unwrap_or(Micros::ZERO),
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => Ok(()),
            Self::Stricter => f.write_str("stricter; usage is kept"),
            Self::Looser => f.write_str("looser; usage is kept"),
            Self::Restart { units, per } if per.is_empty() => write!(f, "counters restart: up to {units} more, once"),
            Self::Restart { units, per } => {
                write!(
                    f,
                    "counters restart: up to {units} more per {}, once",
                    per.join(" and ")
                )
            }
            Self::Expire(time) => write!(f, "counters expire within {}", rounded(*time)),
            Self::StartsToDeny => f.write_str("starts to deny"),
            Self::NoLongerDenies => f.write_str("no longer denies"),
            Self::OtherRequests => f.write_str("applies to other requests"),
        }
    }
}

/// A length of time in one unit, rounded up.
fn rounded(time: Micros) -> String {
    let seconds = time.get().div_ceil(1_000_000).max(1);
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min", seconds.div_ceil(60)),
        3_600..86_400 => format!("{} h", seconds.div_ceil(3_600)),
        _ => match seconds.div_ceil(86_400) {
            1 => "1 day".to_owned(),
            days => format!("{days} days"),
        },
    }
}
