//! Files that cannot even be read: what is no YAML, and values of the wrong kind. All of it begins with the words that
//! alerts of envoyproxy/ratelimit's users look for.

use crate::problem::{Origin, Problem, Problems};
use crate::yaml::{self, Node};
use std::sync::Arc;

/// Reads the text of one file, to be handed to [`super::Files::file`].
///
/// # Errors
/// Everything that is wrong with it as YAML.
pub fn parse(origin: &Arc<Origin>) -> Result<Node, Vec<Problem>> {
    yaml::parse(origin).map_err(|problems| problems.into_iter().map(with_prefix).collect())
}

/// What `read` makes of a value; what it finds wrong with its kind is told in these words.
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

/// What all of these begin with.
const ERROR_PREFIX: &str = "error loading config file";
