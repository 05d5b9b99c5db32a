//! The rules, one function each. The lists of what they allow and ban stand at the end.

pub(crate) mod dashboard;
pub(crate) mod tree;
pub(crate) mod vocabulary;

use crate::repository::File;

/// Checks files and returns their violations, one line each.
pub(crate) type Rule = fn(&[File]) -> Vec<String>;

/// Algorithm X is `X.rs`, `X.txt` and `X.lua`.
pub(crate) fn algorithm_files(files: &[File]) -> Vec<String> {
    let named: Vec<(&str, &str)> = files
        .iter()
        .filter_map(|file| file.path.strip_prefix(ALGORITHMS)?.split_once('.'))
        .filter(|(name, _)| !name.contains('/'))
        .collect();
    let mut names: Vec<&str> = named.iter().map(|(name, _)| *name).collect();
    names.sort_unstable();
    names.dedup();
    let mut violations = Vec::new();
    for name in names {
        for kind in ALGORITHM_KINDS {
            if !named.contains(&(name, kind)) {
                violations.push(format!(
                    "{ALGORITHMS}{name}.{kind}: is missing; an algorithm is {}",
                    ALGORITHM_KINDS.join(" + ")
                ));
            }
        }
    }
    violations
}

/// The twins of the algorithms are pure; the scripts of the config cache decide nothing. Documents may mention calls, and benches
/// contain the scripts of peers.
pub(crate) fn server_calls(files: &[File]) -> Vec<String> {
    let is_free = |path: &str| {
        let is_script = path.ends_with("/settle.lua") || path.contains("/config_cache/") && extension(path) == "lua";
        is_script || path.starts_with("bench/") || extension(path) == "md"
    };
    find(
        files.iter().filter(|file| !is_free(&file.path)),
        &SERVER_CALLS,
        "only settle.lua calls the server",
    )
}

/// The dependencies a crate links, checked against its list. Dependencies of tests only are not checked.
pub(crate) fn dependencies(files: &[File]) -> Vec<String> {
    let mut violations = Vec::new();
    for (path, wall) in MANIFESTS {
        let Some(manifest) = files.iter().find(|file| file.path == path) else {
            violations.push(format!("{path}: is missing, and its list with it"));
            continue;
        };
        for name in linked_crates(&manifest.text) {
            match wall {
                Wall::Only(allowed) if !allowed.contains(&name) => violations.push(format!(
                    "{path}: depends on `{name}`; argue for it and add it to the list in the tidy test"
                )),
                Wall::Never(banned) if banned.contains(&name) => {
                    violations.push(format!("{path}: depends on `{name}`, which belongs to the product"));
                }
                Wall::Only(_) | Wall::Never(_) => {}
            }
        }
    }
    violations
}

/// `foo.rs` next to `foo/`, so that the tabs of an editor have names.
pub(crate) fn module_files(files: &[File]) -> Vec<String> {
    files
        .iter()
        .filter(|file| file.path.ends_with("/mod.rs"))
        .map(|file| {
            format!(
                "{}: name the file after the module and put it next to the folder",
                file.path
            )
        })
        .collect()
}

/// No tabs, no trailing white space, one newline at the end.
pub(crate) fn white_space(files: &[File]) -> Vec<String> {
    let mut violations = Vec::new();
    for file in files.iter().filter(|file| is_written_by_hand(&file.path)) {
        // Not `lines()`: it would swallow a carriage return.
        for (number, line) in (1..).zip(file.text.split('\n')) {
            if line.contains('\t') {
                violations.push(format!("{}:{number}: has a tab", file.path));
            }
            if line.ends_with(char::is_whitespace) {
                violations.push(format!("{}:{number}: ends with white space", file.path));
            }
        }
        if !file.text.is_empty() && (!file.text.ends_with('\n') || file.text.ends_with("\n\n")) {
            violations.push(format!("{}: does not end with exactly one newline", file.path));
        }
    }
    violations
}

/// One line begins with a single `#`, not counting those in code.
pub(crate) fn titles(files: &[File]) -> Vec<String> {
    let mut violations = Vec::new();
    for file in files.iter().filter(|file| extension(&file.path) == "md") {
        let mut in_code = false;
        let mut count = 0;
        for line in file.text.lines() {
            if line.trim_start().starts_with("```") {
                in_code = !in_code;
            } else if !in_code && line.starts_with("# ") {
                count += 1;
            }
        }
        if count != 1 {
            violations.push(format!("{}: has {count} titles, should have one", file.path));
        }
    }
    violations
}

/// A Rust file of one idea is well below [`LINES_MAX`].
pub(crate) fn lengths(files: &[File]) -> Vec<String> {
    files
        .iter()
        .filter(|file| extension(&file.path) == "rs")
        .map(|file| (file, file.text.lines().count()))
        .filter(|(_, lines)| *lines > LINES_MAX)
        .map(|(file, lines)| {
            format!(
                "{}: has {lines} lines; at {LINES_MAX} it holds more than one idea",
                file.path
            )
        })
        .collect()
}

