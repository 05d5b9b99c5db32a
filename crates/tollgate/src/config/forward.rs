//! `forward_auth`, `attributes` and `trusted_proxies`: what is read from requests that a gateway asks about.

use super::reader::SettingsReader;
use crate::server::http::{Forward, Gateway, RequestField};
use tollgate_limiter::core::network::Networks;
use tollgate_limiter::core::problem::Problem;
use tollgate_limiter::core::rules::holds_addresses;
use tollgate_limiter::core::yaml::{Fields, Node};

impl SettingsReader<'_> {
    pub(super) fn forward(&mut self, fields: &Fields<'_>) -> Option<Forward> {
        let find = |key| fields.find(key).filter(|node: &&Node| !node.is_null());
        let (forward_auth, attribute_map, proxies) =
            (find("forward_auth"), find("attributes"), find("trusted_proxies"));
        let gateway = forward_auth.and_then(|node| self.gateway(node));
        let attributes = match attribute_map {
            Some(node) => self.attributes(node),
            None => Some(Forward::default_attributes()),
        };
        let trusted_proxies = match proxies {
            Some(node) => Networks::read(node, &mut self.problems),
            None => Some(Networks::default()),
        };
        if forward_auth.is_none() {
            for (node, key) in [(attribute_map, "attributes"), (proxies, "trusted_proxies")] {
                if let Some(node) = node {
                    let text =
                        format!("`{key}` changes nothing without `forward_auth`: callers send attributes themselves");
                    self.problems.push(Problem::warning(&node.location, text));
                }
            }
        }
        let forward = Forward {
            gateway: gateway?,
            attributes: attributes?,
            trusted_proxies: trusted_proxies?,
        };
        if let (None, Some(node)) = (proxies, forward_auth)
            && forward
                .attributes
                .iter()
                .any(|(_, part)| *part == RequestField::ClientIp)
        {
            let text = "nobody is trusted to name clients, so every request has the address of its gateway";
            let hint = "write the addresses of the gateways: `trusted_proxies: [127.0.0.1]`; `[]` if this is meant";
            self.problems
                .push(Problem::warning(&node.location, text).with_hint(hint));
        }
        Some(forward)
    }

    fn gateway(&mut self, node: &Node) -> Option<Gateway> {
        let inner = node.fields("`forward_auth`", &["gateway"], &mut self.problems)?;
        let gateway = inner.require("`forward_auth`", "gateway", "gateway: traefik", &mut self.problems)?;
        gateway.keyword("a gateway", &Gateway::NAMES, &mut self.problems)
    }

    /// None if one of them is wrong.
    fn attributes(&mut self, node: &Node) -> Option<Vec<(Box<str>, RequestField)>> {
        let entries = node.entries(
            "names of attributes and where they come from",
            "{ merchant: header:x-merchant-id }",
            &mut self.problems,
        )?;
        let mut attributes = Vec::with_capacity(entries.len());
        for (name, source) in entries {
            let Some(text) = source.text("where the attribute comes from", &mut self.problems) else {
                continue;
            };
            let Some(part) = RequestField::from_name(text) else {
                self.problems.error_with(
                    &source.location,
                    "no attribute comes from there",
                    "write `path`, `method`, `host`, `client_ip` or `header:NAME`",
                );
                continue;
            };
            if part == RequestField::ClientIp && !holds_addresses(&name.text) {
                let text = format!(
                    "rules do not take `{}` for an address, so each IPv6 address counts by itself",
                    name.text
                );
                let hint = "who has one has millions: call it `ip`, or `client_ip`, and `ipv6_prefix` holds for it";
                self.problems
                    .push(Problem::warning(&name.location, text).with_hint(hint));
            }
            attributes.push((name.text.clone(), part));
        }
        (attributes.len() == entries.len()).then_some(attributes)
    }
}
