//! Misspelt names where any name is valid: two names are compared, and neither is known to be right.

use super::problem::distance;

/// True if one name is probably the other, misspelt: they differ in one word, by a letter, or by two in a long word.
///
/// Stricter than [`closest_match`](super::problem::closest_match), which helps with a name that is known to be wrong.
/// Numbers are no misspellings (`shard-1`, `shard-2`), and short words are not compared (`user_id`, `user_ip`).
pub fn is_misspelling(one: &str, other: &str) -> bool {
    if one == other || one.len().max(other.len()) > NAME_MAX {
        return false;
    }
    let (one, other) = (one.to_lowercase(), other.to_lowercase());
    let (of_one, of_other): (Vec<&str>, Vec<&str>) = (words(&one), words(&other));
    if of_one.concat() == of_other.concat() {
        return true;
    }
    let mut pairs = of_one.iter().zip(&of_other).filter(|(one, other)| one != other);
    match (of_one.len() == of_other.len(), pairs.next(), pairs.next()) {
        (true, Some((one, other)), None) => is_misspelt_word(one, other),
        _ => false,
    }
}

/// The same for a name that is known to exist: one letter anywhere in a name of some length is enough.
pub fn is_misspelling_of_known(name: &str, known: &str) -> bool {
    let is_close = |name: &str| known.len() >= 6 && distance(name, known) == 1;
    is_misspelling(name, known) || (name.len() <= NAME_MAX && is_close(&name.to_lowercase()))
}

/// The words of a name: `x-merchant-id` has three.
pub fn words(name: &str) -> Vec<&str> {
    name.split(['_', '-', '.', ':', '/', ' ']).collect()
}

/// True for a pair such as `user` and `users`.
pub fn is_plural(one: &str, other: &str) -> bool {
    let is_plural_of = |one: &str, other: &str| one.strip_suffix('s') == Some(other);
    is_plural_of(one, other) || is_plural_of(other, one)
}

fn is_misspelt_word(one: &str, other: &str) -> bool {
    let without_digits = |word: &str| word.replace(|c: char| c.is_ascii_digit(), "");
    if without_digits(one) == without_digits(other) {
        return false;
    }
    let (length, shorter) = (one.chars().count(), other.chars().count());
    let (length, shorter) = (length.max(shorter), length.min(shorter));
    match distance(one, other) {
        // With four letters, another letter usually makes another word: `role`, `rule`.
        1 if length == shorter && !is_swap(one, other) => length >= 5,
        1 => length >= 4,
        2 => length >= 8,
        _ => false,
    }
}

/// True if both words have the same letters.
fn is_swap(one: &str, other: &str) -> bool {
    let sorted = |word: &str| {
        let mut letters: Vec<char> = word.chars().collect();
        letters.sort_unstable();
        letters
    };
    sorted(one) == sorted(other)
}

/// The longest name that is compared, in bytes.
const NAME_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_letter_of_a_word_is_a_misspelling_and_another_word_is_not() {
        for (one, other, expected) in [
            ("pth", "path", true),
            ("merchnt", "merchant", true),
            ("pionts", "points", true),
            ("Merchant", "merchant", true),
            ("merchantid", "merchant_id", true),
            ("x-merchnat-id", "x-merchant-id", true),
            ("enterprse", "enterprise", true),
            ("apii", "api", true),
            ("path", "path", false),
            ("user_id", "user_ip", false),
            ("ip", "id", false),
            ("role", "rule", false),
            ("shard1", "shard2", false),
            ("v1-limits", "v2-limits", false),
            ("tier", "plan", false),
            ("merchant", "endpoint", false),
        ] {
            assert_eq!(is_misspelling(one, other), expected, "{one} {other}");
            assert_eq!(is_misspelling(other, one), expected, "{other} {one}");
        }
    }
}
