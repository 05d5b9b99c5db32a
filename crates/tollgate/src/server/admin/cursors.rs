//! Positions in lists. A position is the key of an item; for callers that must not see keys it is a number, kept here.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// Keys of items behind random numbers, the oldest given up first.
#[derive(Debug, Default)]
pub(super) struct Cursors(Mutex<VecDeque<([u8; 16], Vec<u8>)>>);

impl Cursors {
    /// The bytes that stand for a key.
    pub(super) fn seal(&self, key: Vec<u8>, is_hidden: bool) -> Vec<u8> {
        if !is_hidden {
            return [b"k".to_vec(), key].concat();
        }
        let mut number = [0; 16];
        if getrandom::fill(&mut number).is_err() {
            return Vec::new();
        }
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= KEPT_MAX {
            kept.pop_front();
        }
        kept.push_back((number, key));
        [b"n".as_slice(), &number].concat()
    }

    /// The key that bytes stand for. Those who must not see keys cannot name one either: a list would tell whether it exists.
    pub(super) fn open(&self, sealed: &[u8], is_hidden: bool) -> Option<Vec<u8>> {
        match sealed.split_first()? {
            (b'k', key) if !is_hidden => Some(key.to_vec()),
            (b'n', number) => {
                let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                let (_, key) = kept.iter().find(|(known, _)| known == number)?;
                Some(key.clone())
            }
            _ => None,
        }
    }
}

const KEPT_MAX: usize = 1_024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hidden_position_does_not_contain_its_key() {
        let cursors = Cursors::default();
        let hidden = cursors.seal(b"m_42".to_vec(), true);
        assert!(!hidden.windows(4).any(|part| part == b"m_42"));
        assert_eq!(cursors.open(&hidden, true), Some(b"m_42".to_vec()));
        let plain = cursors.seal(b"m_42".to_vec(), false);
        assert_eq!(cursors.open(&plain, false), Some(b"m_42".to_vec()));
        assert_eq!(cursors.open(&plain, true), None);
        assert_eq!(cursors.open(b"nunknown", true), None);
    }
}
