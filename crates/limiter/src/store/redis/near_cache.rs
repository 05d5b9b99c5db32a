//! The near cache: what the store said moments ago, where that is enough to refuse.
//!
//! Kept is what a key held, never a verdict. A limit is asked again here, at the latest time that the store's clock may
//! show; if it refuses even then, so would the store: others can only have taken more since, and the store's clock is not
//! later. So nothing passes that the store would refuse, and what the store would let pass is refused only if cost was
//! given back elsewhere or a limit raised: for no longer than an entry is believed. Concurrency limits are never refused
//! from here, since leases end whenever they are released.

use super::context::clock_drift as drift;
use super::key::RedisKey;
use super::script::call::ChargeReply;
use crate::store::{Outcome, Settlement, Source, StoreError};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use tollgate_core::{
    Charge, Cost, Decision, LeaseId, Limit, Mark, Micros, Now, Policy, Receipt, Retry, Standing, State, Timestamp,
};

/// How long an entry is believed.
pub(crate) const TTL: Micros = Micros::from_millis(250);

/// The most entries: a few MiB.
const ENTRIES_MAX: usize = 1 << 16;
const SHARDS: usize = 16;

/// What is known of keys that have little or nothing left.
#[derive(Debug)]
pub(crate) struct NearCache {
    shards: [Mutex<HashMap<RedisKey, Entry>>; SHARDS],
    /// So that nobody locks a shard to find nothing.
    entries: AtomicUsize,
    /// How far ahead of ours the time may be that others' charges are decided at.
    clock_ahead: Micros,
    slack: Micros,
}

/// When an exchange with the store took place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoundTrip {
    /// Our clock when it was sent.
    pub(crate) sent: Timestamp,
    /// Our clock when the answer came.
    pub(crate) received: Timestamp,
    /// The time it was decided at.
    pub(crate) now: Timestamp,
}

#[derive(Debug)]
struct Entry {
    round_trip: RoundTrip,
    cached: CachedState,
}

#[derive(Debug)]
enum CachedState {
    /// The state itself.
    State(State),
    /// Of states too long to be told: under this limit, this cost waits so long.
    Denied {
        limit: Limit,
        cost: Cost,
        standing: Standing,
        wait: Micros,
    },
}

