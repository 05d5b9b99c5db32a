//! Contention: many threads on few keys, with totals that must be exact.

use super::run::{block_on, threads};
use super::samples::{LONG, Shape};
use super::{Harness, reference::charge};
use crate::store::{Settlement, Store};
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tollgate_core::{Counter, Limit, Timestamp};

/// Repetitions of a step because a window ended while it ran.
const TRIES_MAX: u32 = 5;

/// The totals of one thread.
#[derive(Clone, Copy, Default)]
struct Totals {
    settlements: u64,
    passed: u64,
    /// The first and the last instant.
    times: Option<(Timestamp, Timestamp)>,
}

/// All threads settle one key: exactly the capacity passes.
pub(super) async fn one_key<S: Store + 'static>(harness: &Harness<S>, shape: Shape) -> Result<u64, String> {
    const STEP: &str = "many threads on one key";
    let all = (harness.threads * harness.settles) as u64;
    let units = (all / 2).clamp(1, 100);
    let limit = shape.limit(units, LONG)?;
    let mut settlements = 0;
    for tries in 0..TRIES_MAX {
        let key = key(harness, &format!("{}/one key/{tries}", shape.name()), &limit);
        let store = Arc::clone(&harness.store);
        let totals = totals(harness, harness.threads, move |_| {
            let charges = [charge(key, &limit, 1)?];
            Ok(Some(block_on(store.settle(&charges, crate::lease::random_id()))))
        })
        .await
        .map_err(|error| format!("{}: {STEP}: {error}", shape.name()))?;
        settlements += totals.settlements;
        if totals.crosses_window(&limit) {
            continue;
        }
        same(shape, STEP, "number allowed", units.min(all), totals.passed)?;
        let remaining = remaining(harness, &[(key, limit)]).await?;
        same(shape, STEP, "units remaining", vec![units - units.min(all)], remaining)?;
        return Ok(settlements);
    }
    Err(format!("{}: {STEP}: its windows end faster than it runs", shape.name()))
}

/// Half of the threads settle two keys in one order, half in the other, and one key has less capacity: none deadlocks,
/// and both keys are charged alike.
pub(super) async fn reversed_key_order<S: Store + 'static>(harness: &Harness<S>, shape: Shape) -> Result<u64, String> {
    const STEP: &str = "two keys in opposite orders";
    if harness.is_compensated() && !shape.can_undo() {
        // A promised delay stands, so a denial by the other key leaves it charged.
        return Ok(0);
    }
    let all = (harness.threads * harness.settles) as u64;
    let capacity = (all / 2).clamp(1, 100);
    let (wide, narrow) = (shape.limit(capacity * 2, LONG)?, shape.limit(capacity, LONG)?);
    let mut settlements = 0;
    for tries in 0..TRIES_MAX {
        let name = format!("{}/opposite/{tries}", shape.name());
        let pair = [
            (key(harness, &format!("{name}/wide"), &wide), wide),
            (key(harness, &format!("{name}/narrow"), &narrow), narrow),
        ];
        let store = Arc::clone(&harness.store);
        let (count, atomic) = (harness.threads, !harness.is_compensated());
        // One more thread only peeks.
        let totals = totals(harness, count + 1, move |number| {
            let [one, other] = pair;
            let (first, second) = if number % 2 == 0 { (one, other) } else { (other, one) };
            let cost = u64::from(number < count);
            let charges = [charge(first.0, &first.1, cost)?, charge(second.0, &second.1, cost)?];
            if cost > 0 {
                return Ok(Some(block_on(store.settle(&charges, crate::lease::random_id()))));
            }
            match used_units(&block_on(store.peek(&charges)))?[..] {
                [a, b] if atomic && a != b => {
                    Err(format!("expected both keys charged alike, got {a} and {b} units used"))
                }
                _ => Ok(None),
            }
        })
        .await
        .map_err(|error| format!("{}: {STEP}: {error}", shape.name()))?;
        settlements += totals.settlements;
        if totals.crosses_window(&narrow) {
            continue;
        }
        let expected = if harness.is_compensated() {
            totals.passed.min(capacity)
        } else {
            capacity.min(all)
        };
        same(shape, STEP, "number allowed", expected, totals.passed)?;
        let remaining = remaining(harness, &pair).await?;
        let expected = vec![capacity * 2 - totals.passed, capacity - totals.passed];
        same(shape, STEP, "units remaining", expected, remaining)?;
        return Ok(settlements);
    }
    Err(format!("{}: {STEP}: its windows end faster than it runs", shape.name()))
}

