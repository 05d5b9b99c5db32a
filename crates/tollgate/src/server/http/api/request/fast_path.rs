//! Parses the JSON that programs usually write, in one pass.
//!
//! Escapes, errors, long texts and everything else unusual are left to serde_json, which also reports the error. A property
//! test holds the two equal. The fast path takes a fifth of the instructions of serde_json, which were a sixth of a whole
//! check (`bench/src/servers`, HTTP checks).

use super::{ATTRIBUTES_MAX, Attributes, CheckRequest, NAME_BYTES_MAX, VALUE_BYTES_MAX};
use std::borrow::Cow;
use tollgate_limiter::core::Cost;
use tollgate_limiter::core::rules::{Attempt, Attribute};

/// Parses an attempt; none if anything about it is unusual.
pub(super) fn attempt(json: &str) -> Option<CheckRequest<'_>> {
    let mut cursor = JsonCursor(json);
    let (mut domain, mut attributes, mut cost) = (None, None, None);
    cursor.token(b'{')?;
    loop {
        let name = cursor.string()?;
        cursor.token(b':')?;
        match name {
            "domain" if domain.is_none() => {
                domain = Some(
                    cursor
                        .string()
                        .filter(|domain| (1..=NAME_BYTES_MAX).contains(&domain.len()))?,
                );
            }
            "attributes" if attributes.is_none() => attributes = Some(cursor.attributes()?),
            "cost" if cost.is_none() => cost = Some(cursor.cost()?),
            _ => return None,
        }
        if !cursor.has_next(b'}')? {
            break;
        }
    }
    cursor.skip_space();
    if !cursor.0.is_empty() {
        return None;
    }
    Some(CheckRequest {
        domain: Cow::Borrowed(domain.unwrap_or(Attempt::DOMAIN)),
        attributes: Attributes::Borrowed(attributes?),
        cost: cost.unwrap_or(Cost::ONE),
        rule: None,
    })
}

/// The rest of the text.
struct JsonCursor<'a>(&'a str);

impl<'a> JsonCursor<'a> {
    fn attributes(&mut self) -> Option<Vec<Attribute<'a>>> {
        self.token(b'{')?;
        self.skip_space();
        if self.0.starts_with('}') {
            self.0 = self.0.get(1..)?;
            return Some(Vec::new());
        }
        let mut attributes: Vec<Attribute<'a>> = Vec::with_capacity(ATTRIBUTES_TYPICAL);
        loop {
            let name = self.string()?;
            self.token(b':')?;
            let value = self.value()?;
            let fits = (1..=NAME_BYTES_MAX).contains(&name.len()) && value.len() <= VALUE_BYTES_MAX;
            if !fits || attributes.len() == ATTRIBUTES_MAX || attributes.iter().any(|other| other.name == name) {
                return None;
            }
            attributes.push(Attribute {
                name,
                value: value.as_bytes(),
            });
            if !self.has_next(b'}')? {
                return Some(attributes);
            }
        }
    }

    /// A string, a boolean, or an unsigned integer; serde_json parses other numbers.
    fn value(&mut self) -> Option<&'a str> {
        self.skip_space();
        match self.0.as_bytes().first()? {
            b'"' => self.string(),
            b't' => self.literal("true"),
            b'f' => self.literal("false"),
            _ => self.digits(),
        }
    }

    fn cost(&mut self) -> Option<Cost> {
        self.skip_space();
        Cost::new(self.digits()?.parse().ok()?).ok()
    }

    fn digits(&mut self) -> Option<&'a str> {
        let length = self.0.bytes().take_while(u8::is_ascii_digit).count();
        let digits = self.take(length)?;
        // At least one digit, no leading zero, and the number ends here.
        let is_whole = length == 1 || (length > 1 && !digits.starts_with('0'));
        let ends = matches!(self.0.as_bytes().first()?, b',' | b'}' | b' ' | b'\n' | b'\r' | b'\t');
        (is_whole && ends).then_some(digits)
    }

    fn literal(&mut self, expected: &str) -> Option<&'a str> {
        let found = self.take(expected.len())?;
        (found == expected).then_some(found)
    }

    /// A string without escapes.
    fn string(&mut self) -> Option<&'a str> {
        self.token(b'"')?;
        let end = self.0.bytes().position(|byte| matches!(byte, b'"' | b'\\' | 0..0x20))?;
        let text = self.take(end)?;
        // An escape or a control character ends the fast path.
        let rest = self.0.strip_prefix('"')?;
        self.0 = rest;
        Some(text)
    }

    /// True before another member, false at the end.
    fn has_next(&mut self, end: u8) -> Option<bool> {
        self.skip_space();
        let has_next = match *self.0.as_bytes().first()? {
            b',' => true,
            first if first == end => false,
            _ => return None,
        };
        self.0 = self.0.get(1..)?;
        Some(has_next)
    }

    fn token(&mut self, token: u8) -> Option<()> {
        self.skip_space();
        let rest = self.0.get(1..).filter(|_| self.0.as_bytes().first() == Some(&token))?;
        self.0 = rest;
        Some(())
    }

    fn skip_space(&mut self) {
        let length = self
            .0
            .bytes()
            .take_while(|byte| matches!(byte, b' ' | b'\n' | b'\r' | b'\t'))
            .count();
        if length > 0 {
            self.0 = self.0.get(length..).unwrap_or_default();
        }
    }

    fn take(&mut self, length: usize) -> Option<&'a str> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }
}

