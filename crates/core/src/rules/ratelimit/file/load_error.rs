//! Errors of files that do not parse, and of values of a wrong type. All start with the text that alerts of
//! envoyproxy/ratelimit's users search for.

use crate::problem::{Origin, Problem, Problems};
use crate::yaml::{self, Node};
use std::sync::Arc;

/// Parses the text of one file, for [`super::DescriptorFiles::add_file`].
///
/// # Errors
/// All YAML problems.
pub fn parse(origin: &Arc<Origin>) -> Result<Node, Vec<Problem>> {
    yaml::parse_first_document(origin).map_err(|problems| problems.into_iter().map(with_prefix).collect())
}

/// Returns what `read` returns; the problems it reports get the prefix.
pub(in crate::rules::ratelimit) fn read_value<T>(problems: &mut Problems, read: impl FnOnce(&mut Problems) -> T) -> T {
    let mut found = Problems::new();
    let value = read(&mut found);
    problems.extend(found.sorted().into_iter().map(with_prefix));
    value
}

fn with_prefix(mut problem: Problem) -> Problem {
    problem.text = format!("{ERROR_PREFIX}: {}", problem.text);
    problem
}

/// The prefix of all of these errors.
const ERROR_PREFIX: &str = "error loading config file";
