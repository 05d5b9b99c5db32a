//! The texts of settings and rule files as read at one moment, and compiling them.

use super::file_pattern::{RuleFile, RulesFormat};
use super::managed::{self, ManagedFiles};
use crate::compat::ratelimit::{self, files::RatelimitRules};
use crate::config::{Config, IPV6_PREFIX, RawSettings, without_snippet};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::sync::Arc;
use tollgate_limiter::core::Limit;
use tollgate_limiter::core::problem::{Location, Origin, Problem, Problems};
use tollgate_limiter::core::rules::ratelimit::DescriptorFiles;
use tollgate_limiter::core::rules::{self, Attempt, CounterSpec, Mode, Rule, RuleSet, RulesParser};
use tollgate_limiter::core::yaml::{self, Node, NodeKind};

/// Settings and rules of one moment.
#[derive(Debug)]
pub struct ConfigSnapshot {
    /// The settings, validated.
    pub config: Config,
    /// The rules.
    pub rules: RuleSet,
    /// Problems that do not keep settings and rules from being used.
    pub warnings: Vec<Problem>,
    /// Problems of files that the server may start without, and whose rules are left out.
    pub missing: Vec<Problem>,
    /// Problems of files set aside: their last good version is among the rules, if there was one.
    pub quarantined: Vec<Problem>,
    /// The settings as written.
    pub raw: Arc<RawSettings>,
}

/// Everything that was read, before it is compiled.
#[derive(Clone, Debug)]
pub(super) struct SourceTexts {
    pub(super) settings: Result<Arc<RawSettings>, Vec<Problem>>,
    pub(super) files: Vec<RuleFile>,
    /// Digests of the files with secrets: the secrets themselves are not kept.
    pub(super) secrets: Vec<Option<[u8; 32]>>,
    /// Problems of the patterns of native files.
    pub(super) problems: Vec<Problem>,
    /// Problems of the patterns of `ratelimit` files.
    pub(super) ratelimit_problems: Vec<Problem>,
    /// The files of the live version.
    pub(super) managed: ManagedFiles,
}

impl SourceTexts {
    /// Settings that cannot be read: what a loader has before its first texts.
    pub(super) const fn empty() -> Self {
        Self {
            settings: Err(Vec::new()),
            files: Vec::new(),
            secrets: Vec::new(),
            problems: Vec::new(),
            ratelimit_problems: Vec::new(),
            managed: None,
        }
    }

    /// True if the settings let the server start without the files of `ratelimit`.
    pub(super) fn may_start_without_ratelimit(&self) -> bool {
        let settings = self.settings.as_ref();
        settings.is_ok_and(|raw| RatelimitRules::read(raw, &mut Problems::new()).may_be_missing)
    }

    /// True if a broken file of `ratelimit` is quarantined instead of failing the reload.
    pub(super) fn isolates_files(&self) -> bool {
        let settings = self.settings.as_ref();
        settings.is_ok_and(|raw| RatelimitRules::read(raw, &mut Problems::new()).isolates_files)
    }

    /// All but `ratelimit` files.
    pub(super) fn without_ratelimit(&self) -> Self {
        let native = self.files.iter().filter(|(format, _)| *format == RulesFormat::Native);
        Self {
            files: native.cloned().collect(),
            ratelimit_problems: Vec::new(),
            ..self.clone()
        }
    }

    /// Compiles all but `ratelimit` files. `problems`, which those files have, are reported as missing then.
    ///
    /// # Errors
    /// `problems`, if the rest cannot be used either.
    pub(super) fn compile_without_ratelimit(&self, problems: Vec<Problem>) -> Result<ConfigSnapshot, Vec<Problem>> {
        let snapshot = self.without_ratelimit().compile().map_err(|_| problems.clone())?;
        Ok(ConfigSnapshot {
            missing: problems,
            ..snapshot
        })
    }

