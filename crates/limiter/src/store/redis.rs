//! The shared store: one limit over many instances, on Redis and Valkey.
//!
//! One script decides: the [twins](tollgate_core::lua) of the algorithms, and `settle.lua`, which reads keys, settles
//! requests as the core does, and writes what has changed.
//!
//! ```no_run
//! use tollgate_limiter::Limiter;
//! use tollgate_limiter::limits::TokenBucket;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let limiter = Limiter::redis("redis://127.0.0.1:6379/0")?;
//! let logins = limiter.limit("logins", TokenBucket::per_minute(100))?;
//! match limiter.check(&logins, "user:42").await.retry() {
//!     None => println!("allowed"),
//!     Some(retry) => println!("denied: {retry:?}"),
//! }
//! # Ok(())
//! # }
//! ```

mod config_cache;
pub(crate) mod connection;
pub(crate) mod context;
mod diagnostics;
mod error_code;
mod key;
mod lease_reaper;
mod metrics;
mod near_cache;
pub(crate) mod node;
mod options;
pub mod script;
mod supervise;
pub(crate) mod topology;

use self::context::StoreContext;
use self::lease_reaper::PendingLease;
use self::node::request::{NodeReply, NodeRequest, to_settlement, unmarked_receipt};
use self::script::call::{ChargeReply, ScriptOp};
use self::topology::Topology;
use super::{
    BreakerStatus, CounterStore, Hit, HitOp, Keyspace, LastError, RoundTripStatus, SettleRequest, Settlement,
    SharedStore, Source, Store, StoreError, StoreKind, StoreStatus,
};
use crate::compat::redis_counters::RedisCounters;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::runtime::Handle;
use tollgate_core::{Charge, Cost, Counter, Decision, LeaseId, Limit, Micros, OnStoreFailure, Policy, Receipt};

pub use self::config_cache::{CACHE_VALUE_MAX, CacheError, CacheWrite, ConfigCache, LogEntry, LogId, PreloadReport};
pub use self::context::{BreakerConfig, ClockSource, Functions, OpenFor, ReadFrom};
pub use self::diagnostics::Diagnostics;
pub use self::error_code::RedisErrorCode;
pub use self::key::{RedisKey, RedisKeyTemplate};
pub use self::metrics::RedisMetrics;
pub use self::options::{RedisOptions, RedisTlsError, UrlError};
pub use crate::compat::redis_counters::RedisCountersOptions;

/// A store on Redis or Valkey: one server, the primary that sentinels name, or a cluster.
///
/// It connects in the background, and reconnects with backoff. Without a connection, or without a reply within the
/// deadline, outcomes are errors; on a cluster, only those of the keys whose server is unreachable.
///
/// On a cluster, charges of one request in several slots are not settled at one instant: each slot's charges are, and
/// if a slot denies, those of the others are compensated.
#[derive(Debug)]
pub struct Redis {
    pub(crate) context: Arc<StoreContext>,
    pub(crate) topology: Arc<Topology>,
    /// Findings of the last diagnostics.
    warnings: Mutex<Vec<String>>,
    /// Counters of `ratelimit`, if this store keeps them.
    counters: Option<Box<RedisCounters>>,
}

impl Redis {
    /// Default options for the server at this URL.
    ///
    /// # Errors
    /// The URL names no server.
    pub fn options(url: &str) -> Result<RedisOptions, UrlError> {
        RedisOptions::new(url)
    }

    /// Metrics since the store was opened.
    pub fn metrics(&self) -> &RedisMetrics {
        &self.context.metrics
    }

    /// The last error of any call, also while other calls succeed.
    fn last_error(&self) -> Option<LastError> {
        self.context.metrics.last_error(self.context.clock.now())
    }

