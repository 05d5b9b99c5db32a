//! The requests of one key that the server may still have to count.

use crate::units::time::Micros;

/// Requests by the time they were sent, in slices. A request leaves it when its response arrives, or when it has been
/// in it for the whole span: the server has counted it by then.
#[derive(Clone, Debug)]
pub(super) struct InTransit {
    slice_us: u64,
    slices: [TransitSlice; RING],
}

#[derive(Clone, Copy, Debug, Default)]
struct TransitSlice {
    number: u64,
    count: u64,
}

impl InTransit {
    pub(super) fn new(span: Micros) -> Self {
        Self {
            slice_us: span.get().div_ceil(SLICES).max(1),
            slices: [TransitSlice::default(); RING],
        }
    }

    /// Adds a request that is sent now. What has expired must have been taken out before.
    pub(super) fn add(&mut self, now: Micros) {
        let number = now.get() / self.slice_us;
        if let Some(slice) = self.slice(number) {
            slice.number = number;
            slice.count += 1;
        }
    }

    /// Removes a request whose response arrived. False if it had expired.
    pub(super) fn remove(&mut self, sent_at: Micros) -> bool {
        let number = sent_at.get() / self.slice_us;
        let slice = self
            .slice(number)
            .filter(|slice| slice.number == number && slice.count > 0);
        slice.is_some_and(|slice| {
            slice.count -= 1;
            true
        })
    }

    /// Takes out the oldest requests that have expired: when they did, and how many.
    pub(super) fn take_expired(&mut self, now: Micros) -> Option<(Micros, u64)> {
        let slice_us = self.slice_us;
        let expiry = |slice: &TransitSlice| slice.number.saturating_add(1 + SLICES).saturating_mul(slice_us);
        let oldest = self.slices.iter_mut().filter(|slice| slice.count > 0);
        let oldest = oldest.min_by_key(|slice| slice.number)?;
        let at = expiry(oldest);
        (at <= now.get()).then(|| (Micros::new(at), std::mem::take(&mut oldest.count)))
    }

    /// The number of requests in it.
    pub(super) fn count(&self) -> u64 {
        self.slices.iter().map(|slice| slice.count).sum()
    }

    fn slice(&mut self, number: u64) -> Option<&mut TransitSlice> {
        self.slices.get_mut(usize::try_from(number % RING as u64).ok()?)
    }
}

/// The slices of the span.
const SLICES: u64 = 8;
/// One in which requests are sent, those of the span, and one that expires.
const RING: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_leaves_with_its_response_or_after_the_span() {
        let mut transit = InTransit::new(Micros::from_millis(80));
        let at = Micros::from_millis;
        transit.add(at(100));
        transit.add(at(105));
        transit.add(at(111));
        assert_eq!(transit.count(), 3);
        assert!(transit.remove(at(100)));
        assert_eq!(transit.take_expired(at(189)), None);
        // A slice of 10 ms later: never early.
        assert_eq!(transit.take_expired(at(195)), Some((at(190), 1)));
        assert!(!transit.remove(at(105)), "it has expired");
        assert_eq!(transit.take_expired(at(195)), None);
        assert_eq!(transit.take_expired(at(1_000)), Some((at(200), 1)));
        assert_eq!(transit.count(), 0);
    }
}
