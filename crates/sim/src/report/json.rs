//! JSON of numbers and names, written by hand: a report has nothing else.

/// Writes one JSON value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JsonWriter {
    text: String,
    needs_comma: bool,
}

impl JsonWriter {
    /// An object with the members that `members` writes.
    pub fn object(members: impl FnOnce(&mut Self)) -> String {
        let mut writer = Self::default();
        writer.braces(['{', '}'], members);
        writer.text.push('\n');
        writer.text
    }

    /// A member with a number.
    pub fn number(&mut self, name: &str, number: u64) {
        self.name(name);
        self.text.push_str(&number.to_string());
    }

    /// A member with a number, or null.
    pub fn optional(&mut self, name: &str, number: Option<u64>) {
        self.name(name);
        match number {
            Some(number) => self.text.push_str(&number.to_string()),
            None => self.text.push_str("null"),
        }
    }

    /// A member with a text. Names of this crate need no escape; a quote or a backslash gets one all the same.
    pub fn string(&mut self, name: &str, value: &str) {
        self.name(name);
        self.quoted(value);
    }

    /// A member with a list of numbers.
    pub fn numbers(&mut self, name: &str, numbers: &[u64]) {
        self.name(name);
        let texts: Vec<String> = numbers.iter().map(u64::to_string).collect();
        self.text.push_str(&format!("[{}]", texts.join(",")));
    }

    /// A member with a list of objects, one for each item.
    pub fn objects<T>(&mut self, name: &str, items: &[T], mut members: impl FnMut(&mut Self, &T)) {
        self.name(name);
        self.braces(['[', ']'], |list| {
            for item in items {
                list.comma();
                list.braces(['{', '}'], |object| members(object, item));
            }
        });
    }

    fn name(&mut self, name: &str) {
        self.comma();
        self.quoted(name);
        self.text.push(':');
    }

    fn quoted(&mut self, value: &str) {
        self.text.push('"');
        for c in value.chars() {
            if c == '"' || c == '\\' {
                self.text.push('\\');
            }
            self.text.push(c);
        }
        self.text.push('"');
    }

    fn comma(&mut self) {
        if self.needs_comma {
            self.text.push(',');
        }
        self.needs_comma = true;
    }

    fn braces(&mut self, [open, close]: [char; 2], inner: impl FnOnce(&mut Self)) {
        self.text.push(open);
        self.needs_comma = false;
        inner(self);
        self.text.push(close);
        self.needs_comma = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_lists_and_objects_are_separated_by_commas() {
        let text = JsonWriter::object(|object| {
            object.string("a", "x\"y");
            object.objects("list", &[1, 2], |object, item| {
                object.number("n", *item);
                object.optional("none", None);
            });
            object.numbers("b", &[1, 2]);
            object.objects("empty", &[0_u64; 0], |_, _| {});
        });
        let expected = r#"{"a":"x\"y","list":[{"n":1,"none":null},{"n":2,"none":null}],"b":[1,2],"empty":[]}"#;
        assert_eq!(text, format!("{expected}\n"));
    }
}
