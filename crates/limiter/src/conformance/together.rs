//! Real concurrency: many threads on few keys, and totals that must be exact.

use super::run::{block_on, threads};
use super::samples::{LONG, Shape};
use super::{Bench, twin::charge};
use crate::store::{Settled, Store};
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tollgate_core::{Counter, Limit, Timestamp};

/// How often a check is made again because a window ended while it ran.
const MOST_TRIES: u32 = 5;

/// What one thread saw.
#[derive(Clone, Copy, Default)]
struct Seen {
    settled: u64,
    passed: u64,
    /// The first and the last moment.
    times: Option<(Timestamp, Timestamp)>,
}

/// All threads settle one key: as many pass as the limit holds.
pub(super) async fn one_key<S: Store + 'static>(bench: &Bench<S>, shape: Shape) -> Result<u64, String> {
    const STEP: &str = "many threads on one key";
    let all = (bench.threads * bench.settles) as u64;
    let units = (all / 2).clamp(1, 100);
    let limit = shape.limit(units, LONG)?;
    let mut settled = 0;
    for tries in 0..MOST_TRIES {
        let key = key(bench, &format!("{}/one key/{tries}", shape.name()), &limit);
        let store = Arc::clone(&bench.store);
        let settles = bench.settles;
        let seen = threads(bench.threads, &bench.around, move |_, progress| {
            let mut seen = Seen::default();
            for _ in 0..settles {
                let charges = [charge(key, &limit, 1)?];
                let got = block_on(store.settle(&charges, crate::lease::fresh()));
                seen.add(&got);
                progress.fetch_add(1, Ordering::Relaxed);
            }
            Ok(seen)
        })
        .await
        .map_err(|error| format!("{}: {STEP}: {error}", shape.name()))?;
        let seen = Seen::sum(&seen);
        settled += seen.settled;
        if seen.is_across(&limit) {
            continue;
        }
        same(shape, STEP, "how many passed", units.min(all), seen.passed)?;
        let left = left(bench, &[(key, limit)]).await?;
        same(shape, STEP, "units left", vec![units - units.min(all)], left)?;
        return Ok(settled);
    }
    Err(format!("{}: {STEP}: its windows end faster than it runs", shape.name()))
}

/// Half of the threads settle two keys in one order, half in the other, and one of the keys has less room: none waits
/// for ever, and both keys have given the same.
pub(super) async fn opposite_orders<S: Store + 'static>(bench: &Bench<S>, shape: Shape) -> Result<u64, String> {
    const STEP: &str = "two keys in opposite orders";
    if bench.is_compensated() && !shape.takes_back() {
        // What a queue has promised stands, so a refusal by the other key leaves it charged.
        return Ok(0);
    }
    let all = (bench.threads * bench.settles) as u64;
    let room = (all / 2).clamp(1, 100);
    let (wide, narrow) = (shape.limit(room * 2, LONG)?, shape.limit(room, LONG)?);
    let mut settled = 0;
    for tries in 0..MOST_TRIES {
        let name = format!("{}/opposite/{tries}", shape.name());
        let pair = [
            (key(bench, &format!("{name}/wide"), &wide), wide),
            (key(bench, &format!("{name}/narrow"), &narrow), narrow),
        ];
        let store = Arc::clone(&bench.store);
        let (settles, count, atomic) = (bench.settles, bench.threads, !bench.is_compensated());
        // One thread more looks on.
        let seen = threads(count + 1, &bench.around, move |number, progress| {
            let [one, other] = pair;
            let mut seen = Seen::default();
            for _ in 0..settles {
                let (first, second) = if number % 2 == 0 { (one, other) } else { (other, one) };
                let cost = u64::from(number < count);
                let charges = [charge(first.0, &first.1, cost)?, charge(second.0, &second.1, cost)?];
                if cost > 0 {
                    seen.add(&block_on(store.settle(&charges, crate::lease::fresh())));
                } else if let [a, b] = taken(&block_on(store.peek(&charges)))?[..]
                    && atomic
                    && a != b
                {
                    return Err(format!("expected both keys charged alike, got {a} and {b} units taken"));
                }
                progress.fetch_add(1, Ordering::Relaxed);
            }
            Ok(seen)
        })
        .await
        .map_err(|error| format!("{}: {STEP}: {error}", shape.name()))?;
        let seen = Seen::sum(&seen);
        settled += seen.settled;
        if seen.is_across(&narrow) {
            continue;
        }
        let expected = if bench.is_compensated() {
            seen.passed.min(room)
        } else {
            room.min(all)
        };
        same(shape, STEP, "how many passed", expected, seen.passed)?;
        let left = left(bench, &pair).await?;
        let expected = vec![room * 2 - seen.passed, room - seen.passed];
        same(shape, STEP, "units left", expected, left)?;
        return Ok(settled);
    }
    Err(format!("{}: {STEP}: its windows end faster than it runs", shape.name()))
}

fn key<S: Store>(bench: &Bench<S>, rule: &str, limit: &Limit) -> S::Key {
    let counter = Counter {
        domain: &bench.domain,
        rule,
        variant: "",
        limit,
        per: &[],
    };
    bench.store.key(&bench.store.subjects(&counter), &[rule.as_bytes()])
}

/// The units left of each key.
async fn left<S: Store>(bench: &Bench<S>, keys: &[(S::Key, Limit)]) -> Result<Vec<u64>, String> {
    let mut left = Vec::with_capacity(keys.len());
    for (key, limit) in keys {
        let settled = bench.store.peek(&[charge(*key, limit, 0)?]).await;
        for outcome in settled.outcomes {
            let outcome = outcome.map_err(|error| error.to_string())?;
            left.push(outcome.decision.standing().remaining);
        }
    }
    Ok(left)
}

/// The units taken of each key.
fn taken(settled: &Settled) -> Result<Vec<u64>, String> {
    let taken = |outcome: &Result<crate::store::Outcome, crate::store::StoreError>| {
        let outcome = outcome.map_err(|error| error.to_string())?;
        let standing = outcome.decision.standing();
        Ok(standing.limit - standing.remaining)
    };
    settled.outcomes.iter().map(taken).collect()
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

impl Seen {
    fn add(&mut self, settled: &Settled) {
        self.settled += 1;
        self.passed += u64::from(settled.passes);
        self.stretch(settled.now, settled.now);
    }

    fn stretch(&mut self, from: Timestamp, to: Timestamp) {
        let (first, last) = self.times.unwrap_or((from, to));
        self.times = Some((first.min(from), last.max(to)));
    }

    fn sum(all: &[Self]) -> Self {
        let mut sum = Self::default();
        for seen in all {
            sum.settled += seen.settled;
            sum.passed += seen.passed;
            if let Some((first, last)) = seen.times {
                sum.stretch(first, last);
            }
        }
        sum
    }

    /// Whether a window of the limit ended in between, so that more may have passed than one holds.
    fn is_across(&self, limit: &Limit) -> bool {
        let (Some(window), Some((first, last))) = (limit.window(), self.times) else {
            return false;
        };
        first.as_micros() / window.get() != last.as_micros() / window.get()
    }
}
