//! The environment of envoyproxy/ratelimit as the lowest layer of settings, for users who change nothing but the image. It is
//! used when `RUNTIME_ROOT` is set.

mod names;
mod server;
mod store;

pub(crate) use self::names::is_known;

use std::collections::HashMap;
use std::sync::Arc;
use tollgate_limiter::core::problem::{Location, Origin, Problem, Problems};
use tollgate_limiter::core::quantity;
use tollgate_limiter::core::yaml::{MapKey, Node, NodeKind};

/// The settings that the variables describe.
#[derive(Debug)]
pub(crate) struct RatelimitEnv {
    /// The settings, a map.
    pub(crate) root: Node,
    /// The origins of the values.
    pub(crate) origins: Vec<Arc<Origin>>,
    /// Notes on variables that have a different effect here.
    pub(crate) notes: Vec<Problem>,
}

/// The state of reading the variables.
struct EnvReader<'v> {
    variables: HashMap<&'v str, &'v str>,
    env: RatelimitEnv,
    problems: &'v mut Problems,
}

impl RatelimitEnv {
    /// Reads the variables, if `RUNTIME_ROOT` is set; without it only a note on those that have no effect. An empty value
    /// counts as not set.
    pub(crate) fn read(variables: &[(String, String)], problems: &mut Problems) -> Self {
        let set = variables.iter().filter(|(_, value)| !value.is_empty());
        let variables: HashMap<&str, &str> = set.map(|(name, value)| (&**name, &**value)).collect();
        let root = variables.get(RUNTIME_ROOT).copied();
        let mut reader = EnvReader {
            variables,
            env: Self {
                root: Node {
                    location: Location::start(&Origin::value(RUNTIME_ROOT, "")),
                    kind: NodeKind::Map(Vec::new()),
                },
                origins: Vec::new(),
                notes: Vec::new(),
            },
            problems,
        };
        reader.config_type();
        let Some(root) = root else {
            reader.note_missing_root();
            reader.env.origins.clear();
            return reader.env;
        };
        reader.files(root);
        reader.server();
        reader.modes();
        reader.log();
        reader.store();
        reader.unsupported();
        reader.env
    }
}

/// True if these variables let several files share a domain.
pub fn merges_domains(variables: &[(String, String)]) -> bool {
    let variable = variables.iter().find(|(name, _)| name == MERGE_DOMAINS);
    variable.is_some_and(|(_, value)| parse_bool(value) == Some(true))
}

/// Parses a boolean in any spelling that Go accepts.
fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

