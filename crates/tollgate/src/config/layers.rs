//! The layers of settings: the file, then the environment, then flags. Later layers win, and every value keeps its location.
//! The environment of `ratelimit`, if it is used, is the lowest layer.

mod environment;

pub use environment::variables;

use super::reader::without_snippet;
use crate::compat::ratelimit;
use crate::compat::ratelimit::env::RatelimitEnv;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tollgate_limiter::core::problem::{Location, Origin, Problem, Problems};
use tollgate_limiter::core::yaml::{self, MapKey, Node, NodeKind};

/// The sources of settings.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// `--config`. None: `tollgate.yaml` in the working folder, if there is one.
    pub file: Option<PathBuf>,
    /// Environment variables that start with `TOLLGATE_`, and those of `ratelimit`. Others are ignored.
    pub variables: Vec<(String, String)>,
    /// `--store`.
    pub store: Option<String>,
    /// Each `--set`.
    pub set: Vec<String>,
}

/// All settings merged into one tree, not validated.
#[derive(Debug)]
pub struct RawSettings {
    /// A map.
    pub root: Node,
    /// The file that was read.
    pub file: Option<ConfigFile>,
    /// The variables of `ratelimit` that are used; empty: that environment is not.
    pub ratelimit_origins: Vec<Arc<Origin>>,
    /// Differences from what that environment asks for.
    pub notes: Vec<Problem>,
}

/// The configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFile {
    /// Its path.
    pub path: PathBuf,
    /// Its text.
    pub origin: Arc<Origin>,
}

impl Sources {
    /// Reads the file and merges the other layers over it.
    ///
    /// # Errors
    /// Every value that cannot be parsed, in all layers.
    pub fn read(&self) -> Result<RawSettings, Vec<Problem>> {
        let mut problems = Problems::new();
        let mut raw = RawSettings::empty();
        let ratelimit = RatelimitEnv::read(&self.variables, &mut problems);
        raw.notes = ratelimit.notes;
        if !ratelimit.origins.is_empty() {
            raw.root = ratelimit.root;
            raw.ratelimit_origins = ratelimit.origins;
        }
        self.read_file(&mut raw, &mut problems);
        for (name, value) in &self.variables {
            if let Some(path) = setting_path(name)
                && !value.is_empty()
            {
                let origin = Origin::value(name.as_str(), value.as_str());
                raw.merge_at(&path, &origin, &mut problems);
            }
        }
        if let Some(store) = &self.store {
            let origin = Origin::value("--store", store.as_str());
            raw.merge_at(&["store".into()], &origin, &mut problems);
        }
        for set in &self.set {
            raw.set(set, &mut problems);
        }
        if problems.has_errors() {
            return Err(problems.sorted());
        }
        Ok(raw)
    }

    /// The file to read, if there is one.
    pub fn path(&self) -> Option<PathBuf> {
        self.file
            .clone()
            .or_else(|| Path::new(DEFAULT_FILE).exists().then(|| PathBuf::from(DEFAULT_FILE)))
    }

    fn read_file(&self, raw: &mut RawSettings, problems: &mut Problems) {
        let Some(path) = self.path() else { return };
        let origin = match read_text(&path) {
            Ok(origin) => origin,
            Err(problem) => return problems.push(problem),
        };
        match yaml::parse(&origin) {
            // A file that is being written may be empty for a moment; that must not switch every limit off.
            Ok(root) if root.is_null() => problems.error_with(
                &root.location,
                "the settings file is empty",
                "write `rules: []` into it to limit nothing",
            ),
            Ok(root) if matches!(root.kind, NodeKind::Map(_)) => {
                raw.root.location = root.location.clone();
                merge(&mut raw.root, root);
            }
            Ok(root) => root.report_unexpected(
                "a map of settings",
                "write one setting per line: `drain: 10s`",
                problems,
            ),
            Err(found) => problems.extend(found),
        }
        raw.file = Some(ConfigFile { path, origin });
    }
}

