//! The rule files of a command as the files of a version: their paths, their grammar, their bytes.

use crate::cli::admin::Failure;
use crate::config::is_settings;
use crate::control::model::{Grammar, SetFile};
use crate::rule_source::{is_rule_file, path_problem};
use serde_json::{Value, json};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use tollgate_limiter::core::problem::Origin;
use tollgate_limiter::core::rules::ratelimit;
use tollgate_limiter::core::yaml;

/// The files of a set, as a version has them and as the person named them.
pub(super) struct RuleFiles {
    files: Vec<SetFile>,
    /// The names that the person gave, in the order of the files.
    names: Vec<String>,
}

impl RuleFiles {
    /// The files as a request has them.
    pub(super) fn json(&self) -> Value {
        json!(self.files)
    }

    /// The text that a problem of the server is about, under the name that the person gave.
    pub(super) fn origin(&self, path: &str) -> Option<Arc<Origin>> {
        let mut pairs = self.files.iter().zip(&self.names);
        let (file, name) = pairs.find(|(file, _)| file.path == path)?;
        Some(Origin::new(name.as_str(), file.text.as_str()))
    }
}

/// Reads files, and folders with all they contain. Paths are relative to the folder, or to the folder that all single
/// files have in common, so that the same files have the same paths wherever they are.
pub(super) fn read(paths: &[PathBuf]) -> Result<RuleFiles, Failure> {
    let (folders, single): (Vec<&PathBuf>, Vec<&PathBuf>) = paths.iter().partition(|path| path.is_dir());
    let mut found: Vec<(String, PathBuf)> = Vec::new();
    let common = common_parent(&single);
    for path in single {
        found.push((relative(path, &common)?, path.clone()));
    }
    for folder in folders {
        let mut files = Vec::new();
        walk(folder, 0, &mut files)?;
        if files.is_empty() {
            return Err(Failure::error(format!(
                "{}: no rule files in this folder",
                folder.display()
            )));
        }
        for path in files {
            found.push((relative(&path, folder)?, path));
        }
    }
    found.sort();
    for (name, path) in &found {
        if let Some(problem) = path_problem(name) {
            return Err(Failure::error(format!(
                "{}: the path `{name}` of a rule file {problem}; rename it, or leave it out",
                path.display()
            )));
        }
    }
    let doubled = found.windows(2).find_map(|pair| match pair {
        [one, two] if one.0 == two.0 => Some(one.0.clone()),
        _ => None,
    });
    if let Some(path) = doubled {
        return Err(Failure::error(format!(
            "two of the files would be `{path}` in the version; give one folder that contains both"
        )));
    }
    if found.len() > FILES_MAX {
        return Err(Failure::error(format!(
            "more than {FILES_MAX} files; join some of them"
        )));
    }
    let names = found.iter().map(|(_, path)| path.display().to_string()).collect();
    let files: Result<Vec<SetFile>, Failure> = found.into_iter().map(|(name, path)| read_file(name, &path)).collect();
    Ok(RuleFiles { files: files?, names })
}

/// The rule files below a folder that are not among these paths. Of a folder that cannot be read there are none.
pub(super) fn others(folder: &Path, paths: &[&str]) -> Vec<String> {
    let mut files = Vec::new();
    if walk(folder, 0, &mut files).is_err() {
        return Vec::new();
    }
    let names = files.iter().filter_map(|path| relative(path, folder).ok());
    let mut others: Vec<String> = names.filter(|name| !paths.contains(&name.as_str())).collect();
    others.sort();
    others
}

fn read_file(name: String, path: &Path) -> Result<SetFile, Failure> {
    let unreadable = |error: &dyn std::fmt::Display| Failure::error(format!("{}: {error}", path.display()));
    let size = std::fs::metadata(path).map_err(|error| unreadable(&error))?.len();
    if size > BYTES_MAX {
        return Err(unreadable(&"larger than 16 MiB, the most that a version may have"));
    }
    let text = std::fs::read_to_string(path).map_err(|error| unreadable(&error))?;
    let grammar = grammar(&name, &text).map_err(|text| unreadable(&text))?;
    Ok(SetFile {
        path: name,
        grammar,
        text,
    })
}

/// The grammar of a text. One that cannot be parsed counts as our own, and the server reports its errors.
fn grammar(name: &str, text: &str) -> Result<Grammar, &'static str> {
    let origin = Origin::new(name, text);
    let root = yaml::parse(&origin).ok().or_else(|| ratelimit::parse(&origin).ok());
    match root {
        Some(root) if ratelimit::is_descriptor_file(&root) => Ok(Grammar::Envoy),
        Some(root) if is_settings(&root) => Err(
            "a settings file, not a rules file; settings stay with the server, move its `rules` to a file of their own",
        ),
        _ => Ok(Grammar::Own),
    }
}

/// The longest folder that contains all of these files.
fn common_parent(files: &[&PathBuf]) -> PathBuf {
    let mut parents = files.iter().map(|path| path.parent().unwrap_or(Path::new("")));
    let first = parents.next().unwrap_or(Path::new("")).to_path_buf();
    parents.fold(first, |common, parent| {
        let pairs = common.components().zip(parent.components());
        pairs.take_while(|(one, two)| one == two).map(|(one, _)| one).collect()
    })
}

/// The path of a file below a folder, with slashes.
fn relative(path: &Path, folder: &Path) -> Result<String, Failure> {
    let below = path.strip_prefix(folder).unwrap_or(path);
    let parts: Option<Vec<&str>> = below
        .components()
        .filter(|part| *part != Component::CurDir)
        .map(|part| match part {
            Component::Normal(name) => name.to_str(),
            _ => None,
        })
        .collect();
    let parts = parts.filter(|parts| !parts.is_empty());
    let invalid = || Failure::error(format!("{}: not a path that a version can have", path.display()));
    parts.map(|parts| parts.join("/")).ok_or_else(invalid)
}

/// All rule files below a folder.
fn walk(folder: &Path, depth: usize, files: &mut Vec<PathBuf>) -> Result<(), Failure> {
    let unreadable = |error: std::io::Error| Failure::error(format!("{}: {error}", folder.display()));
    if depth > DEPTH_MAX {
        return Err(Failure::error(format!(
            "{}: more than {DEPTH_MAX} folders deep",
            folder.display()
        )));
    }
    for entry in std::fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        let is_hidden = path
            .file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with('.'));
        if path.is_dir() && !is_hidden {
            walk(&path, depth + 1, files)?;
        } else if path.is_file() && is_rule_file(&path) {
            files.push(path);
        }
        if files.len() > FILES_MAX {
            return Err(Failure::error(format!(
                "{}: more than {FILES_MAX} files",
                folder.display()
            )));
        }
    }
    Ok(())
}

/// The most bytes of a file, which are also those of a version.
const BYTES_MAX: u64 = 16 << 20;
const FILES_MAX: usize = 1_000;
const DEPTH_MAX: usize = 16;

#[cfg(test)]
mod tests;
