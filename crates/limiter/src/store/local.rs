//! The local limiter: a shared store with this instance behind it. While the store cannot be asked, rules that say so are
//! decided here, by a share of their limits.
//!
//! It is a store around a store. What the shared one says of a key is noted; when it falls silent, the counter here begins
//! where that left off. What is let pass here is noted too, and when the store is back, it is charged there in front of the
//! key's next requests. So neither refills while the other serves.
//!
//! Leases of concurrency limits stay where they were taken: one that was taken here can be released and renewed here, also
//! when the store is back.

mod debts;
mod heartbeat;
mod here;
mod instances;
mod notes;
mod options;
mod portions;

use self::here::{Here, Stand};
use self::instances::Instances;
use self::notes::Notes;
use super::memory::{Aim, Memory};
use super::{HitOp, Hit, Outcome, Settled, Source, Store, StoreError};
use crate::fingerprint::Fingerprint;
use std::slice::from_ref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use tokio::time::timeout;
use tollgate_core::{Charge, Counter, Decision, LeaseId, Limit, Micros, OnStoreFailure, Policy, Receipt};

pub use self::instances::Known;
pub use self::options::{Figures, Mode, Options};

/// A shared store, and this instance behind it.
#[derive(Debug)]
pub struct Local<S> {
    inner: Arc<S>,
    here: Arc<Here>,
}

/// Whether what is let pass here is charged to the shared store when that is back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Afterwards {
    PaidBack,
    /// It is others' counters that would be charged, and they did not ask for it.
    Forgiven,
}

impl<S: Store + 'static> Local<S> {
    /// Puts this instance behind a store. Unless the number of instances is said, they are counted in the store from now
    /// on: each keeps a lease there for as long as it lives.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn around(inner: Arc<S>, options: Options) -> Self {
        Self::over(inner, options, Memory::options())
    }

    /// The same with this to decide by, for tests: a clock that can be moved.
    pub fn over(inner: Arc<S>, options: Options, own: super::memory::Options) -> Self {
        let own = own.max_memory(options.max_memory).build();
        let here = Here {
            subjects: own.subjects(&heartbeat::counter(&heartbeat::limit())),
            own,
            notes: Notes::new(),
            instances: Instances::new(options.instances),
            share_millionths: u64::from(options.share_millionths.clamp(1, 1_000_000)),
            patience: options.patience,
            mode: AtomicU8::new(options.mode as u8),
            figures: Figures::default(),
        };
        let here = Arc::new(here);
        if options.instances.is_none() {
            heartbeat::begin(&inner, &here);
        }
        Self { inner, here }
    }
}

impl<S: Store> Local<S> {
    /// The shared store.
    pub fn inner(&self) -> &Arc<S> {
        &self.inner
    }

    /// Who decides from now on.
    pub fn set_mode(&self, mode: Mode) {
        self.here.mode.store(mode as u8, Ordering::Relaxed);
    }

    /// Who decides.
    pub fn mode(&self) -> Mode {
        self.here.mode()
    }

    /// How many instances share the limits, and how that is known.
    pub fn instances(&self) -> (u32, Known) {
        self.here.instances.count()
    }

    /// What was done here.
    pub fn figures(&self) -> &Figures {
        &self.here.figures
    }

    /// What is kept here.
    pub fn own(&self) -> &Memory {
        &self.here.own
    }

    /// Settles with the shared store, and in front of it what its keys have to pay back.
    async fn settle_shared(&self, charges: &[Charge<S::Key>], lease: LeaseId) -> Settled {
        let debts = match self.here.notes.are_owing() {
            true => self.here.debts(charges),
            false => Vec::new(),
        };
        match debts.is_empty() {
            true => self.inner.settle(charges, lease).await,
            // Apart: hardly any request has to make room for this.
            false => Box::pin(self.pay_and_settle(&debts, charges, lease)).await,
        }
    }

