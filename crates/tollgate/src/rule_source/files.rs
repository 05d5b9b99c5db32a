//! Where rules are written, reading them, and noticing that they have changed.

use super::file_stamps::FileStamps;
use super::quarantine::LastGood;
use crate::compat::ratelimit::files::RatelimitRules;
use crate::config::{Config, IPV6_PREFIX, RawSettings, Sources, read_text, without_snippet};
use sha2::{Digest, Sha256};
use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use tollgate_limiter::core::problem::{Location, Origin, Problem, Problems};
use tollgate_limiter::core::rules::ratelimit::DescriptorFiles;
use tollgate_limiter::core::rules::{self, Attempt, RuleSet, RulesParser};
use tollgate_limiter::core::yaml::{self, Node, NodeKind};

/// Settings and rules that can be read again and again.
#[derive(Debug)]
pub struct ConfigLoader {
    sources: Sources,
    /// Of the last settings that could be read.
    patterns: Vec<FilePattern>,
    /// The same for the file of tokens.
    tokens_file: Option<PathBuf>,
    stamps: FileStamps,
    /// Whether something changed just now. A second change within the same tick of the file system's clock leaves no trace,
    /// so the texts are compared once more.
    needs_recheck: bool,
    texts: Option<SourceTexts>,
    /// For when a file that cannot be used is to be left apart from the others.
    last_good: LastGood,
}

/// Settings and rules of one moment.
#[derive(Debug)]
pub struct ConfigSnapshot {
    /// What the settings mean.
    pub config: Config,
    /// The rules.
    pub rules: RuleSet,
    /// What is taken and hardly meant.
    pub warnings: Vec<Problem>,
    /// What is wrong with files that a server may start without, and that are not among the rules.
    pub missing: Vec<Problem>,
    /// What is wrong with files that were left apart: what they last were is among the rules, if they were sound before.
    pub quarantined: Vec<Problem>,
    /// The settings as they are written.
    pub raw: Arc<RawSettings>,
}

/// Everything that was read, before anybody asked what it means.
#[derive(Clone, Debug)]
struct SourceTexts {
    settings: Result<Arc<RawSettings>, Vec<Problem>>,
    files: Vec<RuleFile>,
    /// What the file of tokens holds, as a digest: the tokens themselves are not kept.
    tokens: Option<[u8; 32]>,
    /// What was wrong with the patterns of files, of the settings and of envoyproxy/ratelimit's.
    problems: Vec<Problem>,
    ratelimit_problems: Vec<Problem>,
}

/// An entry of `rules_files` or `envoy_rules`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FilePattern {
    format: RulesFormat,
    location: Location,
    path: PathBuf,
}

/// A file of rules that was read, or why it was not.
pub(super) type RuleFile = (RulesFormat, Result<Arc<Origin>, Problem>);

/// How a file of rules is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RulesFormat {
    /// As ours are.
    Native,
    /// As those of envoyproxy/ratelimit are.
    Ratelimit,
}

impl ConfigLoader {
    /// Those of these sources. Nothing is read yet, but which file it will be is settled: one that is taken away later is a
    /// fault, and not a reason to fall back to defaults.
    pub fn new(sources: Sources) -> Self {
        let file = sources.path();
        Self {
            sources: Sources { file, ..sources },
            patterns: Vec::new(),
            tokens_file: None,
            stamps: FileStamps::default(),
            needs_recheck: false,
            texts: None,
            last_good: LastGood::default(),
        }
    }

    /// Reads everything.
    ///
    /// # Errors
    /// Everything that is wrong with settings and rules.
    pub fn load(&mut self) -> Result<ConfigSnapshot, Vec<Problem>> {
        let texts = self.read();
        let is_first = self.texts.is_none();
        let snapshot = self.compile(&texts);
        let snapshot = match snapshot {
            Err(problems) if is_first && texts.may_start_without_ratelimit() => texts.load_without_ratelimit(problems),
            snapshot => snapshot,
        };
        self.texts = Some(texts);
        redact(snapshot)
    }

    /// Reads everything again if files have changed since it was last read. None if they have not.
    pub fn load_if_changed(&mut self) -> Option<Result<ConfigSnapshot, Vec<Problem>>> {
        let is_changed = self.current_stamps() != self.stamps;
        if !is_changed && !self.needs_recheck {
            return None;
        }
        let texts = self.read();
        self.needs_recheck = is_changed;
        if self.texts.as_ref().is_some_and(|previous| previous.is_same(&texts)) {
            return None;
        }
        let snapshot = redact(self.compile(&texts));
        self.texts = Some(texts);
        Some(snapshot)
    }

    /// What texts mean, also if a file that is to be left apart cannot be used.
    fn compile(&mut self, texts: &SourceTexts) -> Result<ConfigSnapshot, Vec<Problem>> {
        if !texts.isolates_files() {
            return texts.load();
        }
        let (files, quarantined) = self.last_good.substitute(&texts.files);
        let snapshot = SourceTexts { files, ..texts.clone() }.load()?;
        Ok(ConfigSnapshot {
            quarantined,
            ..snapshot
        })
    }