impl NearCache {
    /// An empty one. `ahead` is how far the clocks that decide may be from one another.
    pub(crate) fn new(clock_ahead: Micros, slack: Micros) -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            entries: AtomicUsize::new(0),
            clock_ahead,
            slack,
        }
    }

    /// Learns what became of a charge, one of those of a request.
    pub(crate) fn record(
        &self,
        charge: &Charge<RedisKey>,
        request: &[Charge<RedisKey>],
        reply: &ChargeReply,
        round_trip: RoundTrip,
    ) {
        let ChargeReply::Charge { decision, state, .. } = reply else {
            return;
        };
        // Those of one key were refused for their sum.
        let is_single = || request.iter().filter(|other| other.key == charge.key).count() == 1;
        let cached = match (state, decision) {
            _ if matches!(charge.limit, Limit::Concurrency(_)) => None,
            (Some(state), decision) if !decision.is_allow() || decision.standing().remaining == 0 => {
                Some(CachedState::State(state.clone()))
            }
            (
                None,
                Decision::Deny {
                    standing,
                    retry: Retry::After(wait),
                },
            ) if is_single() => Some(CachedState::Denied {
                limit: charge.limit,
                cost: charge.cost,
                standing: *standing,
                wait: *wait,
            }),
            _ => None,
        };
        if cached.is_none() && self.is_empty() {
            return;
        }
        self.with(charge.key, |entries| {
            // Replies may come in another order than they were decided in. What is not believed any more counts for
            // nothing, or a clock that was set back would keep news out until it is where it was.
            let is_later =
                |known: &Entry| known.round_trip.now > round_trip.now && known.is_current(round_trip.received);
            if entries.get(&charge.key).is_some_and(is_later) {
                return;
            }
            match cached {
                Some(cached) => {
                    if entries.len() >= ENTRIES_MAX / SHARDS {
                        entries.retain(|_, entry| entry.is_current(round_trip.received));
                    }
                    if entries.len() < ENTRIES_MAX / SHARDS {
                        entries.insert(charge.key, Entry { round_trip, cached });
                    }
                }
                None => {
                    entries.remove(&charge.key);
                }
            }
        });
    }

    /// Forgets a key: something was given back.
    pub(crate) fn remove(&self, key: RedisKey) {
        if !self.is_empty() {
            self.with(key, |entries| {
                entries.remove(&key);
            });
        }
    }

    /// The refusal of a request, if the store would certainly refuse it. It tells only of the limits that are known to.
    pub(crate) fn denial(&self, charges: &[Charge<RedisKey>], local_now: Timestamp) -> Option<Settlement> {
        if self.is_empty() || charges.iter().any(|charge| charge.policy == Policy::Count) {
            return None;
        }
        let denied = |charge: &Charge<RedisKey>, not_before| match charge.policy {
            Policy::Enforce => self.would_deny(charge, local_now, not_before),
            Policy::Shadow | Policy::Count => None,
        };
        // All are told at one moment: the store's clock shows no less than the latest that any of them knows.
        let now = charges
            .iter()
            .filter_map(|charge| denied(charge, Timestamp::EPOCH))
            .map(|(_, _, at)| at)
            .max()?;
        let outcome = |charge: &Charge<RedisKey>| {
            let (decision, mark, _) = denied(charge, now).ok_or(StoreError::Skipped)?;
            Ok(Outcome {
                decision,
                receipt: Receipt {
                    cost: charge.cost,
                    mark,
                    lease: LeaseId::default(),
                },
                source: Source::Near,
            })
        };
        let outcomes: Vec<Result<Outcome, StoreError>> = charges.iter().map(outcome).collect();
        // Another thread may have changed what is known since.
        outcomes.iter().any(Result::is_ok).then_some(Settlement {
            allowed: false,
            now,
            outcomes,
        })
    }

    /// What a limit says that refuses at any time the store's clock may show: at the earliest of those times, but not
    /// before `at`, so that nobody is told to come back too early. With the place the charge would have, and that time.
    fn would_deny(
        &self,
        charge: &Charge<RedisKey>,
        local_now: Timestamp,
        not_before: Timestamp,
    ) -> Option<(Decision, Mark, Timestamp)> {
        self.with(charge.key, |entries| {
            let entry = entries.get(&charge.key).filter(|entry| entry.is_current(local_now))?;
            let Entry { round_trip, cached } = entry;
            let since_sent = local_now.since(round_trip.sent);
            let latest = round_trip.now + Micros::new(since_sent.get() + drift(since_sent) + self.clock_ahead.get());
            let since_received = local_now.since(round_trip.received);
            let elapsed = since_received.get().saturating_sub(drift(since_received));
            let earliest = (round_trip.now + Micros::new(elapsed)).max(not_before);
            let (decision, mark) = match cached {
                CachedState::State(state) => {
                    let decide = |now| {
                        let now = Now::new(now).with_slack(self.slack);
                        let step = charge.limit.decide(Some(state), charge.cost, now);
                        (step.decision, step.mark)
                    };
                    if decide(latest).0.is_allow() {
                        return None;
                    }
                    decide(earliest)
                }
                CachedState::Denied {
                    limit,
                    cost,
                    standing,
                    wait,
                } => {
                    let until = round_trip.now + *wait;
                    // A higher cost waits longer, and nobody knows how long.
                    if charge.limit != *limit || charge.cost != *cost || latest >= until {
                        return None;
                    }
                    let elapsed = earliest.since(round_trip.now).get();
                    let reset_after = Micros::new(standing.reset_after.get().saturating_sub(elapsed));
                    let decision = Decision::Deny {
                        standing: Standing {
                            reset_after,
                            ..*standing
                        },
                        retry: Retry::After(until.since(earliest)),
                    };
                    (decision, Mark::default())
                }
            };
            (!decision.is_allow()).then_some((decision, mark, earliest))
        })
    }

    fn is_empty(&self) -> bool {
        self.entries.load(Ordering::Relaxed) == 0
    }

    fn with<T>(&self, key: RedisKey, change: impl FnOnce(&mut HashMap<RedisKey, Entry>) -> T) -> T {
        let shard = self
            .shards
            .get(key.shard_hash() % SHARDS)
            .expect("there are as many shards");
        let mut entries = shard.lock().unwrap_or_else(PoisonError::into_inner);
        let before = entries.len();
        let result = change(&mut entries);
        let after = entries.len();
        if after > before {
            self.entries.fetch_add(after - before, Ordering::Relaxed);
        } else {
            self.entries.fetch_sub(before - after, Ordering::Relaxed);
        }
        result
    }
}

impl Entry {
    fn is_current(&self, local_now: Timestamp) -> bool {
        local_now.since(self.round_trip.sent) < TTL
    }
}

#[cfg(test)]
mod tests;
