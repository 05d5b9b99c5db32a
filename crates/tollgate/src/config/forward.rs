//! `forward_auth` and `trusted_proxies`: requests that a gateway forwards.

use super::attributes::AttributeSettings;
use super::reader::SettingsReader;
use crate::server::http::{Forward, Gateway, RequestField, UnknownDomainPolicy};
use tollgate_limiter::core::network::Networks;
use tollgate_limiter::core::problem::Problem;
use tollgate_limiter::core::yaml::{Fields, Node, NodeKind};

impl SettingsReader<'_> {
    pub(super) fn forward(&mut self, fields: &Fields<'_>, attributes: Option<AttributeSettings>) -> Option<Forward> {
        let find = |key| fields.value(key);
        let (forward_auth, attribute_map, proxies) =
            (find("forward_auth"), find("attributes"), find("trusted_proxies"));
        let (gateway, unknown_domain) = match forward_auth {
            Some(node) => self.gateway(node),
            None => (None, None),
        };
        let trusted_proxies = match proxies {
            Some(node) => Networks::read(node, &mut self.problems),
            None => Some(Networks::default()),
        };
        if forward_auth.is_none() {
            let is_caller = |(_, source): &(_, Node)| source.scalar() == Some("caller");
            let sources = attribute_map
                .filter(|node| !matches!(&node.kind, NodeKind::Map(entries) if entries.iter().all(is_caller)));
            for (node, key) in [(sources, "attributes"), (proxies, "trusted_proxies")] {
                if let Some(node) = node {
                    let text =
                        format!("`{key}` has no effect without `forward_auth`: callers send attributes themselves");
                    self.problems.push(Problem::warning(&node.location, text));
                }
            }
        }
        let forward = Forward {
            gateway: gateway?,
            attributes: attributes?.extracted,
            trusted_proxies: trusted_proxies?,
            unknown_domain: unknown_domain.unwrap_or_default(),
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

    /// The gateway, and the answer to domains without rules.
    fn gateway(&mut self, node: &Node) -> (Option<Gateway>, Option<UnknownDomainPolicy>) {
        let Some(inner) = node.fields("`forward_auth`", &["gateway", "unknown_domain"], &mut self.problems) else {
            return (None, None);
        };
        let gateway = inner.require("`forward_auth`", "gateway", "gateway: traefik", &mut self.problems);
        let gateway = gateway.and_then(|node| node.keyword("a gateway", &Gateway::NAMES, &mut self.problems));
        let unknown_domain = inner.value("unknown_domain");
        let what = "an answer to unknown domains";
        let unknown_domain =
            unknown_domain.and_then(|node| node.keyword(what, &UnknownDomainPolicy::NAMES, &mut self.problems));
        (gateway, unknown_domain)
    }
}