    /// Warnings about its servers: findings of the last diagnostics, and sentinels that do not answer.
    fn warnings(&self) -> Vec<String> {
        let mut warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner).clone();
        warnings.extend(self.connector_warning());
        warnings.extend(self.round_trip().and_then(|status| status.warning()));
        warnings
    }

    fn connector_warning(&self) -> Option<String> {
        match &*self.topology {
            Topology::Single(_, Some(sentinels)) if sentinels.uses_last_known() => Some(
                "no sentinel answers; using the primary that they named before this process started, and failovers go unnoticed"
                    .to_owned(),
            ),
            _ => None,
        }
    }

    /// The primary that its sentinels named, as text to save for [`RedisOptions::last_primary`] at a start while no
    /// sentinel answers. `None` without sentinels.
    pub fn primary(&self) -> Option<String> {
        match &*self.topology {
            Topology::Single(_, Some(sentinels)) => sentinels.known_primary(),
            _ => None,
        }
    }

    /// The longest round trip to a server, that for windows of a second included.
    fn round_trip(&self) -> Option<RoundTripStatus> {
        let per_second = self.counters.as_ref().and_then(|counters| counters.per_second_store());
        let known = [self.topology.round_trip(), per_second.and_then(Self::round_trip)];
        let known = known.into_iter().flatten();
        known.max_by_key(|status| (status.deadline_needed.is_some(), status.median))
    }

    /// The reason why a server is unreachable, if one is.
    fn connection_error(&self) -> Option<String> {
        self.topology.error().or_else(|| {
            let error = self.counters.as_ref()?.per_second_store()?.topology.error()?;
            Some(format!("windows of a second: {error}"))
        })
    }

    /// Returns cost or a lease to one counter. Returns its standing, and true if there was anything to return.
    async fn modify_standing(
        &self,
        op: ScriptOp,
        key: RedisKey,
        limit: &Limit,
        receipt: &Receipt,
    ) -> Result<(Decision, bool), StoreError> {
        match self.modify(op, key, limit, receipt).await? {
            ChargeReply::Charge { decision, kept, .. } => Ok((decision, kept)),
            ChargeReply::ForeignValue => Err(StoreError::ForeignValue),
            ChargeReply::Cleared(_) => Err(StoreError::InvalidReply),
        }
    }

    /// Changes one counter other than by a charge.
    async fn modify(
        &self,
        op: ScriptOp,
        key: RedisKey,
        limit: &Limit,
        receipt: &Receipt,
    ) -> Result<ChargeReply, StoreError> {
        let charge = self.single_charge(key, limit, receipt.cost);
        let reply = self.topology.send_one(NodeRequest::single(op, charge, *receipt)).await;
        // After the reply: states read before it are outdated too.
        self.context.invalidate(key);
        match reply? {
            NodeReply::Script(_, replies) => replies.into_iter().next().ok_or(StoreError::InvalidReply),
            NodeReply::NearCache(_) => Err(StoreError::InvalidReply),
        }
    }

    fn single_charge(&self, key: RedisKey, limit: &Limit, cost: Cost) -> Charge<RedisKey> {
        Charge {
            key,
            limit: *limit,
            cost,
            policy: Policy::Enforce,
            on_failure: OnStoreFailure::Closed,
        }
    }

    async fn settle_as(&self, op: ScriptOp, charges: &[Charge<RedisKey>], lease: LeaseId) -> Settlement {
        if charges.is_empty() {
            let now = self.context.clock.now();
            return to_settlement(Ok(NodeReply::Script(now, Vec::new())), 0, || now);
        }
        if self.topology.is_cross_slot(charges) {
            return self.topology.settle_across_slots(op, charges, lease).await;
        }
        let mut pending = match op {
            ScriptOp::Settle => Some(PendingLease::new(&self.topology, charges, lease, self.context.deadline)),
            _ => None,
        };
        let reply = self
            .topology
            .send_one(NodeRequest::new(op, charges.to_vec(), lease))
            .await;
        if let Some(pending) = &mut pending {
            pending.resolve(&reply);
        }
        to_settlement(reply, charges.len(), || self.context.clock.now())
    }
}

impl Keyspace for Redis {
    type Key = RedisKey;
    type Template = RedisKeyTemplate;

    fn template(&self, counter: &Counter<'_>) -> RedisKeyTemplate {
        self.context.keyspace.template(counter)
    }

    fn key(&self, template: &RedisKeyTemplate, per: &[&[u8]]) -> RedisKey {
        self.context.keyspace.key(template, per)
    }

    fn key_text(&self, key: &RedisKey) -> String {
        self.context.keyspace.text(*key).to_string()
    }
}

impl Store for Redis {
    const SOURCE: Source = Source::Shared;

    fn is_unavailable(&self, charges: &[Charge<RedisKey>]) -> bool {
        self.topology.is_unavailable(charges, self.context.clock.now())
    }

    async fn settle(&self, charges: &[Charge<RedisKey>], lease: LeaseId) -> Settlement {
        if let Some(near_cache) = &self.context.near_cache
            && let Some(denial) = near_cache.denial(charges, self.context.clock.now())
        {
            return denial;
        }
        self.settle_as(ScriptOp::Settle, charges, lease).await
    }

