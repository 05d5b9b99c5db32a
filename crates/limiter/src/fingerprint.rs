//! Fingerprints: what stands for a key in memory.
//!
//! A keyed 128-bit SipHash. Nobody who does not know the key can choose callers' names that meet in one place, and at
//! 10 million keys the chance that any two share a fingerprint is n² / 2^129, about 1.5 in 10^25.

use crate::store::Key;
use siphasher::sip128::{Hash128, Hasher128, SipHasher13};
use std::hash::{Hash, Hasher};
use std::num::NonZeroU64;
use tollgate_core::{Counter, Limit};

/// The secret of a store's fingerprints: 128 random bits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret(pub(crate) [u8; 16]);

/// A key, as the memory store knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint {
    pub(crate) high: u64,
    /// Never zero, so that an empty slot needs no flag. One value in 2^64 is given up for it.
    pub(crate) low: NonZeroU64,
}

/// Makes the fingerprints of one rule: its identity is hashed once, its subjects for each request.
///
/// Subjects named by one value, which is nearly all of them, have a hash key to themselves: so nothing but the value needs
/// to be hashed, and no list of several can be taken for it.
#[derive(Clone, Copy)]
pub struct Subjects {
    one: SipHasher13,
    several: SipHasher13,
}

impl Secret {
    /// Fresh from the system's randomness.
    ///
    /// # Panics
    /// If the system has none to give, which no supported system does after boot.
    pub fn random() -> Self {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).expect("the system gives random bytes");
        Self(bytes)
    }

    /// The hasher for the subjects of a counter's rule.
    pub(crate) fn subjects(&self, counter: &Counter<'_>) -> Subjects {
        let key = |of: u8| {
            let mut hasher = SipHasher13::new_with_key(&self.0);
            let identity = Counter { per: &[], ..*counter };
            identity.write(|piece| hasher.write(piece));
            hasher.write_u8(of);
            SipHasher13::new_with_key(&hasher.finish128().as_bytes())
        };
        Subjects {
            one: key(1),
            several: key(2),
        }
    }

    /// The fingerprint of the counter that new keys of a limit share when there is no room for them.
    pub(crate) fn shared(&self, limit: &Limit) -> Fingerprint {
        let mut hasher = SipHasher13::new_with_key(&self.0);
        hasher.write(b"shared by new keys");
        limit.hash(&mut hasher);
        Fingerprint::new(hasher.finish128())
    }
}

impl Fingerprint {
    #[inline]
    fn new(hash: Hash128) -> Self {
        Self {
            high: hash.h1,
            low: NonZeroU64::new(hash.h2).unwrap_or(NonZeroU64::MIN),
        }
    }
}

impl Key for Fingerprint {
    const LENGTH: usize = 16;

    fn write(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.high.to_le_bytes());
        bytes.extend_from_slice(&self.low.get().to_le_bytes());
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let (high, low) = bytes.split_first_chunk()?;
        Some(Self {
            high: u64::from_le_bytes(*high),
            low: NonZeroU64::new(u64::from_le_bytes(low.try_into().ok()?))?,
        })
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl std::fmt::Debug for Subjects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Subjects(..)")
    }
}

impl Subjects {
    /// The fingerprint of one subject, given by the values it is counted by.
    #[inline]
    pub(crate) fn of(&self, per: &[&[u8]]) -> Fingerprint {
        if let [value] = per {
            return Fingerprint::new(self.one.hash(value));
        }
        let mut hasher = self.several;
        for value in per {
            hasher.write_u64(value.len() as u64);
            hasher.write(value);
        }
        Fingerprint::new(hasher.finish128())
    }
}
