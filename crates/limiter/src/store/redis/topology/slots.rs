//! The slots of a cluster: the slot of a key.

/// The number of slots.
pub(crate) const SLOTS: u16 = 16_384;

/// The slot of all keys with this hash tag.
pub(crate) fn slot(tag: &[u8]) -> u16 {
    crc16(tag) % SLOTS
}

/// The slot of any key: that of its hash tag, between the first `{` and the next `}`, unless that is empty.
pub(crate) fn key_slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = key.get(open + 1..)?;
        let close = rest.iter().position(|byte| *byte == b'}')?;
        rest.get(..close).filter(|tag| !tag.is_empty())
    });
    slot(tag.unwrap_or(key))
}

/// The checksum that assigns slots: CRC-16 with the polynomial 0x1021 and the initial value 0.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, &byte| {
        (0..8).fold(crc ^ u16::from(byte) << 8, |crc, _| {
            let carry = if crc & 0x8000 == 0 { 0 } else { 0x1021 };
            crc << 1 ^ carry
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_one_of_the_specification() {
        assert_eq!(crc16(b""), 0);
        assert_eq!(crc16(b"123456789"), 0x31c3);
        // As `CLUSTER KEYSLOT foo` replies.
        assert_eq!(slot(b"foo"), 12_182);
    }

    #[test]
    fn a_key_is_in_the_slot_of_its_tag_if_it_has_one() {
        for key in ["foo", "a{foo}b", "{foo}{bar}", "a{foo}}"] {
            assert_eq!(key_slot(key.as_bytes()), slot(b"foo"), "{key}");
        }
        for key in ["", "{}foo", "a{foo", "foo}", "}foo{"] {
            assert_eq!(key_slot(key.as_bytes()), slot(key.as_bytes()), "{key}");
        }
    }
}
