//! Counters of envoyproxy/ratelimit on Redis: its keys, commands and lifetimes, so that instances of both share their
//! counts.
//!
//! A key belongs to one window: it ends with the second in which the window starts. The machine's wall clock determines
//! that second, as in envoyproxy/ratelimit: on a cluster the key must be known before the server that could be asked
//! for the time. The server does not deny; the rules decide on the counts.

use super::counter_commands::{CounterCommand, CounterRequest, execute};
use super::over_limit_cache::OverLimitCache;
use crate::clock::Clock;
use crate::store::redis::context::Deadline;
use crate::store::redis::topology::Topology;
use crate::store::redis::{Redis, RedisOptions};
use crate::store::{Hit, HitOp, Outcome, Settlement, Source, StoreError};
use std::sync::Arc;
use tollgate_core::Timestamp;
use tollgate_core::rules::ratelimit::CounterTarget;

/// Options of the counters. The defaults are those of envoyproxy/ratelimit.
#[derive(Clone, Debug)]
pub struct RedisCountersOptions {
    /// The prefix of their keys: `CACHE_KEY_PREFIX`.
    pub prefix: Vec<u8>,
    /// Keys live as long as their window plus less than this many seconds: `EXPIRATION_JITTER_MAX_SECONDS`.
    pub jitter: u32,
    /// The bytes of keys over their limit that are cached locally: `LOCAL_CACHE_SIZE_IN_BYTES`.
    pub local_cache: usize,
    /// Counts a request that one limit denies by that limit only: `STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT`.
    pub stop_when_over: bool,
    /// The store of windows of a second, if it is another: `REDIS_PERSECOND`.
    pub per_second: Option<Box<RedisOptions>>,
    /// The clock that determines the window: the wall clock, except in tests.
    pub clock: Clock,
}

impl Default for RedisCountersOptions {
    fn default() -> Self {
        Self {
            prefix: Vec::new(),
            jitter: 300,
            local_cache: 0,
            stop_when_over: false,
            per_second: None,
            clock: Clock::wall(),
        }
    }
}

/// The counters of an open store.
#[derive(Debug)]
pub(crate) struct RedisCounters {
    prefix: Vec<u8>,
    jitter: u32,
    stops_when_over: bool,
    clock: Clock,
    over_limit: Option<OverLimitCache>,
    per_second: Option<Redis>,
}

impl RedisCounters {
    pub(crate) fn open(settings: RedisCountersOptions) -> Self {
        Self {
            over_limit: (settings.local_cache > 0).then(|| OverLimitCache::new(settings.local_cache)),
            per_second: settings.per_second.map(|options| options.open()),
            prefix: settings.prefix,
            jitter: settings.jitter,
            stops_when_over: settings.stop_when_over,
            clock: settings.clock,
        }
    }

    /// The store of windows of a second, if it is another.
    pub(crate) fn per_second_store(&self) -> Option<&Redis> {
        self.per_second.as_ref()
    }

    /// The key of a window.
    fn key(&self, counting: &CounterTarget, start: u64) -> Vec<u8> {
        let start = start.to_string();
        [&self.prefix, &*counting.name, start.as_bytes()].concat()
    }

    /// The lifetime of a key that is hit now, in seconds.
    fn lifetime(&self, unit: u64) -> u64 {
        let random = crate::lease::random_id().0;
        unit + random.checked_rem(self.jitter.into()).unwrap_or_default()
    }

    fn is_over(&self, key: &[u8]) -> bool {
        self.over_limit.as_ref().is_some_and(|over_limit| over_limit.has(key))
    }
}

/// The hits of one request, all at one instant.
struct HitBatch<'h, K> {
    hits: &'h [Hit<'h, K>],
    keys: Vec<Vec<u8>>,
    now: Timestamp,
    deadline: Deadline,
}

/// The count of each key, or the error of reading it.
type Counts = Vec<Result<u64, StoreError>>;

