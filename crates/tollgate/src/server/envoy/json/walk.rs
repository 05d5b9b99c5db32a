//! Through a list or an object of JSON, each value as it is written: nothing is kept of those that are passed over.

use super::{Fault, wrong};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use std::fmt;

/// Shows `see` each member of an object with its name, or each element of a list with its place, until it finds a fault.
/// `expected` says which of the two it is to be, and `at` where it stands.
///
/// # Errors
/// That fault, or that it is something else.
pub(super) fn walk(
    value: &RawValue,
    expected: &'static str,
    at: &str,
    see: impl FnMut(Option<&str>, usize, &RawValue) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let opening = if expected == OBJECT { '{' } else { '[' };
    if !value.get().starts_with(opening) {
        return Err(wrong(at, expected));
    }
    let mut fault = None;
    let seen = Walk { see, fault: &mut fault }.deserialize(&mut serde_json::Deserializer::from_str(value.get()));
    match (fault, seen) {
        (Some(fault), _) => Err(fault),
        (None, Ok(())) => Ok(()),
        // It was read as JSON before.
        (None, Err(_)) => Err(wrong(at, expected)),
    }
}

/// What an object is called where one is expected.
const OBJECT: &str = "an object";

struct Walk<'f, S> {
    see: S,
    fault: &'f mut Option<Fault>,
}

impl<S: FnMut(Option<&str>, usize, &RawValue) -> Result<(), Fault>> Walk<'_, S> {
    fn saw<E: Error>(&mut self, name: Option<&str>, place: usize, value: &RawValue) -> Result<(), E> {
        (self.see)(name, place, value).map_err(|fault| {
            *self.fault = Some(fault);
            E::custom("")
        })
    }
}

impl<'de, S> DeserializeSeed<'de> for Walk<'_, S>
where
    S: FnMut(Option<&str>, usize, &RawValue) -> Result<(), Fault>,
{
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, S> Visitor<'de> for Walk<'_, S>
where
    S: FnMut(Option<&str>, usize, &RawValue) -> Result<(), Fault>,
{
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list or an object")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<(), A::Error> {
        let mut place = 0;
        while let Some(value) = seq.next_element::<&RawValue>()? {
            self.saw(None, place, value)?;
            place += 1;
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        let mut place = 0;
        while let Some((name, value)) = map.next_entry::<String, &RawValue>()? {
            self.saw(Some(&name), place, value)?;
            place += 1;
        }
        Ok(())
    }
}
