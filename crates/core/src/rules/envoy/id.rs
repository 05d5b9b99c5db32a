//! What the rules that are made of descriptors are called. A name depends on nothing but the way to its descriptor: what is
//! written beside it changes neither the name nor what is counted under it.

use crate::rules::subject::hashed;
use std::collections::HashSet;

/// The name of a rule, by the names of the nodes that lead to it. It has a mark of the way behind it where letters of that
/// cannot stand in it or are too many.
pub(super) fn id(way: &[impl AsRef<str>], ids: &mut HashSet<String>) -> String {
    let names: Vec<&str> = way.iter().map(AsRef::as_ref).collect();
    let name = names.join(".");
    match sound(&name) == name {
        true => fresh(name, &names, ids),
        false => fresh(marked(&name, &names), &names, ids),
    }
}

/// A name as rules have them, new among these: behind one that is there already stands a mark of the way.
pub(super) fn fresh_id(name: &str, way: &[impl AsRef<str>], ids: &mut HashSet<String>) -> String {
    let names: Vec<&str> = way.iter().map(AsRef::as_ref).collect();
    fresh(sound(name), &names, ids)
}

fn fresh(id: String, way: &[&str], ids: &mut HashSet<String>) -> String {
    if ids.insert(id.clone()) {
        return id;
    }
    let marked = marked(&id, way);
    let mut fresh = marked.clone();
    // Two ways that have one mark, which hardly ever happens.
    let mut number = 2;
    while !ids.insert(fresh.clone()) {
        fresh = format!("{marked}-{number}");
        number += 1;
    }
    fresh
}

/// What a name can have of a text: other letters become dashes, and what is too long is cut.
fn sound(text: &str) -> String {
    let is_sound = |letter: char| letter.is_ascii_alphanumeric() || "_.:/-".contains(letter);
    let letters = text.chars().take(ID_LENGTH);
    letters
        .map(|letter| if is_sound(letter) { letter } else { '-' })
        .collect()
}

/// The same with a mark of the way behind it.
fn marked(text: &str, way: &[&str]) -> String {
    let parts = way.iter().map(|name| name.as_bytes());
    let mut id = sound(text);
    id.truncate(ID_LENGTH - MARK_LENGTH);
    // 48 bits: of a hundred thousand ways no two have one in common, but for a chance of one in 50,000.
    format!("{id}-{:012x}", hashed(parts) >> 16)
}

/// Leaves room for a number behind it.
const ID_LENGTH: usize = 58;
const MARK_LENGTH: usize = "-".len() + 12;

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(ways: &[&[&str]]) -> Vec<String> {
        let mut known = HashSet::new();
        ways.iter().map(|way| id(way, &mut known)).collect()
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
        let ways: [&[&str]; 5] = [&[&one], &["path_/a/*"], &["path_/a/-"], &[&other], &["ü"]];
        let mut named = ids(&ways);
        assert!(named.iter().all(|id| id.len() <= ID_LENGTH), "{named:?}");
        let mut backwards = ways;
        backwards.reverse();
        let mut again = ids(&backwards);
        again.reverse();
        assert_eq!(named, again);
        named.sort();
        named.dedup();
        assert_eq!(named.len(), ways.len());
    }

    #[test]
    fn ways_that_are_written_alike_are_told_apart() {
        let named = ids(&[&["a.b"], &["a", "b"]]);
        assert_eq!(named[0], "a.b");
        assert!(named[1].starts_with("a.b-"), "{named:?}");
    }
}
