//! Splits the array of a batch into its elements, as raw JSON.

use super::BATCH_MAX;
use crate::server::http::problem_details::ProblemDetails;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde_json::value::RawValue;
use std::fmt;

/// Returns the elements of an array.
///
/// # Errors
/// The problem, with the index of the element that has it.
pub(super) fn read(body: &[u8]) -> Result<Vec<&RawValue>, ProblemDetails> {
    let (json, utf8_problem) = match std::str::from_utf8(body) {
        Ok(json) => (json, None),
        // The valid part tells the index of the element.
        Err(error) => {
            let (valid, _) = body.split_at_checked(error.valid_up_to()).unwrap_or_default();
            let valid = std::str::from_utf8(valid).unwrap_or_default();
            (valid, Some(super::not_utf8(&error)))
        }
    };
    let mut reached = None;
    let mut parser = serde_json::Deserializer::from_str(json);
    let read = ElementsVisitor { reached: &mut reached }.deserialize(&mut parser);
    let read = read.and_then(|read| parser.end().map(|()| read));
    let problem = match (utf8_problem, read) {
        (None, Ok((elements, count))) if count <= BATCH_MAX => return Ok(elements),
        (None, Ok((_, count))) => {
            let detail =
                format!("a batch has at most {BATCH_MAX} attempts, and this has {count}; send some in another");
            return Err(ProblemDetails::bad_request(detail));
        }
        (None, Err(error)) => ProblemDetails::bad_request(format!("this is not an array of attempts in JSON: {error}")),
        (Some(problem), _) => problem,
    };
    Err(match reached {
        Some(index) => problem.at_index(index),
        None => problem,
    })
}

/// Reads an array, and keeps the index of the element it has reached.
struct ElementsVisitor<'r> {
    reached: &'r mut Option<usize>,
}

impl<'de> DeserializeSeed<'de> for ElementsVisitor<'_> {
    /// At most as many elements as a batch may have, and the number of all.
    type Value = (Vec<&'de RawValue>, usize);

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for ElementsVisitor<'_> {
    type Value = (Vec<&'de RawValue>, usize);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut elements = Vec::new();
        *self.reached = Some(0);
        while let Some(element) = seq.next_element()? {
            elements.push(element);
            *self.reached = Some(elements.len());
            if elements.len() == BATCH_MAX {
                break;
            }
        }
        let mut count = elements.len();
        if count == BATCH_MAX {
            while seq.next_element::<IgnoredAny>()?.is_some() {
                count += 1;
                *self.reached = Some(count);
            }
        }
        *self.reached = None;
        Ok((elements, count))
    }
}
