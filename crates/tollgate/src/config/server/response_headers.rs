//! `headers` and `retry_after`: the rate limit headers of responses.

use crate::config::reader::SettingsReader;
use crate::server::http::{Dialect, Dialects, RetryAfter, RetryAfterFormat};
use tollgate_limiter::core::quantity;
use tollgate_limiter::core::yaml::Node;

impl SettingsReader<'_> {
    pub(in crate::config) fn headers(&mut self, node: &Node) -> Option<Dialects> {
        let mut names = Vec::new();
        for node in node.one_or_more() {
            // One by one, so that a misspelt one is reported with its location and the closest match.
            names.push(node.keyword("a dialect of rate limit headers", &dialects(), &mut self.problems)?);
        }
        match Dialects::from_names(names) {
            Ok(dialects) => Some(dialects),
            Err(error) => {
                self.problems.error(&node.location, error.to_string());
                None
            }
        }
    }

    pub(in crate::config) fn retry_after(&mut self, node: &Node) -> Option<RetryAfter> {
        let fields = node.fields(
            "`retry_after`",
            &["jitter", "format", "spread", "max"],
            &mut self.problems,
        )?;
        let default = RetryAfter::default();
        let jitter = fields
            .find("jitter")
            .and_then(|node| node.read("a share", quantity::parse_share, &mut self.problems));
        let format = fields
            .find("format")
            .and_then(|node| node.keyword("a format of Retry-After", &FORMATS, &mut self.problems));
        let spread = fields.find("spread").and_then(|node| node.flag(&mut self.problems));
        let spread_max = fields
            .find("max")
            .and_then(|node| node.read("a duration like 60s", quantity::parse_duration, &mut self.problems));
        Some(RetryAfter {
            jitter_ppm: jitter.map_or(default.jitter_ppm, quantity::Share::millionths),
            format: format.unwrap_or(default.format),
            spread: spread.unwrap_or(default.spread),
            spread_max: spread_max.unwrap_or(default.spread_max),
        })
    }
}

/// Every dialect, and `none`.
fn dialects() -> Vec<(&'static str, &'static str)> {
    let names = Dialect::NAMES.iter().map(|(name, _)| *name);
    names.chain(["none"]).map(|name| (name, name)).collect()
}

const FORMATS: [(&str, RetryAfterFormat); 3] = [
    ("seconds", RetryAfterFormat::Seconds),
    ("date", RetryAfterFormat::Date),
    ("none", RetryAfterFormat::None),
];
