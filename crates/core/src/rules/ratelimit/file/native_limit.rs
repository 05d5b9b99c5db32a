//! A limit of our own in a descriptor file: any algorithm and period, written as in rules. Denied requests consume
//! nothing.

use super::unit::Unit;
use crate::limit::Limit;
use crate::problem::{Problems, ValueError};
use crate::quantity::parse_quota;
use crate::rules::file::algorithm::{AlgorithmOptions, OPTIONS, ParsedLimit};
use crate::rules::ratelimit::import::yaml_text;
use crate::yaml::{Fields, Node};
use std::fmt::Write;

/// A limit that replaces the counting window of a descriptor.
#[derive(Debug)]
pub struct NativeLimit {
    /// The limit.
    pub limit: Limit,
    /// The text: `100/min burst 20`.
    pub text: Box<str>,
    /// The equivalent lines of a rule.
    pub(in crate::rules::ratelimit) rule_lines: Box<str>,
}

/// The keys that mark a `rate_limit` as one of our own.
pub(in crate::rules::ratelimit) const NATIVE_KEYS: [&str; 5] =
    ["limit", "algorithm", "min_interval", "lease_ttl", "shape"];

/// True if a `rate_limit` is one of our own.
pub(in crate::rules::ratelimit) fn is_native(fields: &Fields<'_>) -> bool {
    NATIVE_KEYS.iter().any(|key| fields.find(key).is_some())
}

/// Parses it from `limit`, or from `requests_per_unit` and `unit`.
pub(in crate::rules::ratelimit) fn parse(
    node: &Node,
    fields: &Fields<'_>,
    problems: &mut Problems,
) -> Option<NativeLimit> {
    let algorithm = AlgorithmOptions::parse(fields, "token_bucket", problems);
    let location = fields.find("limit").map_or(&node.location, |limit| &limit.location);
    let text = match fields.find("limit") {
        Some(limit) => {
            for key in ["unit", "requests_per_unit", "unlimited"] {
                if let Some((key, _)) = fields.entry(key) {
                    problems.error_with(
                        &key.location,
                        format!("`{}` cannot be combined with `limit`", key.text),
                        "say it once: `limit: 100/min`, or `requests_per_unit` and `unit`",
                    );
                }
            }
            limit.text("one limit like 100/min", problems)?.to_owned()
        }
        None => {
            let unit = fields.find("unit").and_then(Node::scalar).and_then(Unit::from_name);
            let requests = fields.find("requests_per_unit").and_then(Node::scalar);
            let (Some(unit), Some(requests)) = (unit, requests) else {
                problems.error_with(
                    &node.location,
                    "an algorithm needs a limit",
                    "add one: `limit: 100/min`, or `requests_per_unit: 100` and `unit: minute`",
                );
                return None;
            };
            format!("{requests}/{}", unit.rule_text())
        }
    };
    let algorithm = algorithm?;
    let parsed = parse_quota(&text).and_then(|quota| match algorithm.limit(quota)? {
        ParsedLimit::Limited(limit, _) => Ok(limit),
        ParsedLimit::Banned(_) => Err(ValueError::new(
            "a ban needs no algorithm",
            "write `requests_per_unit: 0` and a `unit`, and nothing else",
        )),
        ParsedLimit::Unlimited => Err(ValueError::new(
            "what is not limited needs no algorithm",
            "write `unlimited: true`, and nothing else",
        )),
    });
    match parsed {
        Ok(limit) => Some(NativeLimit {
            limit,
            text: text.trim().into(),
            rule_lines: rule_lines(&text, limit.algorithm(), fields),
        }),
        Err(error) => {
            problems.push(error.at(location));
            None
        }
    }
}

/// Renders it as lines of a rule.
fn rule_lines(limit: &str, algorithm: &str, fields: &Fields<'_>) -> Box<str> {
    let mut lines = format!("\n  limit: {}\n  algorithm: {algorithm}", limit.trim());
    for (option, _) in OPTIONS {
        if let Some(value) = fields.find(option).and_then(Node::scalar) {
            let value = if option == "shape" {
                value.to_owned()
            } else {
                yaml_text(value)
            };
            let _ = write!(lines, "\n  {option}: {value}");
        }
    }
    lines.into()
}