/// Known gaps are fixed or tracked as issues, not marked in the code.
pub(crate) fn unfinished(files: &[File]) -> Vec<String> {
    find(files.iter(), &UNFINISHED, "finish it or take it out")
}

/// A path that names a folder of one machine is wrong on every other.
pub(crate) fn machine_paths(files: &[File]) -> Vec<String> {
    find(files.iter(), &MACHINE_PATHS, "is a path of one machine")
}

/// Front ends call the gate and never each other; nothing imports the admin front end but the commands, which start it.
pub(crate) fn imports(files: &[File]) -> Vec<String> {
    let mut violations = Vec::new();
    for file in files {
        let Some(inside) = file.path.strip_prefix(PRODUCT) else {
            continue;
        };
        let home = inside
            .strip_prefix("server/")
            .and_then(|rest| rest.split(['/', '.']).next())
            .unwrap_or_default();
        for part in server_parts_named_in(&file.text) {
            if FRONT_ENDS.contains(&home) && FRONT_ENDS.contains(&part) && home != part {
                violations.push(format!(
                    "{}: `{home}` imports `{part}`; what they share belongs to the gate",
                    file.path
                ));
            }
            if part == ADMIN && home != ADMIN && !inside.starts_with(COMMANDS) {
                violations.push(format!("{}: imports `{ADMIN}`, which nothing may", file.path));
            }
        }
    }
    violations
}

/// Header values, problem bodies and client addresses are written and read in one crate, which the product imports.
pub(crate) fn shared_writers(files: &[File]) -> Vec<String> {
    find(
        files
            .iter()
            .filter(|file| file.path.starts_with(PRODUCT) && extension(&file.path) == "rs"),
        &SHARED_WRITERS,
        "belongs to crates/tower; import it from there",
    )
}

/// The layers of the Redis store import one way: `script`, `connection`, `node`, `topology`, each only those before it.
pub(crate) fn redis_layers(files: &[File]) -> Vec<String> {
    let mut violations = Vec::new();
    for file in files {
        let Some(inside) = file.path.strip_prefix(REDIS) else {
            continue;
        };
        let home = inside.split(['/', '.']).next().unwrap_or_default();
        let Some(layer) = REDIS_LAYERS.iter().position(|layer| *layer == home) else {
            continue;
        };
        for upper in REDIS_LAYERS.iter().skip(layer + 1) {
            let is_import = |line: &str| {
                let path = line.trim_start().trim_start_matches("pub(crate) ");
                let inside = path
                    .strip_prefix("use crate::store::redis::")
                    .or_else(|| path.strip_prefix("use super::"));
                inside.is_some_and(|inside| {
                    inside
                        .split(|c: char| !c.is_alphanumeric() && c != '_')
                        .any(|w| w == *upper)
                })
            };
            if file.text.lines().any(is_import) {
                violations.push(format!("{}: `{home}` imports `{upper}`, which is above it", file.path));
            }
        }
    }
    violations
}

/// The root holds what [`TOP_LEVEL`] lists and nothing else.
pub(crate) fn top_level(files: &[File]) -> Vec<String> {
    let mut strays: Vec<&str> = files
        .iter()
        .filter_map(|file| file.path.split('/').next())
        .filter(|entry| !TOP_LEVEL.contains(entry))
        .collect();
    strays.sort_unstable();
    strays.dedup();
    strays
        .into_iter()
        .map(|entry| format!("{entry}: is not in the list of top-level entries"))
        .collect()
}

/// Every line that contains one of the needles, with the reason it is wrong.
fn find<'a>(files: impl Iterator<Item = &'a File>, needles: &[&str], wrong: &str) -> Vec<String> {
    let mut violations = Vec::new();
    for file in files {
        for (number, line) in (1..).zip(file.text.lines()) {
            for needle in needles.iter().filter(|needle| line.contains(**needle)) {
                violations.push(format!("{}:{number}: `{needle}`: {wrong}", file.path));
            }
        }
    }
    violations
}

/// The crates in every `dependencies` table of a manifest, for one target or for all.
/// A renamed crate also counts under its published name.
fn linked_crates(manifest: &str) -> Vec<&str> {
    let mut names = Vec::new();
    let mut in_table = false;
    for line in manifest.lines().map(str::trim) {
        if let Some(header) = line.strip_prefix('[') {
            let header = header.split(']').next().unwrap_or_default();
            in_table = header == "dependencies" || header.ends_with(".dependencies");
            // [dependencies.name]
            if let Some((table, name)) = header.rsplit_once('.')
                && (table == "dependencies" || table.ends_with(".dependencies"))
            {
                names.push(name);
            }
        } else if in_table
            && !line.starts_with('#')
            && let Some((name, value)) = line.split_once('=')
        {
            // `name = "1"`, or `name.workspace = true`
            names.extend(name.trim().split('.').next());
            names.extend(
                value
                    .split_once("package")
                    .and_then(|(_, renamed)| renamed.split('"').nth(1)),
            );
        }
    }
    names
}

