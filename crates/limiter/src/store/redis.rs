//! The shared store: one limit over many instances, on Redis and Valkey.
//!
//! What decides there is one script: the [twins](tollgate_core::lua) of the algorithms, and `settle.lua`, which reads keys,
//! settles requests as the core does, and writes what has changed.
//!
//! ```no_run
//! use tollgate_limiter::core::Cost;
//! use tollgate_limiter::limits::TokenBucket;
//! use tollgate_limiter::store::redis::Redis;
//! use tollgate_limiter::{Ask, Limiter};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let limiter = Limiter::new(Redis::options("redis://127.0.0.1:6379/0")?.open());
//! let logins = limiter.rule("logins", TokenBucket::per_minute(100))?;
//! let login = Ask { rule: &logins, subject: b"user:42", cost: Cost::ONE };
//! let settled = limiter.settle(&[login]).await;
//! println!("{}", if settled.passes { "go on" } else { "wait" });
//! # Ok(())
//! # }
//! ```

mod apart;
mod breaker;
pub mod call;
mod cluster;
mod envoy;
mod figures;
mod key;
mod line;
mod link;
mod near;
mod node;
mod nodes;
mod offset;
mod options;
mod orphans;
mod probe;
mod reach;
mod replicas;
pub mod script;
mod sentinel;
mod servers;
mod slots;
mod supervised;
mod survey;
mod turns;
mod view;
mod work;

use self::call::{Mode, Told};
use self::envoy::RedisCounters;
use self::nodes::Nodes;
use self::orphans::Asked;
use self::work::{Reply, Shared, Work, receipt};
use super::{HitOp, Hit, Outcome, Settled, Source, Store, StoreError};
use std::sync::{Arc, Mutex, PoisonError};
use tollgate_core::{
    Charge, Cost, Counter, Decision, LeaseId, Limit, Micros, OnStoreFailure, Policy, Receipt, Timestamp,
};

pub use self::breaker::{BreakerState, Breaking, OpenFor};
pub use self::envoy::RedisCountersOptions;
pub use self::figures::{Figures, LastError};
pub use self::key::{RedisKey, Subjects};
pub use self::options::{Functions, Options, ReadFrom, Time, TlsError, UrlError};
pub use self::survey::Survey;

/// A store on Redis or Valkey: one server, the one that sentinels name, or a cluster.
///
/// It dials by itself, in the background, and again whenever the connection breaks. While there is none, or the server does
/// not answer within the deadline, outcomes are errors. On a cluster that is so for the keys of the server that is away.
///
/// On a cluster, charges of one request with keys in several slots are not settled at one moment: each part is, and if one
/// of them refuses, what the others have taken is taken back.
#[derive(Debug)]
pub struct Redis {
    shared: Arc<Shared>,
    nodes: Arc<Nodes>,
    /// What a survey had to say.
    warnings: Mutex<Vec<String>>,
    /// Counters of envoyproxy/ratelimit, if they are kept here.
    envoy: Option<Box<RedisCounters>>,
}

impl Redis {
    /// The defaults, for the server at this URL.
    ///
    /// # Errors
    /// A URL that names no server.
    pub fn options(url: &str) -> Result<Options, UrlError> {
        Options::new(url)
    }

    /// What it has done since it was opened.
    pub fn figures(&self) -> &Figures {
        &self.shared.figures
    }

    /// What went wrong last, if anything ever did: also what some calls met while others were answered.
    pub fn last_error(&self) -> Option<LastError> {
        self.shared.figures.last_error(self.shared.clock.now())
    }

