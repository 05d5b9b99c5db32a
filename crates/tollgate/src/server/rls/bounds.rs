//! Bounds on a request, checked in its bytes before they are decoded: two bytes of a message announce a descriptor that takes
//! forty times as much memory.

use super::request::{DESCRIPTORS_MAX, ENTRIES_MAX};
use std::fmt;

/// The most entries over all descriptors of a request.
pub const ALL_ENTRIES_MAX: usize = 512;

/// The bound that a request exceeds. The caller can fix it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoundsError {
    /// More descriptors than a request may have, with their number.
    Descriptors(usize),
    /// More entries than a descriptor may have, with its index from 0.
    Entries(usize),
    /// More entries than all descriptors may have.
    AllEntries,
    /// A group, which none of these messages has and which could hide other fields.
    Groups,
}

/// Checks the bounds of an encoded `RateLimitRequest`. Malformed bytes are left to the decoder, which stops at the same
/// field.
///
/// # Errors
/// The bound that is exceeded.
pub fn check_bounds(message: &[u8]) -> Result<(), BoundsError> {
    let (mut descriptors, mut all) = (0, 0);
    let mut rest = message;
    while let Some(field) = next(&mut rest)? {
        let (DESCRIPTORS, Some(descriptor)) = field else {
            continue;
        };
        descriptors += 1;
        if descriptors > DESCRIPTORS_MAX {
            // Only counted, for the error.
            continue;
        }
        let (mut entries, mut rest) = (0, descriptor);
        while let Some(field) = next(&mut rest)? {
            entries += usize::from(matches!(field, (ENTRIES, Some(_))));
            if entries > ENTRIES_MAX {
                return Err(BoundsError::Entries(descriptors - 1));
            }
        }
        all += entries;
        if all > ALL_ENTRIES_MAX {
            return Err(BoundsError::AllEntries);
        }
    }
    match descriptors > DESCRIPTORS_MAX {
        true => Err(BoundsError::Descriptors(descriptors)),
        false => Ok(()),
    }
}

/// The number of a field, and its bytes if it is length-delimited.
type Field<'b> = (u64, Option<&'b [u8]>);

/// Reads the next field. `None` at the end and at malformed bytes.
fn next<'b>(rest: &mut &'b [u8]) -> Result<Option<Field<'b>>, BoundsError> {
    let Some(key) = varint(rest) else { return Ok(None) };
    let length = match key & 7 {
        0 => {
            let read = varint(rest);
            return Ok(read.map(|_| (key >> 3, None)));
        }
        1 => 8,
        2 => match varint(rest) {
            Some(length) => usize::try_from(length).unwrap_or(usize::MAX),
            None => return Ok(None),
        },
        3 | 4 => return Err(BoundsError::Groups),
        5 => 4,
        _ => return Ok(None),
    };
    let Some((bytes, tail)) = rest.split_at_checked(length) else {
        return Ok(None);
    };
    *rest = tail;
    Ok(Some((key >> 3, (key & 7 == 2).then_some(bytes))))
}

/// Reads a varint.
fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for index in 0..10 {
        let (byte, tail) = rest.split_first()?;
        *rest = tail;
        number |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

impl fmt::Display for BoundsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Descriptors(count) => {
                write!(f, "{count} descriptors; a request has at most {DESCRIPTORS_MAX}")
            }
            Self::Entries(index) => {
                write!(f, "descriptor {index} (from 0) has more than {ENTRIES_MAX} entries")
            }
            Self::AllEntries => write!(f, "more than {ALL_ENTRIES_MAX} entries in all descriptors"),
            Self::Groups => f.write_str("unexpected protobuf group"),
        }
    }
}

impl std::error::Error for BoundsError {}

/// Field numbers, as in `proto/`.
const DESCRIPTORS: u64 = 2;
const ENTRIES: u64 = 1;

#[cfg(test)]
mod tests {
    use super::super::{RateLimitDescriptor, RateLimitRequest, rate_limit_descriptor};
    use super::*;
    use prost::Message;

    /// A request whose descriptors have these numbers of entries.
    fn encoded_request(entries: &[usize]) -> Vec<u8> {
        let entry = rate_limit_descriptor::Entry {
            key: "k".into(),
            value: "v".repeat(200).into(),
        };
        let descriptor = |count: &usize| RateLimitDescriptor {
            entries: vec![entry.clone(); *count],
            hits_addend: Some(7),
            ..RateLimitDescriptor::default()
        };
        let request = RateLimitRequest {
            domain: "shop".into(),
            descriptors: entries.iter().map(descriptor).collect(),
            hits_addend: 300,
        };
        request.encode_to_vec()
    }

    #[test]
    fn as_much_as_is_allowed_passes_and_no_more() {
        for (entries, found) in [
            (vec![], Ok(())),
            (vec![0; 64], Ok(())),
            (vec![8; 64], Ok(())),
            (vec![64; 8], Ok(())),
            (vec![0; 65], Err(BoundsError::Descriptors(65))),
            (vec![1, 65], Err(BoundsError::Entries(1))),
            ([vec![8; 63], vec![9]].concat(), Err(BoundsError::AllEntries)),
        ] {
            assert_eq!(check_bounds(&encoded_request(&entries)), found, "{entries:?}");
        }
    }

    #[test]
    fn what_is_announced_in_two_bytes_is_counted_before_it_is_made() {
        assert_eq!(
            check_bounds(&[0x12, 0].repeat(8_192)),
            Err(BoundsError::Descriptors(8_192))
        );
        let entries = [0x0a, 0].repeat(100);
        let message = [&[0x12, 200, 1][..], &entries].concat();
        assert_eq!(check_bounds(&message), Err(BoundsError::Entries(0)));
        // A truncated message is counted up to its end.
        assert_eq!(check_bounds(&message[..message.len() - 1]), Ok(()));
        assert!(RateLimitRequest::decode(&message[..message.len() - 1]).is_err());
        assert_eq!(check_bounds(&[0x23, 0x24]), Err(BoundsError::Groups));
    }

    #[test]
    fn any_end_is_the_end() {
        let message = encoded_request(&[3, 0, 2]);
        for end in 0..message.len() {
            assert_eq!(check_bounds(&message[..end]), Ok(()), "{end}");
        }
        assert_eq!(check_bounds(&[0xff; 40]), Ok(()));
    }
}
