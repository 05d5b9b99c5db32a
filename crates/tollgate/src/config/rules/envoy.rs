//! `envoy_rules`: files of envoyproxy/ratelimit, and how they are meant.

use super::setting;
use crate::config::Written;
use tollgate_limiter::core::problem::Problems;
use tollgate_limiter::core::yaml::{Kind, Node};

/// The setting.
#[derive(Default)]
pub(super) struct EnvoyRules<'w> {
    pub(super) files: &'w [Node],
    /// All or nothing, as our own rules are.
    pub(super) strict: bool,
    pub(super) merges_domains: bool,
}

impl<'w> EnvoyRules<'w> {
    /// As it is written: files, or a map.
    pub(super) fn of(written: &'w Written, problems: &mut Problems) -> Self {
        let Some(node) = setting(written, "envoy_rules") else {
            return Self::default();
        };
        let Kind::Map(_) = node.kind else {
            return Self {
                files: node.one_or_more(),
                ..Self::default()
            };
        };
        let Some(fields) = node.fields("`envoy_rules`", &ENVOY_KEYS, problems) else {
            return Self::default();
        };
        let files = fields.need("`envoy_rules`", "files", "files: [config/*.yaml]", problems);
        let mut flag = |key| {
            fields
                .find(key)
                .and_then(|node| node.flag(problems))
                .unwrap_or_default()
        };
        Self {
            files: files.map_or(&[], Node::one_or_more),
            strict: flag("strict"),
            merges_domains: flag("merge_domains"),
        }
    }
}

/// The keys of `envoy_rules`.
pub(in crate::config) const ENVOY_KEYS: [&str; 4] = ["files", "strict", "merge_domains", "counters"];