/// The modules named right after `server::` or `super::`, alone or in a group.
fn server_parts_named_in(source: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    for prefix in ["server::", "super::"] {
        for rest in source.split(prefix).skip(1) {
            match rest.strip_prefix('{') {
                Some(group) => parts.extend(group_members(group)),
                None => parts.push(identifier(rest)),
            }
        }
    }
    parts
}

/// The first name of each member of a group whose opening brace was just read; nested groups are skipped.
fn group_members(group: &str) -> Vec<&str> {
    let mut members = Vec::new();
    let mut depth = 0;
    for piece in group.split_inclusive([',', '{', '}']) {
        if depth == 0 {
            members.push(identifier(piece.trim_start()));
        }
        match piece.chars().last() {
            Some('{') => depth += 1,
            Some('}') if depth == 0 => break,
            Some('}') => depth -= 1,
            _ => {}
        }
    }
    members
}

fn identifier(source: &str) -> &str {
    source
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .next()
        .unwrap_or_default()
}

fn extension(path: &str) -> &str {
    path.rsplit_once('.').map_or("", |(_, extension)| extension)
}

fn file_name(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

fn is_written_by_hand(path: &str) -> bool {
    path.starts_with("scripts/")
        || path.starts_with(".ci/")
        || ["rs", "lua", "txt", "md", "toml", "sh"].contains(&extension(path))
}

/// The dependencies a manifest may list.
enum Wall {
    Only(&'static [&'static str]),
    Never(&'static [&'static str]),
}

const MANIFESTS: [(&str, Wall); 4] = [
    // Decides from its arguments alone. Each name added here needs a reason: parsing (YAML, networks, regexes), substring
    // search in linear time for globs (memchr, which regex needs anyway), lists without an allocation per attempt
    // (smallvec), and the time zone database compiled into the program (jiff without `std`); none of them does I/O or
    // reads a clock.
    (
        "crates/core/Cargo.toml",
        Wall::Only(&["granit-parser", "ipnet", "jiff", "memchr", "regex", "smallvec"]),
    ),
    // Embeddable: it brings no server, no command line and no database.
    (
        "crates/limiter/Cargo.toml",
        Wall::Never(&["axum", "tonic", "clap", "sqlx"]),
    ),
    // A layer for any service: it brings no framework and no server. The services of its tests do.
    (
        "crates/tower/Cargo.toml",
        Wall::Never(&["axum", "tonic", "hyper", "hyper-util", "tower", "clap", "sqlx"]),
    ),
    // Reproducible: a seed is the whole input, so that nothing with a clock or randomness of its own comes in.
    ("crates/sim/Cargo.toml", Wall::Only(&["tollgate-core"])),
];

pub(crate) const ALGORITHMS: &str = "crates/core/src/algorithm/";
/// The algorithm, its worked examples and its twin.
const ALGORITHM_KINDS: [&str; 3] = ["rs", "txt", "lua"];
const PRODUCT: &str = "crates/tollgate/src/";
const REDIS: &str = "crates/limiter/src/store/redis/";

/// Lowest first.
const REDIS_LAYERS: [&str; 4] = ["script", "connection", "node", "topology"];

const FRONT_ENDS: [&str; 4] = ["http", "grpc", "resp", "proxy"];
const ADMIN: &str = "admin";
const COMMANDS: &str = "cli/";
const LINES_MAX: usize = 700;

const TOP_LEVEL: [&str; 19] = [
    ".ci",
    ".gitignore",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
    "bench",
    "clippy.toml",
    "crates",
    "deploy",
    "docs",
    "examples",
    "fuzz",
    "rustfmt.toml",
    "scripts",
];

pub(crate) const SHARED_WRITERS: [&str; 4] = [
    "\"x-ratelimit-",
    "\"ratelimit-policy\"",
    "assignments/http-problem-types",
    "fmt_http_date",
];

// In two halves each, so that this file does not find itself.
pub(crate) const SERVER_CALLS: [&str; 2] = [concat!("redis", ".call"), concat!("redis", ".pcall")];
pub(crate) const UNFINISHED: [&str; 6] = [
    concat!("todo", "!"),
    concat!("unimplemented", "!"),
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("X", "XX"),
    concat!("#[", "ignore"),
];
pub(crate) const MACHINE_PATHS: [&str; 3] = [concat!("/wo", "rk/"), concat!("/ho", "me/"), concat!("/ro", "ot/")];
