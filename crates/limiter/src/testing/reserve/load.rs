//! A load on one rule with a reserve: critical attempts within it, and ten times the limit of others.

use crate::RuleLimiter;
use crate::store::{CounterStore, Source};
use crate::testing::excess_millionths;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tollgate_core::Cost;
use tollgate_core::rules::{Attempt, Attribute};

/// A load, the same on each instance.
#[derive(Clone, Copy, Debug)]
pub struct ReserveLoad {
    /// Critical attempts a second on each instance.
    pub critical_per_s: u64,
    /// Other attempts a second on each instance.
    pub others_per_s: u64,
    /// The length of the load.
    pub length: Duration,
}

/// The result of the load on one instance.
#[derive(Clone, Debug, Default)]
pub struct ReserveObservation {
    /// Critical attempts.
    pub critical: u64,
    /// Those that were denied.
    pub critical_denied: u64,
    /// The others.
    pub others: u64,
    /// Attempts that this instance decided by its share.
    pub local: u64,
    /// The times at which others passed, by the clock of the store that decided, in microseconds.
    pub others_us: Vec<u64>,
    /// The same of all that passed.
    pub all_us: Vec<u64>,
    /// Those of them that this instance decided by its share.
    pub local_others_us: Vec<u64>,
    /// The same of all that passed.
    pub local_us: Vec<u64>,
    /// Denials that said that only the reserve denies.
    pub reserved: u64,
}

/// The attributes of a critical attempt.
const CRITICAL: &[Attribute<'static>] = &[Attribute {
    name: "priority",
    value: b"critical",
}];
/// The attributes of another attempt.
const OTHERS: &[Attribute<'static>] = &[Attribute {
    name: "priority",
    value: b"normal",
}];

/// Tasks of the others on each instance.
const TASKS: u64 = 16;

impl ReserveLoad {
    /// Runs the load on all instances at once, and returns what each saw. Must be called in a tokio runtime.
    ///
    /// # Panics
    /// If a check panics.
    pub async fn run<S: CounterStore + 'static>(self, instances: &[Arc<RuleLimiter<S>>]) -> Vec<ReserveObservation> {
        let start = Instant::now() + Duration::from_millis(50);
        let mut running = Vec::new();
        for (index, instance) in instances.iter().enumerate() {
            let every = Duration::from_micros(1_000_000 / self.critical_per_s.max(1));
            // Instances take turns, as callers that do not know of each other do on average.
            let turn = every * u32::try_from(index).unwrap_or(0) / u32::try_from(instances.len()).unwrap_or(1);
            let pace = Pace {
                start: start + turn,
                every,
                length: self.length,
            };
            let critical = attempts(Arc::clone(instance), AttemptClass::Critical, pace);
            let mut tasks = vec![tokio::spawn(critical)];
            let every = Duration::from_micros(1_000_000 * TASKS / self.others_per_s.max(1));
            for _ in 0..TASKS {
                let pace = Pace {
                    start,
                    every,
                    length: self.length,
                };
                let others = attempts(Arc::clone(instance), AttemptClass::Others, pace);
                tasks.push(tokio::spawn(others));
            }
            running.push(tasks);
        }
        let mut all = Vec::new();
        for tasks in running {
            let mut seen = ReserveObservation::default();
            for task in tasks {
                seen.add(task.await.expect("no task of the load panics"));
            }
            seen.sort();
            all.push(seen);
        }
        all
    }
}

/// The attempts that may use the reserve, and all others.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AttemptClass {
    Critical,
    Others,
}

/// The times of attempts.
#[derive(Clone, Copy)]
struct Pace {
    start: Instant,
    every: Duration,
    length: Duration,
}

/// Sends attempts of one class at a steady pace.
async fn attempts<S: CounterStore>(
    limiter: Arc<RuleLimiter<S>>,
    class: AttemptClass,
    pace: Pace,
) -> ReserveObservation {
    let Pace { start, every, length } = pace;
    let is_critical = class == AttemptClass::Critical;
    let attributes = match class {
        AttemptClass::Critical => CRITICAL,
        AttemptClass::Others => OTHERS,
    };
    let mut seen = ReserveObservation::default();
    let mut ticks = interval_at(start, every);
    // Late critical attempts are not made up for: they would be more than the reserve holds.
    ticks.set_missed_tick_behavior(match is_critical {
        true => MissedTickBehavior::Delay,
        false => MissedTickBehavior::Burst,
    });
    while start.elapsed() < length {
        ticks.tick().await;
        let attempt = Attempt {
            domain: Attempt::DOMAIN,
            attributes,
            cost: Cost::ONE,
        };
        let checked = limiter.check(&attempt).await;
        let (verdict, now) = (checked.verdict, checked.now.unwrap_or_default().as_micros());
        let is_local = verdict.source == Source::Local;
        seen.critical += u64::from(is_critical);
        seen.others += u64::from(!is_critical);
        seen.local += u64::from(is_local);
        if !verdict.allowed {
            seen.critical_denied += u64::from(is_critical);
            seen.reserved += u64::from(verdict.rulings.iter().any(|ruling| ruling.reserved));
            continue;
        }
        let (all, others) = match is_local {
            true => (&mut seen.local_us, &mut seen.local_others_us),
            false => (&mut seen.all_us, &mut seen.others_us),
        };
        all.push(now);
        if !is_critical {
            others.push(now);
        }
    }
    seen
}

impl ReserveObservation {
    /// The sum over instances.
    pub fn sum(instances: Vec<Self>) -> Self {
        let mut sum = Self::default();
        instances.into_iter().for_each(|one| sum.add(one));
        sum.sort();
        sum
    }

    fn add(&mut self, other: Self) {
        self.critical += other.critical;
        self.critical_denied += other.critical_denied;
        self.others += other.others;
        self.local += other.local;
        self.reserved += other.reserved;
        self.others_us.extend(other.others_us);
        self.all_us.extend(other.all_us);
        self.local_others_us.extend(other.local_others_us);
        self.local_us.extend(other.local_us);
    }

    fn sort(&mut self) {
        for times in [
            &mut self.others_us,
            &mut self.all_us,
            &mut self.local_others_us,
            &mut self.local_us,
        ] {
            times.sort_unstable();
        }
    }
}

/// The largest excess of admission times over a limit of so many a second with as large a burst, in whole units: zero if
/// the limit holds.
pub fn max_excess(admitted_us: &[u64], per_s: i64) -> i64 {
    (excess_millionths(admitted_us, per_s, per_s).max(0) + 999_999) / 1_000_000
}