/// The usual number of attributes.
const ATTRIBUTES_TYPICAL: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::http::api::request::Form;
    use proptest::prelude::*;

    /// True if the fast path parses what serde_json parses, or leaves it alone.
    fn alike(json: &str) -> bool {
        match attempt(json) {
            Some(plain) => CheckRequest::read(json, Form::Attempt) == Ok(plain),
            None => true,
        }
    }

    #[test]
    fn what_programs_write_is_plain() {
        for json in [
            r#"{"domain":"default","attributes":{"merchant":"m_1","endpoint":"/v1/charges"},"cost":1}"#,
            r#"{"attributes":{"a":"é","b":true,"c":false,"d":0,"e":120}}"#,
            r#"{ "attributes" : { } , "cost" : 0 }"#,
            "{\n  \"attributes\": {\n    \"key\": \"user:17\"\n  }\n}\n",
        ] {
            assert!(attempt(json).is_some() && alike(json), "{json}");
        }
    }

    #[test]
    fn what_is_odd_is_left_to_the_other_reader() {
        for json in [
            "",
            "{}",
            r#"{"attributes":{}"#,
            r#"{"attributes":{}}x"#,
            r#"{"attributes":{},}"#,
            r#"{"attributes":{},"cost":01}"#,
            r#"{"attributes":{},"cost":1.0}"#,
            r#"{"attributes":{},"cost":1000000000000000}"#,
            r#"{"attributes":{},"attributes":{}}"#,
            r#"{"attributes":{"a":1,"a":2}}"#,
            r#"{"attributes":{"a":-1}}"#,
            r#"{"attributes":{"a":1e5}}"#,
            r#"{"attributes":{"a":truex}}"#,
            r#"{"attributes":{"a":"\n"}}"#,
            "{\"attributes\":{\"a\":\"\n\"}}",
            r#"{"attributes":{"":1}}"#,
            r#"{"attributes":{"a":null}}"#,
            r#"{"attributes":{},"more":1}"#,
        ] {
            assert_eq!(attempt(json), None, "{json}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]
        #[test]
        fn both_readers_read_alike(
            json in r#"[ ]?[{]("(attributes|cost|domain|a|é)?"|[ ]?[:,{}] ?|[{}]|"x"|0|12|-1|1[.]5|true|false|null|[\\]){0,20}[}]?"#
        ) {
            prop_assert!(alike(&json), "{}", json);
        }

        #[test]
        fn and_so_do_they_of_sound_attempts_with_one_thing_changed(
            names in proptest::collection::vec("[a-cé\"\\\\]{0,2}", 0..4),
            values in proptest::collection::vec(r#"("[a-z"\\é]{0,2}"|[0-9]{1,3}|-?[0-9]([.][0-9])?|true|false|null)"#, 4),
            cost in "[0-9]{0,11}",
            at in 0_usize..60,
            with in r#"[ "{},:0-9a\\]?"#,
        ) {
            let members: Vec<String> = names.iter().zip(&values).map(|(name, value)| format!("\"{name}\":{value}")).collect();
            let mut json = format!(r#"{{"attributes":{{{}}},"cost":{cost}}}"#, members.join(","));
            prop_assert!(alike(&json), "{}", json);
            if json.is_char_boundary(at) && at <= json.len() {
                json.insert_str(at, &with);
                prop_assert!(alike(&json), "{}", json);
            }
        }
    }
}
