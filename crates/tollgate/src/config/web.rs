//! What answers over HTTP look like, and what will be read from requests that a proxy hands on.

use super::reading::Reading;
use crate::server::http::{Dialect, Dialects, RetryAfter, RetryAfterFormat};
use std::net::IpAddr;
use tollgate_limiter::core::quantity;
use tollgate_limiter::core::yaml::{Fields, Node};

impl Reading<'_> {
    pub(super) fn headers(&mut self, node: &Node) -> Option<Dialects> {
        let mut names = Vec::new();
        for node in node.one_or_more() {
            // Word by word, so that a mistyped one is told with its place and the nearest there is.
            names.push(node.word("a dialect of rate limit headers", &dialects(), &mut self.problems)?);
        }
        match Dialects::named(names) {
            Ok(dialects) => Some(dialects),
            Err(error) => {
                self.problems.error(&node.place, error.to_string());
                None
            }
        }
    }

    pub(super) fn retry_after(&mut self, node: &Node) -> Option<RetryAfter> {
        let fields = node.fields("`retry_after`", &["jitter", "format"], &mut self.problems)?;
        let default = RetryAfter::default();
        let jitter = fields
            .find("jitter")
            .and_then(|node| node.read("a share", quantity::share, &mut self.problems));
        let format = fields
            .find("format")
            .and_then(|node| node.word("a form of Retry-After", &FORMATS, &mut self.problems));
        Some(RetryAfter {
            jitter_ppm: jitter.map_or(default.jitter_ppm, quantity::Share::millionths),
            format: format.unwrap_or(default.format),
        })
    }

    /// Settings of front ends that are not there yet: checked, so that a mistake is told today, and refused or told of
    /// where somebody relies on them.
    pub(super) fn front_ends_to_come(&mut self, fields: &Fields<'_>) {
        let find = |key| fields.find(key).filter(|node: &&Node| !node.is_null());
        if let Some(node) = find("forward_auth")
            && let Some(inner) = node.fields("`forward_auth`", &["gateway"], &mut self.problems)
            && let Some(gateway) = inner.need("`forward_auth`", "gateway", "gateway: traefik", &mut self.problems)
            && gateway.word("a gateway", &GATEWAYS, &mut self.problems).is_some()
        {
            self.not_yet(&node.place, "forward-auth", "take `forward_auth` out");
        }
        if let Some(node) = find("envoy_rules") {
            self.not_yet(&node.place, "reader for Envoy's rule files", "take `envoy_rules` out");
        }
        if let Some(node) = find("trusted_proxies") {
            for proxy in node.one_or_more() {
                if let Some(text) = proxy.text("a network", &mut self.problems)
                    && !is_network(text)
                {
                    self.problems.error_with(
                        &proxy.place,
                        "this is not a network",
                        "write an address and how many of its bits count, such as `10.0.0.0/8`",
                    );
                }
            }
            self.unused(node, "trusted_proxies");
        }
        if let Some(node) = find("attributes") {
            for (_, source) in node
                .entries(
                    "names of attributes and where they come from",
                    "{ merchant: header:x-merchant-id }",
                    &mut self.problems,
                )
                .unwrap_or_default()
            {
                if let Some(text) = source.text("where the attribute comes from", &mut self.problems)
                    && !is_source(text)
                {
                    self.problems.error_with(
                        &source.place,
                        "no attribute comes from there",
                        "write `path`, `method`, `host`, `client_ip` or `header:NAME`",
                    );
                }
            }
            self.unused(node, "attributes");
        }
    }

    fn unused(&mut self, node: &Node, key: &str) {
        let text = format!("`{key}` changes nothing in this version: callers send attributes themselves");
        self.problems
            .push(tollgate_limiter::core::problem::Problem::warning(&node.place, text));
    }
}

/// Every dialect, and none.
fn dialects() -> Vec<(&'static str, &'static str)> {
    let names = Dialect::NAMES.iter().map(|(name, _)| *name);
    names.chain(["none"]).map(|name| (name, name)).collect()
}

fn is_network(text: &str) -> bool {
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, bits.parse::<u8>().ok()),
        None => (text, Some(0)),
    };
    match (address.parse::<IpAddr>(), bits) {
        (Ok(IpAddr::V4(_)), Some(bits)) => bits <= 32,
        (Ok(IpAddr::V6(_)), Some(bits)) => bits <= 128,
        _ => false,
    }
}

fn is_source(text: &str) -> bool {
    let is_header = |name: &str| hyper::header::HeaderName::try_from(name).is_ok();
    matches!(text, "path" | "method" | "host" | "client_ip") || text.strip_prefix("header:").is_some_and(is_header)
}

const FORMATS: [(&str, RetryAfterFormat); 3] = [
    ("seconds", RetryAfterFormat::Seconds),
    ("date", RetryAfterFormat::Date),
    ("none", RetryAfterFormat::None),
];

const GATEWAYS: [(&str, ()); 5] = [
    ("traefik", ()),
    ("caddy", ()),
    ("nginx", ()),
    ("envoy", ()),
    ("haproxy", ()),
];
