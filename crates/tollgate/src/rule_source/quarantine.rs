//! `isolate_files`: a broken file of `ratelimit` is quarantined, and the others are still loaded.

use super::file_pattern::{RuleFile, RulesFormat};
use std::collections::HashMap;
use std::sync::Arc;
use tollgate_limiter::core::problem::{Origin, Problem};
use tollgate_limiter::core::rules::ratelimit::{DescriptorFiles, parse};

/// The last good version of each file.
#[derive(Debug, Default)]
pub(super) struct LastGood {
    texts: HashMap<Box<str>, Arc<Origin>>,
}

impl LastGood {
    /// The files with each broken one replaced by its last good version, or left out; and the problems of those. If no file
    /// is good and none was, nothing is replaced: a server without limits must fail to load.
    pub(super) fn substitute(&mut self, files: &[RuleFile]) -> (Vec<RuleFile>, Vec<Problem>) {
        let (mut usable, mut problems, mut good) = (Vec::with_capacity(files.len()), Vec::new(), HashMap::new());
        for (format, file) in files {
            if *format == RulesFormat::Native {
                usable.push((*format, file.clone()));
                continue;
            }
            let text = match validate(file) {
                Ok(text) => Some(text),
                Err(found) => {
                    let name = found.first().map(|problem| &problem.location.origin.name);
                    let last = name.and_then(|name| self.texts.get(name)).map(Arc::clone);
                    problems.extend(found);
                    last
                }
            };
            if let Some(text) = text {
                good.insert(text.name.clone(), Arc::clone(&text));
                usable.push((*format, Ok(text)));
            }
        }
        if good.is_empty() {
            return (files.to_vec(), Vec::new());
        }
        self.texts = good;
        (usable, problems)
    }
}

/// Checks a file by itself. Conflicts between files are found when all are compiled.
fn validate(file: &Result<Arc<Origin>, Problem>) -> Result<Arc<Origin>, Vec<Problem>> {
    let origin = file.as_ref().map_err(|problem| vec![problem.clone()])?;
    let mut files = DescriptorFiles::new(true);
    files.add_file(&parse(origin)?);
    files.finish().map(|_| Arc::clone(origin))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, key: &str) -> RuleFile {
        let limit = "rate_limit: { unit: day, requests_per_unit: 1 }";
        let text = format!("domain: {name}\ndescriptors: [{{ key: {key}, {limit} }}]");
        (RulesFormat::Ratelimit, Ok(Origin::new(name, text)))
    }

    fn broken(name: &str) -> RuleFile {
        (RulesFormat::Ratelimit, Ok(Origin::new(name, "domain: [")))
    }

    #[test]
    fn a_file_that_cannot_be_used_stays_what_it_was_and_the_others_are_taken() {
        let mut last_good = LastGood::default();
        let mut check = |files: &[RuleFile], expected: &[RuleFile], problems: usize| {
            let (usable, found) = last_good.substitute(files);
            assert_eq!((&usable[..], found.len()), (expected, problems), "{found:?}");
        };
        // Without an earlier version it is left out; if no file is good, all fail.
        check(&[broken("one")], &[broken("one")], 0);
        check(&[broken("one"), file("two", "a")], &[file("two", "a")], 1);
        check(
            &[file("one", "b"), file("two", "a")],
            &[file("one", "b"), file("two", "a")],
            0,
        );
        check(
            &[broken("one"), file("two", "c")],
            &[file("one", "b"), file("two", "c")],
            1,
        );
        // The last good version stays in use, and a file that is removed is gone.
        check(&[broken("one")], &[file("one", "b")], 1);
        check(&[broken("one"), broken("two")], &[file("one", "b")], 2);
    }
}
