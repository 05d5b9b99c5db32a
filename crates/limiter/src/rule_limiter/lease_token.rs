//! What a caller holds of concurrency limits, as one opaque text: the id of his lease and where it is kept, so that any
//! instance can release it without having seen it before.
//!
//! A token proves nothing by itself and needs not: what is released is what is held under its 64 random bits, in the
//! counter it names. One that is made up names nothing that is held.

use crate::store::Key;
use siphasher::sip::SipHasher13;
use std::hash::Hasher;
use tollgate_core::LeaseId;
use tollgate_core::rules::CounterSpec;

/// A lease and the counters it is held of.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LeaseToken<K> {
    pub(crate) lease: LeaseId,
    /// The tag of each counter, and the key of the subject.
    pub(crate) counters: Vec<(u64, K)>,
}

/// Written first, so that another form of token can never be taken for this one.
const VERSION: u8 = 1;

/// The most counters one token names. What a check holds beyond them comes back when its lease has run out.
const COUNTERS_MAX: usize = 256;

impl<K: Key> LeaseToken<K> {
    const COUNTER_BYTES: usize = size_of::<u64>() + K::LENGTH;

    /// As text.
    pub(crate) fn to_text(&self) -> String {
        let mut bytes = vec![VERSION];
        bytes.extend_from_slice(&self.lease.0.to_le_bytes());
        for (tag, key) in self.counters.iter().take(COUNTERS_MAX) {
            bytes.extend_from_slice(&tag.to_le_bytes());
            key.write(&mut bytes);
        }
        base64url_encode(&bytes)
    }

    /// What a text stands for. Nothing if it is no token.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text_max = (1 + size_of::<u64>() + COUNTERS_MAX * Self::COUNTER_BYTES).div_ceil(3) * 4;
        if text.len() > text_max {
            return None;
        }
        let bytes = base64url_decode(text)?;
        let (&version, rest) = bytes.split_first()?;
        let (lease, rest) = rest.split_first_chunk()?;
        let counters = rest.chunks_exact(Self::COUNTER_BYTES);
        if version != VERSION || !counters.remainder().is_empty() {
            return None;
        }
        let parse_counter = |bytes: &[u8]| {
            let (tag, key) = bytes.split_first_chunk()?;
            Some((u64::from_le_bytes(*tag), K::read(key)?))
        };
        Some(Self {
            lease: LeaseId(u64::from_le_bytes(*lease)),
            counters: counters.map(parse_counter).collect::<Option<_>>()?,
        })
    }
}

/// What stands for a counter of any subject: the same on every instance, so its hash has no secret.
pub(crate) fn counter_tag(counter: &CounterSpec) -> u64 {
    let mut hasher = SipHasher13::new();
    counter.counter(&[]).write(|piece| hasher.write(piece));
    hasher.finish()
}

/// The alphabet of base64 for URLs.
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// As base64 for URLs, without padding.
fn base64url_encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits = group.iter().fold(0_u32, |bits, byte| (bits << 8) | u32::from(*byte)) << (8 * (3 - group.len()));
        for position in 0..=group.len() {
            let index = (bits >> (18 - 6 * position)) & 63;
            text.extend(ALPHABET.get(index as usize).map(|byte| char::from(*byte)));
        }
    }
    text
}

/// The bytes of such a text, if it is the one text that stands for them.
fn base64url_decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 2);
    for group in text.as_bytes().chunks(4) {
        let mut bits = 0_u32;
        for byte in group {
            bits = (bits << 6) | ALPHABET.iter().position(|known| known == byte)? as u32;
        }
        bits <<= 6 * (4 - group.len());
        let [_, whole @ ..] = bits.to_be_bytes();
        let (used, rest) = whole.split_at_checked(group.len() - 1)?;
        if used.is_empty() || rest.iter().any(|byte| *byte != 0) {
            return None;
        }
        bytes.extend_from_slice(used);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Fingerprint;
    use proptest::prelude::*;

    #[test]
    fn is_base64_for_urls() {
        for (bytes, text) in [
            (&b""[..], ""),
            (b"f", "Zg"),
            (b"fo", "Zm8"),
            (b"foo", "Zm9v"),
            (b"foobar", "Zm9vYmFy"),
            (b"\xff\xef\xbe", "_---"),
        ] {
            assert_eq!(base64url_encode(bytes), text);
            assert_eq!(base64url_decode(text).as_deref(), Some(bytes));
        }
        for text in ["Z", "Zh", "Zg==", "Zm9v ", "Zm+v", "é"] {
            assert_eq!(base64url_decode(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_token_is_read_as_it_was_written(
            lease in any::<u64>(),
            counters in proptest::collection::vec((any::<u64>(), any::<[u8; Fingerprint::LENGTH]>()), 0..9),
        ) {
            let key = |bytes: &[u8; Fingerprint::LENGTH]| Fingerprint::read(bytes);
            let counters = counters.iter().filter_map(|(tag, bytes)| Some((*tag, key(bytes)?))).collect();
            let token = LeaseToken { lease: LeaseId(lease), counters };
            prop_assert_eq!(LeaseToken::parse(&token.to_text()), Some(token));
        }

        #[test]
        fn any_text_is_read_or_refused(text in ".{0,200}") {
            let _ = LeaseToken::<Fingerprint>::parse(&text);
        }

        #[test]
        fn bytes_and_text_stand_for_each_other(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            prop_assert_eq!(base64url_decode(&base64url_encode(&bytes)), Some(bytes));
        }
    }
}
