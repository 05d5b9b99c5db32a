//! What this instance knows and decides by itself.

use super::instances::Instances;
use super::notes::{Note, Notes};
use super::options::{Figures, Mode};
use super::portions::Part;
use crate::fingerprint::{Fingerprint, MemoryKeyTemplate};
use crate::store::memory::{How, Memory};
use crate::store::{Key, Outcome, Settled, Source, Store, StoreError};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;
use tollgate_core::{Charge, Cost, Decision, LeaseId, Limit, OnStoreFailure, Policy, TokenBucket};

/// What this instance knows and decides.
#[derive(Debug)]
pub(super) struct Here {
    pub(super) own: Memory,
    pub(super) subjects: MemoryKeyTemplate,
    pub(super) notes: Notes,
    pub(super) instances: Instances,
    pub(super) share_millionths: u64,
    pub(super) patience: Duration,
    pub(super) mode: AtomicU8,
    pub(super) figures: Figures,
}

/// Who decides a charge that the shared store did not.
pub(super) enum Stand {
    /// A part of its limit.
    Share(Limit),
    /// The cap of this instance.
    Cap(Limit),
}

impl Here {
    pub(super) fn mode(&self) -> Mode {
        match self.mode.load(Ordering::Relaxed) {
            0 => Mode::Auto,
            1 => Mode::SharedOnly,
            _ => Mode::LocalOnly,
        }
    }

    pub(super) fn part(&self) -> Part {
        Part::new(self.share_millionths, self.instances.count().0)
    }

    #[inline]
    pub(super) fn key<K: Key>(&self, key: &K) -> Fingerprint {
        self.subjects.fingerprint(&[&key.bits().to_le_bytes()])
    }

    /// Who decides a charge, if anybody here does.
    pub(super) fn stand<K>(&self, charge: &Charge<K>) -> Option<Stand> {
        let share = || Some(Stand::Share(self.part().of(&charge.limit)));
        match (self.mode(), charge.on_failure) {
            (Mode::LocalOnly, _) | (Mode::Auto, OnStoreFailure::Local) => share(),
            (_, OnStoreFailure::Open { cap: Some(cap) }) => Some(Stand::Cap(TokenBucket::new(cap).into())),
            _ => None,
        }
    }

    pub(super) fn charge<K: Key>(&self, charge: &Charge<K>, stand: &Stand) -> Charge<Fingerprint> {
        Charge {
            key: self.key(&charge.key),
            limit: *stand.limit(),
            cost: charge.cost,
            policy: charge.policy,
            on_failure: charge.on_failure,
        }
    }

    /// Brings a counter here to what the shared one showed, once until that is asked again.
    #[inline]
    pub(super) fn seed(&self, note: &mut Note, key: Fingerprint, shared: &Limit, portion: &Limit) {
        if !std::mem::replace(&mut note.is_seeded, true) {
            self.bring_up(note, key, shared, portion);
        }
    }

