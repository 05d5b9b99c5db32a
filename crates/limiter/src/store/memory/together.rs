//! Several charges at one moment: all of a request, or none.

use super::Memory;
use super::kinds::{self, Kind, with_kind};
use super::overflow::refusal;
use super::table::Place;
use crate::fingerprint::Fingerprint;
use crate::store::{Outcome, Settled, Source};
use tollgate_core::{Charge, Cost, LeaseId, Mark, Policy, Receipt, propose};

/// What several charges are settled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Aim {
    /// To be kept.
    Keep,
    /// To be looked at.
    Look,
}

impl Memory {
    /// Settles several charges at one moment, or looks at how they would be.
    pub(crate) fn settle_all(&self, charges: &[Charge<Fingerprint>], aim: Aim, lease: LeaseId) -> Settled {
        let mut held = self.tables.lock_all(charges);
        let spilled = if aim == Aim::Keep {
            self.spilled(charges, &mut held)
        } else {
            Vec::new()
        };
        if spilled.contains(&true) {
            // On the counters that new keys share, which may be in other shards: all are locked anew, in order.
            drop(held);
            return self.settle_spilled(charges, &spilled, lease);
        }
        self.settle_held(charges, &mut held, aim, lease)
    }

    /// For each charge whether its key is new and there is no room for it.
    pub(super) fn spilled(&self, charges: &[Charge<Fingerprint>], held: &mut kinds::Held<'_>) -> Vec<bool> {
        let now = self.moment();
        let mut new: Vec<(usize, usize, Fingerprint)> = Vec::new();
        let mut spilled = Vec::with_capacity(charges.len());
        for charge in charges {
            let is_spilled = with_kind!(&charge.limit, kind => {
                let (order, index) = kinds::order(&self.tables, kind, charge.key);
                let table = held.table_mut(kind, charge.key);
                let is_new = matches!(table.find(charge.key), Place::Missing(_)) && charge.cost > Cost::ZERO;
                if is_new && !new.contains(&(order, index, charge.key)) {
                    new.push((order, index, charge.key));
                }
                let more = new.iter().filter(|(at, shard, _)| (*at, *shard) == (order, index)).count();
                is_new && !self.make_room(table, more, now)
            });
            spilled.push(is_spilled);
        }
        spilled
    }

    /// Settles charges of which some found no room.
    #[cold]
    pub(super) fn settle_spilled(&self, charges: &[Charge<Fingerprint>], spilled: &[bool], lease: LeaseId) -> Settled {
        self.spill.count(spilled.iter().filter(|&&spilled| spilled).count());
        let is_spilled = |key| {
            charges
                .iter()
                .zip(spilled)
                .any(|(charge, &spilled)| spilled && charge.key == key)
        };
        let shared: Vec<Charge<Fingerprint>> = charges
            .iter()
            .map(|charge| match is_spilled(charge.key) {
                true => Charge {
                    key: self.secret.overflow_key(&charge.limit),
                    ..*charge
                },
                false => *charge,
            })
            .collect();
        let mut held = self.tables.lock_all(&shared);
        let now = self.moment();
        let has_room = |charge: &Charge<Fingerprint>, held: &mut kinds::Held<'_>| with_kind!(&charge.limit, kind => self.has_shared(held.table_mut(kind, charge.key), charge.key, now));
        let moved = || {
            charges
                .iter()
                .zip(&shared)
                .map(|(charge, shared)| charge.key != shared.key)
        };
        let fits: Vec<bool> = shared
            .iter()
            .zip(moved())
            .map(|(charge, moved)| !moved || has_room(charge, &mut held))
            .collect();
        let (roomy, others): (Vec<_>, Vec<_>) = shared.iter().zip(&fits).partition(|(_, fits)| **fits);
        // One that binds and has no room refuses the request, and the others are only looked at; a shadow does not bind.
        let is_refused = others.iter().any(|(charge, _)| charge.policy != Policy::Shadow);
        let roomy: Vec<Charge<Fingerprint>> = roomy.into_iter().map(|(charge, _)| *charge).collect();
        let aim = if is_refused { Aim::Look } else { Aim::Keep };
        let mut settled = self.settle_held(&roomy, &mut held, aim, lease);
        settled.passes &= !is_refused;
        for (place, charge) in shared
            .iter()
            .enumerate()
            .filter(|(place, _)| fits.get(*place) == Some(&false))
        {
            let refused = Outcome {
                decision: refusal(&charge.limit, now),
                receipt: Receipt {
                    cost: Cost::ZERO,
                    mark: Mark::default(),
                    lease,
                },
                source: Source::Memory,
            };
            settled.outcomes.insert(place, Ok(refused));
        }
        for (outcome, moved) in settled.outcomes.iter_mut().zip(moved()) {
            if let (Ok(outcome), true) = (outcome, moved) {
                outcome.source = Source::Overflow;
            }
        }
        settled
    }

    /// Settles charges whose shards are locked and have room for them.
    pub(super) fn settle_held(
        &self,
        charges: &[Charge<Fingerprint>],
        held: &mut kinds::Held<'_>,
        aim: Aim,
        lease: LeaseId,
    ) -> Settled {
        // Read with all locks held: one moment for all, and none of them has been written later.
        let now = self.moment();
        let settlement = propose(
            charges,
            |charge, cost| with_kind!(&charge.limit, kind => kinds::decide(kind, held.table(kind, charge.key), charge.key, cost, now)),
        );
        let mut outcomes = Vec::with_capacity(charges.len());
        for (charge, outcome) in charges.iter().zip(settlement.charges) {
            if let (Aim::Keep, Some(change)) = (aim, outcome.change) {
                with_kind!(&charge.limit, kind => {
                    let table = held.table_mut(kind, charge.key);
                    let place = table.find(charge.key);
                    if let Some(change) = kind.own_change(change) {
                        self.keep(kind, table, (charge.key, place), change, lease);
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
        Settled {
            passes: settlement.allowed,
            now: now.at(),
            outcomes,
        }
    }
}
