//! Where rules are written, reading them, and noticing that they have changed.

mod apart;
mod envoy;
mod seen;

#[cfg(test)]
pub(super) use self::envoy::ENVOY_KEYS;
pub(super) use self::envoy::EnvoyRules;

use self::apart::Sound;
use self::seen::Seen;
use super::layers::{Sources, Written, read_text};
use super::reading::without_text;
use super::{Config, KEYS};
use sha2::{Digest, Sha256};
use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use tollgate_limiter::core::problem::{Origin, Location, Problem, Problems};
use tollgate_limiter::core::rules::envoy::DescriptorFiles;
use tollgate_limiter::core::rules::{self, Attempt, RulesParser, RuleSet};
use tollgate_limiter::core::yaml::{self, NodeKind, Node};

/// Settings and rules that can be read again and again.
#[derive(Debug)]
pub struct Settings {
    sources: Sources,
    /// Of the last settings that could be read.
    patterns: Vec<Pattern>,
    /// The same for the file of tokens.
    tokens_file: Option<PathBuf>,
    seen: Seen,
    /// Whether something changed just now. A second change within the same tick of the file system's clock leaves no trace,
    /// so the texts are compared once more.
    is_unsettled: bool,
    texts: Option<Texts>,
    /// For when a file that cannot be used is to be left apart from the others.
    sound: Sound,
}

/// Settings and rules of one moment.
#[derive(Debug)]
pub struct Loaded {
    /// What the settings mean.
    pub config: Config,
    /// The rules.
    pub rules: RuleSet,
    /// What is taken and hardly meant.
    pub warnings: Vec<Problem>,
    /// What is wrong with files that a server may start without, and that are not among the rules.
    pub missing: Vec<Problem>,
    /// What is wrong with files that were left apart: what they last were is among the rules, if they were sound before.
    pub apart: Vec<Problem>,
    /// The settings as they are written.
    pub written: Arc<Written>,
}

/// Everything that was read, before anybody asked what it means.
#[derive(Clone, Debug)]
struct Texts {
    settings: Result<Arc<Written>, Vec<Problem>>,
    files: Vec<File>,
    /// What the file of tokens holds, as a digest: the tokens themselves are not kept.
    tokens: Option<[u8; 32]>,
    /// What was wrong with the patterns of files, of the settings and of envoyproxy/ratelimit's.
    problems: Vec<Problem>,
    of_envoy: Vec<Problem>,
}

/// An entry of `rules_files` or `envoy_rules`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pattern {
    grammar: Grammar,
    place: Location,
    path: PathBuf,
}

/// A file of rules that was read, or why it was not.
type File = (Grammar, Result<Arc<Origin>, Problem>);

/// How a file of rules is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Grammar {
    /// As ours are.
    Own,
    /// As those of envoyproxy/ratelimit are.
    Envoy,
}

impl Settings {
    /// Those of these sources. Nothing is read yet, but which file it will be is settled: one that is taken away later is a
    /// fault, and not a reason to fall back to defaults.
    pub fn new(sources: Sources) -> Self {
        let file = sources.path();
        Self {
            sources: Sources { file, ..sources },
            patterns: Vec::new(),
            tokens_file: None,
            seen: Seen::default(),
            is_unsettled: false,
            texts: None,
            sound: Sound::default(),
        }
    }

    /// Reads everything.
    ///
    /// # Errors
    /// Everything that is wrong with settings and rules.
    pub fn load(&mut self) -> Result<Loaded, Vec<Problem>> {
        let texts = self.read();
        let is_first = self.texts.is_none();
        let loaded = self.take(&texts);
        let loaded = match loaded {
            Err(problems) if is_first && texts.may_begin_without_envoy() => texts.load_without_envoy(problems),
            loaded => loaded,
        };
        self.texts = Some(texts);
        discreet(loaded)
    }

    /// Reads everything again if files have changed since it was last read. None if they have not.
    pub fn load_if_changed(&mut self) -> Option<Result<Loaded, Vec<Problem>>> {
        let is_changed = self.look() != self.seen;
        if !is_changed && !self.is_unsettled {
            return None;
        }
        let texts = self.read();
        self.is_unsettled = is_changed;
        if self.texts.as_ref().is_some_and(|known| known.is_same(&texts)) {
            return None;
        }
        let loaded = discreet(self.take(&texts));
        self.texts = Some(texts);
        Some(loaded)
    }

    /// What texts mean, also if a file that is to be left apart cannot be used.
    fn take(&mut self, texts: &Texts) -> Result<Loaded, Vec<Problem>> {
        if !texts.isolates_files() {
            return texts.load();
        }
        let (files, apart) = self.sound.instead(&texts.files);
        let loaded = Texts { files, ..texts.clone() }.load()?;
        Ok(Loaded { apart, ..loaded })
    }

