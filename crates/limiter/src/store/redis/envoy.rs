//! Counters of envoyproxy/ratelimit: its keys, its commands and its lifetimes, so that instances of both count together.
//!
//! A key is of one window: it ends with the second in which that began. Which second that is says the machine's wall clock,
//! as it does there: on a cluster a key must be known before anybody knows which server has it, and could be asked for the
//! time. Whoever counts is not told to stop by the server; what came of it is judged where all limits are.

mod ask;
mod over;
mod window;

use self::ask::{Ask, Deed};
use self::over::Over;
use super::nodes::Nodes;
use super::work::Deadline;
use super::{Options, Redis};
use crate::clock::Clock;
use crate::store::{HitOp, Hit, Outcome, Settled, Source, StoreError};
use std::sync::Arc;
use tollgate_core::Timestamp;
use tollgate_core::rules::envoy::CounterTarget;

/// How counters of envoyproxy/ratelimit are kept. The defaults are that one's.
#[derive(Clone, Debug)]
pub struct EnvoyCounters {
    /// What their keys begin with: `CACHE_KEY_PREFIX`.
    pub prefix: Vec<u8>,
    /// Keys live as long as their window, and less than so many seconds longer: `EXPIRATION_JITTER_MAX_SECONDS`.
    pub jitter: u32,
    /// How many bytes of keys that are over their limit are remembered here: `LOCAL_CACHE_SIZE_IN_BYTES`.
    pub local_cache: usize,
    /// Whether a request that one limit refuses is counted by that one only:
    /// `STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT`.
    pub stop_when_over: bool,
    /// Where windows of a second are counted, if not where all others are: `REDIS_PERSECOND`.
    pub per_second: Option<Box<Options>>,
    /// What says which window it is. The machine's wall clock, except in tests.
    pub clock: Clock,
}

impl Default for EnvoyCounters {
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

/// The same, open.
#[derive(Debug)]
pub(super) struct Envoy {
    prefix: Vec<u8>,
    jitter: u32,
    stops_when_over: bool,
    clock: Clock,
    over: Option<Over>,
    per_second: Option<Redis>,
}

impl Envoy {
    pub(super) fn open(how: EnvoyCounters) -> Self {
        Self {
            over: (how.local_cache > 0).then(|| Over::new(how.local_cache)),
            per_second: how.per_second.map(|options| options.open()),
            prefix: how.prefix,
            jitter: how.jitter,
            stops_when_over: how.stop_when_over,
            clock: how.clock,
        }
    }

    /// Where windows of a second are counted, if not where all others are.
    pub(super) fn second(&self) -> Option<&Redis> {
        self.per_second.as_ref()
    }

    /// The key of a window.
    fn key(&self, counting: &CounterTarget, start: u64) -> Vec<u8> {
        let start = start.to_string();
        [&self.prefix, &*counting.name, start.as_bytes()].concat()
    }

    /// How long a key lives that is hit now, in seconds.
    fn lifetime(&self, unit: u64) -> u64 {
        let random = crate::lease::random_id().0;
        unit + random.checked_rem(self.jitter.into()).unwrap_or_default()
    }

    fn is_over(&self, key: &[u8]) -> bool {
        self.over.as_ref().is_some_and(|over| over.has(key))
    }
}

/// What is to be done for one request, all at one moment.
struct Doing<'h, K> {
    hits: &'h [Hit<'h, K>],
    keys: Vec<Vec<u8>>,
    now: Timestamp,
    deadline: Deadline,
}

/// What is counted in each key, or why that is not known.
type Counts = Vec<Result<u64, StoreError>>;

