//! Byte strings that are usually short, stored inline: a lookup in a table of them touches no second cache line.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

/// Bytes as the key of a table: up to [`INLINE_MAX`] of them inline, longer ones boxed.
#[derive(Clone)]
pub(crate) enum SmallBytes {
    Inline { bytes: [u8; INLINE_MAX], length: u8 },
    Boxed(Box<[u8]>),
}

/// As many as fit into three machine words with their length.
const INLINE_MAX: usize = 22;

impl From<&[u8]> for SmallBytes {
    fn from(given: &[u8]) -> Self {
        let mut bytes = [0; INLINE_MAX];
        match bytes.get_mut(..given.len()) {
            Some(inline) => {
                inline.copy_from_slice(given);
                let length = given.len() as u8;
                Self::Inline { bytes, length }
            }
            None => Self::Boxed(given.into()),
        }
    }
}

impl Deref for SmallBytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Self::Inline { bytes, length } => bytes.get(..usize::from(*length)).unwrap_or_default(),
            Self::Boxed(bytes) => bytes,
        }
    }
}

impl Borrow<[u8]> for SmallBytes {
    #[inline]
    fn borrow(&self) -> &[u8] {
        self
    }
}

/// Equal to the hash of the bytes, because tables are looked up by bytes.
impl Hash for SmallBytes {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl PartialEq for SmallBytes {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for SmallBytes {}

impl PartialOrd for SmallBytes {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for SmallBytes {
    fn cmp(&self, other: &Self) -> Ordering {
        (**self).cmp(&**other)
    }
}

impl fmt::Debug for SmallBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn stands_for_its_bytes_whatever_their_length() {
        let all = [b'x'; 40];
        let table: HashMap<SmallBytes, usize> = (0..40).map(|length| (all[..length].into(), length)).collect();
        for length in 0..40 {
            assert_eq!(table.get(&all[..length]), Some(&length));
            assert_eq!(&*SmallBytes::from(&all[..length]), &all[..length]);
        }
        assert_eq!(size_of::<SmallBytes>(), 24);
    }
}