impl RawSettings {
    pub(crate) fn empty() -> Self {
        Self {
            root: Node {
                location: Location::start(&Origin::new("settings", "")),
                kind: NodeKind::Map(Vec::new()),
            },
            file: None,
            ratelimit_origins: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// A setting at the top level, unless it is null.
    pub(crate) fn setting(&self, name: &str) -> Option<&Node> {
        let NodeKind::Map(entries) = &self.root.kind else {
            return None;
        };
        let (_, node) = entries.iter().find(|(key, _)| &*key.text == name)?;
        (!node.is_null()).then_some(node)
    }

    /// True if a location is in the environment of `ratelimit`.
    pub fn is_from_ratelimit_env(&self, location: &Location) -> bool {
        self.ratelimit_origins
            .iter()
            .any(|origin| Arc::ptr_eq(origin, &location.origin))
    }

    /// The directory that a path at this location is relative to: that of the settings file for values in the file, else the
    /// working directory.
    pub fn base_dir_of(&self, location: &Location) -> PathBuf {
        self.file
            .as_ref()
            .filter(|file| Arc::ptr_eq(&file.origin, &location.origin))
            .and_then(|file| file.path.parent())
            .map(Path::to_owned)
            .unwrap_or_default()
    }

    /// The settings that need a restart.
    pub fn static_settings(&self) -> Vec<(&MapKey, &Node)> {
        match &self.root.kind {
            NodeKind::Map(entries) => entries
                .iter()
                .filter(|(key, _)| !RELOADABLE.contains(&&*key.text))
                .map(|(key, value)| (key, value))
                .collect(),
            _ => Vec::new(),
        }
    }

    /// The names of the settings that differ from `other`'s and need a restart.
    pub fn changed_since(&self, other: &Self) -> Vec<String> {
        let (new, old) = (self.static_settings(), other.static_settings());
        let missing = |from: &[(&MapKey, &Node)], (key, value): &(&MapKey, &Node)| {
            !from
                .iter()
                .any(|(known, current)| known.text == key.text && is_same(current, value))
        };
        let mut names: Vec<String> = new
            .iter()
            .filter(|entry| missing(&old, entry))
            .chain(old.iter().filter(|entry| missing(&new, entry)))
            .map(|(key, _)| key.text.to_string())
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Merges one `--set key.path=value`.
    fn set(&mut self, flag_text: &str, problems: &mut Problems) {
        let flag = Origin::value(format!("--set {flag_text}"), "");
        let Some((path, value)) = flag_text.split_once('=') else {
            problems.error_with(
                &Location::start(&flag),
                "missing `=`",
                "write for example `--set server.http=127.0.0.1:9000`",
            );
            return;
        };
        let path: Vec<String> = path.split('.').map(|part| part.trim().to_owned()).collect();
        let origin = Origin::value(format!("--set {}", path.join(".")), value);
        self.merge_at(&path, &origin, problems);
    }

    /// Merges the YAML of a text at a path.
    fn merge_at(&mut self, path: &[String], origin: &Arc<Origin>, problems: &mut Problems) {
        let start = Location::start(origin);
        if path.iter().any(String::is_empty) || path.len() > LEVELS_MAX {
            problems.error_with(
                &without_snippet(&start),
                "not the name of a setting",
                "write for example `server.http`, or in the environment `TOLLGATE_SERVER__HTTP`",
            );
            return;
        }
        // Reported without the text: a variable that cannot be parsed, or is unknown, may hold a secret.
        let redacted = without_snippet(&start);
        let value = match yaml::parse(origin) {
            Ok(value) => value,
            Err(found) => {
                return problems.extend(found.into_iter().map(|problem| {
                    let location = without_snippet(&problem.location);
                    problem.with_location(location)
                }));
            }
        };
        let override_node = path.iter().rev().fold(value, |value, name| Node {
            location: start.clone(),
            kind: NodeKind::Map(vec![(
                MapKey {
                    location: redacted.clone(),
                    text: name.as_str().into(),
                },
                value,
            )]),
        });
        merge(&mut self.root, override_node);
    }
}

/// Reads a file.
///
/// # Errors
/// The file is missing, too large or not UTF-8.
pub fn read_text(path: &Path) -> Result<Arc<Origin>, Problem> {
    let name = path.display().to_string();
    let failure = |text: String, hint: &str| {
        let location = Location::start(&Origin::new(name.as_str(), ""));
        Err(Problem::error(&location, text).with_hint(hint))
    };
    let size = match std::fs::metadata(path) {
        Ok(data) if data.is_dir() => return failure("this is a directory".into(), "name a file"),
        Ok(data) => data.len(),
        Err(error) => {
            return failure(
                format!("cannot be read: {error}"),
                "does it exist, and may this user read it?",
            );
        }
    };
    if size > yaml::BYTES_MAX as u64 {
        return failure(
            format!("the file has {size} bytes; at most {} are read", yaml::BYTES_MAX),
            "split it into several files",
        );
    }
    // It may grow while it is read, and a pipe has no size.
    let mut bytes = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| {
        use std::io::Read;
        file.take(yaml::BYTES_MAX as u64 + 1).read_to_end(&mut bytes)
    });
    if let Err(error) = read {
        return failure(
            format!("cannot be read: {error}"),
            "does it exist, and may this user read it?",
        );
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok(Origin::new(name, text)),
        Err(error) => failure(
            format!("not UTF-8 from byte {} on", error.utf8_error().valid_up_to()),
            "save it as UTF-8",
        ),
    }
}

/// The path of the setting that a variable sets. `None` if it is not one of ours.
fn setting_path(variable: &str) -> Option<Vec<String>> {
    let name = variable.strip_prefix("TOLLGATE_")?;
    if CLIENT_VARIABLES.contains(&name) || is_from_kubernetes(name) {
        return None;
    }
    Some(name.to_ascii_lowercase().split("__").map(str::to_owned).collect())
}

/// True for variables that Kubernetes sets in every pod for a service named `tollgate` or `tollgate-…`.
fn is_from_kubernetes(name: &str) -> bool {
    let is_service_suffix = |part: &str| {
        part == "PORT"
            || ["PORT_", "SERVICE_HOST", "SERVICE_PORT"]
                .iter()
                .any(|start| part.starts_with(start))
    };
    // Levels of settings are separated by two underscores, so a single one before these words ends a service's name.
    is_service_suffix(name)
        || (!name.contains("__")
            && name
                .match_indices('_')
                .any(|(at, _)| name.get(at + 1..).is_some_and(is_service_suffix)))
}

/// Merges maps key by key; replaces everything else.
fn merge(base: &mut Node, over: Node) {
    match (&mut base.kind, over.kind) {
        (NodeKind::Map(existing), NodeKind::Map(entries)) => {
            for (key, value) in entries {
                match existing.iter_mut().find(|(known, _)| known.text == key.text) {
                    Some((known, current)) => {
                        expand_shorthand(known, current, &value);
                        *known = key;
                        merge(current, value);
                    }
                    None => existing.push((key, value)),
                }
            }
        }
        (existing, kind) => {
            *existing = kind;
            base.location = over.location;
        }
    }
}

/// Expands a shorthand to the map it stands for before keys are merged into it: `store: memory` and
/// `--set store.max_memory=1GiB` both apply.
fn expand_shorthand(key: &MapKey, current: &mut Node, over: &Node) {
    let shorthand = SHORTHANDS.iter().find(|(name, _)| *name == &*key.text);
    if let Some((_, field)) = shorthand
        && matches!(over.kind, NodeKind::Map(_))
        && !matches!(current.kind, NodeKind::Map(_) | NodeKind::Null)
    {
        let location = current.location.clone();
        let value = std::mem::replace(&mut current.kind, NodeKind::Null);
        current.kind = NodeKind::Map(vec![(
            MapKey {
                location: location.clone(),
                text: (*field).into(),
            },
            Node { location, kind: value },
        )]);
    }
}

/// True for equal values at any location, with keys in any order.
fn is_same(a: &Node, b: &Node) -> bool {
    match (&a.kind, &b.kind) {
        (NodeKind::List(a), NodeKind::List(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same(a, b)),
        (NodeKind::Map(a), NodeKind::Map(b)) => {
            a.len() == b.len()
                && a.iter().all(|(key, value)| {
                    b.iter()
                        .any(|(other, current)| other.text == key.text && is_same(value, current))
                })
        }
        (a, b) => a == b,
    }
}

/// The settings file without `--config`.
pub const DEFAULT_FILE: &str = "tollgate.yaml";

/// Settings that a reload applies completely.
const RELOADABLE: [&str; 3] = ["rules", "rules_files", ratelimit::SETTING];

/// Variables of the commands that call a server.
const CLIENT_VARIABLES: [&str; 5] = ["URL", "TOKEN", "TOKEN_FILE", "ADMIN_URL", "ADMIN_TOKEN"];

const SHORTHANDS: [(&str, &str); 2] = [("store", "url"), (ratelimit::SETTING, "files")];

/// The most levels in the name of a variable or a flag.
const LEVELS_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn text_at(raw: &RawSettings, path: &[&str]) -> Option<String> {
        let mut node = &raw.root;
        for name in path {
            let NodeKind::Map(entries) = &node.kind else {
                return None;
            };
            node = &entries.iter().find(|(key, _)| &*key.text == *name)?.1;
        }
        node.scalar().map(str::to_owned)
    }

    fn sources(variables: &[(&str, &str)], store: Option<&str>, set: &[&str]) -> Sources {
        Sources {
            file: None,
            variables: variables.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect(),
            store: store.map(Into::into),
            set: set.iter().map(|set| (*set).into()).collect(),
        }
    }

    #[test]
    fn flags_win_over_the_environment_and_later_flags_over_earlier_ones() {
        let variables = [
            ("TOLLGATE_SERVER__HTTP", "a:1"),
            ("TOLLGATE_DRAIN", "3s"),
            ("PATH", "/bin"),
        ];
        let raw = sources(
            &variables,
            None,
            &["server.http=b:2", "server.http=c:3", "server.grpc=disabled"],
        )
        .read()
        .unwrap();
        assert_eq!(text_at(&raw, &["server", "http"]).as_deref(), Some("c:3"));
        assert_eq!(text_at(&raw, &["server", "grpc"]).as_deref(), Some("disabled"));
        assert_eq!(text_at(&raw, &["drain"]).as_deref(), Some("3s"));
    }

    #[test]
    fn a_word_that_is_short_for_a_map_is_kept_when_keys_are_laid_over_it() {
        let raw = sources(&[("TOLLGATE_STORE", "memory")], None, &["store.max_memory=1GiB"])
            .read()
            .unwrap();
        assert_eq!(text_at(&raw, &["store", "url"]).as_deref(), Some("memory"));
        assert_eq!(text_at(&raw, &["store", "max_memory"]).as_deref(), Some("1GiB"));
        // And a word over a map replaces it.
        let raw = sources(&[("TOLLGATE_STORE__MAX_MEMORY", "1GiB")], Some("memory"), &[])
            .read()
            .unwrap();
        assert_eq!(text_at(&raw, &["store"]).as_deref(), Some("memory"));
    }

    #[test]
    fn variables_that_are_not_ours_or_empty_are_passed_over() {
        for name in [
            "HOME",
            "TOLLGATE_URL",
            "TOLLGATE_TOKEN",
            "TOLLGATE_TOKEN_FILE",
            "TOLLGATE_ADMIN_URL",
            "TOLLGATE_ADMIN_TOKEN",
            "TOLLGATE_PORT",
            "TOLLGATE_PORT_8080_TCP_ADDR",
            "TOLLGATE_SERVICE_HOST",
            "TOLLGATE_SERVICE_PORT_HTTP",
        ] {
            assert_eq!(setting_path(name), None, "{name}");
        }
        let raw = sources(&[("TOLLGATE_STORE", "")], None, &[]).read().unwrap();
        assert!(raw.static_settings().is_empty());
    }

    #[test]
    fn what_cannot_be_read_names_its_variable_or_flag() {
        let found = sources(
            &[("TOLLGATE_AUTH", "{"), ("TOLLGATE___", "x")],
            None,
            &["nothing", "a..b=1"],
        )
        .read()
        .unwrap_err();
        let text: String = found.iter().map(ToString::to_string).collect();
        for name in ["TOLLGATE_AUTH", "TOLLGATE___", "--set nothing", "--set a..b"] {
            assert!(text.contains(&format!("{name}: error: ")), "{name} in {text}");
        }
    }

    #[test]
    fn a_variable_that_cannot_be_read_is_told_without_what_it_holds() {
        for (name, value) in [
            ("TOLLGATE_AUTH__TOKENS", "[{token: hunter2"),
            ("TOLLGATE___X", "hunter2"),
        ] {
            let found = sources(&[(name, value)], None, &[]).read().unwrap_err();
            let messages: String = found.iter().map(ToString::to_string).collect();
            assert!(messages.contains(name) && !messages.contains("hunter2"), "{messages}");
        }
    }

    #[test]
    fn a_change_of_settings_is_told_from_a_change_of_rules_and_of_lines() {
        let read = |text: &str| {
            let origin = Origin::new("tollgate.yaml", text);
            RawSettings {
                root: yaml::parse(&origin).unwrap(),
                ..RawSettings::empty()
            }
        };
        let old = read("drain: 1s\nserver: { http: a, grpc: b }\nrules: []\n");
        assert!(
            read("\nrules: [x]\nserver: { grpc: b, http: a }\ndrain: 1s\n")
                .changed_since(&old)
                .is_empty()
        );
        assert_eq!(
            read("drain: 2s\nstore: memory\nrules: []\n").changed_since(&old),
            ["drain", "server", "store"]
        );
    }
}
