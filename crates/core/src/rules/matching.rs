//! Matching of attempts: the rule index, the conditions of a rule, and the subject an attempt is counted for.

mod conditions;
mod index;
mod subject;

pub(crate) use conditions::parse_address;
pub(crate) use index::{Candidate, Index, Lookup};
pub(crate) use subject::{Value, network, subject_hash};
