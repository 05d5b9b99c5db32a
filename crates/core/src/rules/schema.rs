//! The JSON Schema of a rules file, for editors and other programs. The parser checks what a schema cannot express.

/// The schema, as JSON text.
pub const SCHEMA: &str = include_str!("schema/schema.json");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Origin;
    use crate::rules::file::{
        ALGORITHMS, CONDITION_KEYS, COST_CASE_KEYS, COST_KEYS, EXPERIMENT_KEYS, FILE_KEYS, RESERVE_KEYS, RULE_KEYS,
    };
    use crate::yaml::{Node, NodeKind, parse};

    /// The value at a path of keys and numbers.
    fn at<'n>(node: &'n Node, path: &str) -> &'n Node {
        path.split_whitespace().fold(node, |node, step| {
            let found = match &node.kind {
                NodeKind::Map(entries) => entries
                    .iter()
                    .find(|(key, _)| *key.text == *step)
                    .map(|(_, value)| value),
                NodeKind::List(items) => step.parse().ok().and_then(|index: usize| items.get(index)),
                _ => None,
            };
            found.unwrap_or_else(|| panic!("no `{step}` of `{path}` at {}", node.location))
        })
    }

    /// The keys of a map, or the texts of a list, sorted.
    fn names(node: &Node) -> Vec<&str> {
        let mut names: Vec<&str> = match &node.kind {
            NodeKind::Map(entries) => entries.iter().map(|(key, _)| &*key.text).collect(),
            _ => node.one_or_more().iter().filter_map(Node::scalar).collect(),
        };
        names.sort_unstable();
        names
    }

    #[test]
    fn the_schema_has_the_keys_that_the_reader_knows() {
        // JSON is YAML.
        let schema = parse(&Origin::new("schema.json", SCHEMA)).expect("the schema is well formed");
        let cases: [(&str, &[&str]); 10] = [
            ("properties", &FILE_KEYS),
            ("$defs rule properties", &RULE_KEYS),
            ("$defs experiment properties", &EXPERIMENT_KEYS),
            ("$defs reserve properties", &RESERVE_KEYS),
            ("$defs cost oneOf 1 properties", &COST_KEYS),
            ("$defs cost_case properties", &COST_CASE_KEYS),
            ("$defs test oneOf 1 properties", &CONDITION_KEYS),
            ("$defs algorithm enum", &ALGORITHMS),
            ("$defs rule properties mode enum", &["enforce", "shadow", "disabled"]),
            (
                "$defs rule properties on_store_failure oneOf 0 enum",
                &["local", "open", "closed"],
            ),
        ];
        for (path, known) in cases {
            let mut known = known.to_vec();
            known.sort_unstable();
            assert_eq!(names(at(&schema, path)), known, "{path}");
        }
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let schema = parse(&Origin::new("schema.json", SCHEMA)).expect("the schema is well formed");
        let references: Vec<&str> = SCHEMA
            .split("\"#/$defs/")
            .skip(1)
            .filter_map(|rest| rest.split('"').next())
            .collect();
        assert!(references.len() > 10);
        for reference in references {
            at(&schema, &format!("$defs {reference}"));
        }
    }
}
