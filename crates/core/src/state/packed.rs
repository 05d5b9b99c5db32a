//! States as bytes in a shared store, the same that the Lua twins write and read.
//!
//! The numbers of [`StateNumbers`], each in as few bytes as its largest value needs, little-endian; a ring or a table of
//! leases as a header of numbers and its slots. Bytes come from outside, so every number is checked.

use crate::algorithm::{cell, fixed_window, sliding_counter};
use crate::limit::{Limit, State};
use crate::state::debt::{Debt, TimeFraction, UnitFraction};
use crate::state::leases::LeaseTable;
use crate::state::numbers::StateNumbers;
use crate::state::ring::Ring;
use crate::units::time::Timestamp;

/// Bytes of the numbers of each kind of state.
const UNIT_DEBT: &[usize] = &[7, 7, 4, 4, 6];
const TIME_DEBT: &[usize] = &[7, 7, 4, 4];
const NANO_DEBT: &[usize] = &[7, 7, 4];
const WIDE_CELL: &[usize] = &[7, 4, 6, 6, 4];
const FIXED_WINDOW: &[usize] = &[7, 7, 4];
const WIDE_FIXED_WINDOW: &[usize] = &[7, 7, 7];
const SLIDING_COUNTER: &[usize] = &[7, 7, 4, 4];
const WIDE_SLIDING_COUNTER: &[usize] = &[7, 7, 7, 7];

/// The largest count in four bytes.
const NARROW_MAX: u64 = u32::MAX as u64;

impl State {
    /// Appends the bytes of this state in a shared store.
    pub fn write_packed(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::TokenBucket(state) | Self::LeakyBucket(state) => write(state, UNIT_DEBT, bytes),
            Self::Gcra(state) => write(state, TIME_DEBT, bytes),
            Self::Cell(state @ cell::State::Narrow(_)) => write(state, NANO_DEBT, bytes),
            Self::Cell(state @ cell::State::Wide(_)) => write(state, WIDE_CELL, bytes),
            Self::FixedWindow(state) if state.used <= NARROW_MAX => write(state, FIXED_WINDOW, bytes),
            Self::FixedWindow(state) => write(state, WIDE_FIXED_WINDOW, bytes),
            Self::SlidingCounter(state) if state.previous.max(state.current) <= NARROW_MAX => {
                write(state, SLIDING_COUNTER, bytes);
            }
            Self::SlidingCounter(state) => write(state, WIDE_SLIDING_COUNTER, bytes),
            Self::SlidingLog(ring) => ring.write_packed(bytes),
            Self::Concurrency(leases) => leases.write_packed(bytes),
        }
    }
}

impl Limit {
    /// The number of its algorithm in scripts: its index in [`Limit::ALGORITHMS`], from one.
    pub const fn number(&self) -> u8 {
        match self {
            Self::TokenBucket(_) => 1,
            Self::Gcra(_) => 2,
            Self::FixedWindow(_) => 3,
            Self::SlidingCounter(_) => 4,
            Self::SlidingLog(_) => 5,
            Self::LeakyBucket(_) => 6,
            Self::Concurrency(_) => 7,
            Self::Cell(_) => 8,
        }
    }

    /// Its numbers as arguments of its twin, filled up with zeros. `around` is about the time that the twin decides at:
    /// of a calendar the twin gets the boundaries around it.
    pub fn numbers(&self, around: Timestamp) -> [u64; 4] {
        match self {
            Self::TokenBucket(limit) => limit.numbers(),
            Self::Gcra(limit) => limit.numbers(),
            Self::LeakyBucket(limit) => limit.numbers(),
            Self::Cell(limit) => limit.numbers(),
            Self::FixedWindow(limit) => match limit.calendar() {
                None => [limit.rate().units(), limit.rate().period().get(), 0, 0],
                Some(calendar) => {
                    let boundaries = calendar.boundaries_around(around);
                    let [first, ..] = boundaries;
                    let mut lengths = boundaries.windows(2).map(|pair| match *pair {
                        [one, next] => next.since(one).get() / 1_000_000,
                        _ => 0,
                    });
                    // Two lengths in seconds to a number: a year has less than 2^25.
                    let mut two = || lengths.next().unwrap_or(0) | (lengths.next().unwrap_or(0) << 25);
                    [limit.rate().units(), first.as_micros(), two(), two()]
                }
            },
            Self::SlidingCounter(limit) => [limit.rate().units(), limit.rate().period().get(), 0, 0],
            Self::SlidingLog(limit) => [
                limit.rate().units(),
                limit.rate().period().get(),
                limit.min_interval().get(),
                0,
            ],
            Self::Concurrency(limit) => [limit.slots(), limit.lease_ttl().get(), 0, 0],
        }
    }

