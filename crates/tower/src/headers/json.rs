//! Writes JSON straight into a buffer.
//!
//! The benchmark that earns it: `bench/src/servers`, HTTP checks.

/// A string in quotes. A caller's bytes that are not UTF-8 become U+FFFD, so that the response is JSON.
#[inline]
pub fn string(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(b'"');
    if bytes
        .iter()
        .all(|byte| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\'))
    {
        // Nearly always: rule ids, leases.
        out.extend_from_slice(bytes);
        out.push(b'"');
        return;
    }
    for chunk in bytes.utf8_chunks() {
        push_escaped(out, chunk.valid());
        if !chunk.invalid().is_empty() {
            out.extend_from_slice("\u{fffd}".as_bytes());
        }
    }
    out.push(b'"');
}

fn push_escaped(out: &mut Vec<u8>, text: &str) {
    let mut rest = text.as_bytes();
    while let Some(at) = rest.iter().position(|byte| matches!(byte, 0..0x20 | b'"' | b'\\')) {
        let (plain, tail) = rest.split_at(at);
        out.extend_from_slice(plain);
        let Some((byte, tail)) = tail.split_first() else { return };
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            control => out.extend_from_slice(format!("\\u{control:04x}").as_bytes()),
        }
        rest = tail;
    }
    out.extend_from_slice(rest);
}

/// A whole number.
#[inline]
pub fn integer(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// A number, or `null`.
#[inline]
pub fn integer_or_null(out: &mut Vec<u8>, number: Option<u64>) {
    match number {
        Some(number) => integer(out, number),
        None => out.extend_from_slice(b"null"),
    }
}

/// `true` or `false`.
#[inline]
pub fn boolean(out: &mut Vec<u8>, value: bool) {
    out.extend_from_slice(if value { b"true" } else { b"false" });
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn quoted(bytes: &[u8]) -> String {
        let mut out = Vec::new();
        string(&mut out, bytes);
        String::from_utf8(out.to_vec()).unwrap()
    }

    #[test]
    fn what_is_not_text_shows_as_a_sign_for_it() {
        assert_eq!(quoted(b"a\xffb"), "\"a\u{fffd}b\"");
        assert_eq!(quoted(b"\x00\x1f\"\\"), r#""\u0000\u001f\"\\""#);
    }

    proptest! {
        #[test]
        fn a_parser_reads_back_any_text(text: String) {
            prop_assert_eq!(serde_json::from_str::<String>(&quoted(text.as_bytes())).unwrap(), text);
        }

        #[test]
        fn any_bytes_become_json(bytes: Vec<u8>) {
            let text = serde_json::from_str::<String>(&quoted(&bytes)).unwrap();
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes).into_owned());
        }
    }
}
