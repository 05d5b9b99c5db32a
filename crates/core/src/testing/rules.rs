//! Rules and attempts from text.

use crate::Cost;
use crate::problem::Origin;
use crate::rules::ratelimit::{DescriptorFiles, Descriptors, RatelimitOptions};
use crate::rules::{Attempt, Attribute, DerivedAttribute, ParserOptions, RuleSet, RulesParser};
use crate::yaml;

/// The rules of one file.
///
/// # Panics
/// If it has errors.
pub fn rule_set(text: &str) -> RuleSet {
    let mut parser = RulesParser::new(ParserOptions::default());
    parser.add_file(&yaml::parse(&Origin::new("rules.yaml", text)).expect("YAML"));
    parser.finish().expect("valid rules").rules
}

/// The descriptors of one file of envoyproxy/ratelimit.
///
/// # Panics
/// If it has errors.
pub fn descriptors(text: &str) -> Descriptors {
    let mut files = DescriptorFiles::new(false);
    files.add_file(&yaml::parse(&Origin::new("shop.yaml", text)).expect("YAML"));
    let (descriptors, _) = files.finish().expect("valid descriptors");
    descriptors
}

/// A parser with these descriptors.
pub fn descriptor_parser(descriptors: Descriptors, options: RatelimitOptions) -> RulesParser {
    let mut parser = RulesParser::new(ParserOptions::default());
    parser.set_descriptors(descriptors, options);
    parser
}

/// The rules of one file of envoyproxy/ratelimit.
///
/// # Panics
/// If it has errors.
pub fn descriptor_rules(text: &str, options: RatelimitOptions) -> RuleSet {
    let parser = descriptor_parser(descriptors(text), options);
    parser.finish().expect("valid descriptors").rules
}

/// The options of strict descriptors.
pub fn strict() -> RatelimitOptions {
    RatelimitOptions {
        strict: true,
        ..RatelimitOptions::default()
    }
}

/// Attributes written as `name=value`.
///
/// # Panics
/// Without a `=`.
pub fn attributes<'a>(pairs: &[&'a str]) -> Vec<Attribute<'a>> {
    let pairs = pairs.iter().map(|pair| pair.split_once('=').expect("name=value"));
    attribute_pairs(pairs)
}

/// Attributes from names and values.
pub fn attribute_pairs<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<Attribute<'a>> {
    let attribute = |(name, value): (&'a str, &'a str)| Attribute {
        name,
        value: value.as_bytes(),
    };
    pairs.into_iter().map(attribute).collect()
}

/// An attribute that is derived from another one, and that callers cannot send.
pub fn derived(name: &str, from: &str, default: Option<&str>) -> DerivedAttribute {
    DerivedAttribute {
        name: name.into(),
        from: from.into(),
        default: default.map(Box::from),
        accept_caller: false,
    }
}

/// An attempt of the cost 1 in the default domain.
pub fn attempt<'a>(attributes: &'a [Attribute<'a>]) -> Attempt<'a> {
    Attempt {
        domain: Attempt::DOMAIN,
        attributes,
        cost: Cost::ONE,
    }
}