    /// Settings and rules.
    ///
    /// # Errors
    /// Every problem of both.
    pub(super) fn compile(&self) -> Result<ConfigSnapshot, Vec<Problem>> {
        let raw = self.settings.as_ref().map_err(Vec::clone)?;
        let mut problems = Problems::new();
        problems.extend(self.problems.iter().chain(&self.ratelimit_problems).cloned());
        let config = match Config::read(raw) {
            Ok((config, warnings)) => {
                problems.extend(warnings);
                Some(config)
            }
            Err(errors) => {
                problems.extend(errors);
                None
            }
        };
        let rules = self.rules(raw, config.as_ref(), &mut problems);
        let failed = problems.has_errors();
        match (config, rules) {
            (Some(config), Some(rules)) if !failed => Ok(ConfigSnapshot {
                config,
                rules,
                warnings: problems.sorted(),
                missing: Vec::new(),
                quarantined: Vec::new(),
                raw: Arc::clone(raw),
            }),
            _ => Err(problems.sorted()),
        }
    }

    /// The rules of the settings first, then those of the files in order.
    fn rules(&self, raw: &RawSettings, config: Option<&Config>, problems: &mut Problems) -> Option<RuleSet> {
        let ipv6_prefix = config.map_or(IPV6_PREFIX, |config| config.ipv6_prefix);
        let mut parser = RulesParser::new(rules::ParserOptions { ipv6_prefix });
        if let Some(config) = config {
            parser.set_known_attributes(config.known_attributes.clone());
        }
        let file_settings = raw.setting("rules_files").or(raw.setting(ratelimit::SETTING));
        match (raw.setting("rules"), file_settings) {
            (Some(rules), _) => parser.add_rules(rules, Attempt::DOMAIN),
            (None, Some(_)) => {}
            (None, None) if self.managed.is_some() => {}
            (None, None) if raw.file.is_some() => problems.push(
                Problem::warning(
                    &Location::start(&raw.root.location.origin),
                    "no rules configured; nothing is limited",
                )
                .with_hint("write some under `rules`, or name files under `rules_files`"),
            ),
            (None, None) => add_file(&mut parser, &Origin::new("quickstart.yaml", QUICKSTART), problems),
        }
        let ratelimit = RatelimitRules::read(raw, &mut Problems::new());
        let mut descriptors = DescriptorFiles::new(ratelimit.merges_domains);
        let managed_files = self.managed.iter().flat_map(|files| managed::rule_files(files));
        for (format, file) in self.files.iter().cloned().chain(managed_files) {
            let parse = match format {
                RulesFormat::Native => yaml::parse,
                RulesFormat::Ratelimit => rules::ratelimit::parse,
            };
            let file = file.map_err(|problem| vec![problem]);
            match (format, file.and_then(|origin| parse(&origin))) {
                (RulesFormat::Native, Ok(root)) => parser.add_file(&root),
                (RulesFormat::Ratelimit, Ok(root)) => descriptors.add_file(&root),
                (_, Err(errors)) => problems.extend(errors),
            }
        }
        match descriptors.finish() {
            Ok((mut descriptors, warnings)) => {
                problems.extend(warnings);
                if ratelimit.quotas {
                    descriptors.make_quotas();
                }
                parser.set_descriptors(descriptors, ratelimit.options);
            }
            Err(errors) => problems.extend(errors),
        }
        match parser.finish() {
            Ok(parsed) => {
                problems.extend(parsed.warnings);
                if config.is_some_and(|config| config.forward.is_some()) {
                    problems.extend(unreleased_slots(&parsed.rules));
                }
                Some(match config {
                    Some(config) => parsed.rules.with_derived(Arc::clone(&config.derive)),
                    None => parsed.rules,
                })
            }
            Err(errors) => {
                problems.extend(errors);
                None
            }
        }
    }

    /// The digest of the rules of settings and files, and of `derive`. Managed files are not part of it.
    pub(super) fn digest(&self) -> [u8; 32] {
        let mut hasher = Sha256::new();
        if let Ok(raw) = &self.settings {
            for setting in ["rules", "derive"] {
                hash_node(raw.setting(setting), &mut hasher);
            }
        }
        for (_, file) in &self.files {
            let text = file.as_ref().map_or("", |origin| &origin.text);
            hash_text(text, &mut hasher);
        }
        hasher.finalize().into()
    }

