//! States as integers below 2^53 (except lease ids), for snapshots and other stores.
//!
//! Numbers are read from outside, so every one is checked: a state that no limit can have written is rejected.

use crate::algorithm::concurrency::Concurrency;
use crate::algorithm::{LeaseId, fixed_window, sliding_counter};
use crate::state::debt::{Debt, Fraction, NanoFraction, PackedDebt, TimeFraction, UnitFraction};
use crate::state::leases::{self, LeaseTable};
use crate::state::meter::Pace;
use crate::state::ring::{Ring, Run, Shape};
use crate::units::rate::Rate;
use crate::units::time::{Now, Timestamp};
use std::num::NonZeroU32;

/// A state that can be written as numbers and read back.
pub trait StateNumbers: Sized {
    /// Appends its numbers.
    fn write_numbers(&self, numbers: &mut Vec<u64>);

    /// The state of exactly these numbers. None if they are not those of a state.
    fn from_numbers(numbers: &[u64]) -> Option<Self>;
}

/// A time read from outside. A number that is too large is rejected, not capped.
fn checked_timestamp(us: u64) -> Option<Timestamp> {
    (us <= Timestamp::MAX.as_micros()).then(|| Timestamp::from_micros(us))
}

/// The time of a write, read from outside: not later than `now` can be.
fn checked_write_time(us: u64) -> Option<Timestamp> {
    (us <= Now::MAX.as_micros()).then(|| Timestamp::from_micros(us))
}

/// A number of units, read from outside.
fn checked_units(units: u64) -> Option<u64> {
    (units <= Rate::UNITS_MAX).then_some(units)
}

/// The requests of a ring, read from outside.
fn checked_total(total: u64) -> Option<u64> {
    (total <= TOTAL_MAX).then_some(total)
}

impl StateNumbers for Debt<UnitFraction> {
    fn write_numbers(&self, numbers: &mut Vec<u64>) {
        let (parts, span) = (self.fraction.parts().get(), self.fraction.span());
        numbers.extend([
            self.until_us,
            self.at.as_micros(),
            self.fraction.rest().into(),
            parts,
            span,
        ]);
    }

    fn from_numbers(numbers: &[u64]) -> Option<Self> {
        let &[until, at, rest, parts, span] = numbers else {
            return None;
        };
        Self::from_parts(
            until,
            at,
            rest,
            UnitFraction::from_numbers(checked_parts(parts)?, span)?,
        )
    }
}

impl StateNumbers for PackedDebt {
    fn write_numbers(&self, numbers: &mut Vec<u64>) {
        Debt::from(*self).write_numbers(numbers);
    }

    fn from_numbers(numbers: &[u64]) -> Option<Self> {
        Debt::from_numbers(numbers).map(Self::from)
    }
}

impl StateNumbers for Debt<TimeFraction> {
    fn write_numbers(&self, numbers: &mut Vec<u64>) {
        numbers.extend([
            self.until_us,
            self.at.as_micros(),
            self.fraction.rest().into(),
            self.fraction.parts().get(),
        ]);
    }

    fn from_numbers(numbers: &[u64]) -> Option<Self> {
        let &[until, at, rest, parts] = numbers else {
            return None;
        };
        Self::from_parts(until, at, rest, TimeFraction::with_parts(checked_parts(parts)?))
    }
}

impl StateNumbers for Debt<NanoFraction> {
    fn write_numbers(&self, numbers: &mut Vec<u64>) {
        numbers.extend([self.until_us, self.at.as_micros(), self.fraction.rest().into()]);
    }

    fn from_numbers(numbers: &[u64]) -> Option<Self> {
        let &[until, at, rest] = numbers else { return None };
        Self::from_parts(until, at, rest, NanoFraction::NEW)
    }
}

fn checked_parts(parts: u64) -> Option<NonZeroU32> {
    let parts = u32::try_from(parts).ok().and_then(NonZeroU32::new);
    parts.filter(|parts| u64::from(parts.get()) <= Pace::PARTS_MAX)
}