impl Redis {
    /// Counts as envoyproxy/ratelimit does.
    pub(crate) async fn hit_counters<K: Sync>(
        &self,
        counters: &RedisCounters,
        hits: &[Hit<'_, K>],
        op: HitOp,
    ) -> Settlement {
        let now = counters.clock.now();
        let batch = HitBatch {
            keys: hits
                .iter()
                .map(|hit| counters.key(hit.counting, hit.window_start(now)))
                .collect(),
            hits,
            now,
            deadline: self.context.deadline(),
        };
        let outcomes: Vec<Result<Outcome, StoreError>> = match op {
            HitOp::Increment => self.increment(counters, &batch).await,
            HitOp::Get => {
                let counted = self.counts(counters, &batch, |_, _| CounterCommand::Get).await;
                let would_count = |(hit, count): (&Hit<'_, K>, Result<u64, StoreError>)| {
                    let used = count?.saturating_add(hit.charge.cost.get());
                    Ok(hit.outcome(used, now, Source::Shared))
                };
                hits.iter().zip(counted).map(would_count).collect()
            }
            HitOp::Decrement => batch.outcomes(self.decrement(counters, &batch).await),
        };
        Settlement {
            allowed: outcomes.iter().all(Result::is_ok),
            now,
            outcomes,
        }
    }

    /// Clears the key of the current window.
    pub(crate) async fn forget_counter<K: Sync>(
        &self,
        counters: &RedisCounters,
        hit: &Hit<'_, K>,
    ) -> Result<bool, StoreError> {
        let now = counters.clock.now();
        let batch = HitBatch {
            keys: vec![counters.key(hit.counting, hit.window_start(now))],
            hits: &[*hit],
            now,
            deadline: self.context.deadline(),
        };
        let cleared = self.counts(counters, &batch, |_, _| CounterCommand::Delete).await;
        batch.forget(counters);
        let cleared = cleared.into_iter().next().unwrap_or(Err(StoreError::InvalidReply))?;
        Ok(cleared > 0)
    }

    /// The key of the current window as text.
    pub(crate) fn counter_text<K>(&self, counters: &RedisCounters, hit: &Hit<'_, K>) -> String {
        let key = counters.key(hit.counting, hit.window_start(counters.clock.now()));
        String::from_utf8_lossy(&key).into_owned()
    }

    /// Counts all hits except those cached as over their limit; if one is over, with `stop_when_over` no other is
    /// counted.
    async fn increment<K: Sync>(
        &self,
        counters: &RedisCounters,
        batch: &HitBatch<'_, K>,
    ) -> Vec<Result<Outcome, StoreError>> {
        let over_limit: Vec<bool> = batch.keys.iter().map(|key| counters.is_over(key)).collect();
        let mut increments: Vec<u64> = batch.hits.iter().map(|hit| hit.charge.cost.get()).collect();
        if counters.stops_when_over && over_limit.contains(&true) {
            increments.fill(0);
        } else if counters.stops_when_over && increments.len() > 1 {
            let counted = self.counts(counters, batch, |_, _| CounterCommand::Get).await;
            if let Some(error) = counted.iter().find_map(|count| count.err()) {
                // Nothing was counted, and it is unknown what should be.
                return vec![Err(error); increments.len()];
            }
            let would_be_over = batch.hits.iter().zip(&counted).map(|(hit, count)| {
                let used = count.unwrap_or_default().saturating_add(hit.charge.cost.get());
                used > u64::from(hit.counting.limit)
            });
            let would_be_over: Vec<bool> = would_be_over.collect();
            if would_be_over.contains(&true) {
                for (increment, _) in increments.iter_mut().zip(would_be_over).filter(|(_, is_over)| !is_over) {
                    *increment = 0;
                }
            }
        }
        let counts = self
            .counts(counters, batch, |index, unit| match over_limit.get(index) {
                Some(true) => CounterCommand::Skip,
                _ => CounterCommand::Increment {
                    by: increments.get(index).map_or(0, |increment| signed(*increment)),
                    lifetime: counters.lifetime(unit),
                },
            })
            .await;
        let mut outcomes = Vec::with_capacity(batch.hits.len());
        for ((((hit, key), count), is_over), increment) in batch
            .hits
            .iter()
            .zip(&batch.keys)
            .zip(counts)
            .zip(over_limit)
            .zip(increments)
        {
            let max = u64::from(hit.counting.limit);
            if is_over {
                // Whatever the count is, all of these hits are over the limit.
                let used = max + hit.charge.cost.get().max(1);
                outcomes.push(Ok(hit.outcome(used, batch.now, Source::Near)));
                continue;
            }
            if let (Some(over_limit), Ok(true)) = (&counters.over_limit, count.map(|count| count > max)) {
                over_limit.add(key);
            }
            outcomes.push(count.map(|count| match increment {
                0 => hit.uncounted(count, batch.now, Source::Shared),
                _ => hit.outcome(count, batch.now, Source::Shared),
            }));
        }
        outcomes
    }

    /// Subtracts at most what was counted. Two callers may both see what only one can subtract: the one that gets below
    /// zero restores the difference, if the server allows it.
    async fn decrement<K: Sync>(&self, counters: &RedisCounters, batch: &HitBatch<'_, K>) -> Counts {
        let counted = self.counts(counters, batch, |_, _| CounterCommand::Get).await;
        let costs = batch.hits.iter().map(|hit| hit.charge.cost.get());
        let decrements: Vec<u64> = counted
            .iter()
            .zip(costs)
            .map(|(counted, cost)| counted.map_or(0, |count| count.min(cost)))
            .collect();
        let command_for = |by: Option<i64>, unit: u64| match by {
            Some(0) | None => CounterCommand::Get,
            Some(by) => CounterCommand::Increment {
                by,
                lifetime: counters.lifetime(unit),
            },
        };
        let decrement_of = |index: usize| decrements.get(index).map(|amount| -signed(*amount));
        let mut remaining = match decrements.iter().any(|amount| *amount > 0) {
            true => {
                self.signed_counts(counters, batch, |index, unit| command_for(decrement_of(index), unit))
                    .await
            }
            false => counted.iter().map(|count| count.map(signed)).collect(),
        };
        batch.forget(counters);
        let missing = |remaining: &Result<i64, StoreError>| remaining.map_or(0, |remaining| remaining.min(0));
        if remaining.iter().any(|remaining| missing(remaining) < 0) {
            let restore_of = |index: usize| {
                let (remaining, amount) = (remaining.get(index)?, decrements.get(index)?);
                Some((-missing(remaining)).min(signed(*amount)))
            };
            let after = self
                .signed_counts(counters, batch, |index, unit| command_for(restore_of(index), unit))
                .await;
            remaining = restore(&remaining, after);
        }
        unless_failed(&counted, remaining.into_iter().map(|remaining| remaining.map(unsigned)))
    }

    async fn counts<K: Sync>(
        &self,
        counters: &RedisCounters,
        batch: &HitBatch<'_, K>,
        command: impl Fn(usize, u64) -> CounterCommand,
    ) -> Counts {
        let counts = self.signed_counts(counters, batch, command).await;
        counts.into_iter().map(|count| count.map(unsigned)).collect()
    }

    /// Executes `command` for each key by its index and window length, each in its store, and returns the counts.
    async fn signed_counts<K: Sync>(
        &self,
        counters: &RedisCounters,
        batch: &HitBatch<'_, K>,
        command: impl Fn(usize, u64) -> CounterCommand,
    ) -> Vec<Result<i64, StoreError>> {
        let mut counts: Vec<Result<i64, StoreError>> = vec![Ok(0); batch.hits.len()];
        let (mut primary, mut per_second) = <(Vec<_>, Vec<_>)>::default();
        for (index, (hit, key)) in batch.hits.iter().zip(&batch.keys).enumerate() {
            let unit = hit.unit();
            let request = match command(index, unit) {
                CounterCommand::Skip => continue,
                command => CounterRequest {
                    key: key.clone(),
                    command,
                },
            };
            match counters.per_second.is_some() && unit == 1 {
                true => per_second.push((index, request)),
                false => primary.push((index, request)),
            }
        }
        let second_topology = counters
            .per_second_store()
            .map(|per_second_store| &per_second_store.topology);
        let (primary, per_second) = futures_util::future::join(
            execute_at(Some(&self.topology), primary, batch.deadline),
            execute_at(second_topology, per_second, batch.deadline),
        )
        .await;
        for (index, count) in primary.into_iter().chain(per_second) {
            match count {
                Ok(_) => self.context.metrics.charges.add(1),
                Err(error) => self.context.count_error(error),
            }
            if let Some(counted) = counts.get_mut(index) {
                *counted = count;
            }
        }
        counts
    }
}

async fn execute_at(
    topology: Option<&Arc<Topology>>,
    requests: Vec<(usize, CounterRequest)>,
    deadline: Deadline,
) -> Vec<(usize, Result<i64, StoreError>)> {
    let Some(topology) = topology.filter(|_| !requests.is_empty()) else {
        return Vec::new();
    };
    let (indexes, requests): (Vec<usize>, Vec<CounterRequest>) = requests.into_iter().unzip();
    indexes
        .into_iter()
        .zip(execute(topology, &requests, deadline).await)
        .collect()
}

impl<K> HitBatch<'_, K> {
    fn outcomes(&self, counts: Counts) -> Vec<Result<Outcome, StoreError>> {
        let outcome =
            |(hit, count): (&Hit<'_, K>, Result<u64, StoreError>)| Ok(hit.outcome(count?, self.now, Source::Shared));
        self.hits.iter().zip(counts).map(outcome).collect()
    }

    /// Removes its keys from the over-limit cache.
    fn forget(&self, counters: &RedisCounters) {
        if let Some(over_limit) = &counters.over_limit {
            for key in &self.keys {
                over_limit.remove(key);
            }
        }
    }
}

/// The results of a later step, except where an earlier one failed: reading again does not tell what it did.
fn unless_failed<A: Copy, B>(
    before: &[Result<A, StoreError>],
    after: impl IntoIterator<Item = Result<B, StoreError>>,
) -> Vec<Result<B, StoreError>> {
    let both = before.iter().zip(after);
    both.map(|(before, after)| before.and(after)).collect()
}

/// The same where the later step restores a difference: the decrement stands even if that fails.
fn restore(
    decremented: &[Result<i64, StoreError>],
    after: Vec<Result<i64, StoreError>>,
) -> Vec<Result<i64, StoreError>> {
    let both = decremented.iter().zip(after);
    both.map(|(decremented, after)| decremented.map(|remaining| after.unwrap_or(remaining)))
        .collect()
}

fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Negative counts are zero: other writers may have subtracted too much.
fn unsigned(count: i64) -> u64 {
    u64::try_from(count).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_does_not_hide_that_it_is_unknown_whether_something_was_taken_off() {
        // The second of three was not answered; another needed a restore, so that all were read again.
        let decremented = [Ok(-1), Err(StoreError::Timeout), Ok(4), Ok(-2)];
        let after = restore(&decremented, vec![Ok(0), Ok(7), Ok(4), Err(StoreError::BreakerOpen)]);
        assert_eq!(after, [Ok(0), Err(StoreError::Timeout), Ok(4), Ok(-2)]);
        assert_eq!(
            unless_failed(&[Ok(1)], [Err::<u64, _>(StoreError::ConnectionLost)]),
            [Err(StoreError::ConnectionLost)]
        );
    }
}