    /// The bytes of most states of this limit; those with larger numbers have more. None where the size depends on the
    /// length of the state.
    pub const fn packed_bytes(&self) -> Option<usize> {
        match self {
            Self::TokenBucket(_) | Self::LeakyBucket(_) => Some(size(UNIT_DEBT)),
            Self::Gcra(_) => Some(size(TIME_DEBT)),
            Self::Cell(_) => Some(size(NANO_DEBT)),
            Self::FixedWindow(_) => Some(size(FIXED_WINDOW)),
            Self::SlidingCounter(_) => Some(size(SLIDING_COUNTER)),
            Self::SlidingLog(_) | Self::Concurrency(_) => None,
        }
    }

    /// Reads a state of this limit's algorithm. None if no limit wrote these bytes.
    pub fn read_packed(&self, bytes: &[u8]) -> Option<State> {
        Some(match self {
            Self::TokenBucket(_) => State::TokenBucket(read::<Debt<UnitFraction>>(bytes, UNIT_DEBT)?),
            Self::LeakyBucket(_) => State::LeakyBucket(read::<Debt<UnitFraction>>(bytes, UNIT_DEBT)?),
            Self::Gcra(_) => State::Gcra(read::<Debt<TimeFraction>>(bytes, TIME_DEBT)?),
            Self::Cell(_) => State::Cell(read(bytes, either(bytes, NANO_DEBT, WIDE_CELL))?),
            Self::FixedWindow(_) => {
                let widths = either(bytes, FIXED_WINDOW, WIDE_FIXED_WINDOW);
                State::FixedWindow(read::<fixed_window::State>(bytes, widths)?)
            }
            Self::SlidingCounter(_) => {
                let widths = either(bytes, SLIDING_COUNTER, WIDE_SLIDING_COUNTER);
                State::SlidingCounter(read::<sliding_counter::State>(bytes, widths)?)
            }
            Self::SlidingLog(_) => State::SlidingLog(Ring::read_packed(bytes)?),
            Self::Concurrency(_) => State::Concurrency(LeaseTable::read_packed(bytes)?),
        })
    }
}

/// The widths of a state in so many bytes: the wide ones if they are those, otherwise the narrow ones.
const fn either(bytes: &[u8], narrow: &'static [usize], wide: &'static [usize]) -> &'static [usize] {
    if bytes.len() == size(wide) { wide } else { narrow }
}

const fn size(mut widths: &[usize]) -> usize {
    let mut sum = 0;
    while let [width, rest @ ..] = widths {
        sum += *width;
        widths = rest;
    }
    sum
}

fn write(state: &impl StateNumbers, widths: &[usize], bytes: &mut Vec<u8>) {
    let mut numbers = Vec::with_capacity(widths.len());
    state.write_numbers(&mut numbers);
    for (number, &width) in numbers.iter().zip(widths) {
        push(bytes, *number, width);
    }
}

fn read<S: StateNumbers>(bytes: &[u8], widths: &[usize]) -> Option<S> {
    let mut rest = bytes;
    let mut numbers = Vec::with_capacity(widths.len());
    for &width in widths {
        numbers.push(pull(&mut rest, width)?);
    }
    if rest.is_empty() {
        S::from_numbers(&numbers)
    } else {
        None
    }
}

/// Appends numbers, each in as many bytes as its width.
pub(crate) fn push_all<const N: usize>(bytes: &mut Vec<u8>, numbers: [u64; N], widths: [usize; N]) {
    for (number, width) in numbers.into_iter().zip(widths) {
        push(bytes, number, width);
    }
}

/// Reads numbers from the front, each in as many bytes as its width. None if there are too few bytes.
pub(crate) fn pull_all<const N: usize>(bytes: &mut &[u8], widths: [usize; N]) -> Option<[u64; N]> {
    let mut numbers = [0; N];
    for (number, width) in numbers.iter_mut().zip(widths) {
        *number = pull(bytes, width)?;
    }
    Some(numbers)
}

/// Appends the low bytes of a number.
fn push(bytes: &mut Vec<u8>, number: u64, width: usize) {
    bytes.extend(number.to_le_bytes().iter().take(width));
}

/// Reads a number from the front. None if there are too few bytes.
fn pull(bytes: &mut &[u8], width: usize) -> Option<u64> {
    let (number, rest) = bytes.split_at_checked(width)?;
    *bytes = rest;
    Some(number.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte)))
}
