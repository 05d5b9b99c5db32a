//! A debt of units in as few bytes as its numbers need, for large tables.

use super::{Debt, FLAGS, UnitFraction};
use crate::state::meter::Pace;
use crate::units::rate::PERIOD_MAX;
use crate::units::time::{Now, Timestamp};
use std::num::{NonZeroU32, NonZeroU64};

/// A [`Debt`] of units in 28 bytes instead of 32, with an alignment of four.
///
/// Its numbers have 212 bits in all: the end 53, the last write 52, the rest 32, the pace 30 and 45. The 13 bits of the
/// span that are left over lie above the end and above the last write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, packed(4))]
pub struct PackedDebt {
    /// The end; above it bits 32 to 42 of the span.
    until: u64,
    /// The last write; above it bits 43 and 44 of the span.
    at: u64,
    rest: u32,
    parts: NonZeroU32,
    /// The low bits of the span.
    span: u32,
}

/// Bits of the end.
const UNTIL_BITS: u32 = 53;
/// Bits of the last write.
const AT_BITS: u32 = 52;
/// The first bit of the span that lies above the end.
const SPAN_MIDDLE: u32 = u32::BITS;
/// The first bit of the span that lies above the last write.
const SPAN_TOP: u32 = SPAN_MIDDLE + (u64::BITS - UNTIL_BITS);

// Every debt fits: these are the largest numbers that limits and stored numbers can have.
const _: () = {
    assert!(Timestamp::MAX.as_micros() >> UNTIL_BITS == 0);
    assert!(Now::MAX.as_micros() >> AT_BITS == 0);
    assert!(PERIOD_MAX.get() >> SPAN_TOP >> (u64::BITS - AT_BITS) == 0);
    assert!(Pace::PARTS_MAX <= !FLAGS as u64);
};

impl PackedDebt {
    /// The time at which the work is done, under any limit.
    #[inline(always)]
    pub fn fresh_at(self) -> Timestamp {
        Debt::from(self).fresh_at()
    }
}

impl From<Debt<UnitFraction>> for PackedDebt {
    #[inline(always)]
    fn from(
        Debt {
            until_us,
            at,
            fraction: grain,
        }: Debt<UnitFraction>,
    ) -> Self {
        let span = grain.span.get();
        Self {
            until: until_us | span >> SPAN_MIDDLE << UNTIL_BITS,
            at: at.as_micros() | span >> SPAN_TOP << AT_BITS,
            rest: grain.rest,
            parts: grain.parts,
            span: span as u32,
        }
    }
}

impl From<PackedDebt> for Debt<UnitFraction> {
    #[inline(always)]
    fn from(packed: PackedDebt) -> Self {
        let span =
            packed.at >> AT_BITS << SPAN_TOP | packed.until >> UNTIL_BITS << SPAN_MIDDLE | u64::from(packed.span);
        Self {
            until_us: low(packed.until, UNTIL_BITS),
            at: Timestamp::from_micros(low(packed.at, AT_BITS)),
            fraction: UnitFraction {
                // Never zero: it was packed from one that is not.
                span: NonZeroU64::new(span).unwrap_or(NonZeroU64::MIN),
                parts: packed.parts,
                rest: packed.rest,
            },
        }
    }
}

#[inline(always)]
const fn low(word: u64, bits: u32) -> u64 {
    word & ((1 << bits) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StateNumbers;
    use proptest::prelude::*;

    fn check(numbers: [u64; 5]) {
        let debt = Debt::<UnitFraction>::from_numbers(&numbers).expect("numbers in range are a debt");
        let packed = PackedDebt::from(debt);
        assert_eq!(Debt::from(packed), debt);
        assert_eq!(packed.fresh_at(), debt.fresh_at());
        let mut encoded = Vec::new();
        packed.write_numbers(&mut encoded);
        assert_eq!(encoded, numbers);
        assert_eq!(PackedDebt::from_numbers(&numbers), Some(packed));
    }

    /// Any number up to `max`, and often one next to a power of two or the largest itself.
    fn up_to(max: u64) -> impl Strategy<Value = u64> {
        let edge = (0..u64::BITS, 0..3_u64).prop_map(move |(bit, less)| ((1 << bit) - less.min(1 << bit)).min(max));
        prop_oneof![0..=max, edge, Just(max)]
    }

    #[test]
    fn a_slot_has_no_byte_to_spare() {
        assert_eq!((size_of::<PackedDebt>(), align_of::<PackedDebt>()), (28, 4));
        assert_eq!(size_of::<Option<PackedDebt>>(), 28);
    }

    #[test]
    fn the_largest_and_the_smallest_numbers_fit() {
        let (units_max, span_max) = (Pace::PARTS_MAX, PERIOD_MAX.get());
        let (until, at) = (Timestamp::MAX.as_micros(), Now::MAX.as_micros());
        let rest = u64::from(FLAGS) | (units_max - 1);
        for numbers in [
            [until, at, rest, units_max, span_max],
            [until, 0, 0, 1, 1],
            [0, 0, 0, 1, span_max],
            [0, 0, u64::from(FLAGS), units_max, 1],
            [at, at, rest, units_max, 1 << 32],
            [at, at, 0, 1, 1 << 43],
            [at, at, 0, 1, 1 << 44],
        ] {
            check(numbers);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4_096, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn every_debt_that_can_be_is_the_same_unpacked(
            times in (up_to(Timestamp::MAX.as_micros()), up_to(Now::MAX.as_micros())),
            rest in up_to(u64::from(!FLAGS)), flags in 0..4_u64,
            parts in up_to(Pace::PARTS_MAX - 1), span in up_to(PERIOD_MAX.get() - 1),
        ) {
            let (until, at) = (times.0.max(times.1), times.1);
            let parts = parts + 1;
            check([until, at, (flags << 30) | (rest % parts), parts, span + 1]);
        }
    }
}