    /// What there is to say of its servers: what the last survey had, and whether sentinels should be heard and are not.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner).clone();
        warnings.extend(self.link_warning());
        warnings
    }

    fn link_warning(&self) -> Option<String> {
        match &*self.nodes {
            Nodes::One(node) => node.link.warning().map(str::to_owned),
            Nodes::Cluster(_) => None,
        }
    }

    /// Which primary its sentinels have named: to be kept, and given to [`Options::last_primary`] by one that starts while
    /// none of them answers. Nothing without sentinels.
    pub fn primary(&self) -> Option<String> {
        match &*self.nodes {
            Nodes::One(node) => node.link.named(),
            Nodes::Cluster(_) => None,
        }
    }

    /// Why there is no connection, if there is none; of a cluster, to one of its servers.
    pub fn fault(&self) -> Option<String> {
        self.nodes.fault().or_else(|| {
            let fault = self.envoy.as_ref()?.per_second_store()?.nodes.fault()?;
            Some(format!("windows of a second: {fault}"))
        })
    }

    /// What the breaker of its server lets through; of a cluster, of the one that lets least.
    pub fn breaker(&self) -> BreakerState {
        self.nodes.breaker().0
    }

    /// How often a breaker has opened or closed.
    pub fn breaker_changes(&self) -> u64 {
        self.nodes.breaker().1
    }

    /// Gives back to one counter. Says how it then stands, and whether there was anything to give back.
    async fn give_back(
        &self,
        mode: Mode,
        key: RedisKey,
        limit: &Limit,
        receipt: &Receipt,
    ) -> Result<(Decision, bool), StoreError> {
        match self.change(mode, key, limit, receipt).await? {
            Told::Charge { decision, kept, .. } => Ok((decision, kept)),
            Told::Foreign => Err(StoreError::Foreign),
            Told::Forgotten(_) => Err(StoreError::Nonsense),
        }
    }

    /// Changes one counter, other than by charging it, and says what came of it.
    async fn change(&self, mode: Mode, key: RedisKey, limit: &Limit, receipt: &Receipt) -> Result<Told, StoreError> {
        let charge = self.of_one(key, limit, receipt.cost);
        let reply = self.nodes.ask_one(Work::of_one(mode, charge, *receipt)).await;
        // After the answer: what came before it must not be believed either.
        self.shared.forget(key);
        match reply? {
            Reply::Told(_, told) => told.into_iter().next().ok_or(StoreError::Nonsense),
            Reply::Near(_) => Err(StoreError::Nonsense),
        }
    }

    fn of_one(&self, key: RedisKey, limit: &Limit, cost: Cost) -> Charge<RedisKey> {
        Charge {
            key,
            limit: *limit,
            cost,
            policy: Policy::Enforce,
            on_failure: OnStoreFailure::Closed,
        }
    }

    async fn settle_as(&self, mode: Mode, charges: &[Charge<RedisKey>], lease: LeaseId) -> Settled {
        if charges.is_empty() {
            // Nobody needs to be asked.
            return settled(self.shared.clock.now(), Vec::new());
        }
        if self.nodes.are_apart(charges) {
            return self.nodes.settle_apart(mode, charges, lease).await;
        }
        let mut asked = match mode {
            Mode::Settle => Some(Asked::new(&self.nodes, charges, lease)),
            _ => None,
        };
        let reply = self.nodes.ask_one(Work::request(mode, charges.to_vec(), lease)).await;
        if let Some(asked) = &mut asked {
            asked.answered(&reply);
        }
        match reply {
            Ok(Reply::Told(now, told)) => settled(now, told),
            Ok(Reply::Near(settled)) => settled,
            Err(error) => failed(self.shared.clock.now(), charges.len(), error),
        }
    }
}

impl Store for Redis {
    const SOURCE: Source = Source::Shared;

    type Key = RedisKey;
    type Subjects = Subjects;

    fn subjects(&self, counter: &Counter<'_>) -> Subjects {
        self.shared.keys.subjects(counter)
    }

    fn key(&self, subjects: &Subjects, per: &[&[u8]]) -> RedisKey {
        self.shared.keys.key(subjects, per)
    }

    fn key_text(&self, key: &RedisKey) -> String {
        self.shared.keys.text(*key).to_string()
    }

    fn is_away(&self, charges: &[Charge<RedisKey>]) -> bool {
        self.nodes.is_shut(charges, self.shared.clock.now())
    }

    async fn settle(&self, charges: &[Charge<RedisKey>], lease: LeaseId) -> Settled {
        if let Some(near) = &self.shared.near
            && let Some(refusal) = near.refusal(charges, self.shared.clock.now())
        {
            return refusal;
        }
        self.settle_as(Mode::Settle, charges, lease).await
    }