impl<'v> EnvReader<'v> {
    fn find(&self, name: &str) -> Option<&'v str> {
        self.variables.get(name).copied()
    }

    /// A location that names a variable and never its value, which may be a secret.
    fn location(&mut self, name: &str) -> Location {
        let known = self.env.origins.iter().find(|origin| &*origin.name == name);
        if let Some(origin) = known {
            return Location::start(origin);
        }
        let origin = Origin::value(name, "");
        self.env.origins.push(Arc::clone(&origin));
        Location::start(&origin)
    }

    /// Sets the value at the path of a setting, with a variable as its origin.
    fn put(&mut self, path: &[&str], name: &str, kind: NodeKind) {
        let location = self.location(name);
        let mut target = &mut self.env.root;
        for part in path {
            if !matches!(target.kind, NodeKind::Map(_)) {
                target.kind = NodeKind::Map(Vec::new());
            }
            let NodeKind::Map(entries) = &mut target.kind else {
                return;
            };
            let at = match entries.iter().position(|(key, _)| &*key.text == *part) {
                Some(at) => at,
                None => {
                    let key = MapKey {
                        location: location.clone(),
                        text: (*part).into(),
                    };
                    let kind = NodeKind::Null;
                    let location = location.clone();
                    entries.push((key, Node { location, kind }));
                    entries.len() - 1
                }
            };
            let Some((_, node)) = entries.get_mut(at) else { return };
            target = node;
        }
        target.kind = kind;
        target.location = location;
    }

    fn error(&mut self, name: &str, text: impl Into<String>, hint: impl Into<String>) {
        let location = self.location(name);
        self.problems.error_with(&location, text, hint);
    }

    fn note(&mut self, name: &str, text: impl Into<String>, hint: impl Into<String>) {
        let location = self.location(name);
        self.env.notes.push(Problem::warning(&location, text).with_hint(hint));
    }

    /// Reads a boolean. `None` if it is not set or invalid.
    fn flag(&mut self, name: &str) -> Option<bool> {
        let flag = parse_bool(self.find(name)?);
        if flag.is_none() {
            self.error(name, "expected true or false", format!("write `{name}=true`"));
        }
        flag
    }

    /// Reads a non-negative number.
    fn number(&mut self, name: &str, example: &str) -> Option<u64> {
        let number = self.find(name)?.parse().ok();
        if number.is_none() {
            let hint = format!("write for example `{name}={example}`");
            self.error(name, "expected a whole number that is not negative", hint);
        }
        number
    }

    /// Rejects every source of limits other than files: a server without limits would be healthy, and a proxy that fails
    /// open would limit nothing.
    fn config_type(&mut self) {
        match self.find(CONFIG_TYPE) {
            None | Some("FILE") => {}
            Some(XDS_CONFIG_TYPE) => self.error(
                CONFIG_TYPE,
                "limits cannot be read over xDS, so this server would have none",
                "write them into files below RUNTIME_ROOT and set `CONFIG_TYPE=FILE`",
            ),
            // Without its root another program may have a variable of this name.
            Some(_) if self.find(RUNTIME_ROOT).is_none() => {}
            Some(_) => self.error(
                CONFIG_TYPE,
                "unknown source of limits",
                "write `CONFIG_TYPE=FILE`, and the limits into files below RUNTIME_ROOT",
            ),
        }
    }

    /// Notes the variables that have no effect without the one that enables them.
    fn note_missing_root(&mut self) {
        let set = names::all().filter(|name| self.find(name).is_some() && !COMMON_NAMES.contains(name));
        let set: Vec<&str> = set.collect();
        if let Some(first) = set.first() {
            let text = format!(
                "the variables of envoyproxy/ratelimit have no effect without RUNTIME_ROOT: {}",
                set.join(", ")
            );
            let hint = format!(
                "set `RUNTIME_ROOT={DEFAULT_ROOT}` (its default, or your own) to use them, or TOLLGATE_… variables such as \
                 `TOLLGATE_STORE`"
            );
            self.note(first, text, hint);
        }
    }

    /// Reads the directory of the files and their options.
    fn files(&mut self, root: &str) {
        let folder_name = |name| self.find(name).unwrap_or_default().trim_matches('/');
        let subdirectory = folder_name("RUNTIME_SUBDIRECTORY");
        let directory = match folder_name("RUNTIME_APPDIRECTORY") {
            "" => "config",
            named => named,
        };
        let root = root.trim_end_matches('/');
        let folder = match subdirectory {
            "" => format!("{root}/{directory}"),
            subdirectory => format!("{root}/{subdirectory}/{directory}"),
        };
        let pattern = format!("{}/*", glob::Pattern::escape(&folder));
        self.put(&["envoy_rules", "files"], RUNTIME_ROOT, NodeKind::Text(pattern.into()));
        self.flags(&[
            (MERGE_DOMAINS, "merge_domains"),
            ("FORCE_START_WITHOUT_INITIAL_CONFIG", "force_start"),
            ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "healthy_with_rules"),
        ]);
        // Both always apply: each file is polled, which sees swapped links and written files alike.
        for name in ["RUNTIME_WATCH_ROOT", "RUNTIME_IGNOREDOTFILES"] {
            self.flag(name);
        }
    }

    /// Reads booleans that are settings of `envoy_rules`.
    fn flags(&mut self, flags: &[(&str, &str)]) {
        for (name, key) in flags {
            if let Some(flag) = self.flag(name) {
                self.put(&["envoy_rules", key], name, NodeKind::Bool(flag));
            }
        }
    }

    /// Reads the answer modes.
    fn modes(&mut self) {
        self.flags(&[
            ("SHADOW_MODE", "shadow_mode"),
            ("QUOTA_MODE", "quota_mode"),
            ("RESPONSE_DYNAMIC_METADATA", "dynamic_metadata"),
            ("USE_PROMETHEUS", "prometheus_names"),
        ]);
        if let Some(ratio) = self.find("NEAR_LIMIT_RATIO") {
            match ratio.parse::<f32>() {
                Ok(share) if (0.0..=1.0).contains(&share) => {
                    // In the form of the setting: a digit before the point and at most six after it.
                    let text = match quantity::parse_share(ratio) {
                        Ok(_) => ratio.to_owned(),
                        Err(_) => format!("{share:.6}"),
                    };
                    let kind = NodeKind::Number(text.into());
                    self.put(&["envoy_rules", "near_limit_ratio"], "NEAR_LIMIT_RATIO", kind);
                }
                _ => self.error(
                    "NEAR_LIMIT_RATIO",
                    "expected a share of a limit, from 0 to 1",
                    "write for example `NEAR_LIMIT_RATIO=0.8`",
                ),
            }
        }
        if self.flag("LIMIT_RESPONSE_HEADERS_ENABLED") == Some(true) {
            let at = ["envoy_rules", "response_headers"];
            self.put(&at, "LIMIT_RESPONSE_HEADERS_ENABLED", NodeKind::Bool(true));
            for (name, key) in [
                ("LIMIT_LIMIT_HEADER", "limit"),
                ("LIMIT_REMAINING_HEADER", "remaining"),
                ("LIMIT_RESET_HEADER", "reset"),
            ] {
                if let Some(header) = self.find(name) {
                    self.put(&[at[0], at[1], key], name, NodeKind::Text(header.into()));
                }
            }
        }
    }

    fn log(&mut self) {
        if let Some(level) = self.find("LOG_LEVEL") {
            let level = match level.to_ascii_lowercase().as_str() {
                "panic" | "fatal" | "error" => Some("error"),
                "warn" | "warning" => Some("warn"),
                "info" => Some("info"),
                "debug" | "trace" => Some("debug"),
                _ => None,
            };
            match level {
                Some(level) => self.put(&["log"], "LOG_LEVEL", NodeKind::Text(level.into())),
                None => self.error(
                    "LOG_LEVEL",
                    "this is not a level of the log",
                    "write one of panic, fatal, error, warn, info, debug, trace: `LOG_LEVEL=info`",
                ),
            }
        }
        let format = self.find("LOG_FORMAT").map(str::to_ascii_lowercase);
        match format.as_deref() {
            Some(format @ ("text" | "json")) => self.put(&["log_format"], "LOG_FORMAT", NodeKind::Text(format.into())),
            Some(_) => self.error(
                "LOG_FORMAT",
                "this is not a format of the log",
                "write `LOG_FORMAT=text` or `LOG_FORMAT=json`",
            ),
            None => {}
        }
    }

    /// Notes the variables without an equivalent.
    fn unsupported(&mut self) {
        for (name, text, hint) in names::unsupported() {
            let is_set = match self.find(name) {
                None => false,
                Some(value) if parse_bool(value) == Some(false) => false,
                Some(_) => true,
            };
            if is_set {
                self.note(name, text, hint);
            }
        }
    }
}

/// The variable that names the files' directory and enables this environment.
pub(crate) const RUNTIME_ROOT: &str = "RUNTIME_ROOT";
/// Its default.
const DEFAULT_ROOT: &str = "/srv/runtime_data/current";
const CONFIG_TYPE: &str = "CONFIG_TYPE";
const XDS_CONFIG_TYPE: &str = "GRPC_XDS_SOTW";
/// Names that many other programs use too.
const COMMON_NAMES: [&str; 6] = ["HOST", "PORT", "LOG_LEVEL", "LOG_FORMAT", "DEBUG_PORT", "DEBUG_HOST"];
const MERGE_DOMAINS: &str = "MERGE_DOMAIN_CONFIG";

#[cfg(test)]
mod tests;
