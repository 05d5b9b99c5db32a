//! `derive`: attributes that a table of subjects adds to attempts.

use super::reader::SettingsReader;
use std::sync::Arc;
use tollgate_limiter::core::rules::DerivedAttribute;
use tollgate_limiter::core::yaml::{MapKey, Node};

/// The keys of one derived attribute.
pub(super) const KEYS: [&str; 3] = ["from", "default", "accept_caller"];
/// The maximum number of derived attributes: each costs a look-up in every attempt.
const ATTRIBUTES_MAX: usize = 16;

impl SettingsReader<'_> {
    /// The attributes to derive. None if one of them is invalid.
    pub(super) fn derive(&mut self, node: &Node) -> Option<Arc<[DerivedAttribute]>> {
        let entries = node.entries(
            "names of attributes and what they are derived from",
            "{ tier: { from: merchant, default: free } }",
            &mut self.problems,
        )?;
        if entries.len() > ATTRIBUTES_MAX {
            self.problems.error_with(
                &node.location,
                format!("{} attributes are derived", entries.len()),
                format!("derive at most {ATTRIBUTES_MAX}: each costs a look-up in every attempt"),
            );
        }
        let derived: Option<Vec<DerivedAttribute>> = entries
            .iter()
            .map(|(name, node)| self.derived_attribute(name, node, entries))
            .collect();
        derived.map(Arc::from)
    }

    fn derived_attribute(&mut self, name: &MapKey, node: &Node, all: &[(MapKey, Node)]) -> Option<DerivedAttribute> {
        let fields = node.fields("a derived attribute", &KEYS, &mut self.problems)?;
        let source = fields.require("a derived attribute", "from", "from: merchant", &mut self.problems)?;
        let from = source.text("the attribute that names the subject", &mut self.problems)?;
        // Otherwise a caller could send the attribute that another one is derived from.
        if all.iter().any(|(derived, _)| *derived.text == *from) {
            self.problems.error_with(
                &source.location,
                format!("`{from}` is itself derived"),
                "name an attribute that attempts have, such as `from: merchant`",
            );
            return None;
        }
        let default = fields
            .find("default")
            .and_then(|node| node.text("the value of subjects that are not in the table", &mut self.problems));
        let accept_caller = fields
            .find("accept_caller")
            .and_then(|node| node.flag(&mut self.problems));
        Some(DerivedAttribute {
            name: name.text.clone(),
            from: from.into(),
            default: default.map(Box::from),
            accept_caller: accept_caller.unwrap_or(false),
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::config::tests::accepted;
    use tollgate_limiter::core::rules::DerivedAttribute;

    #[test]
    fn an_attribute_is_derived_with_or_without_a_default() {
        let config =
            accepted("derive: { tier: { from: merchant, default: free }, plan: { from: key, accept_caller: true } }");
        let expected = [("tier", "merchant", Some("free"), false), ("plan", "key", None, true)];
        let expected = expected.map(|(name, from, default, accept_caller)| DerivedAttribute {
            name: name.into(),
            from: from.into(),
            default: default.map(Box::from),
            accept_caller,
        });
        assert_eq!(*config.derive, expected);
        let known = &config.known_attributes.names;
        assert!(
            ["tier", "plan"]
                .iter()
                .all(|name| known.iter().any(|known| **known == **name))
        );
        assert!(accepted("").derive.is_empty());
    }
}