impl StateNumbers for fixed_window::State {
    fn write_numbers(&self, numbers: &mut Vec<u64>) {
        numbers.extend([self.due.as_micros(), self.at.as_micros(), self.used]);
    }

    fn from_numbers(numbers: &[u64]) -> Option<Self> {
        let &[due, at, used] = numbers else { return None };
        Some(Self {
            due: checked_timestamp(due)?,
            at: checked_write_time(at)?,
            used: checked_units(used)?,
        })
    }
}

impl StateNumbers for sliding_counter::State {
    fn write_numbers(&self, numbers: &mut Vec<u64>) {
        numbers.extend([self.end.as_micros(), self.at.as_micros(), self.previous, self.current]);
    }

    fn from_numbers(numbers: &[u64]) -> Option<Self> {
        let &[end, at, previous, current] = numbers else {
            return None;
        };
        if at >= end {
            return None;
        }
        Some(Self {
            end: checked_timestamp(end)?,
            at: checked_write_time(at)?,
            previous: checked_units(previous)?,
            current: checked_units(current)?,
        })
    }
}

/// The most requests of a ring, with those that have left it since its counts last began at zero.
const TOTAL_MAX: u64 = 1_000_000_000;

/// Numbers of a ring before its runs, and of a run.
const HEAD_NUMBERS: usize = 4;
const RUN_NUMBERS: usize = 2;

impl StateNumbers for Ring {
    fn write_numbers(&self, numbers: &mut Vec<u64>) {
        let (time_bits, total_bits) = self.shape().numbers();
        let shape = u64::from(time_bits) | u64::from(total_bits) << 8;
        // Counts are written from zero: only their differences matter.
        numbers.extend([
            shape,
            self.at().as_micros(),
            self.total() - self.base(),
            self.run_count() as u64,
        ]);
        for run in self.iter() {
            numbers.extend([run.time.as_micros(), run.total.saturating_sub(self.base())]);
        }
    }

    fn from_numbers(numbers: &[u64]) -> Option<Self> {
        let (&[shape, at, total, runs], rest) = numbers.split_first_chunk::<HEAD_NUMBERS>()?;
        if shape >> 16 != 0 {
            return None;
        }
        let shape = Shape::from_numbers(shape as u8, (shape >> 8) as u8)?;
        let (list, []) = rest.as_chunks::<RUN_NUMBERS>() else {
            return None;
        };
        if list.len() as u64 != runs {
            return None;
        }
        let runs = list.iter().map(|&[time, total]| {
            Some(Run {
                time: checked_timestamp(time)?,
                total: checked_total(total)?,
            })
        });
        Self::from_runs(
            shape,
            checked_write_time(at)?,
            checked_total(total)?,
            runs.collect::<Option<Vec<Run>>>()?,
        )
    }
}

/// Numbers of a table before its leases, and of a lease.
const TABLE_NUMBERS: usize = 2;
const LEASE_NUMBERS: usize = 3;

impl StateNumbers for LeaseTable {
    fn write_numbers(&self, numbers: &mut Vec<u64>) {
        numbers.extend([self.len() as u64, self.at().as_micros()]);
        for (end, units, lease) in self.iter() {
            numbers.extend([end.as_micros(), units.into(), lease.0]);
        }
    }

    fn from_numbers(numbers: &[u64]) -> Option<Self> {
        let (&[len, at], rest) = numbers.split_first_chunk::<TABLE_NUMBERS>()?;
        let (list, []) = rest.as_chunks::<LEASE_NUMBERS>() else {
            return None;
        };
        if list.len() as u64 != len {
            return None;
        }
        let leases = list
            .iter()
            .map(|&[end, units, lease]| Some((checked_timestamp(end)?, u16::try_from(units).ok()?, LeaseId(lease))));
        let leases = leases.collect::<Option<Vec<_>>>()?;
        leases::from_leases(checked_write_time(at)?, &leases, Concurrency::SLOTS_MAX)
    }
}
