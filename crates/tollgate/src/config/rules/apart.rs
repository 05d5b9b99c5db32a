//! `envoy_rules.isolate_files`: a file of envoyproxy/ratelimit that cannot be used does not keep the others from being taken.

use super::{File, Grammar};
use std::collections::HashMap;
use std::sync::Arc;
use tollgate_limiter::core::problem::{Origin, Problem};
use tollgate_limiter::core::rules::envoy::{DescriptorFiles, parse};

/// Of each file the last text that was sound by itself.
#[derive(Debug, Default)]
pub(super) struct Sound {
    texts: HashMap<Box<str>, Arc<Origin>>,
}

impl Sound {
    /// The files, but for each that cannot be used what it last was, or nothing; and what is wrong with those. If none can be
    /// used nothing is put in their place: whoever has no limits at all should hear of it.
    pub(super) fn instead(&mut self, files: &[File]) -> (Vec<File>, Vec<Problem>) {
        let (mut taken, mut faults, mut sound) = (Vec::with_capacity(files.len()), Vec::new(), HashMap::new());
        for (grammar, file) in files {
            if *grammar == Grammar::Own {
                taken.push((*grammar, file.clone()));
                continue;
            }
            let text = match checked(file) {
                Ok(text) => Some(text),
                Err(found) => {
                    let name = found.first().map(|problem| &problem.location.origin.name);
                    let last = name.and_then(|name| self.texts.get(name)).map(Arc::clone);
                    faults.extend(found);
                    last
                }
            };
            if let Some(text) = text {
                sound.insert(text.name.clone(), Arc::clone(&text));
                taken.push((*grammar, Ok(text)));
            }
        }
        if sound.is_empty() {
            return (files.to_vec(), Vec::new());
        }
        self.texts = sound;
        (taken, faults)
    }
}

/// A file that is sound by itself. What it is beside others is seen when all are read.
fn checked(file: &Result<Arc<Origin>, Problem>) -> Result<Arc<Origin>, Vec<Problem>> {
    let origin = file.as_ref().map_err(|problem| vec![problem.clone()])?;
    let mut files = DescriptorFiles::new(true);
    files.add_file(&parse(origin)?);
    files.finish().map(|_| Arc::clone(origin))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, key: &str) -> File {
        let limit = "rate_limit: { unit: day, requests_per_unit: 1 }";
        let text = format!("domain: {name}\ndescriptors: [{{ key: {key}, {limit} }}]");
        (Grammar::Envoy, Ok(Origin::new(name, text)))
    }

    fn bad(name: &str) -> File {
        (Grammar::Envoy, Ok(Origin::new(name, "domain: [")))
    }

    #[test]
    fn a_file_that_cannot_be_used_stays_what_it_was_and_the_others_are_taken() {
        let mut sound = Sound::default();
        let mut check = |files: &[File], wanted: &[File], faults: usize| {
            let (taken, found) = sound.instead(files);
            assert_eq!((&taken[..], found.len()), (wanted, faults), "{found:?}");
        };
        // Without one before it is left out, and if none can be used all are refused.
        check(&[bad("one")], &[bad("one")], 0);
        check(&[bad("one"), file("two", "a")], &[file("two", "a")], 1);
        check(
            &[file("one", "b"), file("two", "a")],
            &[file("one", "b"), file("two", "a")],
            0,
        );
        check(
            &[bad("one"), file("two", "c")],
            &[file("one", "b"), file("two", "c")],
            1,
        );
        // What was in its place is so the next time too, and one that is gone is gone.
        check(&[bad("one")], &[file("one", "b")], 1);
        check(&[bad("one"), bad("two")], &[file("one", "b")], 2);
    }
}
