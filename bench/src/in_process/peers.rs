//! The measured libraries: Tollgate, its peers, and a bare map as the lower bound, all with the same limits.

use governor::clock::DefaultClock;
use governor::middleware::NoOpMiddleware;
use governor::state::keyed::DashMapStateStore;
use governor::{Quota, RateLimiter as Governor};
use hashbrown::HashTable;
use limitador::limit::{Context, Namespace};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::BuildHasher;
use std::num::NonZeroU32;
use std::time::{Duration, SystemTime};
use throttlecrab::{PeriodicStore, RateLimiter as Throttlecrab};
use tollgate_limiter::core::Cost;
use tollgate_limiter::limits::TokenBucket;
use tollgate_limiter::{Limiter, NamedLimit};

/// The limit of all libraries: one unit refills every `unit_s`, up to `burst`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbers {
    pub(crate) unit_s: u32,
    pub(crate) burst: u32,
    /// The usage of every key before the measurement, so that no store treats it as idle.
    pub(crate) used: u32,
}

/// All requests are allowed: the usual path.
pub(crate) const ALLOWED: Numbers = Numbers {
    unit_s: 1,
    burst: 1_000_000_000,
    used: 1_000_000,
};

/// Every key is exhausted for a day. A burst of one would do, but throttlecrab forgets such keys at once.
pub(crate) const DENIED: Numbers = Numbers {
    unit_s: 86_400,
    burst: 10,
    used: 10,
};

/// A limiter under one limit.
#[expect(clippy::ptr_arg, reason = "governor takes the key in the type it stores")]
pub(crate) trait Peer: Sync {
    /// Consumes units of a key. True if it was allowed.
    fn take(&self, key: &String, units: u32) -> bool;

    /// Consumes one unit of each key, one by one. Returns the number of allowed ones.
    fn check(&self, keys: &[String]) -> usize {
        keys.iter().filter(|key| self.take(key, 1)).count()
    }

    /// The same as one batch, where the library supports it.
    fn check_batch(&self, keys: &[String]) -> usize {
        self.check(keys)
    }
}

/// All libraries by their name in the report: Tollgate first.
pub(crate) const ALL: [(&str, Make); 7] = [
    (TOLLGATE, |numbers, _| Box::new(Tollgate::new(numbers))),
    ("governor", |numbers, _| Box::new(Governor::keyed(quota(numbers)))),
    ("governor_ahash", |numbers, _| Box::new(governor_ahash(numbers))),
    ("throttlecrab", |numbers, keys| Box::new(Crab::new(numbers, keys))),
    (RATELIMIT, |numbers, _| Box::new(ratelimit(numbers))),
    ("limitador", |numbers, keys| Box::new(Limitador::new(numbers, keys))),
    (BARE_MAP, |numbers, _| Box::new(BareMap::new(numbers))),
];

/// Creates a peer for a limit and an expected number of keys.
pub(crate) type Make = fn(Numbers, usize) -> Box<dyn Peer>;

pub(crate) const TOLLGATE: &str = "tollgate";
/// Has no keys: one limiter is one bucket.
pub(crate) const RATELIMIT: &str = "ratelimit";
pub(crate) const BARE_MAP: &str = "bare_map";

struct Tollgate {
    limiter: Limiter,
    rule: NamedLimit,
}

impl Tollgate {
    fn new(Numbers { unit_s, burst, .. }: Numbers) -> Self {
        let limiter = Limiter::in_memory();
        let bucket = TokenBucket::per(1, Duration::from_secs(unit_s.into())).burst(burst.into());
        let rule = limiter.limit("bench", bucket).expect("the numbers are in range");
        Self { limiter, rule }
    }
}

impl Peer for Tollgate {
    fn take(&self, key: &String, units: u32) -> bool {
        let cost = Cost::new(units.into()).expect("the numbers are in range");
        self.limiter.check_cost(&self.rule, key, cost).is_allow()
    }

    fn check(&self, keys: &[String]) -> usize {
        keys.iter()
            .filter(|key| self.limiter.check(&self.rule, key).is_allow())
            .count()
    }

    fn check_batch(&self, keys: &[String]) -> usize {
        let mut allowed = 0;
        for keys in keys.chunks(16) {
            self.limiter.check_each(&self.rule, keys, |decision| {
                allowed += usize::from(decision.is_allow());
            });
        }
        allowed
    }
}

fn quota(Numbers { unit_s, burst, .. }: Numbers) -> Quota {
    Quota::with_period(Duration::from_secs(unit_s.into()))
        .expect("a unit takes some time")
        .allow_burst(NonZeroU32::new(burst).expect("a burst is at least one"))
}

type Keyed<S> =
    Governor<String, DashMapStateStore<String, S>, DefaultClock, NoOpMiddleware<governor::clock::QuantaInstant>>;