/// The totals of the settlements of all threads, each of which repeats `work` with its number.
async fn totals<S: Store>(
    harness: &Harness<S>,
    count: usize,
    work: impl Fn(usize) -> Result<Option<Settlement>, String> + Send + Sync + 'static,
) -> Result<Totals, String> {
    let settles = harness.settles;
    let totals = threads(count, &harness.thread_wrapper, move |number, progress| {
        let mut totals = Totals::default();
        for _ in 0..settles {
            if let Some(settlement) = work(number)? {
                totals.add(&settlement);
            }
            progress.fetch_add(1, Ordering::Relaxed);
        }
        Ok(totals)
    });
    Ok(Totals::sum(&totals.await?))
}

fn key<S: Store>(harness: &Harness<S>, rule: &str, limit: &Limit) -> S::Key {
    let counter = Counter {
        domain: &harness.domain,
        rule,
        variant: "",
        limit,
        per: &[],
    };
    harness.store.key(&harness.store.template(&counter), &[rule.as_bytes()])
}

/// The units remaining of each key.
async fn remaining<S: Store>(harness: &Harness<S>, keys: &[(S::Key, Limit)]) -> Result<Vec<u64>, String> {
    let mut remaining = Vec::with_capacity(keys.len());
    for (key, limit) in keys {
        let settlement = harness.store.peek(&[charge(*key, limit, 0)?]).await;
        for outcome in settlement.outcomes {
            let outcome = outcome.map_err(|error| error.to_string())?;
            remaining.push(outcome.decision.standing().remaining);
        }
    }
    Ok(remaining)
}

/// The units used of each key.
fn used_units(settlement: &Settlement) -> Result<Vec<u64>, String> {
    let used_units = |outcome: &Result<crate::store::Outcome, crate::store::StoreError>| {
        let outcome = outcome.map_err(|error| error.to_string())?;
        let standing = outcome.decision.standing();
        Ok(standing.limit - standing.remaining)
    };
    settlement.outcomes.iter().map(used_units).collect()
}

fn same<T: PartialEq + Debug>(shape: Shape, step: &str, what: &str, expected: T, got: T) -> Result<(), String> {
    if expected == got {
        return Ok(());
    }
    Err(format!(
        "{}: {step}: {what}: expected {expected:?}, got {got:?}",
        shape.name()
    ))
}

impl Totals {
    fn add(&mut self, settlement: &Settlement) {
        self.settlements += 1;
        self.passed += u64::from(settlement.allowed);
        self.extend(settlement.now, settlement.now);
    }

    fn extend(&mut self, from: Timestamp, to: Timestamp) {
        let (first, last) = self.times.unwrap_or((from, to));
        self.times = Some((first.min(from), last.max(to)));
    }

    fn sum(all: &[Self]) -> Self {
        let mut sum = Self::default();
        for totals in all {
            sum.settlements += totals.settlements;
            sum.passed += totals.passed;
            if let Some((first, last)) = totals.times {
                sum.extend(first, last);
            }
        }
        sum
    }

    /// True if a window of the limit ended in between, so that more may have passed than its capacity.
    fn crosses_window(&self, limit: &Limit) -> bool {
        let (Some(window), Some((first, last))) = (limit.window(), self.times) else {
            return false;
        };
        first.as_micros() / window.get() != last.as_micros() / window.get()
    }
}
