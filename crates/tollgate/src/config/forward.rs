//! `forward_auth`, `attributes` and `trusted_proxies`: the attributes of requests that a gateway forwards.

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
                        format!("`{key}` has no effect without `forward_auth`: callers send attributes themselves");
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
            let text = "no proxy is trusted, so `client_ip` is the address of the gateway in every request";
            let hint = "list the addresses of the gateways: `trusted_proxies: [127.0.0.1]`; `[]` if this is intended";
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

    /// `None` if one of them is invalid.
    fn attributes(&mut self, node: &Node) -> Option<Vec<(Box<str>, RequestField)>> {
        let entries = node.entries(
            "names of attributes and their sources",
            "{ merchant: header:x-merchant-id }",
            &mut self.problems,
        )?;
        let mut attributes = Vec::with_capacity(entries.len());
        for (name, source) in entries {
            let Some(text) = source.text("the source of an attribute", &mut self.problems) else {
                continue;
            };
            let Some(part) = RequestField::from_name(text) else {
                self.problems.error_with(
                    &source.location,
                    "unknown source of an attribute",
                    "write `path`, `method`, `host`, `client_ip` or `header:NAME`",
                );
                continue;
            };
            if part == RequestField::ClientIp && !holds_addresses(&name.text) {
                let text = format!(
                    "rules do not treat `{}` as an address, so each IPv6 address is counted separately",
                    name.text
                );
                let hint = "a client with one IPv6 address has millions; name the attribute `ip` or `client_ip`, so that `ipv6_prefix` applies";
                self.problems
                    .push(Problem::warning(&name.location, text).with_hint(hint));
            }
            attributes.push((name.text.clone(), part));
        }
        (attributes.len() == entries.len()).then_some(attributes)
    }
}