    async fn peek(&self, charges: &[Charge<RedisKey>]) -> Settled {
        self.settle_as(Mode::Peek, charges, LeaseId::default()).await
    }

    async fn undo(&self, key: RedisKey, limit: &Limit, receipt: &Receipt) -> Result<(), StoreError> {
        self.give_back(Mode::Undo, key, limit, receipt).await.map(drop)
    }

    async fn take_back(&self, charges: &[Charge<RedisKey>], settled: &mut Settled) {
        let taken: Vec<usize> = settled.taken(charges).collect();
        let deadline = self.shared.deadline();
        self.nodes.take_back(charges, &taken, settled, deadline).await;
    }

    async fn refund(&self, charge: &Charge<RedisKey>) -> Result<(Decision, Source), StoreError> {
        let receipt = receipt(charge.cost, LeaseId::default());
        let given = self.give_back(Mode::Refund, charge.key, &charge.limit, &receipt);
        given.await.map(|(decision, _)| (decision, Source::Shared))
    }

    async fn release(&self, key: RedisKey, limit: &Limit, lease: LeaseId) -> Result<bool, StoreError> {
        // Unless it is answered, it is tried again in the background: releasing twice is releasing once.
        let mut asked = Asked::new(&self.nodes, &[self.of_one(key, limit, Cost::ZERO)], lease);
        let receipt = receipt(Cost::ZERO, lease);
        let (_, released) = self.give_back(Mode::Release, key, limit, &receipt).await?;
        asked.forget();
        Ok(released)
    }

    async fn renew(&self, key: RedisKey, limit: &Limit, lease: LeaseId) -> Result<Option<Micros>, StoreError> {
        let receipt = receipt(Cost::ZERO, lease);
        let (_, renewed) = self.give_back(Mode::Renew, key, limit, &receipt).await?;
        Ok(match limit {
            Limit::Concurrency(limit) if renewed => Some(limit.lease_ttl()),
            _ => None,
        })
    }

    async fn forget(&self, key: RedisKey, limit: &Limit) -> Result<bool, StoreError> {
        let receipt = receipt(Cost::ZERO, LeaseId::default());
        match self.change(Mode::Forget, key, limit, &receipt).await? {
            Told::Forgotten(was_there) => Ok(was_there),
            Told::Charge { .. } | Told::Foreign => Err(StoreError::Nonsense),
        }
    }

    fn takes_hits(&self) -> bool {
        self.envoy.is_some()
    }

    async fn hit(&self, hits: &[Hit<'_, RedisKey>], act: HitOp) -> Settled {
        match &self.envoy {
            Some(envoy) => self.hit_counters(envoy, hits, act).await,
            None => failed(self.shared.clock.now(), hits.len(), StoreError::Unavailable),
        }
    }

    async fn forget_hits(&self, hit: &Hit<'_, RedisKey>) -> Result<bool, StoreError> {
        match &self.envoy {
            Some(envoy) => self.forget_counter(envoy, hit).await,
            None => Err(StoreError::Unavailable),
        }
    }

    fn hit_text(&self, hit: &Hit<'_, RedisKey>) -> String {
        match &self.envoy {
            Some(envoy) => self.counter_text(envoy, hit),
            None => self.key_text(&hit.charge.key),
        }
    }
}

fn settled(now: Timestamp, told: Vec<Told>) -> Settled {
    let passes = told.iter().all(|told| match told {
        Told::Charge { passes, .. } => *passes,
        Told::Foreign | Told::Forgotten(_) => true,
    });
    let outcomes = told.into_iter().map(|told| match told {
        Told::Charge { decision, receipt, .. } => Ok(Outcome {
            decision,
            receipt,
            source: Source::Shared,
        }),
        Told::Foreign => Err(StoreError::Foreign),
        Told::Forgotten(_) => Err(StoreError::Nonsense),
    });
    Settled {
        passes,
        now,
        outcomes: outcomes.collect(),
    }
}

/// What settling comes to when the store cannot: nobody knows whether the request would pass. The time is our own: a caller
/// may be told to come back, and when.
fn failed(ours: Timestamp, charges: usize, error: StoreError) -> Settled {
    Settled {
        passes: false,
        now: ours,
        outcomes: vec![Err(error); charges],
    }
}