    /// What a look at the files shows now.
    fn current_stamps(&self) -> FileStamps {
        let mut stamps = FileStamps::default();
        if let Some(path) = &self.sources.file {
            stamps.add(path);
        }
        if let Some(path) = &self.tokens_file {
            stamps.add(path);
        }
        for path in self.patterns.iter().flat_map(|pattern| pattern.files().0) {
            stamps.add(&path);
        }
        stamps
    }

    /// Reads the texts. Each file is looked at before it is read, so that what changes in between is seen as a change.
    fn read(&mut self) -> SourceTexts {
        let mut stamps = FileStamps::default();
        if let Some(path) = &self.sources.file {
            stamps.add(path);
        }
        let settings = self.sources.read().map(Arc::new);
        let mut problems = Problems::new();
        if let Ok(raw) = &settings {
            self.patterns = patterns(raw, &mut problems);
            self.tokens_file = tokens_file(raw);
        }
        let tokens = self.tokens_file.as_ref().and_then(|path| {
            stamps.add(path);
            let file = read_text(path).ok()?;
            Some(Sha256::digest(file.text.as_bytes()).into())
        });
        let mut ratelimit_problems = Problems::new();
        let mut files = Vec::new();
        let mut seen_paths = HashSet::new();
        let mut bytes = 0;
        for pattern in &self.patterns {
            let (paths, problem) = pattern.files();
            match pattern.format {
                RulesFormat::Native => problems.extend(problem),
                RulesFormat::Ratelimit => ratelimit_problems.extend(problem),
            }
            for path in paths {
                stamps.add(&path);
                if !seen_paths.insert(path.clone()) {
                    continue;
                }
                let file = read_text(&path);
                bytes += file.as_ref().map_or(0, |origin| origin.text.len());
                if files.len() >= FILES_MAX || bytes > BYTES_MAX {
                    let text = format!("these are more than {FILES_MAX} files or {BYTES_MAX} bytes of rules");
                    problems.error(&pattern.location, text);
                    break;
                }
                files.push((pattern.format, file));
            }
        }
        self.stamps = stamps;
        SourceTexts {
            settings,
            files,
            tokens,
            problems: problems.sorted(),
            ratelimit_problems: ratelimit_problems.sorted(),
        }
    }
}

impl SourceTexts {
    /// Whether the settings let a server start without the files of envoyproxy/ratelimit.
    fn may_start_without_ratelimit(&self) -> bool {
        let settings = self.settings.as_ref();
        settings.is_ok_and(|raw| RatelimitRules::read(raw, &mut Problems::new()).may_be_missing)
    }

    /// Whether a file of envoyproxy/ratelimit that cannot be used does not keep the others from being taken.
    fn isolates_files(&self) -> bool {
        let settings = self.settings.as_ref();
        settings.is_ok_and(|raw| RatelimitRules::read(raw, &mut Problems::new()).isolates_files)
    }

    /// All but those files, if that is sound; they are what is missing then.
    fn load_without_ratelimit(&self, problems: Vec<Problem>) -> Result<ConfigSnapshot, Vec<Problem>> {
        let native = self.files.iter().filter(|(format, _)| *format == RulesFormat::Native);
        let others = Self {
            files: native.cloned().collect(),
            ratelimit_problems: Vec::new(),
            ..self.clone()
        };
        let snapshot = others.load().map_err(|_| problems.clone())?;
        Ok(ConfigSnapshot {
            missing: problems,
            ..snapshot
        })
    }

