//! `envoy_rules`: files of envoyproxy/ratelimit and their options.

use super::{CompatModes, HeaderNames};
use crate::config::RawSettings;
use hyper::header::HeaderName;
use tollgate_limiter::core::problem::{Problem, Problems, ValueError};
use tollgate_limiter::core::quantity::parse_share;
use tollgate_limiter::core::rules::ratelimit::RatelimitOptions;
use tollgate_limiter::core::yaml::{Node, NodeKind};

/// The setting.
#[derive(Default)]
pub(crate) struct RatelimitRules<'w> {
    pub(crate) files: &'w [Node],
    pub(crate) merges_domains: bool,
    /// True if every limit is a quota.
    pub(crate) quotas: bool,
    /// True if the server starts without valid files, and installs them once they are valid.
    pub(crate) may_be_missing: bool,
    /// True if a broken file is quarantined and the others are loaded.
    pub(crate) isolates_files: bool,
    /// The answer modes.
    pub(crate) modes: CompatModes,
    pub(crate) options: RatelimitOptions,
}

impl<'w> RatelimitRules<'w> {
    /// Reads the setting: files, or a map.
    pub(crate) fn read(settings: &'w RawSettings, problems: &mut Problems) -> Self {
        let Some(node) = settings.setting("envoy_rules") else {
            return Self::default();
        };
        let NodeKind::Map(_) = node.kind else {
            return Self {
                files: node.one_or_more(),
                ..Self::default()
            };
        };
        let Some(fields) = node.fields("`envoy_rules`", &RATELIMIT_KEYS, problems) else {
            return Self::default();
        };
        let files = fields.require("`envoy_rules`", "files", "files: [config/*.yaml]", problems);
        let headers = fields.find("response_headers").and_then(|node| headers(node, problems));
        let mut flag = |key| {
            fields
                .find(key)
                .and_then(|node| node.flag(problems))
                .unwrap_or_default()
        };
        let (strict, merges_domains) = (flag("strict"), flag("merge_domains"));
        let (quotas, may_be_missing) = (flag("quota_mode"), flag("force_start"));
        let (shadow, healthy_with_rules) = (flag("shadow_mode"), flag("healthy_with_rules"));
        let (tells_metadata, isolates_files) = (flag("dynamic_metadata"), flag("isolate_files"));
        let (prometheus_names, json_errors_as_400) = (flag("prometheus_names"), flag("json_errors_as_400"));
        let healthy_with_store = flag("healthy_with_store");
        let near = fields.find("near_limit_ratio");
        let near = near.and_then(|node| node.read("a share of a limit like 0.8", parse_share, problems));
        Self {
            files: files.map_or(&[], Node::one_or_more),
            merges_domains,
            options: RatelimitOptions {
                strict,
                near_share: near.map_or(RatelimitOptions::default().near_share, RatelimitOptions::near),
                metadata: tells_metadata,
            },
            quotas,
            may_be_missing,
            isolates_files,
            modes: CompatModes {
                shadow,
                healthy_with_rules,
                healthy_with_store,
                headers,
                prometheus_names,
                json_errors_as_400,
            },
        }
    }
}

/// Reads the response headers: a boolean, or their names.
fn headers(node: &Node, problems: &mut Problems) -> Option<HeaderNames> {
    let NodeKind::Map(_) = node.kind else {
        return node.flag(problems)?.then(HeaderNames::default);
    };
    let fields = node.fields("`response_headers`", &HEADER_KEYS, problems)?;
    let mut name = |key, default: String| {
        let Some(node) = fields.value(key) else {
            return Some(default);
        };
        let name = node.read("the name of a header", header_name, problems)?;
        if ENVOY_HEADERS.iter().any(|known| known.eq_ignore_ascii_case(&name)) {
            let text = format!("Envoy writes `{name}` itself when its `enable_x_ratelimit_headers` is on");
            let hint = "a response would then carry it twice: leave that off, or choose another name, such as `RateLimit-Limit`";
            problems.push(Problem::warning(&node.location, text).with_hint(hint));
        }
        Some(name)
    };
    let defaults = HeaderNames::default();
    Some(HeaderNames {
        limit: name("limit", defaults.limit)?,
        remaining: name("remaining", defaults.remaining)?,
        reset: name("reset", defaults.reset)?,
    })
}

/// Parses a header name, keeping its case: Envoy sends it in lower case anyway.
fn header_name(text: &str) -> Result<String, ValueError> {
    match HeaderName::from_bytes(text.as_bytes()) {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err(ValueError::new(
            "this cannot be the name of a header",
            "write for example `RateLimit-Limit`",
        )),
    }
}

/// The keys of `envoy_rules`.
pub(crate) const RATELIMIT_KEYS: [&str; 15] = [
    "files",
    "strict",
    "merge_domains",
    "counters",
    "dynamic_metadata",
    "near_limit_ratio",
    "shadow_mode",
    "quota_mode",
    "response_headers",
    "force_start",
    "healthy_with_rules",
    "healthy_with_store",
    "prometheus_names",
    "json_errors_as_400",
    "isolate_files",
];

/// Headers that Envoy writes itself. Users of envoyproxy/ratelimit may have chosen these names, so they are only a warning.
const ENVOY_HEADERS: [&str; 4] = [
    "X-RateLimit-Limit",
    "X-RateLimit-Remaining",
    "X-RateLimit-Reset",
    "X-Envoy-RateLimited",
];

/// The keys of `response_headers`.
const HEADER_KEYS: [&str; 3] = ["limit", "remaining", "reset"];

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_limiter::core::problem::Origin;
    use tollgate_limiter::core::yaml;

    #[test]
    fn what_cannot_be_the_name_of_a_header_or_is_one_of_envoys_is_told() {
        for (setting, expected) in [
            ("response_headers: { limit: 'a b' }", "cannot be the name of a header"),
            ("response_headers: { limit: x-ratelimit-limit }", "carry it twice"),
            ("response_headers: { rest: a }", "did you mean `reset`?"),
            ("response_headers: yes", "write `true`"),
            ("shadow_mode: 1", "true or false"),
            ("shadow_mod: true", "did you mean `shadow_mode`?"),
        ] {
            let origin = Origin::new("tollgate.yaml", format!("envoy_rules: {{ files: a, {setting} }}"));
            let settings = RawSettings {
                root: yaml::parse(&origin).expect("yaml"),
                ..RawSettings::empty()
            };
            let mut problems = Problems::new();
            RatelimitRules::read(&settings, &mut problems);
            let text: String = problems.sorted().iter().map(ToString::to_string).collect();
            assert!(text.contains(expected), "{setting}: {text}");
        }
    }
}
