//! Return times of denied callers: the virtual queues of shared limits, and what they need to know about each rule.
//!
//! It is with the writer of `Retry-After` and not in a store, so that denials of the near cache are covered. A denial takes a
//! lock for about a hundred nanoseconds; an allowed attempt is only counted, and only where costs differ or slots are held.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tollgate_limiter::clock::{StartTime, Stopwatch};
use tollgate_limiter::core::protect::{RetryDenial, RetrySpread, return_interval};
use tollgate_limiter::core::rules::{Attempt, Rule, RuleSet, Ruling, Verdict};
use tollgate_limiter::core::{Cost, Limit, Micros, Retry};

/// The virtual queues of one server.
#[derive(Debug)]
pub struct RetryQueues {
    spread: Mutex<RetrySpread>,
    /// Keyed, as attributes are chosen by callers.
    hash: RandomState,
    stopwatch: Stopwatch,
    started: StartTime,
    /// Sorted, so that the metrics text has a stable order.
    by_rule: Mutex<BTreeMap<RuleName, Arc<RuleQueue>>>,
}

/// The rules of one rule set whose retries may be spread.
#[derive(Debug)]
pub struct RuleQueues(Box<[Option<Arc<RuleQueue>>]>);

/// The caller that a return time belongs to.
#[derive(Clone, Copy, Debug)]
pub enum RetryCaller {
    /// Everything the attempt says: the peer is a gateway or a service.
    Attributes,
    /// A client address; of IPv6, its /64 network.
    Address(IpAddr),
}

/// The id of a rule, and its domain unless that is `default`.
type RuleName = (Box<str>, Option<Box<str>>);

/// The rule, or the limit in code, as its queues need it.
#[derive(Debug, Default)]
pub(crate) struct RuleQueue {
    /// True once an attempt of another cost than one was admitted: until then the mean is one, and only the first attempts are
    /// counted, for the mean afterwards.
    has_costs: AtomicBool,
    admitted: AtomicU64,
    units: AtomicU64,
    slots: RecentCount,
    /// The return time of the last caller, in microseconds since the start.
    until_us: AtomicU64,
}

/// The denial by a limit that has a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueDenial<'a> {
    pub(crate) queue: &'a RuleQueue,
    pub(crate) limit: &'a Limit,
    pub(crate) retry: Option<Retry>,
    pub(crate) cost: Cost,
    /// The counter and the caller, as keyed hashes.
    pub(crate) counter: u64,
    pub(crate) caller: u64,
    pub(crate) instances: NonZeroU64,
    pub(crate) extra_max: Micros,
}

/// Slots that were taken, by second, in the last ten seconds. Each is given back once, so that over a while as many end.
#[derive(Debug, Default)]
struct RecentCount {
    by_second: [AtomicU64; COUNT_SLOTS],
    /// The second of the first one, and one more; 0: none yet.
    first: AtomicU64,
    /// Those since the start, counted up to [`COMPLETIONS_MIN`].
    known: AtomicU64,
}

impl Default for RetryQueues {
    fn default() -> Self {
        let stopwatch = Stopwatch::new();
        Self {
            spread: Mutex::default(),
            hash: RandomState::new(),
            started: stopwatch.start(),
            stopwatch,
            by_rule: Mutex::default(),
        }
    }
}

impl RetryQueues {
    /// The extra wait of a denied attempt.
    pub fn extra(
        &self,
        state: &RuleQueues,
        rules: &RuleSet,
        attempt: &Attempt<'_>,
        denial: &SpreadDenial<'_>,
    ) -> Micros {
        let ruling = denial.ruling;
        let (Some(Some(queue)), Some(window), Some(decision)) =
            (state.0.get(rules.index_of(ruling.rule)), ruling.window, ruling.decision)
        else {
            return Micros::ZERO;
        };
        let limit = window.limit();
        let variant = ruling.variant.key();
        let mut counter = self.hash.build_hasher();
        (ruling.rule.domain(), ruling.rule.id(), variant, window.name()).hash(&mut counter);
        // A subject with another limit has another counter, and a changed limit starts a new queue.
        limit.hash(&mut counter);
        ruling.rule.hash_subject(attempt, &mut counter);
        self.extra_in(&QueueDenial {
            queue,
            limit,
            retry: decision.retry(),
            cost: ruling.rule.charged_cost(attempt),
            counter: std::hash::Hasher::finish(&counter),
            caller: self.caller_hash(ruling.rule, attempt, denial.caller),
            instances: denial.instances,
            extra_max: denial.extra_max,
        })
    }

