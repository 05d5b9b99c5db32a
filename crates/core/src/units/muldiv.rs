//! The one arithmetic primitive of every decision: `a * b / n` without rounding the product.
//!
//! Not a general big-number module: quotient and remainder of one product are all an algorithm ever needs, and all
//! that its Lua twin can do exactly (doubles below 2^53, limbs above).

use std::num::NonZeroU64;

/// The quotient and the remainder of `a * b` divided by `n`.
///
/// The product is never rounded. A quotient that does not fit is capped at `u64::MAX`; the limits that can be made
/// keep every quotient below 2^53.
///
/// ```
/// use std::num::NonZeroU64;
/// use tollgate_core::muldiv;
///
/// // One unit of "7 per second" takes 142,857 µs and one seventh of a microsecond.
/// let seven = NonZeroU64::new(7).ok_or("zero")?;
/// assert_eq!(muldiv(1, 1_000_000, seven), (142_857, 1));
/// # Ok::<(), &str>(())
/// ```
#[inline]
pub const fn muldiv(a: u64, b: u64, n: NonZeroU64) -> (u64, u64) {
    if let Some(product) = a.checked_mul(b) {
        return (product / n.get(), product % n.get());
    }
    muldiv_u128(a, b, n.get())
}

/// The same where the product needs more than 64 bits: out of line, since decisions rarely need it.
#[cold]
#[inline(never)]
const fn muldiv_u128(a: u64, b: u64, n: u64) -> (u64, u64) {
    let product = a as u128 * b as u128;
    let quotient = product / n as u128;
    let quotient = if quotient > u64::MAX as u128 {
        u64::MAX
    } else {
        quotient as u64
    };
    (quotient, (product % n as u128) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn n(n: u64) -> NonZeroU64 {
        NonZeroU64::new(n).expect("not zero")
    }

    #[test]
    fn divides_products_wider_than_a_word() {
        let year = 366 * 86_400 * 1_000_000;
        assert_eq!(muldiv(1_000_000_000, year, n(1_000_000_000)), (year, 0));
        assert_eq!(
            muldiv(999_999_999, year, n(1_000_000_000)),
            (year - 31_623, 600_000_000)
        );
        assert_eq!(muldiv(u64::MAX, u64::MAX, n(u64::MAX)), (u64::MAX, 0));
    }

    #[test]
    fn caps_a_quotient_that_does_not_fit() {
        assert_eq!(muldiv(u64::MAX, 2, n(1)), (u64::MAX, 0));
    }

    proptest! {
        #[test]
        fn quotient_and_remainder_give_the_product_back(a: u64, b: u64, d in 1u64..) {
            let (q, r) = muldiv(a, b, n(d));
            prop_assert!(r < d);
            if q < u64::MAX {
                prop_assert_eq!(u128::from(q) * u128::from(d) + u128::from(r), u128::from(a) * u128::from(b));
            }
        }
    }
}
