//! Settling one request under several limits: it passes only if all pass, and then all are charged; else none is.

mod charge;
pub(crate) mod counter;
mod failure_policy;
mod outcome;
pub(crate) mod source;

pub use charge::{Charge, OnStoreFailure, Policy};
pub use failure_policy::{
    FailureAction, PortionRatio, StoreMode, failure_policy, failure_policy_with, undecided_source,
};
pub use outcome::{Outcome, Proposal, ProposedCharge};

use crate::algorithm::Step;
use crate::decision::{Cost, Decision};
use crate::limit::Change;

/// Decides all charges of one request at one instant, without keeping anything.
///
/// `decide` evaluates the limit of a charge for a cost against the state of its key; the store provides it. Charges of
/// the same key add up: the second is decided as if the first were taken.
pub fn propose<K: PartialEq>(charges: &[Charge<K>], decide: impl Fn(&Charge<K>, Cost) -> Step<Change>) -> Proposal {
    let mut steps: Vec<Step<Change>> = Vec::with_capacity(charges.len());
    for (index, charge) in charges.iter().enumerate() {
        let before = charges.iter().zip(&steps).take(index);
        let taken = before.filter(|(earlier, step)| earlier.key == charge.key && earlier.counts_toward_key(step));
        let cost = taken.fold(charge.cost, |sum, (earlier, _)| sum.plus(earlier.cost));
        // A peek after a charge of the same key sees that charge: it is decided as a part of it.
        steps.push(decide(charge, cost));
    }
    let allowed = charges
        .iter()
        .zip(&steps)
        .all(|(charge, step)| charge.policy == Policy::Shadow || step.decision.is_allow());
    let kept: Vec<bool> = charges
        .iter()
        .zip(&steps)
        .map(|(charge, step)| match charge.policy {
            Policy::Enforce => allowed,
            Policy::Shadow => allowed && step.decision.is_allow(),
            Policy::Count => true,
        })
        .collect();
    let proposed = charges.iter().zip(steps).enumerate().map(|(index, (charge, step))| {
        let is_kept = kept.get(index) == Some(&true);
        let of_key = || {
            charges
                .iter()
                .zip(&kept)
                .enumerate()
                .filter(|(_, (other, _))| other.key == charge.key)
        };
        let decision = match step.decision {
            Decision::Allow { delay, .. } if !is_kept => {
                let before = decide(charge, Cost::ZERO).decision;
                Decision::Allow {
                    standing: *before.standing(),
                    delay,
                }
            }
            decision if is_kept => decision.kept(),
            decision => decision,
        };
        // A key is changed once: by its last kept charge, which holds the sum of those before it, or otherwise by the
        // last one, if the clock was set back.
        let change = match of_key().filter(|(_, (_, kept))| **kept).last() {
            Some((last, _)) if last == index => step.next.or(step.repair),
            None if of_key().last().is_some_and(|(last, _)| last == index) => step.repair,
            _ => None,
        };
        ProposedCharge {
            decision,
            mark: step.mark,
            change,
        }
    });
    Proposal {
        allowed,
        charges: proposed.collect(),
    }
}