    async fn settle_each(&self, requests: &[SettleRequest<'_, RedisKey>]) -> Vec<Settlement> {
        self.topology.settle_each(requests).await
    }

    async fn peek(&self, charges: &[Charge<RedisKey>]) -> Settlement {
        self.settle_as(ScriptOp::Peek, charges, LeaseId::default()).await
    }

    async fn undo(&self, key: RedisKey, limit: &Limit, receipt: &Receipt) -> Result<(), StoreError> {
        self.modify_standing(ScriptOp::Undo, key, limit, receipt)
            .await
            .map(drop)
    }

    async fn compensate(&self, charges: &[Charge<RedisKey>], settlement: &mut Settlement) {
        let kept: Vec<usize> = settlement.kept_charges(charges).collect();
        let deadline = self.context.deadline();
        self.topology.compensate(charges, &kept, settlement, deadline).await;
    }

    async fn refund(&self, charge: &Charge<RedisKey>) -> Result<(Decision, Source), StoreError> {
        let receipt = unmarked_receipt(charge.cost, LeaseId::default());
        let refunded = self.modify_standing(ScriptOp::Refund, charge.key, &charge.limit, &receipt);
        refunded.await.map(|(decision, _)| (decision, Source::Shared))
    }

    async fn release(&self, key: RedisKey, limit: &Limit, lease: LeaseId) -> Result<bool, StoreError> {
        // Without a reply it is repeated in the background: releasing is idempotent.
        let charge = self.single_charge(key, limit, Cost::ZERO);
        let mut pending = PendingLease::new(&self.topology, &[charge], lease, self.context.deadline);
        let receipt = unmarked_receipt(Cost::ZERO, lease);
        let (_, released) = self.modify_standing(ScriptOp::Release, key, limit, &receipt).await?;
        pending.disarm();
        Ok(released)
    }

    fn release_later(&self, key: RedisKey, limit: &Limit, lease: LeaseId) {
        lease_reaper::release_later(&self.topology, self.single_charge(key, limit, Cost::ZERO), lease);
    }

    async fn renew(&self, key: RedisKey, limit: &Limit, lease: LeaseId) -> Result<Option<Micros>, StoreError> {
        let receipt = unmarked_receipt(Cost::ZERO, lease);
        let (_, renewed) = self.modify_standing(ScriptOp::Renew, key, limit, &receipt).await?;
        Ok(match limit {
            Limit::Concurrency(limit) if renewed => Some(limit.lease_ttl()),
            _ => None,
        })
    }

    async fn forget(&self, key: RedisKey, limit: &Limit) -> Result<bool, StoreError> {
        let receipt = unmarked_receipt(Cost::ZERO, LeaseId::default());
        match self.modify(ScriptOp::Forget, key, limit, &receipt).await? {
            ChargeReply::Cleared(was_there) => Ok(was_there),
            ChargeReply::Charge { .. } | ChargeReply::ForeignValue => Err(StoreError::InvalidReply),
        }
    }

    fn status(&self) -> StoreStatus {
        let metrics = &self.context.metrics;
        let (state, transitions) = self.topology.breaker();
        StoreStatus {
            kind: StoreKind::Redis,
            keys: None,
            connection_error: self.connection_error(),
            last_error: self.last_error(),
            warnings: self.warnings(),
            breaker: BreakerStatus { state, transitions },
            round_trip: self.round_trip(),
            errors: metrics.errors().collect(),
            calls: Some(metrics.snapshot()),
            fallback: None,
            servers: self.topology.servers(),
        }
    }
}

impl SharedStore for Redis {
    fn runtime(&self) -> &Handle {
        &self.context.runtime
    }
}

impl CounterStore for Redis {
    fn counts_hits(&self) -> bool {
        self.counters.is_some()
    }

    async fn hit(&self, hits: &[Hit<'_, RedisKey>], hit_op: HitOp) -> Settlement {
        match &self.counters {
            Some(counters) => self.hit_counters(counters, hits, hit_op).await,
            None => to_settlement(Err(StoreError::Unavailable), hits.len(), || self.context.clock.now()),
        }
    }

    async fn forget_hits(&self, hit: &Hit<'_, RedisKey>) -> Result<bool, StoreError> {
        match &self.counters {
            Some(counters) => self.forget_counter(counters, hit).await,
            None => Err(StoreError::Unavailable),
        }
    }

    fn hit_key_text(&self, hit: &Hit<'_, RedisKey>) -> String {
        match &self.counters {
            Some(counters) => self.counter_text(counters, hit),
            None => self.key_text(&hit.charge.key),
        }
    }
}