    /// What a look at the files shows now.
    fn look(&self) -> Seen {
        let mut seen = Seen::default();
        if let Some(path) = &self.sources.file {
            seen.add(path);
        }
        if let Some(path) = &self.tokens_file {
            seen.add(path);
        }
        for path in self.patterns.iter().flat_map(|pattern| pattern.files().0) {
            seen.add(&path);
        }
        seen
    }

    /// Reads the texts. Each file is looked at before it is read, so that what changes in between is seen as a change.
    fn read(&mut self) -> Texts {
        let mut seen = Seen::default();
        if let Some(path) = &self.sources.file {
            seen.add(path);
        }
        let settings = self.sources.read().map(Arc::new);
        let mut problems = Problems::new();
        if let Ok(written) = &settings {
            self.patterns = patterns(written, &mut problems);
            self.tokens_file = tokens_file(written);
        }
        let tokens = self.tokens_file.as_ref().and_then(|path| {
            seen.add(path);
            let file = read_text(path).ok()?;
            Some(Sha256::digest(file.text.as_bytes()).into())
        });
        let mut of_envoy = Problems::new();
        let mut files = Vec::new();
        let mut known = HashSet::new();
        let mut bytes = 0;
        for pattern in &self.patterns {
            let (paths, fault) = pattern.files();
            match pattern.grammar {
                Grammar::Own => problems.extend(fault),
                Grammar::Envoy => of_envoy.extend(fault),
            }
            for path in paths {
                seen.add(&path);
                if !known.insert(path.clone()) {
                    continue;
                }
                let file = read_text(&path);
                bytes += file.as_ref().map_or(0, |origin| origin.text.len());
                if files.len() >= FILES_MAX || bytes > BYTES_MAX {
                    let text = format!("these are more than {FILES_MAX} files or {BYTES_MAX} bytes of rules");
                    problems.error(&pattern.place, text);
                    break;
                }
                files.push((pattern.grammar, file));
            }
        }
        self.seen = seen;
        Texts {
            settings,
            files,
            tokens,
            problems: problems.sorted(),
            of_envoy: of_envoy.sorted(),
        }
    }
}

impl Texts {
    /// Whether the settings let a server start without the files of envoyproxy/ratelimit.
    fn may_begin_without_envoy(&self) -> bool {
        let settings = self.settings.as_ref();
        settings.is_ok_and(|written| EnvoyRules::of(written, &mut Problems::new()).may_be_missing)
    }

    /// Whether a file of envoyproxy/ratelimit that cannot be used does not keep the others from being taken.
    fn isolates_files(&self) -> bool {
        let settings = self.settings.as_ref();
        settings.is_ok_and(|written| EnvoyRules::of(written, &mut Problems::new()).isolates_files)
    }

    /// All but those files, if that is sound; they are what is missing then.
    fn load_without_envoy(&self, problems: Vec<Problem>) -> Result<Loaded, Vec<Problem>> {
        let own = self.files.iter().filter(|(grammar, _)| *grammar == Grammar::Own);
        let others = Self {
            files: own.cloned().collect(),
            of_envoy: Vec::new(),
            ..self.clone()
        };
        let loaded = others.load().map_err(|_| problems.clone())?;
        Ok(Loaded {
            missing: problems,
            ..loaded
        })
    }

    fn load(&self) -> Result<Loaded, Vec<Problem>> {
        let written = self.settings.as_ref().map_err(Vec::clone)?;
        let mut problems = Problems::new();
        problems.extend(self.problems.iter().chain(&self.of_envoy).cloned());
        let config = match Config::read(written) {
            Ok((config, warnings)) => {
                problems.extend(warnings);
                Some(config)
            }
            Err(found) => {
                problems.extend(found);
                None
            }
        };
        let rules = self.rules(written, config.as_ref(), &mut problems);
        let failed = problems.has_errors();
        match (config, rules) {
            (Some(config), Some(rules)) if !failed => Ok(Loaded {
                config,
                rules,
                warnings: problems.sorted(),
                missing: Vec::new(),
                apart: Vec::new(),
                written: Arc::clone(written),
            }),
            _ => Err(problems.sorted()),
        }
    }

