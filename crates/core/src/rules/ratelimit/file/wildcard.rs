//! Wildcard patterns: a star matches any run of characters, including none.

/// A pattern with at least one star.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::rules::ratelimit) struct Pattern {
    text: Box<str>,
}

impl Pattern {
    /// Returns the pattern of a text, if it contains a star.
    pub(in crate::rules::ratelimit) fn new(text: &str) -> Option<Self> {
        text.contains('*').then(|| Self { text: text.into() })
    }

    /// True if a text matches: it starts with the part before the first star, ends with the part after the last, and
    /// contains the parts between in order.
    pub(in crate::rules::ratelimit) fn matches(&self, text: &str) -> bool {
        let (Some((first, rest)), Some((_, last))) = (self.text.split_once('*'), self.text.rsplit_once('*')) else {
            return false;
        };
        let Some(middle) = text.strip_prefix(first).and_then(|text| text.strip_suffix(last)) else {
            return false;
        };
        let between = rest.strip_suffix(last).unwrap_or(rest);
        let mut rest_of_text = middle;
        for part in between.split('*') {
            match rest_of_text.find(part) {
                Some(found) => rest_of_text = rest_of_text.get(found + part.len()..).unwrap_or_default(),
                None => return false,
            }
        }
        true
    }

    /// True if every text that matches `other` also matches this pattern: a star of `other` can only be covered by a
    /// star of this one.
    pub(in crate::rules::ratelimit) fn covers(&self, other: &Self) -> bool {
        self.matches(&other.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_is_any_run_of_characters() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("*", "anything", true),
            ("path_/v1/*", "path_/v1/", true),
            ("path_/v1/*", "path_/v1/charges", true),
            ("path_/v1/*", "path_/v2/charges", false),
            ("*.png", "a.png", true),
            ("*.png", ".png", true),
            ("*.png", "a.pn", false),
            ("a*b", "ab", true),
            ("a*b", "axxb", true),
            ("a*b", "a", false),
            ("aa*aa", "aaa", false),
            ("aa*aa", "aaaa", true),
            ("a*b*c", "a1b2c", true),
            ("a*b*c", "abc", true),
            ("a*b*c", "ac", false),
            ("a*bb*b", "abb", false),
            ("a*bb*b", "abbb", true),
            ("a**b", "ab", true),
            ("ü*", "über", true),
        ] {
            let pattern = Pattern::new(pattern).unwrap();
            assert_eq!(pattern.matches(text), expected, "{} {text}", pattern.text);
        }
        assert_eq!(Pattern::new("plain"), None);
    }

    #[test]
    fn a_wider_pattern_covers_a_narrower_one() {
        let covers = |one: &str, other: &str| Pattern::new(one).unwrap().covers(&Pattern::new(other).unwrap());
        assert!(covers("a*", "ab*"));
        assert!(covers("a*", "a*"));
        assert!(covers("*", "a*b"));
        assert!(covers("a*c", "ab*bc"));
        assert!(!covers("ab*", "a*"));
        assert!(!covers("a*c", "a*"));
        assert!(!covers("a*b*c", "a*c"));
    }
}