    /// True if the same texts were read, and the same errors met.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let settings = match (&self.settings, &other.settings) {
            (Ok(a), Ok(b)) => a.file == b.file,
            (Err(a), Err(b)) => a == b,
            _ => false,
        };
        settings
            && self.files == other.files
            && self.secrets == other.secrets
            && self.problems == other.problems
            && self.ratelimit_problems == other.ratelimit_problems
    }
}

/// Warns of concurrency rules that forwarded requests meet: no gateway releases their slots.
fn unreleased_slots(rules: &RuleSet) -> Vec<Problem> {
    let takes_slots = |counter: &&CounterSpec| matches!(counter.limit, Limit::Concurrency(_));
    let counters = rules.counters().iter().filter(takes_slots);
    let indexes: BTreeSet<u32> = counters.map(|counter| counter.rule).collect();
    let taking = indexes
        .into_iter()
        .filter_map(|index| rules.rules().get(index as usize));
    let warning = |rule: &Rule| {
        let id = rule.id();
        let text = format!("rule `{id}` takes a slot of every forwarded request, and no gateway releases it");
        Problem::warning(rule.location(), text).with_hint(
            "let the service release the lease that it gets in the header `tollgate-lease` (docs/forward-auth.md), \
             or the slot is held for `lease_ttl`",
        )
    };
    taking
        .filter(|rule| rule.mode() != Mode::Disabled)
        .map(warning)
        .collect()
}

/// Adds the values of a tree to a hash, without their locations.
fn hash_node(node: Option<&Node>, hasher: &mut Sha256) {
    match node.map(|node| &node.kind) {
        None | Some(NodeKind::Null) => hasher.update([0]),
        Some(NodeKind::Bool(value)) => hasher.update([1, u8::from(*value)]),
        Some(NodeKind::Number(text) | NodeKind::Text(text)) => {
            hasher.update([2]);
            hash_text(text, hasher);
        }
        Some(NodeKind::List(nodes)) => {
            hasher.update([3]);
            hasher.update((nodes.len() as u64).to_be_bytes());
            for node in nodes {
                hash_node(Some(node), hasher);
            }
        }
        Some(NodeKind::Map(entries)) => {
            hasher.update([4]);
            hasher.update((entries.len() as u64).to_be_bytes());
            for (key, value) in entries {
                hash_text(&key.text, hasher);
                hash_node(Some(value), hasher);
            }
        }
    }
}

fn hash_text(text: &str, hasher: &mut Sha256) {
    hasher.update((text.len() as u64).to_be_bytes());
    hasher.update(text.as_bytes());
}

fn add_file(parser: &mut RulesParser, origin: &Arc<Origin>, problems: &mut Problems) {
    match yaml::parse(origin) {
        Ok(root) => parser.add_file(&root),
        Err(errors) => problems.extend(errors),
    }
}

/// Removes source lines that may hold a secret from problems: they go to the log, and some to `/readyz`.
pub(super) fn redact(snapshot: Result<ConfigSnapshot, Vec<Problem>>) -> Result<ConfigSnapshot, Vec<Problem>> {
    let redact_problem = |problem: Problem| match problem.location.line() {
        Some(line) if may_hold_secret(line) => {
            let location = without_snippet(&problem.location);
            problem.with_location(location)
        }
        _ => problem,
    };
    snapshot.map_err(|problems| problems.into_iter().map(redact_problem).collect())
}

/// True if a line names a token or a password, or has a URL with a user in it.
fn may_hold_secret(line: &str) -> bool {
    let line = line.to_ascii_lowercase();
    let has_user = line.split("://").skip(1).any(|rest| rest.contains('@'));
    has_user || ["token", "password", "secret"].iter().any(|word| line.contains(word))
}

/// The rules of a server that is started without a configuration.
pub const QUICKSTART: &str = include_str!("quickstart.yaml");