    /// Decides what the shared store did not. If either refuses, neither keeps anything.
    async fn stand_in(
        &self,
        charges: &[Charge<S::Key>],
        lease: LeaseId,
        (aim, afterwards): (Aim, Afterwards),
        settled: &mut Settled,
    ) {
        let failed =
            |outcome: &Result<Outcome, StoreError>| matches!(outcome, Err(error) if *error != StoreError::Unasked);
        let mut places = Vec::new();
        let mut own: Vec<Charge<Fingerprint>> = Vec::new();
        let mut is_closed = false;
        for (place, (charge, outcome)) in charges.iter().zip(&settled.outcomes).enumerate() {
            if !failed(outcome) {
                continue;
            }
            match self.here.stand(charge) {
                Some(stand) => {
                    own.push(self.here.charge(charge, &stand));
                    places.push((place, stand));
                }
                None => is_closed |= closes(charge),
            }
        }
        if own.is_empty() {
            return;
        }
        for (charge, (place, stand)) in own.iter().zip(&places) {
            if let (Stand::Share(portion), Some(shared)) = (stand, charges.get(*place)) {
                let is_left_alone = settled.outcomes.get(*place) == Some(&Err(StoreError::BreakerOpen));
                self.here.notes.with(charge.key, |note| {
                    note.is_doubtful &= !is_left_alone;
                    self.here.seed(note, charge.key, &shared.limit, portion);
                });
            }
        }
        let aim = match settled.is_refused(charges) || is_closed {
            true => Aim::Look,
            false => aim,
        };
        let came_to = self.here.own.settle_all(&own, aim, lease);
        if aim == Aim::Keep && !came_to.passes {
            // Whoever waits does so for this long; it is taken back all the same.
            let _ = timeout(self.here.patience, self.inner.take_back(charges, settled)).await;
        }
        for ((charge, (place, stand)), outcome) in own.iter().zip(places).zip(&came_to.outcomes) {
            let Ok(outcome) = outcome else { continue };
            let is_kept = charge.policy == Policy::Count || (came_to.passes && outcome.decision.is_allow());
            if aim == Aim::Keep && is_kept && stand.is_paid_back() && afterwards == Afterwards::PaidBack {
                self.here.notes.owe(charge.key, charge.cost.get());
            }
            if let Some(place) = settled.outcomes.get_mut(place) {
                *place = Ok(stand.tell(*outcome));
            }
        }
        self.here.figures.decided.fetch_add(own.len() as u64, Ordering::Relaxed);
        let is_allowed = |(charge, outcome): (&Charge<S::Key>, &Result<Outcome, StoreError>)| {
            charge.policy == Policy::Shadow || outcome.is_ok_and(|outcome| outcome.decision.is_allow())
        };
        settled.passes = charges.iter().zip(&settled.outcomes).all(is_allowed);
    }

    /// Takes back what was kept here of charges that were settled: nothing beside one that is closed.
    async fn take_back_here(&self, charges: &[Charge<S::Key>], settled: &mut Settled) {
        let is_closed = |(charge, outcome): (&Charge<S::Key>, &Result<Outcome, StoreError>)| {
            // Those that are counted as hits are decided apart.
            let is_hit = charge.policy == Policy::Count && self.inner.takes_hits();
            outcome.is_err() && closes(charge) && !is_hit && self.here.stand(charge).is_none()
        };
        if charges.iter().zip(&settled.outcomes).any(is_closed) {
            return;
        }
        let taken: Vec<usize> = settled.taken(charges).collect();
        for place in taken {
            let (Some(charge), Some(Ok(outcome))) = (charges.get(place), settled.outcomes.get(place)) else {
                continue;
            };
            let Some(stand) = self.here.stand(charge).filter(|_| is_own(outcome)) else {
                continue;
            };
            let own = [self.here.charge(charge, &stand)];
            let mut kept = Settled {
                passes: false,
                now: settled.now,
                outcomes: vec![Ok(*outcome)],
            };
            self.here.own.take_back(&own, &mut kept).await;
            for (charge, outcome) in own.iter().zip(kept.outcomes) {
                if stand.is_paid_back() {
                    self.here.notes.forgive(charge.key, charge.cost.get());
                }
                if let (Some(told), Ok(outcome)) = (settled.outcomes.get_mut(place), outcome) {
                    *told = Ok(outcome);
                }
            }
        }
    }

