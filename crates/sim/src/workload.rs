//! Generated traffic: seeded draws of arrivals and service times, in integers.

/// A sequence of well-spread numbers (SplitMix64), and distributions drawn from it.
#[derive(Clone, Debug)]
pub struct Draws {
    state: u64,
    /// 2^(1/2), 2^(1/4), …, with 62 binary places.
    roots: [u64; ROOTS],
}

impl Draws {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Self {
        let mut root = 2_u128 << 62;
        let roots = std::array::from_fn(|_| {
            root = (root << 62).isqrt();
            u64::try_from(root).unwrap_or(u64::MAX)
        });
        Self { state: seed, roots }
    }

    /// The next 64 bits.
    pub const fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// The next 32 bits.
    pub const fn draw(&mut self) -> u32 {
        (self.bits() >> 32) as u32
    }

    /// A number below `end`, or zero.
    pub const fn below(&mut self, end: u64) -> u64 {
        ((self.bits() as u128 * end as u128) >> 64) as u64
    }

    /// The distance to the next of events that come at random, `mean` apart.
    pub const fn exponential(&mut self, mean: u64) -> u64 {
        // −ln(u) = (64 − log2(bits)) × ln 2.
        let below_one = (64 << 32) - log2(self.bits() | 1);
        ((mean as u128 * below_one as u128 * LN_2) >> 64) as u64
    }

    /// A log-normal number with this mean, whose logarithm has a standard deviation of one half: the 99th percentile is
    /// 2.8 times the mean.
    pub fn log_normal(&mut self, mean: u64) -> u64 {
        // Twelve uniform numbers have a variance of one.
        let sum: i128 = (0..12).map(|_| i128::from(self.draw())).sum();
        let normal = sum - (6_i128 << 32);
        // e^(z/2 − 1/8), as a power of two.
        let exponent = ((normal / 2 - (1 << 29)) * INV_LN_2) >> 32;
        self.scale(mean, exponent)
    }

    /// `mean × 2^exponent`, where the exponent has 32 binary places.
    fn scale(&self, mean: u64, exponent: i128) -> u64 {
        let fraction = exponent.rem_euclid(1 << 32);
        let mut factor = 1_u128 << 62;
        for (place, root) in (0..ROOTS).zip(self.roots) {
            if (fraction >> (31 - place)) & 1 == 1 {
                factor = (factor * u128::from(root)) >> 62;
            }
        }
        let scaled = (u128::from(mean) * factor) >> 32;
        // The other 30 binary places, and the whole part of the exponent.
        let shift = 30 - exponent.div_euclid(1 << 32);
        let scaled = match u32::try_from(shift) {
            Ok(shift) => scaled.checked_shr(shift).unwrap_or(0),
            Err(_) => u128::from(u64::MAX),
        };
        u64::try_from(scaled).unwrap_or(u64::MAX)
    }
}

/// The binary logarithm of a positive number, with 32 binary places.
const fn log2(number: u64) -> u64 {
    let whole = 63 - number.leading_zeros();
    // From one to two, with 63 binary places.
    let mut mantissa = (number << (63 - whole)) as u128;
    let mut bits = 0;
    let mut place = 0;
    while place < 32 {
        mantissa = (mantissa * mantissa) >> 63;
        bits <<= 1;
        if mantissa >> 64 == 1 {
            mantissa >>= 1;
            bits |= 1;
        }
        place += 1;
    }
    ((whole as u64) << 32) | bits
}

/// ln 2 and its inverse, with 32 binary places.
const LN_2: u128 = 2_977_044_472;
const INV_LN_2: i128 = 6_196_328_019;
const ROOTS: usize = 24;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithms_are_exact_for_powers_of_two() {
        for power in 0..64_u32 {
            assert_eq!(log2(1 << power), u64::from(power) << 32);
        }
        // log2 3 = 1.58496…
        assert_eq!(log2(3) >> 12, (1_584_962_500_u128 * (1 << 20) / 1_000_000_000) as u64);
    }

    /// 200,000 draws in order, with this mean.
    fn sorted_with_mean(expected: u64, mut draw: impl FnMut() -> u64) -> Vec<u64> {
        let mut drawn: Vec<u64> = (0..200_000).map(|_| draw()).collect();
        let mean = drawn.iter().sum::<u64>() / 200_000;
        assert!(mean.abs_diff(expected) < 10_000, "{mean}");
        drawn.sort_unstable();
        drawn
    }

    #[test]
    fn gaps_of_random_events_have_their_mean_and_median() {
        let mut draws = Draws::new(1);
        let gaps = sorted_with_mean(1_000_000, || draws.exponential(1_000_000));
        assert!(gaps[100_000].abs_diff(693_147) < 10_000, "{}", gaps[100_000]);
    }

    #[test]
    fn log_normal_times_have_their_mean_median_and_99th_percentile() {
        let mut draws = Draws::new(1);
        let times = sorted_with_mean(1_000_000, || draws.log_normal(1_000_000));
        // e^(−1/8), and e^(2.326/2 − 1/8).
        assert!(times[100_000].abs_diff(882_497) < 10_000, "{}", times[100_000]);
        assert!(times[198_000].abs_diff(2_824_000) < 60_000, "{}", times[198_000]);
    }

    #[test]
    fn a_seed_is_one_sequence() {
        let sequence = |seed| {
            std::iter::repeat_with(Draws::new(seed).next())
                .take(3)
                .collect::<Vec<_>>()
        };
        assert_eq!(sequence(7), sequence(7));
        assert_ne!(sequence(7), sequence(8));
    }

    impl Draws {
        fn next(mut self) -> impl FnMut() -> u64 {
            move || self.log_normal(1_000)
        }
    }
}