    /// The rules of the settings first, then those of the files in order.
    fn rules(&self, written: &Written, config: Option<&Config>, problems: &mut Problems) -> Option<RuleSet> {
        let ipv6_prefix = config.map_or(super::IPV6_PREFIX, |config| config.ipv6_prefix);
        let mut reader = RulesParser::new(rules::ParserOptions { ipv6_prefix });
        let named = setting(written, "rules_files").or(setting(written, "envoy_rules"));
        match (setting(written, "rules"), named) {
            (Some(rules), _) => reader.add_rules(rules, Attempt::DOMAIN),
            (None, Some(_)) => {}
            (None, None) if written.file.is_some() => problems.push(
                Problem::warning(
                    &Location::start(&origin_of(written)),
                    "there are no rules, so nothing is limited",
                )
                .with_hint("write some under `rules`, or name files under `rules_files`"),
            ),
            (None, None) => add_file(&mut reader, &Origin::new("quickstart.yaml", QUICKSTART), problems),
        }
        let envoy = EnvoyRules::of(written, &mut Problems::new());
        let mut descriptors = DescriptorFiles::new(envoy.merges_domains);
        for (grammar, file) in &self.files {
            let parse = match grammar {
                Grammar::Own => yaml::parse,
                Grammar::Envoy => rules::envoy::parse,
            };
            let file = file.as_ref().map_err(|problem| vec![problem.clone()]);
            match (grammar, file.and_then(parse)) {
                (Grammar::Own, Ok(root)) => reader.add_file(&root),
                (Grammar::Envoy, Ok(root)) => descriptors.add_file(&root),
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
            && self.of_envoy == other.of_envoy
    }
}

impl Pattern {
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
                let none = Problem::error(&self.place, "no file fits this pattern");
                let none = files.is_empty().then(|| {
                    none.with_hint("is it relative to the file that says it? a file with `rules: []` limits nothing")
                });
                (files, none)
            }
            Err(error) => {
                let problem = Problem::error(&self.place, format!("this is not a pattern: {}", error.msg));
                (Vec::new(), Some(problem.with_hint("write for example `rules/*.yaml`")))
            }
        }
    }
}

/// What is wrong, without lines that hold a secret: all of it goes to logs, and some to whoever asks for readiness.
fn discreet(loaded: Result<Loaded, Vec<Problem>>) -> Result<Loaded, Vec<Problem>> {
    let silent = |problem: Problem| match problem.location.line() {
        Some(line) if is_secret(line) => {
            let place = without_text(&problem.location);
            problem.with_location(place)
        }
        _ => problem,
    };
    loaded.map_err(|problems| problems.into_iter().map(silent).collect())
}

/// Whether a line of settings may hold a token or a password: it names one, or has an address with a user in it.
fn is_secret(line: &str) -> bool {
    let line = line.to_ascii_lowercase();
    let has_user = line.split("://").skip(1).any(|rest| rest.contains('@'));
    has_user || ["token", "password", "secret"].iter().any(|word| line.contains(word))
}

/// Whether a file is meant as settings, not as rules alone: it has a key that only settings have.
pub fn is_settings(root: &Node) -> bool {
    let NodeKind::Map(entries) = &root.kind else { return false };
    let is_setting = |key: &str| key != "rules" && KEYS.contains(&key);
    entries.iter().any(|(key, _)| is_setting(&key.text))
}

fn patterns(written: &Written, problems: &mut Problems) -> Vec<Pattern> {
    let own = setting(written, "rules_files").map_or(&[][..], Node::one_or_more);
    let envoy = EnvoyRules::of(written, problems).files;
    let own = own.iter().map(|node| (Grammar::Own, node));
    let all = own.chain(envoy.iter().map(|node| (Grammar::Envoy, node)));
    all.filter_map(|(grammar, node)| {
        let text = node.text("a file or a pattern of files", problems)?;
        Some(Pattern {
            grammar,
            place: node.location.clone(),
            path: written.folder_of(&node.location).join(text),
        })
    })
    .collect()
}

/// The file that `auth` names, if it names one.
fn tokens_file(written: &Written) -> Option<PathBuf> {
    let NodeKind::Map(entries) = &setting(written, "auth")?.kind else {
        return None;
    };
    let (_, node) = entries.iter().find(|(key, _)| &*key.text == "tokens_file")?;
    Some(written.folder_of(&node.location).join(node.scalar()?))
}

/// A setting at the top, unless nothing stands there.
pub(super) fn setting<'w>(written: &'w Written, name: &str) -> Option<&'w Node> {
    let NodeKind::Map(entries) = &written.root.kind else {
        return None;
    };
    let (_, node) = entries.iter().find(|(key, _)| &*key.text == name)?;
    (!node.is_null()).then_some(node)
}

fn origin_of(written: &Written) -> Arc<Origin> {
    Arc::clone(&written.root.location.origin)
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
