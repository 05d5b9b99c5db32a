//! Ids of the rules compiled from descriptors. An id depends only on the path to its descriptor: neighbouring
//! descriptors change neither the id nor the counters under it.

use crate::rules::matching::subject_hash;
use std::collections::HashSet;

/// Returns a rule's id, made of the names of the nodes on its path. A hash of the path is appended if some characters
/// are not allowed or there are too many.
pub(super) fn rule_id(path: &[impl AsRef<str>], ids: &mut HashSet<String>) -> String {
    let names: Vec<&str> = path.iter().map(AsRef::as_ref).collect();
    let name = names.join(".");
    match sanitize(&name) == name {
        true => make_unique(name, &names, ids),
        false => make_unique(with_hash(&name, &names), &names, ids),
    }
}

/// Returns an id that is new among `ids`; a hash of the path is appended to one that exists.
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
    // Two paths with one hash, which is very unlikely.
    let mut number = 2;
    while !ids.insert(candidate.clone()) {
        candidate = format!("{hashed}-{number}");
        number += 1;
    }
    candidate
}

/// Replaces characters that are not allowed in an id by dashes and truncates it.
fn sanitize(text: &str) -> String {
    let is_allowed = |letter: char| letter.is_ascii_alphanumeric() || "_.:/-".contains(letter);
    let letters = text.chars().take(ID_MAX);
    letters
        .map(|letter| if is_allowed(letter) { letter } else { '-' })
        .collect()
}

/// Returns the id with a hash of the path appended.
fn with_hash(text: &str, path: &[&str]) -> String {
    let parts = path.iter().map(|name| name.as_bytes());
    let mut id = sanitize(text);
    id.truncate(ID_MAX - HASH_SUFFIX_LENGTH);
    // 48 bits: among a hundred thousand paths the chance of a collision is about one in 50,000.
    format!("{id}-{:012x}", subject_hash(parts) >> 16)
}

/// Leaves capacity for a number after it.
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