    #[cold]
    pub(super) fn bring_up(&self, note: &Note, key: Fingerprint, shared: &Limit, portion: &Limit) {
        let (used, whole) = (note.used_now(shared, self.own.now()), shared.capacity());
        let used = u128::from(used.min(whole)) * u128::from(portion.capacity());
        let target = u64::try_from(used.div_ceil(u128::from(whole.max(1)))).unwrap_or(u64::MAX);
        let here = self.used(key, portion);
        let missing = if let Limit::SlidingLog(_) = portion {
            // What a log holds leaves it all at once, and here earlier than there: it begins anew.
            self.own.forget_key(key, portion);
            target.max(here)
        } else {
            target.saturating_sub(here)
        };
        // No limit holds more than a cost can be.
        if let (Ok(cost), true) = (Cost::new(missing), missing > 0) {
            let how = How {
                cost,
                policy: Policy::Count,
                lease: LeaseId::default(),
            };
            self.own.settle_seldom(key, portion, how);
            self.figures.seeded.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How much of a limit here is used.
    pub(super) fn used(&self, key: Fingerprint, portion: &Limit) -> u64 {
        let look = How {
            cost: Cost::ZERO,
            policy: Policy::Enforce,
            lease: LeaseId::default(),
        };
        let standing = *self.own.settle_seldom(key, portion, look).standing();
        standing.limit.saturating_sub(standing.remaining)
    }

    /// Gives a cost back here. So much less is charged to the shared store when that is back; what that has taken itself, time
    /// gives back.
    pub(super) async fn refund<K: Key>(
        &self,
        charge: &Charge<K>,
        portion: Limit,
    ) -> Result<(Decision, Source), StoreError> {
        let own = self.charge(charge, &Stand::Share(portion));
        self.notes.with(own.key, |note| {
            self.seed(note, own.key, &charge.limit, &own.limit);
            note.forgive(own.cost.get());
        });
        let (decision, _) = self.own.refund(&own).await?;
        Ok((decision, Source::Local))
    }

    /// Settles the only charge of a request: the usual case, with one lock and no list.
    pub(super) fn settle_alone<K: Key>(&self, charge: &Charge<K>, portion: Limit, lease: LeaseId) -> Settled {
        let stand = Stand::Share(portion);
        let own = self.charge(charge, &stand);
        let mut settled = self.notes.with(own.key, |note| {
            note.is_doubtful = false;
            self.seed(note, own.key, &charge.limit, &own.limit);
            let settled = self.own.settle_alone(&own, lease);
            let is_allowed =
                |outcome: &Result<Outcome, StoreError>| outcome.is_ok_and(|outcome| outcome.decision.is_allow());
            let is_kept = own.policy == Policy::Count || settled.outcomes.iter().all(is_allowed);
            if is_kept && stand.is_paid_back() {
                note.admit(own.cost.get());
            }
            settled
        });
        for outcome in settled.outcomes.iter_mut().flatten() {
            *outcome = stand.tell(*outcome);
        }
        self.figures.decided.fetch_add(1, Ordering::Relaxed);
        settled
    }

    /// Notes what the shared store said, and where it said nothing.
    pub(super) fn learn<K: Key>(&self, charges: &[Charge<K>], settled: &Settled) {
        for (charge, outcome) in charges.iter().zip(&settled.outcomes) {
            if outcome.is_err_and(|error| !error.is_certain()) {
                self.notes.with(self.key(&charge.key), |note| note.is_doubtful = true);
            }
        }
        self.learn_standings(charges, settled);
    }

    /// Notes how the shared store said that keys stand.
    pub(super) fn learn_standings<K: Key>(&self, charges: &[Charge<K>], settled: &Settled) {
        let mut now = None;
        for (charge, outcome) in charges.iter().zip(&settled.outcomes) {
            if let Ok(outcome) = outcome
                && matches!(outcome.source, Source::Shared | Source::Memory)
                && !matches!(charge.limit, Limit::Concurrency(_))
            {
                let at = *now.get_or_insert_with(|| self.own.now());
                self.notes.learn(self.key(&charge.key), outcome.decision.standing(), at);
            }
        }
    }
}

impl Stand {
    pub(super) const fn limit(&self) -> &Limit {
        match self {
            Self::Share(limit) | Self::Cap(limit) => limit,
        }
    }

    /// Leases are given back where they were taken, and a cap is nobody's limit.
    pub(super) const fn is_paid_back(&self) -> bool {
        match self {
            Self::Share(limit) => !matches!(limit, Limit::Concurrency(_)),
            Self::Cap(_) => false,
        }
    }

    pub(super) const fn tell(&self, outcome: Outcome) -> Outcome {
        let source = match self {
            Self::Share(_) => Source::Local,
            Self::Cap(_) => Source::Open,
        };
        Outcome { source, ..outcome }
    }
}