fn governor_ahash(numbers: Numbers) -> Keyed<ahash::RandomState> {
    Governor::dashmap_with_hasher(quota(numbers), ahash::RandomState::new())
}

impl<S: BuildHasher + Clone + Sync> Peer for Keyed<S> {
    fn take(&self, key: &String, units: u32) -> bool {
        let units = NonZeroU32::new(units).expect("a cost is at least one");
        matches!(self.check_key_n(key, units), Ok(Ok(_)))
    }

    fn check(&self, keys: &[String]) -> usize {
        keys.iter().filter(|key| self.check_key(key).is_ok()).count()
    }
}

/// Its limiter takes `&mut self`; its documentation recommends a mutex.
struct Crab {
    limiter: Mutex<Throttlecrab<PeriodicStore>>,
    numbers: Numbers,
}

impl Crab {
    fn new(numbers: Numbers, keys: usize) -> Self {
        let store = PeriodicStore::with_capacity(keys);
        Self {
            limiter: Mutex::new(Throttlecrab::new(store)),
            numbers,
        }
    }
}

impl Peer for Crab {
    fn take(&self, key: &String, units: u32) -> bool {
        let Numbers { unit_s, burst, .. } = self.numbers;
        let now = SystemTime::now();
        let answer = self
            .limiter
            .lock()
            .rate_limit(key, burst.into(), 1, unit_s.into(), units.into(), now);
        answer.is_ok_and(|(allowed, _)| allowed)
    }
}

fn ratelimit(Numbers { unit_s, burst, .. }: Numbers) -> ratelimit::Ratelimiter {
    ratelimit::Ratelimiter::builder(1)
        .period(Duration::from_secs(unit_s.into()))
        .max_tokens(burst.into())
        .initial_available(burst.into())
        .build()
        .expect("the numbers are in range")
}

impl Peer for ratelimit::Ratelimiter {
    fn take(&self, _: &String, units: u32) -> bool {
        self.try_wait_n(units.into()).is_ok()
    }

    fn check(&self, keys: &[String]) -> usize {
        keys.iter().filter(|_| self.try_wait().is_ok()).count()
    }
}

/// A fixed window, its only algorithm: the burst as the limit, and the time to refill it as the window.
struct Limitador {
    limiter: limitador::RateLimiter,
    namespace: Namespace,
}

impl Limitador {
    fn new(Numbers { unit_s, burst, .. }: Numbers, keys: usize) -> Self {
        // With spare capacity: what it evicts, it forgets.
        let limiter = limitador::RateLimiter::new(2 * keys as u64);
        let window_s = u64::from(unit_s) * u64::from(burst);
        let by_user = "user".try_into().expect("a plain name is an expression");
        let namespace = Namespace::from("bench");
        limiter.add_limit(limitador::limit::Limit::new(
            namespace.clone(),
            burst.into(),
            window_s,
            [],
            [by_user],
        ));
        Self { limiter, namespace }
    }
}

impl Peer for Limitador {
    fn take(&self, key: &String, units: u32) -> bool {
        let context = Context::from(HashMap::from([("user".to_owned(), key.clone())]));
        let result = self
            .limiter
            .check_rate_limited_and_update(&self.namespace, &context, units.into());
        result.is_ok_and(|result| !result.limited)
    }
}

/// The minimum of a limiter over a map of strings: lock, find, count. No clock, no refill.
struct BareMap {
    hasher: ahash::RandomState,
    shards: Vec<Shard>,
    burst: u64,
}

/// Aligned to its own cache line.
#[repr(align(64))]
#[derive(Default)]
struct Shard(Mutex<HashTable<(Box<str>, u64)>>);

impl BareMap {
    const SHARDS: usize = 64;

    fn new(Numbers { burst, .. }: Numbers) -> Self {
        Self {
            hasher: ahash::RandomState::new(),
            shards: std::iter::repeat_with(Shard::default).take(Self::SHARDS).collect(),
            burst: burst.into(),
        }
    }
}

impl Peer for BareMap {
    fn take(&self, key: &String, units: u32) -> bool {
        let hash = self.hasher.hash_one(key.as_str());
        // By bits that select neither the position in the table nor the tag.
        let shard = self.shards.get((hash >> 48) as usize % Self::SHARDS);
        let Shard(shard) = shard.expect("a remainder is below the number of shards");
        let mut table = shard.lock();
        if let Some((_, used)) = table.find_mut(hash, |(known, _)| **known == **key) {
            let allowed = *used + u64::from(units) <= self.burst;
            *used += if allowed { units.into() } else { 0 };
            return allowed;
        }
        let rehash = |(known, _): &(Box<str>, u64)| self.hasher.hash_one(&**known);
        table.insert_unique(hash, (key.as_str().into(), units.into()), rehash);
        true
    }
}
