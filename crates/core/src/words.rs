//! States as a few whole numbers below 2^53 (but for the ids of leases): what a snapshot or another store keeps of them.
//!
//! Numbers come back from outside, so every one is checked: a state that no limit could have written is refused.

use crate::algorithm::{LeaseId, fixed_window, sliding_counter};
use crate::debt::{ByNanos, ByTime, ByUnits, Debt, Grain, PackedDebt};
use crate::rate::Rate;
use crate::ring::{Ring, Run, Shape};
use crate::time::{Now, Timestamp};
use std::num::NonZeroU32;

/// A state that can be written as numbers and read again.
pub trait Words: Sized {
    /// Appends its numbers.
    fn write_words(&self, words: &mut Vec<u64>);

    /// The state of exactly these numbers. Nothing if they are not those of a state.
    fn from_words(words: &[u64]) -> Option<Self>;
}

/// A moment that was read, not capped: a number too large is no moment.
fn moment(us: u64) -> Option<Timestamp> {
    (us <= Timestamp::MAX.as_micros()).then(|| Timestamp::from_micros(us))
}

/// The time of a write that was read: none is later than `now` can be.
fn written(us: u64) -> Option<Timestamp> {
    (us <= Now::MAX.as_micros()).then(|| Timestamp::from_micros(us))
}

/// A number of units that was read.
fn units(units: u64) -> Option<u64> {
    (units <= Rate::MOST).then_some(units)
}

impl Words for Debt<ByUnits> {
    fn write_words(&self, words: &mut Vec<u64>) {
        let (parts, span) = (self.grain.parts().get(), self.grain.span());
        words.extend([
            self.until_us,
            self.at.as_micros(),
            self.grain.rest().into(),
            parts,
            span,
        ]);
    }

    fn from_words(words: &[u64]) -> Option<Self> {
        let &[until, at, rest, parts, span] = words else {
            return None;
        };
        Self::checked(until, at, rest, ByUnits::from_numbers(whole_parts(parts)?, span)?)
    }
}

impl Words for PackedDebt {
    fn write_words(&self, words: &mut Vec<u64>) {
        Debt::from(*self).write_words(words);
    }

    fn from_words(words: &[u64]) -> Option<Self> {
        Debt::from_words(words).map(Self::from)
    }
}

impl Words for Debt<ByTime> {
    fn write_words(&self, words: &mut Vec<u64>) {
        words.extend([
            self.until_us,
            self.at.as_micros(),
            self.grain.rest().into(),
            self.grain.parts().get(),
        ]);
    }

    fn from_words(words: &[u64]) -> Option<Self> {
        let &[until, at, rest, parts] = words else { return None };
        Self::checked(until, at, rest, ByTime::over(whole_parts(parts)?))
    }
}

impl Words for Debt<ByNanos> {
    fn write_words(&self, words: &mut Vec<u64>) {
        words.extend([self.until_us, self.at.as_micros(), self.grain.rest().into()]);
    }

    fn from_words(words: &[u64]) -> Option<Self> {
        let &[until, at, rest] = words else { return None };
        Self::checked(until, at, rest, ByNanos::NEW)
    }
}

fn whole_parts(parts: u64) -> Option<NonZeroU32> {
    u32::try_from(units(parts)?).ok().and_then(NonZeroU32::new)
}

impl Words for fixed_window::State {
    fn write_words(&self, words: &mut Vec<u64>) {
        words.extend([self.due.as_micros(), self.at.as_micros(), self.used]);
    }

    fn from_words(words: &[u64]) -> Option<Self> {
        let &[due, at, used] = words else { return None };
        Some(Self {
            due: moment(due)?,
            at: written(at)?,
            // Windows of envoyproxy/ratelimit hold more than others.
            used: u32::try_from(used).ok()?.into(),
        })
    }
}

impl Words for sliding_counter::State {
    fn write_words(&self, words: &mut Vec<u64>) {
        words.extend([
            self.end.as_micros(),
            self.at.as_micros(),
            self.previous.into(),
            self.current.into(),
        ]);
    }

    fn from_words(words: &[u64]) -> Option<Self> {
        let &[end, at, previous, current] = words else {
            return None;
        };
        if at >= end {
            return None;
        }
        let narrow = |count| units(count).and_then(|count| u32::try_from(count).ok());
        Some(Self {
            end: moment(end)?,
            at: written(at)?,
            previous: narrow(previous)?,
            current: narrow(current)?,
        })
    }
}

/// Words of a ring before its runs, and words of a run.
const HEAD: usize = 4;
const RUN: usize = 3;

impl Words for Ring {
    fn write_words(&self, words: &mut Vec<u64>) {
        let (time_bits, total_bits, leased) = self.shape().numbers();
        let shape = u64::from(time_bits) | u64::from(total_bits) << 8 | u64::from(leased) << 16;
        // Counts are written from zero: only their differences mean anything.
        words.extend([
            shape,
            self.at().as_micros(),
            self.total() - self.base(),
            self.runs() as u64,
        ]);
        for run in self.iter() {
            words.extend([run.time.as_micros(), run.total.saturating_sub(self.base()), run.lease.0]);
        }
    }

    fn from_words(words: &[u64]) -> Option<Self> {
        let (&[shape, at, total, runs], rest) = words.split_first_chunk::<HEAD>()?;
        let shape = Shape::from_numbers(
            shape as u8,
            (shape >> 8) as u8,
            match shape >> 16 {
                0 => false,
                1 => true,
                _ => return None,
            },
        )?;
        let (list, []) = rest.as_chunks::<RUN>() else {
            return None;
        };
        if list.len() as u64 != runs {
            return None;
        }
        let runs = list.iter().map(|&[time, total, lease]| {
            Some(Run {
                time: moment(time)?,
                total: units(total)?,
                lease: LeaseId(lease),
            })
        });
        Self::from_runs(shape, written(at)?, units(total)?, runs.collect::<Option<Vec<Run>>>()?)
    }
}
