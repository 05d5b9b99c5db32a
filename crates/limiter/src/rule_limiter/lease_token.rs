//! A lease token: the id of a lease and the keys it is held under, as one opaque text, so that any instance can release
//! it.
//!
//! A token is no proof of anything: it releases what is held under its 64 random bits in the counters it names. A
//! forged token names nothing that is held. A changed one does not fit its checksum, so it releases nothing, not even the
//! counters that are still intact.

use crate::store::Key;
use siphasher::sip::SipHasher13;
use std::hash::Hasher;
use tollgate_core::LeaseId;
use tollgate_core::rules::CounterSpec;

/// A lease and the counters it is held in.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LeaseToken<K> {
    pub(crate) lease: LeaseId,
    /// The tag of each counter, and the key of the subject.
    pub(crate) counters: Vec<(u64, K)>,
}

/// The first byte, which distinguishes it from other formats.
const VERSION: u8 = 2;

/// The maximum number of counters in a token. Leases beyond it expire by themselves.
const COUNTERS_MAX: usize = 256;

impl<K: Key> LeaseToken<K> {
    const COUNTER_BYTES: usize = size_of::<u64>() + K::LENGTH;

    /// Encodes it as text.
    pub(crate) fn to_text(&self) -> String {
        let mut bytes = vec![VERSION];
        bytes.extend_from_slice(&self.lease.0.to_le_bytes());
        for (tag, key) in self.counters.iter().take(COUNTERS_MAX) {
            bytes.extend_from_slice(&tag.to_le_bytes());
            key.write(&mut bytes);
        }
        bytes.extend_from_slice(&checksum(&bytes));
        base64url_encode(&bytes)
    }

    /// Parses a token. None if the text is not one.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text_max = (1 + 2 * size_of::<u64>() + COUNTERS_MAX * Self::COUNTER_BYTES).div_ceil(3) * 4;
        if text.len() > text_max {
            return None;
        }
        let bytes = base64url_decode(text)?;
        let (bytes, sum) = bytes.split_last_chunk::<8>()?;
        if *sum != checksum(bytes) {
            return None;
        }
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

/// The checksum of a token's bytes.
fn checksum(bytes: &[u8]) -> [u8; 8] {
    let mut hasher = SipHasher13::new();
    hasher.write(bytes);
    hasher.finish().to_le_bytes()
}

/// Returns a hash of a counter without its subject. It is the same on every instance, so it is not keyed.
pub(crate) fn counter_tag(counter: &CounterSpec) -> u64 {
    let mut hasher = SipHasher13::new();
    counter.counter(&[]).write(|piece| hasher.write(piece));
    hasher.finish()
}

/// The base64url alphabet.
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Encodes bytes as base64url without padding.
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

/// Decodes base64url; only the canonical text is accepted.
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
