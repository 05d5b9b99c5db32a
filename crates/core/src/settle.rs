//! Settling one request under several limits: it passes only if all pass, and then all are charged; else none is.

pub(crate) mod counter;
pub(crate) mod source;

use crate::algorithm::{Mark, Step};
use crate::decision::{Cost, Decision, Standing};
use crate::limit::{Change, Limit};
use crate::units::rate::Rate;

/// One limit that a request meets, and what it costs there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge<K> {
    /// The key of the counter.
    pub key: K,
    /// The limit it is held against.
    pub limit: Limit,
    /// What it takes.
    pub cost: Cost,
    /// What a refusal by this limit means.
    pub policy: Policy,
    /// What decides if the store cannot.
    pub on_failure: OnStoreFailure,
}

/// What a rule does while the store is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnStoreFailure {
    /// Each instance enforces its share.
    Local,
    /// All pass, at most at this rate if there is one.
    Open {
        /// The cap of each instance.
        cap: Option<Rate>,
    },
    /// None passes.
    Closed,
}

/// What a refusal means, and when the charge is kept. Charges of one key come from one rule and so share a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// A refusal refuses the request; charged if the request passes.
    Enforce,
    /// Never refuses; charged if the request passes and this limit would have let it.
    Shadow,
    /// A refusal refuses the request; charged in any case.
    Count,
}

/// What settling a request comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// Whether the request passes.
    pub allowed: bool,
    /// For each charge, in order.
    pub charges: Vec<ProposedCharge>,
}

/// What settling one charge comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProposedCharge {
    /// What this limit says. Its standing is the one after this charge and those of its key before it, or as it was, if
    /// the charge is not kept. A refusal that is kept leaves nothing remaining; its `reset_after` is as it was.
    pub decision: Decision,
    /// Where the charge stands if it was kept, for taking it back.
    pub mark: Mark,
    /// What the store must do to the key.
    pub change: Option<Change>,
}

/// Decides all charges of one request at one moment, without keeping anything.
///
/// `decide` asks the limit of a charge for a cost, with what its key holds at that moment: a store reads it in its own
/// way. Charges of the same key add up: the second is decided as if the first were taken.
pub fn propose<K: PartialEq>(charges: &[Charge<K>], decide: impl Fn(&Charge<K>, Cost) -> Step<Change>) -> Proposal {
    let mut steps: Vec<Step<Change>> = Vec::with_capacity(charges.len());
    for (index, charge) in charges.iter().enumerate() {
        let before = charges.iter().zip(&steps).take(index);
        let taken = before.filter(|(earlier, step)| earlier.key == charge.key && earlier.counts_toward_key(step));
        let cost = taken.fold(charge.cost, |sum, (earlier, _)| sum.plus(earlier.cost));
        // A peek behind a charge of the same key sees that charge: it is asked as a part of it.
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
            Decision::Deny { standing, retry } if is_kept => Decision::Deny {
                standing: Standing {
                    remaining: 0,
                    ..standing
                },
                retry,
            },
            decision => decision,
        };
        // A key is changed once: by its last kept charge, which holds the sum of those before it, or else by the last
        // one, if the clock was set back.
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

impl<K: Copy> Charge<K> {
    /// The same for nothing: a look at how its key stands.
    pub fn as_peek(&self) -> Self {
        Self {
            cost: Cost::ZERO,
            ..*self
        }
    }
}

impl<K> Charge<K> {
    /// Whether later charges of the same key must reckon with this one.
    fn counts_toward_key(&self, step: &Step<Change>) -> bool {
        match self.policy {
            Policy::Enforce | Policy::Count => true,
            Policy::Shadow => step.decision.is_allow(),
        }
    }
}
