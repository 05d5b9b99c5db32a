//! Writes JSON member by member; `tollgate-tower` has what the responses of checks need.

use serde::Serialize;

pub(super) use tollgate_tower::headers::json::{boolean, integer, integer_or_null, string};

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
}
