//! The stored work of a meter, which the oracles of the meters share: what is outstanding, and what each charge of it is.

use crate::algorithm::LeaseId;
use std::ops::{Add, Sub};

/// Outstanding work as it was last written, in the parts of its oracle.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work<T> {
    /// A level, or the time at which the work ends.
    pub(super) end: T,
    /// The last charge, and the end without it.
    pub(super) last: Option<(LeaseId, T)>,
    /// Units were refunded: the position of each charge is then unknown.
    pub(super) has_refund: bool,
    /// There were charges of different paces: the work of each is then unknown.
    pub(super) has_mixed_paces: bool,
    pub(super) written_at: u64,
}

/// A charge: work that starts when the work before it is done.
#[derive(Clone, Copy, Debug)]
pub(super) struct MeterCharge<T> {
    /// The start of its work.
    starts_at: T,
    /// The duration of its work.
    duration: T,
    /// The time of the charge.
    pub(super) taken_at: u64,
    id: LeaseId,
}

impl<T> MeterCharge<T> {
    pub(super) fn new(id: LeaseId, starts_at: T, duration: T, taken_at: u64) -> Self {
        Self {
            starts_at,
            duration,
            taken_at,
            id,
        }
    }
}

impl<T> Work<T> {
    /// The work after a charge at `now`, where `before` was stored.
    pub(super) fn charged(before: Option<Self>, end: T, last: (LeaseId, T), now: u64) -> Self {
        Self {
            end,
            last: Some(last),
            has_refund: before.as_ref().is_some_and(|before| before.has_refund),
            has_mixed_paces: before.is_some_and(|before| before.has_mixed_paces),
            written_at: now,
        }
    }

    /// The work with another end after a refund or an undo. The time of the write stays.
    pub(super) fn returned(self, end: T) -> Self {
        Self {
            end,
            last: None,
            has_refund: true,
            ..self
        }
    }
}

impl<T: Copy + Default + Ord + Add<Output = T> + Sub<Output = T>> Work<T> {
    /// The end without a charge, whose time and `now` are given in parts. None if nothing of the charge remains.
    ///
    /// Of the last charge the end without it is known. Of an earlier charge, the work that is not done yet is removed; if
    /// its position is unknown, its work counts as started when it was taken.
    pub(super) fn without(&self, charge: &MeterCharge<T>, taken_at: T, now: T) -> Option<T> {
        match self.last {
            Some((id, without)) if id == charge.id => return Some(without),
            _ if self.has_mixed_paces => return None,
            _ => (),
        }
        let starts_at = if self.has_refund { taken_at } else { charge.starts_at };
        let ends_at = starts_at + charge.duration;
        let unfinished = (ends_at > now).then(|| (ends_at - now).min(charge.duration))?;
        Some(if self.end > unfinished {
            self.end - unfinished
        } else {
            T::default()
        })
    }

    /// Moves both ends back by this much.
    pub(super) fn move_ends(&mut self, by: T) {
        self.end = self.end - by;
        if let Some((_, without)) = &mut self.last {
            *without = *without - by;
        }
    }
}
