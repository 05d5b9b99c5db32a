//! The identity of a counter: what makes two charges share one.

use crate::limit::Limit;
use crate::text::quantity::Period;

/// The identity of one counter.
///
/// Two charges share a counter if domain, rule, variant, algorithm, period and the values they are counted by are the
/// same. When only the numbers of a limit change, its counters continue, and so they do when it becomes one of several
/// windows.
#[derive(Clone, Copy, Debug)]
pub struct Counter<'a> {
    /// The domain; each has its own counters.
    pub domain: &'a str,
    /// The rule that has the limit.
    pub rule: &'a str,
    /// The variant of an experiment, or [`Counter::OTHERS`]. Empty without either.
    pub variant: &'a str,
    /// The limit: of it only the algorithm and the period.
    pub limit: &'a Limit,
    /// The values it is counted by, in the rule's order. Any bytes.
    pub per: &'a [&'a [u8]],
}

/// The first byte, so that another form of key cannot equal this one.
const VERSION: u8 = 1;

impl Counter<'_> {
    /// The variant of the counter of those attempts that may not use a rule's reserve.
    pub const OTHERS: &'static str = "others";

    /// The counter whose place in a store decides where this one is: both counters of a rule with a reserve are stored
    /// in one place, so that they are settled at one instant.
    #[must_use]
    pub fn placement(&self) -> Self {
        Self {
            variant: if self.variant == Self::OTHERS { "" } else { self.variant },
            ..*self
        }
    }

    /// Writes its bytes to `sink`: every part after its length, so that different counters differ.
    pub fn write(&self, mut sink: impl FnMut(&[u8])) {
        let mut part = |bytes: &[u8]| {
            sink(&(bytes.len() as u64).to_le_bytes());
            sink(bytes);
        };
        part(&[VERSION]);
        part(self.domain.as_bytes());
        part(self.rule.as_bytes());
        part(self.variant.as_bytes());
        part(self.limit.algorithm().as_bytes());
        match self.limit.counter_period() {
            Some(Period::Exact(period)) => part(&period.get().to_le_bytes()),
            Some(Period::Month) => part(b"month"),
            Some(Period::Year) => part(b"year"),
            None => part(&[]),
        }
        for value in self.per {
            part(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Concurrency, FixedWindow, Gcra, Micros, Rate, TokenBucket};
    use proptest::prelude::*;

    fn bytes(counter: Counter<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        counter.write(|piece| bytes.extend_from_slice(piece));
        bytes
    }

    fn with_limit(limit: Limit) -> Vec<u8> {
        bytes(Counter {
            domain: "default",
            rule: "plan",
            variant: "",
            limit: &limit,
            per: &[b"m_1"],
        })
    }

    fn rate(units: u64, seconds: u64) -> Rate {
        Rate::new(units, Micros::from_secs(seconds)).expect("in range")
    }

    #[test]
    fn numbers_are_not_identity_but_the_period_is() {
        let bucket = |units, seconds| with_limit(TokenBucket::new(rate(units, seconds)).into());
        assert_eq!(bucket(100, 60), bucket(1_000, 60));
        assert_ne!(bucket(100, 60), bucket(100, 3_600));
        let window = |units, seconds| with_limit(FixedWindow::new(rate(units, seconds)).into());
        assert_eq!(window(100, 60), window(1_000, 60));
        assert_ne!(window(100, 60), window(100, 3_600));
        assert_ne!(bucket(100, 60), with_limit(Gcra::new(rate(100, 60)).into()));
        let slots = |slots, seconds| {
            with_limit(
                Concurrency::new(slots, Micros::from_secs(seconds))
                    .expect("in range")
                    .into(),
            )
        };
        assert_eq!(slots(3, 60), slots(4, 30));
    }

    proptest! {
        #[test]
        fn any_bytes_are_just_data(
            a in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..6), 0..4),
            b in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..6), 0..4),
            rules in ("[a:]{0,3}", "[a:]{0,3}"),
        ) {
            let limit = TokenBucket::new(rate(1, 1)).into();
            let counter_bytes = |rule, per: &[Vec<u8>]| {
                let per: Vec<&[u8]> = per.iter().map(Vec::as_slice).collect();
                bytes(Counter { domain: "d", rule, variant: "", limit: &limit, per: &per })
            };
            prop_assert_eq!(counter_bytes(&rules.0, &a) == counter_bytes(&rules.1, &b), rules.0 == rules.1 && a == b);
        }
    }
}
