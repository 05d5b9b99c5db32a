//! `envoy_rules.isolate_files`: a file of envoyproxy/ratelimit that cannot be used does not keep the others from being taken.

use super::file_pattern::{RuleFile, RulesFormat};
use std::collections::HashMap;
use std::sync::Arc;
use tollgate_limiter::core::problem::{Origin, Problem};
use tollgate_limiter::core::rules::ratelimit::{DescriptorFiles, parse};

/// Of each file the last text that was sound by itself.
#[derive(Debug, Default)]
pub(super) struct LastGood {
    texts: HashMap<Box<str>, Arc<Origin>>,
}

impl LastGood {
    /// The files, but for each that cannot be used what it last was, or nothing; and what is wrong with those. If none can be
    /// used nothing is put in their place: whoever has no limits at all should hear of it.
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

/// A file that is sound by itself. What it is beside others is seen when all are read.
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
        // Without one before it is left out, and if none can be used all are refused.
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
        // What was in its place is so the next time too, and one that is gone is gone.
        check(&[broken("one")], &[file("one", "b")], 1);
        check(&[broken("one"), broken("two")], &[file("one", "b")], 2);
    }
}