    /// The extra wait of a denial by a limit that has this queue.
    pub(crate) fn extra_in(&self, denial: &QueueDenial<'_>) -> Micros {
        let &QueueDenial { queue, limit, cost, .. } = denial;
        let wait = match (denial.retry, limit) {
            (Some(Retry::After(wait)), _) => wait,
            (Some(Retry::Unknown), Limit::Concurrency(_)) => Micros::ZERO,
            // Never, or not for a time that is known.
            _ => return Micros::ZERO,
        };
        let now = self.now();
        let retry_denial = RetryDenial {
            counter: denial.counter,
            caller: denial.caller,
            wait: Micros::new(wait.get().saturating_sub(queue.excess(limit, cost).get())),
            interval: queue.interval(limit, cost, denial.instances, now),
            extra_max: denial.extra_max,
            draw: fastrand::u32(..),
        };
        let mut spread = self.spread.lock().unwrap_or_else(PoisonError::into_inner);
        let extra = spread.extra(now, &retry_denial);
        let length = spread.queue_length(now, retry_denial.counter);
        drop(spread);
        let until_us = now.get().saturating_add(length.get());
        queue.until_us.fetch_max(until_us, Ordering::Relaxed);
        extra
    }

    /// Counts an admitted request of a limit that has this queue.
    #[cfg(feature = "tokio")]
    pub(crate) fn count_in(&self, queue: &RuleQueue, limit: &Limit, cost: Cost) {
        queue.count(cost);
        if matches!(limit, Limit::Concurrency(_)) {
            queue.slots.add(self.now(), cost.get());
        }
    }

    /// A keyed hash.
    #[cfg(feature = "tokio")]
    pub(crate) fn hash(&self, value: impl Hash) -> u64 {
        self.hash.hash_one(value)
    }

    fn caller_hash(&self, rule: &Rule, attempt: &Attempt<'_>, caller: RetryCaller) -> u64 {
        match caller {
            // The order of attributes says nothing, and a caller stays the same when its cost differs.
            RetryCaller::Attributes => {
                let costs = rule.cost_source().attributes();
                let identity = attempt
                    .attributes
                    .iter()
                    .filter(|attribute| !costs.contains(&attribute.name));
                identity.fold(0, |sum, attribute| {
                    self.hash.hash_one((attribute.name, attribute.value)).wrapping_add(sum)
                })
            }
            RetryCaller::Address(address) => self.address_hash(address),
        }
    }

    /// A keyed hash of an address; of IPv6, of its /64 network.
    pub(crate) fn address_hash(&self, address: IpAddr) -> u64 {
        match address.to_canonical() {
            IpAddr::V6(address) => {
                let network = u128::from(address) >> 64 << 64;
                self.hash.hash_one(Ipv6Addr::from(network))
            }
            address @ IpAddr::V4(_) => self.hash.hash_one(address),
        }
    }

    fn now(&self) -> Micros {
        Micros::new(self.stopwatch.elapsed_ns(self.started) / 1_000)
    }