    fn load(&self) -> Result<ConfigSnapshot, Vec<Problem>> {
        let raw = self.settings.as_ref().map_err(Vec::clone)?;
        let mut problems = Problems::new();
        problems.extend(self.problems.iter().chain(&self.ratelimit_problems).cloned());
        let config = match Config::read(raw) {
            Ok((config, warnings)) => {
                problems.extend(warnings);
                Some(config)
            }
            Err(found) => {
                problems.extend(found);
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
        let mut reader = RulesParser::new(rules::ParserOptions { ipv6_prefix });
        let file_settings = raw.setting("rules_files").or(raw.setting("envoy_rules"));
        match (raw.setting("rules"), file_settings) {
            (Some(rules), _) => reader.add_rules(rules, Attempt::DOMAIN),
            (None, Some(_)) => {}
            (None, None) if raw.file.is_some() => problems.push(
                Problem::warning(
                    &Location::start(&root_origin(raw)),
                    "there are no rules, so nothing is limited",
                )
                .with_hint("write some under `rules`, or name files under `rules_files`"),
            ),
            (None, None) => add_file(&mut reader, &Origin::new("quickstart.yaml", QUICKSTART), problems),
        }
        let envoy = RatelimitRules::read(raw, &mut Problems::new());
        let mut descriptors = DescriptorFiles::new(envoy.merges_domains);
        for (format, file) in &self.files {
            let parse = match format {
                RulesFormat::Native => yaml::parse,
                RulesFormat::Ratelimit => rules::ratelimit::parse,
            };
            let file = file.as_ref().map_err(|problem| vec![problem.clone()]);
            match (format, file.and_then(parse)) {
                (RulesFormat::Native, Ok(root)) => reader.add_file(&root),
                (RulesFormat::Ratelimit, Ok(root)) => descriptors.add_file(&root),
                (_, Err(found)) => problems.extend(found),
            }
        }
        match descriptors.finish() {
            Ok((mut descriptors, warnings)) => {
                problems.extend(warnings);
                if envoy.quotas {
                    descriptors.make_quotas();
                }
                reader.set_descriptors(descriptors, envoy.options);
            }
            Err(found) => problems.extend(found),
        }
        match reader.finish() {
            Ok(read) => {
                problems.extend(read.warnings);
                Some(read.rules)
            }
            Err(found) => {
                problems.extend(found);
                None
            }
        }
    }

    /// The same texts, wherever they were read from.
    fn is_same(&self, other: &Self) -> bool {
        let settings = match (&self.settings, &other.settings) {
            (Ok(a), Ok(b)) => a.file == b.file,
            (Err(a), Err(b)) => a == b,
            _ => false,
        };
        settings
            && self.files == other.files
            && self.tokens == other.tokens
            && self.problems == other.problems
            && self.ratelimit_problems == other.ratelimit_problems
    }
}

impl FilePattern {
    /// The files it stands for, in the order of their names, and what is wrong with it.
    fn files(&self) -> (Vec<PathBuf>, Option<Problem>) {
        let text = self.path.to_string_lossy();
        if !text.contains(['*', '?', '[']) {
            return (vec![self.path.clone()], None);
        }
        let options = glob::MatchOptions {
            case_sensitive: true,
            require_literal_separator: true,
            // What editors and Kubernetes leave beside a file begins with a dot.
            require_literal_leading_dot: true,
        };
        match glob::glob_with(&text, options) {
            Ok(paths) => {
                let files: Vec<PathBuf> = paths
                    .flatten()
                    .filter(|path| path.is_file())
                    .take(FILES_MAX + 1)
                    .collect();
                // An error, also while running: files that are just being replaced must not switch every limit off.
                let none = Problem::error(&self.location, "no file fits this pattern");
                let none = files.is_empty().then(|| {
                    none.with_hint("is it relative to the file that says it? a file with `rules: []` limits nothing")
                });
                (files, none)
            }
            Err(error) => {
                let problem = Problem::error(&self.location, format!("this is not a pattern: {}", error.msg));
                (Vec::new(), Some(problem.with_hint("write for example `rules/*.yaml`")))
            }
        }
    }
}

/// What is wrong, without lines that hold a secret: all of it goes to logs, and some to whoever asks for readiness.
fn redact(snapshot: Result<ConfigSnapshot, Vec<Problem>>) -> Result<ConfigSnapshot, Vec<Problem>> {
    let redact_problem = |problem: Problem| match problem.location.line() {
        Some(line) if may_hold_secret(line) => {
            let location = without_snippet(&problem.location);
            problem.with_location(location)
        }
        _ => problem,
    };
    snapshot.map_err(|problems| problems.into_iter().map(redact_problem).collect())
}

/// Whether a line of settings may hold a token or a password: it names one, or has an address with a user in it.
fn may_hold_secret(line: &str) -> bool {
    let line = line.to_ascii_lowercase();
    let has_user = line.split("://").skip(1).any(|rest| rest.contains('@'));
    has_user || ["token", "password", "secret"].iter().any(|word| line.contains(word))
}

fn patterns(raw: &RawSettings, problems: &mut Problems) -> Vec<FilePattern> {
    let native = raw.setting("rules_files").map_or(&[][..], Node::one_or_more);
    let envoy = RatelimitRules::read(raw, problems).files;
    let native = native.iter().map(|node| (RulesFormat::Native, node));
    let all = native.chain(envoy.iter().map(|node| (RulesFormat::Ratelimit, node)));
    all.filter_map(|(format, node)| {
        let text = node.text("a file or a pattern of files", problems)?;
        Some(FilePattern {
            format,
            location: node.location.clone(),
            path: raw.base_dir_of(&node.location).join(text),
        })
    })
    .collect()
}

/// The file that `auth` names, if it names one.
fn tokens_file(raw: &RawSettings) -> Option<PathBuf> {
    let NodeKind::Map(entries) = &raw.setting("auth")?.kind else {
        return None;
    };
    let (_, node) = entries.iter().find(|(key, _)| &*key.text == "tokens_file")?;
    Some(raw.base_dir_of(&node.location).join(node.scalar()?))
}

fn root_origin(raw: &RawSettings) -> Arc<Origin> {
    Arc::clone(&raw.root.location.origin)
}

fn add_file(reader: &mut RulesParser, origin: &Arc<Origin>, problems: &mut Problems) {
    match yaml::parse(origin) {
        Ok(root) => reader.add_file(&root),
        Err(found) => problems.extend(found),
    }
}

/// What a server limits that is started with nothing at all.
pub const QUICKSTART: &str = include_str!("quickstart.yaml");

/// Files of rules at the most, and their bytes together.
const FILES_MAX: usize = 1_000;
const BYTES_MAX: usize = 64 << 20;
