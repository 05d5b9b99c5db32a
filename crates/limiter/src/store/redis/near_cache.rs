//! The near cache: recent states of keys, kept where they suffice to deny without a call.
//!
//! It keeps states, never verdicts. A limit is evaluated here at the latest time that the store's clock may show; if nothing
//! remains even then, the store would deny. Nor can others have consumed anything since, so the state is still the store's,
//! and a denial has the figures that the store would give. While a unit remains, a request that costs more is sent: others
//! may have consumed that unit, and the cached figures would be too good.
//!
//! So nothing is allowed that the store would deny. A request that the store would allow is denied only after a refund
//! elsewhere or a raised limit, for at most the TTL of an entry. Concurrency limits are never denied here, because
//! leases may be released at any time.

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

/// The lifetime of an entry.
pub(crate) const TTL: Micros = Micros::from_millis(250);

/// The most entries: a few MiB.
const ENTRIES_MAX: usize = 1 << 16;
const SHARDS: usize = 16;

/// States of keys that have little or nothing left.
#[derive(Debug)]
pub(crate) struct NearCache {
    shards: [Mutex<HashMap<RedisKey, Entry>>; SHARDS],
    /// The number of entries, so that an empty cache costs no lock.
    entries: AtomicUsize,
    /// The largest lead of a clock that decides other instances' charges.
    clock_ahead: Micros,
    slack: Micros,
}

/// The times of one round trip to the store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoundTrip {
    /// The local time at which it was sent.
    pub(crate) sent: Timestamp,
    /// The local time at which the reply arrived.
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
    /// In place of a long state: the denial of one unit under this limit. Of more units it does not say when the first
    /// one is free.
    Denied {
        limit: Limit,
        standing: Standing,
        wait: Micros,
    },
}

impl NearCache {
    /// An empty cache. `clock_ahead` is the largest difference between the clocks that decide.
    pub(crate) fn new(clock_ahead: Micros, slack: Micros) -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            entries: AtomicUsize::new(0),
            clock_ahead,
            slack,
        }
    }

    /// Records the reply to a charge of a request.
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
        // Several charges on one key are denied for their sum.
        let is_single = || request.iter().filter(|other| other.key == charge.key).count() == 1;
        let cached = match (state, decision) {
            _ if matches!(charge.limit, Limit::Concurrency(_)) => None,
            (Some(state), decision) if decision.standing().remaining == 0 => Some(CachedState::State(state.clone())),
            (
                None,
                Decision::Deny {
                    standing,
                    retry: Retry::After(wait),
                },
            ) if is_single() && charge.cost == Cost::ONE && standing.remaining == 0 => Some(CachedState::Denied {
                limit: charge.limit,
                standing: *standing,
                wait: *wait,
            }),
            _ => None,
        };
        if cached.is_none() && self.is_empty() {
            return;
        }
        self.with(charge.key, |entries| {
            // Replies may arrive in another order than they were decided in. An expired entry does not count, or a
            // clock that was set back would keep replies out until it has caught up.
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

    /// Removes a key, after cost was returned to it.
    pub(crate) fn remove(&self, key: RedisKey) {
        if !self.is_empty() {
            self.with(key, |entries| {
                entries.remove(&key);
            });
        }
    }

    /// The denial of a request that the store would certainly deny. It holds outcomes only of the limits that are known
    /// to deny.
    pub(crate) fn denial(&self, charges: &[Charge<RedisKey>], local_now: Timestamp) -> Option<Settlement> {
        if self.is_empty() || charges.iter().any(|charge| charge.policy == Policy::Count) {
            return None;
        }
        let denied = |charge: &Charge<RedisKey>, not_before| match charge.policy {
            Policy::Enforce => self.would_deny(charge, local_now, not_before),
            Policy::Shadow | Policy::Count => None,
        };
        // All outcomes are of one time: the store's clock is not before the latest that any entry knows.
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
        // Another thread may have removed the entries since.
        outcomes.iter().any(Result::is_ok).then_some(Settlement {
            allowed: false,
            now,
            outcomes,
        })
    }

    /// The decision of a limit that denies at any time the store's clock may show, evaluated at the earliest of those
    /// times but not before `not_before`, so that no retry is promised too early; with the mark of the charge and that
    /// time.
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
                    let (at_latest, _) = decide(latest);
                    if at_latest.is_allow() || at_latest.standing().remaining > 0 {
                        return None;
                    }
                    decide(earliest)
                }
                CachedState::Denied { limit, standing, wait } => {
                    let until = round_trip.now + *wait;
                    // A higher cost waits longer, by an unknown time.
                    if charge.limit != *limit || charge.cost != Cost::ONE || latest >= until {
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
