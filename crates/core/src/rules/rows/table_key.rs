//! Keys of the table: a number and bytes, which are usually few and stored inline.

/// The key of an entry: a prefix, and bytes after it.
#[derive(Clone, Debug)]
pub(super) enum TableKey {
    Inline {
        prefix: [u8; PREFIX_BYTES],
        length: u8,
        bytes: [u8; INLINE_MAX],
    },
    Boxed {
        prefix: [u8; PREFIX_BYTES],
        bytes: Box<[u8]>,
    },
}

/// The number of bytes of a prefix that are kept; the others are zero.
const PREFIX_BYTES: usize = 5;
/// As many as fit into three machine words with the rest of a key.
const INLINE_MAX: usize = 17;

impl TableKey {
    pub(super) fn new(prefix: u64, given: &[u8]) -> Self {
        let prefix = kept(prefix);
        let mut bytes = [0; INLINE_MAX];
        match bytes.get_mut(..given.len()) {
            Some(inline) => {
                inline.copy_from_slice(given);
                let length = given.len() as u8;
                Self::Inline { prefix, length, bytes }
            }
            None => Self::Boxed {
                prefix,
                bytes: given.into(),
            },
        }
    }

    /// True if it is the key of this prefix and these bytes.
    #[inline]
    pub(super) fn is(&self, prefix: u64, bytes: &[u8]) -> bool {
        let (Self::Inline { prefix: known, .. } | Self::Boxed { prefix: known, .. }) = self;
        *known == kept(prefix) && self.bytes() == bytes
    }

    /// The prefix.
    pub(super) const fn prefix(&self) -> u64 {
        let (Self::Inline { prefix, .. } | Self::Boxed { prefix, .. }) = self;
        let [a, b, c, d, e] = *prefix;
        u64::from_le_bytes([a, b, c, d, e, 0, 0, 0])
    }

    /// The bytes after the prefix.
    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Inline { bytes, length, .. } => bytes.get(..usize::from(*length)).unwrap_or_default(),
            Self::Boxed { bytes, .. } => bytes,
        }
    }
}

#[inline]
const fn kept(prefix: u64) -> [u8; PREFIX_BYTES] {
    let [a, b, c, d, e, ..] = prefix.to_le_bytes();
    [a, b, c, d, e]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stands_for_its_bytes_whatever_their_length() {
        let all = [b'x'; 40];
        for length in 0..40 {
            let key = TableKey::new(7 << 32, &all[..length]);
            assert_eq!((key.prefix(), key.bytes()), (7 << 32, &all[..length]));
            assert!(key.is(7 << 32, &all[..length]) && !key.is(7, &all[..length]) && !key.is(7 << 32, b"y"));
        }
        assert_eq!(size_of::<TableKey>(), 24);
    }
}
