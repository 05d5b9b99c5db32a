//! Several instances over one store, with a link to it that can be cut for each.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tollgate_core::{Charge, Counter, Decision, LeaseId, Limit, Micros, Receipt, Timestamp};
use tollgate_limiter::clock::Clock;
use tollgate_limiter::store::fallback::{Fallback, FallbackOptions};
use tollgate_limiter::store::memory::Memory;
use tollgate_limiter::store::{CounterStore, Keyspace, Settlement, Source, Store, StoreError, StoreMode, StoreStatus};
use tollgate_limiter::testing::counters;
use tollgate_limiter::{Fingerprint, MemoryKeyTemplate};

pub(crate) use tollgate_core::testing::limits::rate;

/// The link of one instance to the shared store, which can fail.
#[derive(Debug)]
pub(crate) struct UnreliableStore {
    shared: Arc<Memory>,
    is_cut: AtomicBool,
    /// One of so many settlements is dropped; none, if zero.
    drop_one_of: AtomicU64,
    calls: AtomicU64,
    /// True if an outage is reported, false if calls time out.
    reports_outage: bool,
}

/// Instances over one store.
pub(crate) struct Fixture {
    pub(crate) clock: Clock,
    pub(crate) shared: Arc<Memory>,
    pub(crate) instances: Vec<Fallback<UnreliableStore>>,
}

pub(crate) const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

impl Fixture {
    /// Starts `live` instances that are configured for `configured`.
    pub(crate) fn new(live: usize, configured: u32) -> Self {
        let clock = Clock::manual(START);
        let memory = || Memory::options().shards(1).clock(clock.clone());
        let shared = Arc::new(memory().build());
        let options = FallbackOptions {
            instances: Some(configured),
            share_millionths: 1_000_000,
            compensation_timeout: Duration::from_secs(5),
            ..FallbackOptions::default()
        };
        let instances = (0..live).map(|number| {
            let store = UnreliableStore {
                shared: Arc::clone(&shared),
                is_cut: AtomicBool::new(false),
                drop_one_of: AtomicU64::new(0),
                calls: AtomicU64::new(0),
                reports_outage: number % 2 == 0,
            };
            Fallback::with_memory(Arc::new(store), options, memory())
        });
        Self {
            instances: instances.collect(),
            clock,
            shared,
        }
    }

    pub(crate) fn cut(&self, instance: usize, is_cut: bool) {
        self.instances[instance].inner().is_cut.store(is_cut, Ordering::SeqCst);
    }

    /// Drops one of so many calls of an instance before they reach the store.
    pub(crate) fn drop_calls(&self, instance: usize, one_of: u64) {
        self.instances[instance]
            .inner()
            .drop_one_of
            .store(one_of, Ordering::SeqCst);
    }

    pub(crate) fn cut_all(&self, is_cut: bool) {
        (0..self.instances.len()).for_each(|instance| self.cut(instance, is_cut));
    }

    pub(crate) fn set_mode(&self, mode: StoreMode) {
        self.instances.iter().for_each(|instance| instance.set_mode(mode));
    }

    pub(crate) fn now_s(&self) -> f64 {
        self.clock.now().since(START).get() as f64 / 1e6
    }

    pub(crate) fn key(&self, limit: &Limit, subject: &str) -> Fingerprint {
        counters::key(&*self.shared, limit.algorithm(), limit, &[subject.as_bytes()])
    }

    pub(crate) fn charge(&self, limit: &Limit, subject: &str, cost: u64) -> Charge<Fingerprint> {
        counters::charge(self.key(limit, subject), limit, cost)
    }

    /// The units used of a limit in the shared store.
    pub(crate) async fn used(&self, limit: &Limit, subject: &str) -> u64 {
        counters::used(&*self.shared, self.key(limit, subject), limit).await
    }

    /// Charges decided by the instances themselves.
    pub(crate) fn decided(&self) -> u64 {
        self.instances.iter().map(|instance| instance.metrics().decided()).sum()
    }
}

impl UnreliableStore {
    fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::SeqCst)
    }

    fn check_cut(&self) -> Result<(), StoreError> {
        if self.is_cut() {
            Err(StoreError::Timeout)
        } else {
            Ok(())
        }
    }

    fn drops_this_call(&self) -> bool {
        let one_of = self.drop_one_of.load(Ordering::SeqCst);
        one_of > 0 && self.calls.fetch_add(1, Ordering::SeqCst).is_multiple_of(one_of)
    }

    fn unanswered(&self, charges: usize) -> Settlement {
        Settlement {
            allowed: false,
            now: self.shared.now(),
            outcomes: vec![Err(StoreError::Timeout); charges],
        }
    }

    fn relabel(&self, charges: usize, settlement: Settlement) -> Settlement {
        if self.is_cut() {
            return self.unanswered(charges);
        }
        let mut settlement = settlement;
        for outcome in settlement.outcomes.iter_mut().flatten() {
            outcome.source = Source::Shared;
        }
        settlement
    }
}

impl Keyspace for UnreliableStore {
    type Key = Fingerprint;
    type Template = MemoryKeyTemplate;

    fn template(&self, counter: &Counter<'_>) -> MemoryKeyTemplate {
        self.shared.template(counter)
    }

    fn key(&self, template: &MemoryKeyTemplate, per: &[&[u8]]) -> Fingerprint {
        self.shared.key(template, per)
    }
}

impl CounterStore for UnreliableStore {}

impl Store for UnreliableStore {
    const SOURCE: Source = Source::Shared;
    fn is_unavailable(&self, _: &[Charge<Fingerprint>]) -> bool {
        self.is_cut() && self.reports_outage
    }

    async fn settle(&self, charges: &[Charge<Fingerprint>], lease: LeaseId) -> Settlement {
        let settlement = match self.is_cut() {
            true => self.shared.peek(charges).await,
            false if self.drops_this_call() => return self.unanswered(charges.len()),
            false => self.shared.settle(charges, lease).await,
        };
        self.relabel(charges.len(), settlement)
    }

    async fn peek(&self, charges: &[Charge<Fingerprint>]) -> Settlement {
        self.relabel(charges.len(), self.shared.peek(charges).await)
    }

    async fn undo(&self, key: Fingerprint, limit: &Limit, receipt: &Receipt) -> Result<(), StoreError> {
        self.check_cut()?;
        self.shared.undo(key, limit, receipt).await
    }

    async fn refund(&self, charge: &Charge<Fingerprint>) -> Result<(Decision, Source), StoreError> {
        self.check_cut()?;
        self.shared.refund(charge).await
    }

    async fn release(&self, key: Fingerprint, limit: &Limit, lease: LeaseId) -> Result<bool, StoreError> {
        self.check_cut()?;
        self.shared.release(key, limit, lease).await
    }

    fn release_later(&self, key: Fingerprint, limit: &Limit, lease: LeaseId) {
        if !self.is_cut() {
            self.shared.release_later(key, limit, lease);
        }
    }

    async fn renew(&self, key: Fingerprint, limit: &Limit, lease: LeaseId) -> Result<Option<Micros>, StoreError> {
        self.check_cut()?;
        self.shared.renew(key, limit, lease).await
    }

    async fn forget(&self, key: Fingerprint, limit: &Limit) -> Result<bool, StoreError> {
        self.check_cut()?;
        self.shared.forget(key, limit).await
    }

    fn status(&self) -> StoreStatus {
        self.shared.status()
    }
}