    /// Reports the rules with a queue, and the time until its last caller returns: the rule, its domain unless that is
    /// `default`, and the time.
    pub fn lengths(&self, mut report: impl FnMut(&str, Option<&str>, Micros)) {
        let now_us = self.now().get();
        let by_rule = self.by_rule.lock().unwrap_or_else(PoisonError::into_inner);
        for ((rule, domain), queue) in &*by_rule {
            let left_us = queue.until_us.load(Ordering::Relaxed).saturating_sub(now_us);
            // Rules are many, and queues few.
            if left_us > 0 {
                report(rule, domain.as_deref(), Micros::new(left_us));
            }
        }
    }

    /// Prepares for the attempts of a rule set. A rule that already existed keeps its costs.
    pub fn rule_queues(&self, rules: &RuleSet) -> RuleQueues {
        let mut by_rule = self.by_rule.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next: BTreeMap<RuleName, Arc<RuleQueue>> = BTreeMap::new();
        let mut queue = |rule: &Rule| {
            if !rule.spreads_retries(true) {
                return None;
            }
            let domain = (rule.domain() != Attempt::DOMAIN).then(|| rule.domain().into());
            let name = (rule.id().into(), domain);
            let existing = |name: &RuleName| by_rule.get(name).cloned().unwrap_or_default();
            Some(Arc::clone(next.entry(name).or_insert_with_key(existing)))
        };
        let queues = rules.rules().iter().map(&mut queue).collect();
        *by_rule = next;
        RuleQueues(queues)
    }

    /// Counts an admitted attempt, for the mean cost and the rate at which slots end.
    #[inline]
    pub fn count_admitted(&self, state: &RuleQueues, rules: &RuleSet, attempt: &Attempt<'_>, verdict: &Verdict<'_>) {
        for ruling in &verdict.rulings {
            let Some(Some(queue)) = state.0.get(rules.index_of(ruling.rule)) else {
                continue;
            };
            let cost = ruling.rule.charged_cost(attempt);
            queue.count(cost);
            if ruling
                .window
                .is_some_and(|window| matches!(window.limit(), Limit::Concurrency(_)))
            {
                queue.slots.add(self.now(), cost.get());
            }
        }
    }
}

/// The denial of an attempt, for spreading.
#[derive(Clone, Copy, Debug)]
pub struct SpreadDenial<'a> {
    /// The ruling that the response speaks for.
    pub ruling: &'a Ruling<'a>,
    /// The caller.
    pub caller: RetryCaller,
    /// The number of instances that share the limit.
    pub instances: NonZeroU64,
    /// The longest extra wait.
    pub extra_max: Micros,
}

impl RuleQueue {
    /// Counts an admitted attempt.
    #[inline]
    fn count(&self, cost: Cost) {
        if cost.get() == 0 {
            return;
        }
        if cost != Cost::ONE {
            self.has_costs.store(true, Ordering::Relaxed);
        } else if !self.has_costs.load(Ordering::Relaxed) && self.admitted.load(Ordering::Relaxed) >= ONES_MAX {
            return;
        }
        self.units.fetch_add(cost.get(), Ordering::Relaxed);
        // The mean is of recent attempts. A race costs it accuracy only.
        if self.admitted.fetch_add(1, Ordering::Relaxed) >= MEAN_OVER {
            self.admitted.store(MEAN_OVER / 2, Ordering::Relaxed);
            let units = self.units.load(Ordering::Relaxed);
            self.units.store(units / 2, Ordering::Relaxed);
        }
    }

    fn mean_cost_milli(&self) -> u64 {
        let (units, admitted) = (
            self.units.load(Ordering::Relaxed),
            self.admitted.load(Ordering::Relaxed),
        );
        units.saturating_mul(1_000).checked_div(admitted).unwrap_or(1_000)
    }

    /// The part of a wait that is due to the units beyond the mean cost. A queue is one of mean costs: otherwise one large cost would make all
    /// others wait as long.
    fn excess(&self, limit: &Limit, cost: Cost) -> Micros {
        let Some(rate) = limit.rate() else {
            return Micros::ZERO;
        };
        let beyond_milli = u128::from(cost.get()) * 1_000;
        let beyond_milli = beyond_milli.saturating_sub(u128::from(self.mean_cost_milli()));
        let units_milli = u128::from(rate.units().max(1)) * 1_000;
        let excess = beyond_milli.saturating_mul(u128::from(rate.period().get())) / units_milli;
        Micros::new(u64::try_from(excess).unwrap_or(u64::MAX))
    }