    /// Whether the shared store need not be asked.
    fn is_without(&self, charges: &[Charge<S::Key>]) -> bool {
        if self.here.mode() == Mode::LocalOnly {
            return true;
        }
        !charges.is_empty() && self.inner.is_away(charges)
    }

    /// What nobody was asked for.
    fn unanswered(&self, charges: usize) -> Settled {
        Settled {
            passes: false,
            now: self.here.own.now(),
            outcomes: vec![Err(StoreError::BreakerOpen); charges],
        }
    }
}

/// Whether nothing of a request passes while this charge cannot be decided.
fn closes<K>(charge: &Charge<K>) -> bool {
    charge.on_failure == OnStoreFailure::Closed && charge.policy != Policy::Shadow
}

/// Whether the shared store was not asked, because it cannot be.
const fn is_away(error: StoreError) -> bool {
    matches!(error, StoreError::BreakerOpen | StoreError::Unavailable)
}

/// Whether it was decided here.
const fn is_own(outcome: &Outcome) -> bool {
    matches!(outcome.source, Source::Local | Source::Open)
}

impl<S: Store> Store for Local<S> {
    const SOURCE: Source = S::SOURCE;

    type Key = S::Key;
    type Subjects = S::Subjects;

    fn subjects(&self, counter: &Counter<'_>) -> S::Subjects {
        self.inner.subjects(counter)
    }

    fn key(&self, subjects: &S::Subjects, per: &[&[u8]]) -> S::Key {
        self.inner.key(subjects, per)
    }

    fn key_text(&self, key: &S::Key) -> String {
        self.inner.key_text(key)
    }

    async fn settle(&self, charges: &[Charge<S::Key>], lease: LeaseId) -> Settled {
        let mut settled = if self.is_without(charges) {
            if let [charge] = charges
                && let Some(Stand::Share(portion)) = self.here.stand(charge)
            {
                return self.here.settle_alone(charge, portion, lease);
            }
            self.unanswered(charges.len())
        } else {
            let settled = self.settle_shared(charges, lease).await;
            self.here.learn(charges, &settled);
            settled
        };
        let kept = (Aim::Keep, Afterwards::PaidBack);
        self.stand_in(charges, lease, kept, &mut settled).await;
        settled
    }

    async fn peek(&self, charges: &[Charge<S::Key>]) -> Settled {
        let mut settled = match self.is_without(charges) {
            true => self.unanswered(charges.len()),
            false => self.inner.peek(charges).await,
        };
        let looked = (Aim::Look, Afterwards::PaidBack);
        self.stand_in(charges, LeaseId::default(), looked, &mut settled).await;
        settled
    }

    /// Of the shared store. What was decided here and kept is not taken back by receipts.
    async fn undo(&self, key: S::Key, limit: &Limit, receipt: &Receipt) -> Result<(), StoreError> {
        self.inner.undo(key, limit, receipt).await
    }

    async fn take_back(&self, charges: &[Charge<S::Key>], settled: &mut Settled) {
        let is_own = |outcome: &Result<Outcome, StoreError>| outcome.as_ref().is_ok_and(is_own);
        let told = settled.outcomes.clone();
        for outcome in settled.outcomes.iter_mut().filter(|outcome| is_own(outcome)) {
            *outcome = Err(StoreError::Unasked);
        }
        let _ = timeout(self.here.patience, self.inner.take_back(charges, settled)).await;
        for (outcome, told) in settled.outcomes.iter_mut().zip(told).filter(|(_, told)| is_own(told)) {
            *outcome = told;
        }
        self.take_back_here(charges, settled).await;
    }

