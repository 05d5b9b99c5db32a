//! What the rules that are made of descriptors are called. A name depends on nothing but the way to its descriptor: what is
//! written beside it changes neither the name nor what is counted under it.

use crate::rules::matching::subject_hash;
use std::collections::HashSet;

/// The name of a rule, by the names of the nodes that lead to it. It has a mark of the way behind it where letters of that
/// cannot stand in it or are too many.
pub(super) fn rule_id(path: &[impl AsRef<str>], ids: &mut HashSet<String>) -> String {
    let names: Vec<&str> = path.iter().map(AsRef::as_ref).collect();
    let name = names.join(".");
    match sanitize(&name) == name {
        true => make_unique(name, &names, ids),
        false => make_unique(with_hash(&name, &names), &names, ids),
    }
}

/// A name as rules have them, new among these: behind one that is there already stands a mark of the way.
pub(super) fn unique_id(name: &str, path: &[impl AsRef<str>], ids: &mut HashSet<String>) -> String {
    let names: Vec<&str> = path.iter().map(AsRef::as_ref).collect();
    make_unique(sanitize(name), &names, ids)
}

fn make_unique(id: String, path: &[&str], ids: &mut HashSet<String>) -> String {
    if ids.insert(id.clone()) {
        return id;
    }
    let hashed = with_hash(&id, path);
    let mut candidate = hashed.clone();
    // Two ways that have one mark, which hardly ever happens.
    let mut number = 2;
    while !ids.insert(candidate.clone()) {
        candidate = format!("{hashed}-{number}");
        number += 1;
    }
    candidate
}

/// What a name can have of a text: other letters become dashes, and what is too long is cut.
fn sanitize(text: &str) -> String {
    let is_allowed = |letter: char| letter.is_ascii_alphanumeric() || "_.:/-".contains(letter);
    let letters = text.chars().take(ID_MAX);
    letters
        .map(|letter| if is_allowed(letter) { letter } else { '-' })
        .collect()
}

/// The same with a mark of the way behind it.
fn with_hash(text: &str, path: &[&str]) -> String {
    let parts = path.iter().map(|name| name.as_bytes());
    let mut id = sanitize(text);
    id.truncate(ID_MAX - HASH_SUFFIX_LENGTH);
    // 48 bits: of a hundred thousand ways no two have one in common, but for a chance of one in 50,000.
    format!("{id}-{:012x}", subject_hash(parts) >> 16)
}

/// Leaves room for a number behind it.
const ID_MAX: usize = 58;
const HASH_SUFFIX_LENGTH: usize = "-".len() + 12;

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(paths: &[&[&str]]) -> Vec<String> {
        let mut known = HashSet::new();
        paths.iter().map(|path| rule_id(path, &mut known)).collect()
    }

    #[test]
    fn a_plain_way_is_its_own_name() {
        assert_eq!(
            ids(&[&["plan_free", "user"], &["path_/v1/a"]]),
            ["plan_free.user", "path_/v1/a"]
        );
    }

    #[test]
    fn others_have_a_name_that_what_stands_beside_them_does_not_change() {
        let long = "x".repeat(80);
        let (one, other) = (format!("{long}1"), format!("{long}2"));
        let paths: [&[&str]; 5] = [&[&one], &["path_/a/*"], &["path_/a/-"], &[&other], &["ü"]];
        let mut named = ids(&paths);
        assert!(named.iter().all(|id| id.len() <= ID_MAX), "{named:?}");
        let mut backwards = paths;
        backwards.reverse();
        let mut again = ids(&backwards);
        again.reverse();
        assert_eq!(named, again);
        named.sort();
        named.dedup();
        assert_eq!(named.len(), paths.len());
    }

    #[test]
    fn ways_that_are_written_alike_are_told_apart() {
        let named = ids(&[&["a.b"], &["a", "b"]]);
        assert_eq!(named[0], "a.b");
        assert!(named[1].starts_with("a.b-"), "{named:?}");
    }
}