    /// The distance between two callers that a limit denies.
    fn interval(&self, limit: &Limit, cost: Cost, instances: NonZeroU64, now: Micros) -> Micros {
        let mean_milli = self.mean_cost_milli();
        if let Some(rate) = limit.rate() {
            let units = NonZeroU64::new(rate.units()).unwrap_or(NonZeroU64::MIN);
            let at_rate = return_interval(cost.get(), mean_milli, instances, units, rate.period());
            return match limit {
                Limit::SlidingLog(limit) => at_rate.max(limit.min_interval()),
                _ => at_rate,
            };
        }
        // `CL.THROTTLE` has no rules.
        let Limit::Concurrency(limit) = limit else {
            return Micros::ZERO;
        };
        let all = || (limit.slots(), Micros::from_secs(1));
        let (ended, period) = self.slots.recent(now).unwrap_or_else(all);
        let ended = NonZeroU64::new(ended).unwrap_or(NonZeroU64::MIN);
        return_interval(cost.get(), mean_milli, NonZeroU64::MIN, ended, period)
    }
}

impl RecentCount {
    /// The low bits hold the count, the others the second.
    const COUNT_BITS: u32 = 32;

    fn add(&self, now: Micros, units: u64) {
        let units = units.min(UNITS_MAX);
        if units == 0 {
            return;
        }
        let second = now.get() / 1_000_000;
        if self.known.load(Ordering::Relaxed) < COMPLETIONS_MIN {
            let _ = self
                .first
                .compare_exchange(0, second + 1, Ordering::Relaxed, Ordering::Relaxed);
            self.known.fetch_add(units, Ordering::Relaxed);
        }
        let index = usize::try_from(second % COUNT_SLOTS as u64).unwrap_or(0);
        let next = |packed: u64| {
            let is_current = packed >> Self::COUNT_BITS == second;
            Some(if is_current {
                packed + units
            } else {
                (second << Self::COUNT_BITS) + units
            })
        };
        if let Some(slot) = self.by_second.get(index) {
            // It never declines, so that it succeeds.
            let _ = slot.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        }
    }

    /// The slots of the last ten seconds and that time, which is shorter only after the first one; none until enough are known.
    fn recent(&self, now: Micros) -> Option<(u64, Micros)> {
        if self.known.load(Ordering::Relaxed) < COMPLETIONS_MIN {
            return None;
        }
        let second = now.get() / 1_000_000;
        let recent = second.saturating_sub(SECONDS - 1)..=second;
        let packed = self.by_second.iter().map(|slot| slot.load(Ordering::Relaxed));
        let live = packed.filter(|packed| recent.contains(&(packed >> Self::COUNT_BITS)));
        let count = live.map(|packed| packed & u64::from(u32::MAX)).sum();
        let since_first = (second + 2).saturating_sub(self.first.load(Ordering::Relaxed));
        Some((count, Micros::from_secs(since_first.clamp(1, SECONDS))))
    }
}

/// The seconds of a recent count.
const SECONDS: u64 = 10;
/// The entries of a recent count: one for each second, and more so that none is in use again at once.
const COUNT_SLOTS: usize = 16;
/// Below this many, slots that end are too few to tell a rate.
const COMPLETIONS_MIN: u64 = 10;
/// The most units that one attempt adds to a count, so that the count of a second keeps its bits.
const UNITS_MAX: u64 = 1_000;
/// The attempts of cost one that are counted before the first of another cost.
const ONES_MAX: u64 = 1 << 10;
/// The attempts that the mean cost is of.
const MEAN_OVER: u64 = 1 << 16;

#[cfg(test)]
mod tests;