    /// Here if the shared store cannot be asked. Where it was, and nobody knows whether it gave back, it is not given here too.
    async fn refund(&self, charge: &Charge<S::Key>) -> Result<(Decision, Source), StoreError> {
        let refunded = match self.is_without(from_ref(charge)) {
            true => Err(StoreError::BreakerOpen),
            false => self.inner.refund(charge).await,
        };
        match (refunded, self.here.stand(charge)) {
            (Err(error), Some(Stand::Share(portion))) if is_away(error) => self.here.refund(charge, portion).await,
            (refunded, _) => refunded,
        }
    }

    async fn release(&self, key: S::Key, limit: &Limit, lease: LeaseId) -> Result<bool, StoreError> {
        let portion = self.here.part().of(limit);
        if self.here.own.release_lease(self.here.key(&key), &portion, lease) {
            return Ok(true);
        }
        match self.here.mode() {
            Mode::LocalOnly => Err(StoreError::BreakerOpen),
            Mode::Auto | Mode::SharedOnly => self.inner.release(key, limit, lease).await,
        }
    }

    async fn renew(&self, key: S::Key, limit: &Limit, lease: LeaseId) -> Result<Option<Micros>, StoreError> {
        let portion = self.here.part().of(limit);
        if let Some(term) = self.here.own.renew_lease(self.here.key(&key), &portion, lease) {
            return Ok(Some(term));
        }
        match self.here.mode() {
            Mode::LocalOnly => Err(StoreError::BreakerOpen),
            Mode::Auto | Mode::SharedOnly => self.inner.renew(key, limit, lease).await,
        }
    }

    async fn forget(&self, key: S::Key, limit: &Limit) -> Result<bool, StoreError> {
        let own = self.here.key(&key);
        self.here.notes.forget(own);
        let portion = self.here.part().of(limit);
        let was_here = self.here.own.forget_key(own, &portion);
        match self.here.mode() {
            Mode::LocalOnly => Ok(was_here),
            Mode::Auto | Mode::SharedOnly => self
                .inner
                .forget(key, limit)
                .await
                .map(|was_there| was_there || was_here),
        }
    }

    fn takes_hits(&self) -> bool {
        self.inner.takes_hits()
    }

    /// What cannot be counted there is decided here as all else is, except that it is not paid back.
    async fn hit(&self, hits: &[Hit<'_, S::Key>], act: HitOp) -> Settled {
        let is_here_only = self.here.mode() == Mode::LocalOnly;
        let mut settled = match is_here_only {
            true => self.unanswered(hits.len()),
            false => self.inner.hit(hits, act).await,
        };
        let charges: Vec<Charge<S::Key>> = hits.iter().map(|hit| *hit.charge).collect();
        let aim = match act {
            HitOp::Increment => {
                self.here.learn_standings(&charges, &settled);
                Aim::Keep
            }
            HitOp::Get => Aim::Look,
            HitOp::Decrement => {
                for (charge, outcome) in charges.iter().zip(&mut settled.outcomes) {
                    let is_missed = outcome.is_err_and(is_away);
                    if let (true, Some(Stand::Share(portion))) = (is_missed, self.here.stand(charge)) {
                        let given = self.here.refund(charge, portion).await;
                        *outcome = given.map(|(decision, source)| Outcome {
                            decision,
                            receipt: Receipt {
                                cost: charge.cost,
                                mark: Default::default(),
                                lease: LeaseId::default(),
                            },
                            source,
                        });
                    }
                }
                return settled;
            }
        };
        let forgiven = (aim, Afterwards::Forgiven);
        self.stand_in(&charges, LeaseId::default(), forgiven, &mut settled)
            .await;
        settled
    }

    async fn forget_hits(&self, hit: &Hit<'_, S::Key>) -> Result<bool, StoreError> {
        match self.here.mode() {
            Mode::LocalOnly => Ok(false),
            Mode::Auto | Mode::SharedOnly => self.inner.forget_hits(hit).await,
        }
    }

    fn hit_text(&self, hit: &Hit<'_, S::Key>) -> String {
        self.inner.hit_text(hit)
    }
}
