//! Writes JSON straight into a buffer, for the responses of checks; other bodies use serde_json.
//!
//! The benchmark that earns it: `bench/src/servers`, HTTP checks.

use serde::Serialize;

/// A string in quotes. A caller's bytes that are not UTF-8 become U+FFFD, so that the response is JSON.
pub(super) fn string(out: &mut Vec<u8>, bytes: &[u8]) {
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

pub(super) fn integer(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// A number, or `null`.
pub(super) fn integer_or_null(out: &mut Vec<u8>, number: Option<u64>) {
    match number {
        Some(number) => integer(out, number),
        None => out.extend_from_slice(b"null"),
    }
}

pub(super) fn boolean(out: &mut Vec<u8>, value: bool) {
    out.extend_from_slice(if value { b"true" } else { b"false" });
}

/// Writes an object member by member, in order. Values come from serde_json: this is for bodies off the path of checks.
pub(super) struct ObjectWriter<'o> {
    out: &'o mut Vec<u8>,
    is_empty: bool,
}

impl<'o> ObjectWriter<'o> {
    /// Writes the object that `fill` fills.
    pub(super) fn write(out: &'o mut Vec<u8>, fill: impl FnOnce(&mut ObjectWriter<'_>)) {
        out.push(b'{');
        fill(&mut ObjectWriter { out, is_empty: true });
        out.push(b'}');
    }

    /// A member with any value.
    pub(super) fn value(&mut self, name: &str, value: &(impl Serialize + ?Sized)) {
        self.raw(name, |out| write_value(out, value));
    }

    /// A member that is an object.
    pub(super) fn object(&mut self, name: &str, fill: impl FnOnce(&mut ObjectWriter<'_>)) {
        self.raw(name, |out| ObjectWriter::write(out, fill));
    }

    /// A member that is an array of objects.
    pub(super) fn objects<T>(
        &mut self,
        name: &str,
        items: impl IntoIterator<Item = T>,
        fill: impl Fn(&mut ObjectWriter<'_>, T),
    ) {
        self.raw(name, |out| {
            out.push(b'[');
            for (index, item) in items.into_iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                ObjectWriter::write(out, |object| fill(object, item));
            }
            out.push(b']');
        });
    }

    /// A member whose value `write` writes.
    pub(super) fn raw(&mut self, name: &str, write: impl FnOnce(&mut Vec<u8>)) {
        self.separate();
        write_value(self.out, name);
        self.out.push(b':');
        write(self.out);
    }

    /// Members that `write` writes, with commas between them.
    pub(super) fn members(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        self.separate();
        write(self.out);
    }

    fn separate(&mut self) {
        if !std::mem::replace(&mut self.is_empty, false) {
            self.out.push(b',');
        }
    }
}

fn write_value(out: &mut Vec<u8>, value: &(impl Serialize + ?Sized)) {
    serde_json::to_writer(out, value).expect("texts and numbers serialize, and memory can be written");
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

    #[test]
    fn members_keep_their_order_and_are_separated() {
        let mut out = Vec::new();
        ObjectWriter::write(&mut out, |object| {
            object.value("b", "\"");
            object.object("a", |_| {});
            object.objects("c", [1, 2], |object, number| object.value("n", &number));
            object.members(|out| out.extend_from_slice(b"\"d\":null"));
        });
        assert_eq!(out, br#"{"b":"\"","a":{},"c":[{"n":1},{"n":2}],"d":null}"#);
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
