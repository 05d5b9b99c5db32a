//! The result of settling: what was proposed for each charge, and what came of one that a store settled.

use super::source::Source;
use crate::algorithm::{Mark, Receipt};
use crate::decision::Decision;
use crate::limit::Change;

/// One charge after a store has settled it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The decision of the charge's limit, with the standing after it.
    pub decision: Decision,
    /// Identifies the charge, so that it can be undone.
    pub receipt: Receipt,
    /// The part of the system that decided.
    pub source: Source,
}

/// All charges of one request, decided at one instant and not kept yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// True if the request passes.
    pub allowed: bool,
    /// One entry per charge, in order.
    pub charges: Vec<ProposedCharge>,
}

/// One charge of a [`Proposal`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProposedCharge {
    /// The decision of the charge's limit.
    ///
    /// Its standing is the one after this charge and those of its key before it, or the present one if the charge is
    /// not kept. A denial that is kept leaves nothing remaining; its `reset_after` is the present one.
    pub decision: Decision,
    /// The position of the charge in its key, so that it can be undone once kept.
    pub mark: Mark,
    /// The change the store must make to the key.
    pub change: Option<Change>,
}