impl Redis {
    /// Counts as envoyproxy/ratelimit does.
    pub(super) async fn hit_envoy<K: Sync>(&self, envoy: &Envoy, hits: &[Hit<'_, K>], act: HitOp) -> Settled {
        let now = envoy.clock.now();
        let doing = Doing {
            keys: hits
                .iter()
                .map(|hit| envoy.key(hit.counting, hit.window_start(now)))
                .collect(),
            hits,
            now,
            deadline: self.shared.deadline(),
        };
        let outcomes: Vec<Result<Outcome, StoreError>> = match act {
            HitOp::Increment => self.add(envoy, &doing).await,
            HitOp::Get => {
                let found = self.counts(envoy, &doing, |_, _| Deed::Look).await;
                let would_be = |(hit, found): (&Hit<'_, K>, Result<u64, StoreError>)| {
                    let used = found?.saturating_add(hit.charge.cost.get());
                    Ok(hit.outcome(used, now, Source::Shared))
                };
                hits.iter().zip(found).map(would_be).collect()
            }
            HitOp::Decrement => doing.outcomes(self.take_off(envoy, &doing).await),
        };
        Settled {
            passes: outcomes.iter().all(Result::is_ok),
            now,
            outcomes,
        }
    }

    /// Clears the key of the window that runs.
    pub(super) async fn forget_envoy<K: Sync>(&self, envoy: &Envoy, hit: &Hit<'_, K>) -> Result<bool, StoreError> {
        let now = envoy.clock.now();
        let doing = Doing {
            keys: vec![envoy.key(hit.counting, hit.window_start(now))],
            hits: &[*hit],
            now,
            deadline: self.shared.deadline(),
        };
        let cleared = self.counts(envoy, &doing, |_, _| Deed::Clear).await;
        doing.forget(envoy);
        let cleared = cleared.into_iter().next().unwrap_or(Err(StoreError::Nonsense))?;
        Ok(cleared > 0)
    }

    /// The key of the window that runs, in words.
    pub(super) fn text_envoy<K>(&self, envoy: &Envoy, hit: &Hit<'_, K>) -> String {
        let key = envoy.key(hit.counting, hit.window_start(envoy.clock.now()));
        String::from_utf8_lossy(&key).into_owned()
    }

    /// Counts all, except what is known to be over its limit; and where one of them is, with `stop_when_over` nothing else.
    async fn add<K: Sync>(&self, envoy: &Envoy, doing: &Doing<'_, K>) -> Vec<Result<Outcome, StoreError>> {
        let over: Vec<bool> = doing.keys.iter().map(|key| envoy.is_over(key)).collect();
        let mut adds: Vec<u64> = doing.hits.iter().map(|hit| hit.charge.cost.get()).collect();
        if envoy.stops_when_over && over.contains(&true) {
            adds.fill(0);
        } else if envoy.stops_when_over && adds.len() > 1 {
            let found = self.counts(envoy, doing, |_, _| Deed::Look).await;
            if let Some(error) = found.iter().find_map(|found| found.err()) {
                // Nothing was counted, and nobody knows what should be.
                return vec![Err(error); adds.len()];
            }
            let would_be_over = doing.hits.iter().zip(&found).map(|(hit, found)| {
                let used = found.unwrap_or_default().saturating_add(hit.charge.cost.get());
                used > u64::from(hit.counting.limit)
            });
            let would_be_over: Vec<bool> = would_be_over.collect();
            if would_be_over.contains(&true) {
                for (add, _) in adds.iter_mut().zip(would_be_over).filter(|(_, is_over)| !is_over) {
                    *add = 0;
                }
            }
        }
        let counts = self
            .counts(envoy, doing, |place, unit| match over.get(place) {
                Some(true) => Deed::Nothing,
                _ => Deed::Add {
                    by: adds.get(place).map_or(0, |add| signed(*add)),
                    lifetime: envoy.lifetime(unit),
                },
            })
            .await;
        let mut outcomes = Vec::with_capacity(doing.hits.len());
        for ((((hit, key), count), is_over), add) in doing.hits.iter().zip(&doing.keys).zip(counts).zip(over).zip(adds)
        {
            let most = u64::from(hit.counting.limit);
            if is_over {
                // Whatever is counted, all of these are beyond the limit.
                let used = most + hit.charge.cost.get().max(1);
                outcomes.push(Ok(hit.outcome(used, doing.now, Source::Near)));
                continue;
            }
            if let (Some(over), Ok(true)) = (&envoy.over, count.map(|count| count > most)) {
                over.add(key);
            }
            outcomes.push(count.map(|count| match add {
                0 => hit.uncounted(count, doing.now, Source::Shared),
                _ => hit.outcome(count, doing.now, Source::Shared),
            }));
        }
        outcomes
    }

    /// Takes off what was counted, and no more than that. Two who do so at the same moment may both see what only one can take:
    /// whoever went below zero puts back what was not there, as far as the server lets him.
    async fn take_off<K: Sync>(&self, envoy: &Envoy, doing: &Doing<'_, K>) -> Counts {
        let found = self.counts(envoy, doing, |_, _| Deed::Look).await;
        let costs = doing.hits.iter().map(|hit| hit.charge.cost.get());
        let there: Vec<u64> = found
            .iter()
            .zip(costs)
            .map(|(found, cost)| found.map_or(0, |found| found.min(cost)))
            .collect();
        let add = |by: Option<i64>, unit: u64| match by {
            Some(0) | None => Deed::Look,
            Some(by) => Deed::Add {
                by,
                lifetime: envoy.lifetime(unit),
            },
        };
        let less = |place: usize| there.get(place).map(|there| -signed(*there));
        let mut left = match there.iter().any(|there| *there > 0) {
            true => {
                self.signed_counts(envoy, doing, |place, unit| add(less(place), unit))
                    .await
            }
            false => found.iter().map(|found| found.map(signed)).collect(),
        };
        doing.forget(envoy);
        let missing = |left: &Result<i64, StoreError>| left.map_or(0, |left| left.min(0));
        if left.iter().any(|left| missing(left) < 0) {
            let back = |place: usize| {
                let (left, there) = (left.get(place)?, there.get(place)?);
                Some((-missing(left)).min(signed(*there)))
            };
            let then = self
                .signed_counts(envoy, doing, |place, unit| add(back(place), unit))
                .await;
            left = put_back(&left, then);
        }
        later(&found, left.into_iter().map(|left| left.map(unsigned)))
    }

    async fn counts<K: Sync>(&self, envoy: &Envoy, doing: &Doing<'_, K>, deed: impl Fn(usize, u64) -> Deed) -> Counts {
        let counts = self.signed_counts(envoy, doing, deed).await;
        counts.into_iter().map(|count| count.map(unsigned)).collect()
    }

    /// Does to each key what `deed` says for its place and the length of its window, each where it is counted, and says what
    /// is then in it.
    async fn signed_counts<K: Sync>(
        &self,
        envoy: &Envoy,
        doing: &Doing<'_, K>,
        deed: impl Fn(usize, u64) -> Deed,
    ) -> Vec<Result<i64, StoreError>> {
        let mut counts: Vec<Result<i64, StoreError>> = vec![Ok(0); doing.hits.len()];
        let (mut here, mut there) = <(Vec<_>, Vec<_>)>::default();
        for (place, (hit, key)) in doing.hits.iter().zip(&doing.keys).enumerate() {
            let unit = hit.unit();
            let ask = match deed(place, unit) {
                Deed::Nothing => continue,
                deed => Ask { key: key.clone(), deed },
            };
            match envoy.per_second.is_some() && unit == 1 {
                true => there.push((place, ask)),
                false => here.push((place, ask)),
            }
        }
        let second = envoy.second().map(|second| &second.nodes);
        let (here, there) = futures_util::future::join(
            ask_for(Some(&self.nodes), here, doing.deadline),
            ask_for(second, there, doing.deadline),
        )
        .await;
        for (place, count) in here.into_iter().chain(there) {
            match count {
                Ok(_) => self.shared.figures.charges.add(1),
                Err(error) => self.shared.count(error),
            }
            if let Some(counted) = counts.get_mut(place) {
                *counted = count;
            }
        }
        counts
    }
}

async fn ask_for(
    nodes: Option<&Arc<Nodes>>,
    asks: Vec<(usize, Ask)>,
    deadline: Deadline,
) -> Vec<(usize, Result<i64, StoreError>)> {
    let Some(nodes) = nodes.filter(|_| !asks.is_empty()) else {
        return Vec::new();
    };
    let (places, asks): (Vec<usize>, Vec<Ask>) = asks.into_iter().unzip();
    places.into_iter().zip(nodes.do_all(&asks, deadline).await).collect()
}

impl<K> Doing<'_, K> {
    fn outcomes(&self, counts: Counts) -> Vec<Result<Outcome, StoreError>> {
        let outcome =
            |(hit, count): (&Hit<'_, K>, Result<u64, StoreError>)| Ok(hit.outcome(count?, self.now, Source::Shared));
        self.hits.iter().zip(counts).map(outcome).collect()
    }

    /// Forgets that its keys were over their limits.
    fn forget(&self, envoy: &Envoy) {
        if let Some(over) = &envoy.over {
            for key in &self.keys {
                over.remove(key);
            }
        }
    }
}

/// What a later step found, where none before it failed: what nobody knows of is not made known by looking again.
fn later<A: Copy, B>(
    before: &[Result<A, StoreError>],
    then: impl IntoIterator<Item = Result<B, StoreError>>,
) -> Vec<Result<B, StoreError>> {
    let both = before.iter().zip(then);
    both.map(|(before, then)| before.and(then)).collect()
}

/// The same where the later step puts back what was too much: what was taken off is, also if that could not be done.
fn put_back(taken_off: &[Result<i64, StoreError>], then: Vec<Result<i64, StoreError>>) -> Vec<Result<i64, StoreError>> {
    let both = taken_off.iter().zip(then);
    both.map(|(taken_off, then)| taken_off.map(|left| then.unwrap_or(left)))
        .collect()
}

fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Below zero is nothing: whoever else writes to the key may have taken too much off.
fn unsigned(count: i64) -> u64 {
    u64::try_from(count).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_does_not_hide_that_it_is_unknown_whether_something_was_taken_off() {
        // The second of three was not answered; another had to put something back, so that all were asked again.
        let taken_off = [Ok(-1), Err(StoreError::Timeout), Ok(4), Ok(-2)];
        let then = put_back(&taken_off, vec![Ok(0), Ok(7), Ok(4), Err(StoreError::BreakerOpen)]);
        assert_eq!(then, [Ok(0), Err(StoreError::Timeout), Ok(4), Ok(-2)]);
        assert_eq!(
            later(&[Ok(1)], [Err::<u64, _>(StoreError::Lost)]),
            [Err(StoreError::Lost)]
        );
    }
}
