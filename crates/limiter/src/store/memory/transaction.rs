//! Several charges at one instant: all of a request are kept, or none.

use super::Memory;
use super::overflow::denial;
use super::table::Lookup;
use super::table_kind::{self, TableKind, with_kind};
use crate::fingerprint::Fingerprint;
use crate::store::{Outcome, Settlement, Source};
use tollgate_core::{Charge, Cost, LeaseId, Policy, Receipt, propose};

/// The effect of a settlement on its charges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Commit {
    /// They are kept, if the request passes.
    Keep,
    /// They are decided only.
    DryRun,
}

impl Memory {
    /// Settles several charges at one instant, or only decides them.
    pub(crate) fn settle_all(&self, charges: &[Charge<Fingerprint>], commit: Commit, lease: LeaseId) -> Settlement {
        let mut locked = self.tables.lock_all(charges);
        let overflowing = if commit == Commit::Keep {
            self.overflowing(charges, &mut locked)
        } else {
            Vec::new()
        };
        if overflowing.contains(&true) {
            // The overflow counters may be in other shards: all are locked again, in order.
            drop(locked);
            return self.settle_with_overflow(charges, &overflowing, lease);
        }
        self.settle_with_locks(charges, &mut locked, commit, lease)
    }

    /// For each charge, true if its key is new and there is no capacity for it.
    pub(super) fn overflowing(
        &self,
        charges: &[Charge<Fingerprint>],
        locked: &mut table_kind::LockedShards<'_>,
    ) -> Vec<bool> {
        let now = self.instant();
        let mut new: Vec<(usize, usize, Fingerprint)> = Vec::new();
        let mut overflowing = Vec::with_capacity(charges.len());
        for charge in charges {
            let is_overflowing = with_kind!(&charge.limit, kind => {
                let (order, index) = table_kind::order(&self.tables, kind, charge.key);
                let table = locked.table_mut(kind, charge.key);
                let is_new = matches!(table.find(charge.key), Lookup::Vacant(_)) && charge.cost > Cost::ZERO;
                if is_new && !new.contains(&(order, index, charge.key)) {
                    new.push((order, index, charge.key));
                }
                let more = new.iter().filter(|(at, shard, _)| (*at, *shard) == (order, index)).count();
                is_new && !self.ensure_capacity(table, more, now)
            });
            overflowing.push(is_overflowing);
        }
        overflowing
    }

    /// Settles charges of which some have no capacity for their keys.
    #[cold]
    pub(super) fn settle_with_overflow(
        &self,
        charges: &[Charge<Fingerprint>],
        overflowing: &[bool],
        lease: LeaseId,
    ) -> Settlement {
        self.overflow
            .count(overflowing.iter().filter(|&&overflowing| overflowing).count());
        let is_overflowing = |key| {
            charges
                .iter()
                .zip(overflowing)
                .any(|(charge, &overflowing)| overflowing && charge.key == key)
        };
        let redirected: Vec<Charge<Fingerprint>> = charges
            .iter()
            .map(|charge| match is_overflowing(charge.key) {
                true => Charge {
                    key: self.secret.overflow_key(&charge.limit),
                    ..*charge
                },
                false => *charge,
            })
            .collect();
        let mut locked = self.tables.lock_all(&redirected);
        let now = self.instant();
        let has_capacity = |charge: &Charge<Fingerprint>, locked: &mut table_kind::LockedShards<'_>| with_kind!(&charge.limit, kind => self.has_overflow_counter(locked.table_mut(kind, charge.key), charge.key, now));
        let moved = || {
            charges
                .iter()
                .zip(&redirected)
                .map(|(charge, redirected)| charge.key != redirected.key)
        };
        let fits: Vec<bool> = redirected
            .iter()
            .zip(moved())
            .map(|(charge, moved)| !moved || has_capacity(charge, &mut locked))
            .collect();
        let (fitting, others): (Vec<_>, Vec<_>) = redirected.iter().zip(&fits).partition(|(_, fits)| **fits);
        // An enforced charge without capacity denies the request, and the others are only decided; a shadow does not.
        let is_denied = others.iter().any(|(charge, _)| charge.policy != Policy::Shadow);
        let fitting: Vec<Charge<Fingerprint>> = fitting.into_iter().map(|(charge, _)| *charge).collect();
        let commit = if is_denied { Commit::DryRun } else { Commit::Keep };
        let mut settlement = self.settle_with_locks(&fitting, &mut locked, commit, lease);
        settlement.allowed &= !is_denied;
        for (index, charge) in redirected
            .iter()
            .enumerate()
            .filter(|(index, _)| fits.get(*index) == Some(&false))
        {
            let denied = Outcome {
                decision: denial(&charge.limit, now),
                receipt: Receipt::without_mark(Cost::ZERO, lease),
                source: Source::Memory,
            };
            settlement.outcomes.insert(index, Ok(denied));
        }
        for (outcome, moved) in settlement.outcomes.iter_mut().zip(moved()) {
            if let (Ok(outcome), true) = (outcome, moved) {
                outcome.source = Source::Overflow;
            }
        }
        settlement
    }

    /// Settles charges whose shards are locked and have capacity for them.
    pub(super) fn settle_with_locks(
        &self,
        charges: &[Charge<Fingerprint>],
        locked: &mut table_kind::LockedShards<'_>,
        commit: Commit,
        lease: LeaseId,
    ) -> Settlement {
        // Read with all shards locked: one instant for all, and no key was written later.
        let now = self.instant();
        let proposal = propose(
            charges,
            |charge, cost| with_kind!(&charge.limit, kind => table_kind::decide(kind, locked.table(kind, charge.key), charge.key, cost, now)),
        );
        let mut outcomes = Vec::with_capacity(charges.len());
        for (charge, outcome) in charges.iter().zip(proposal.charges) {
            if let (Commit::Keep, Some(change)) = (commit, outcome.change) {
                with_kind!(&charge.limit, kind => {
                    let table = locked.table_mut(kind, charge.key);
                    let lookup = table.find(charge.key);
                    if let Some(change) = kind.unwrap_change(change) {
                        self.keep(kind, table, (charge.key, lookup), change, lease);
                    }
                });
            }
            let receipt = Receipt {
                cost: charge.cost,
                mark: outcome.mark,
                lease,
            };
            outcomes.push(Ok(Outcome {
                decision: outcome.decision,
                receipt,
                source: Source::Memory,
            }));
        }
        Settlement {
            allowed: proposal.allowed,
            now: now.at(),
            outcomes,
        }
    }
}
