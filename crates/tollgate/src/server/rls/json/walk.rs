//! Visits the values of a JSON list or object as raw text, without building a tree.

use super::{JsonError, type_error};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use std::fmt;

/// Calls `visit` for each member of an object with its name, or each element of a list with its index, until it fails.
/// `expected` names which of the two it must be, `at` its path.
///
/// # Errors
/// The error of `visit`, or that the value is neither.
pub(super) fn walk(
    value: &RawValue,
    expected: &'static str,
    at: &str,
    visit: impl FnMut(Option<&str>, usize, &RawValue) -> Result<(), JsonError>,
) -> Result<(), JsonError> {
    let opening = if expected == OBJECT { '{' } else { '[' };
    if !value.get().starts_with(opening) {
        return Err(type_error(at, expected));
    }
    let mut error = None;
    let result = Walk {
        visit,
        error: &mut error,
    }
    .deserialize(&mut serde_json::Deserializer::from_str(value.get()));
    match (error, result) {
        (Some(error), _) => Err(error),
        (None, Ok(())) => Ok(()),
        // It was parsed as JSON before.
        (None, Err(_)) => Err(type_error(at, expected)),
    }
}

/// The name of an object in errors.
const OBJECT: &str = "an object";

struct Walk<'f, S> {
    visit: S,
    error: &'f mut Option<JsonError>,
}

impl<S: FnMut(Option<&str>, usize, &RawValue) -> Result<(), JsonError>> Walk<'_, S> {
    fn visit_one<E: Error>(&mut self, name: Option<&str>, index: usize, value: &RawValue) -> Result<(), E> {
        (self.visit)(name, index, value).map_err(|error| {
            *self.error = Some(error);
            E::custom("")
        })
    }
}

impl<'de, S> DeserializeSeed<'de> for Walk<'_, S>
where
    S: FnMut(Option<&str>, usize, &RawValue) -> Result<(), JsonError>,
{
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, S> Visitor<'de> for Walk<'_, S>
where
    S: FnMut(Option<&str>, usize, &RawValue) -> Result<(), JsonError>,
{
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list or an object")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<(), A::Error> {
        let mut index = 0;
        while let Some(value) = seq.next_element::<&RawValue>()? {
            self.visit_one(None, index, value)?;
            index += 1;
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        let mut index = 0;
        while let Some((name, value)) = map.next_entry::<String, &RawValue>()? {
            self.visit_one(Some(&name), index, value)?;
            index += 1;
        }
        Ok(())
    }
}
