//! Entries of the settings that name rule files: a path, or a glob over files.

use crate::compat::ratelimit::files::RatelimitRules;
use crate::config::RawSettings;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use tollgate_limiter::core::problem::{Location, Origin, Problem, Problems};
use tollgate_limiter::core::yaml::Node;

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FilePattern {
    pub(super) format: RulesFormat,
    pub(super) location: Location,
    path: PathBuf,
}

/// A rule file as read, or the reason why it could not be.
pub(super) type RuleFile = (RulesFormat, Result<Arc<Origin>, Problem>);

/// The format of a rule file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RulesFormat {
    /// Tollgate's own.
    Native,
    /// That of `ratelimit`.
    Ratelimit,
}

impl FilePattern {
    /// Every entry of the settings, native files first.
    pub(super) fn read_all(raw: &RawSettings, problems: &mut Problems) -> Vec<Self> {
        let native = raw.setting("rules_files").map_or(&[][..], Node::one_or_more);
        let ratelimit = RatelimitRules::read(raw, problems).files;
        let native = native.iter().map(|node| (RulesFormat::Native, node));
        let all = native.chain(ratelimit.iter().map(|node| (RulesFormat::Ratelimit, node)));
        all.filter_map(|(format, node)| {
            let text = node.text("a file or a pattern of files", problems)?;
            Some(Self {
                format,
                location: node.location.clone(),
                path: raw.base_dir_of(&node.location).join(text),
            })
        })
        .collect()
    }

    /// True if it names all files of a folder, of which those that are no rules are left out.
    fn is_folder(&self) -> bool {
        self.format == RulesFormat::Ratelimit && self.path.file_name().is_some_and(|name| name == "*")
    }

    /// The files it matches, sorted by name, and the problem with it.
    pub(super) fn files(&self) -> (Vec<PathBuf>, Option<Problem>) {
        let text = self.path.to_string_lossy();
        if !text.contains(['*', '?', '[']) {
            return (vec![self.path.clone()], None);
        }
        let options = glob::MatchOptions {
            case_sensitive: true,
            require_literal_separator: true,
            // Editors and Kubernetes leave files that start with a dot beside the real ones.
            require_literal_leading_dot: true,
        };
        match glob::glob_with(&text, options) {
            Ok(paths) => {
                let files: Vec<PathBuf> = paths
                    .flatten()
                    .filter(|path| path.is_file() && (!self.is_folder() || is_rule_file(path)))
                    .take(FILES_MAX + 1)
                    .collect();
                // An error while running too: files that are being replaced must not switch every limit off.
                let problem = Problem::error(&self.location, "no file matches this pattern");
                let none_found = files.is_empty().then(|| {
                    problem.with_hint(
                        "paths are relative to the settings file; to limit nothing, use a file with `rules: []`",
                    )
                });
                (files, none_found)
            }
            Err(error) => {
                let problem = Problem::error(&self.location, format!("this is not a pattern: {}", error.msg));
                (Vec::new(), Some(problem.with_hint("write for example `rules/*.yaml`")))
            }
        }
    }
}

/// True if a file of a folder is one of rules by its name. Only what certainly holds no limits is left out, so that a file with
/// an unusual name is read, or is an error.
pub(crate) fn is_rule_file(path: &Path) -> bool {
    let Some(name) = path.file_name().map(std::ffi::OsStr::as_encoded_bytes) else {
        return false;
    };
    !name.starts_with(b".") && !NOT_RULES.iter().any(|end| name.ends_with(end.as_bytes()))
}

/// The rule that a path breaks as one of a file in a version; none if it breaks none. A version is written to folders of people, so it
/// must not be able to have `.git/config`, or what a shell or a program reads.
pub(crate) fn path_problem(path: &str) -> Option<&'static str> {
    let is_normal = |part: Component<'_>| matches!(part, Component::Normal(_));
    let is_plain = !path.contains('\\')
        && !path.contains(char::is_control)
        && path.split('/').all(|part| !matches!(part, "" | "." | ".."))
        && Path::new(path).components().all(is_normal);
    if !is_plain {
        return Some("must be relative, below the folder, and of plain parts");
    }
    if path.split('/').any(|part| part.starts_with('.')) {
        return Some("must have no hidden part: none that starts with a dot");
    }
    let has_end = path.ends_with(".yaml") || path.ends_with(".yml");
    (!has_end).then_some("must end in .yaml or .yml")
}

/// The ends of names of notes, and of copies that editors and patches leave.
const NOT_RULES: [&str; 7] = [".md", ".bak", ".orig", ".rej", ".swp", ".tmp", "~"];

/// The most rule files that are read.
pub(super) const FILES_MAX: usize = 1_000;

#[cfg(test)]
mod tests {
    use super::{is_rule_file, path_problem};
    use std::path::Path;

    /// Files that envoyproxy/ratelimit reads were once left out because of a dot in their name.
    #[test]
    fn a_file_with_an_unusual_name_is_not_left_out() {
        for name in [
            "shop",
            "shop.yaml",
            "shop.YAML",
            "pay.example.com",
            "limits.v2",
            "limits.conf",
        ] {
            assert!(is_rule_file(&Path::new("config").join(name)), "{name}");
        }
        for name in [
            ".shop.yaml",
            "..data",
            "README.md",
            "shop.yaml.bak",
            "shop.yaml~",
            ".shop.swp",
        ] {
            assert!(!is_rule_file(&Path::new("config").join(name)), "{name}");
        }
    }

    #[test]
    fn a_path_of_a_version_is_that_of_a_visible_yaml_file_below_a_folder() {
        for (rule, names) in [
            (
                "relative",
                &[
                    "",
                    "../x.yaml",
                    "/etc/x.yaml",
                    "a/../../x.yaml",
                    "./x.yaml",
                    "a//b.yaml",
                    "a/",
                    "a\\b.yaml",
                    "..",
                    ".",
                    "a\0b.yaml",
                ][..],
            ),
            ("hidden", &[".git/config", "a/.b.yaml", ".yaml", ".git/hooks/x.yml"]),
            (".yaml", &["x", "x.sh", "a.yaml/b", "x.yaml.bak", "x.YAML", "Makefile"]),
        ] {
            for name in names {
                assert!(path_problem(name).is_some_and(|text| text.contains(rule)), "{name}");
            }
        }
        for name in ["a.yaml", "a.yml", "shop/b.yaml", "managed/shop/a:b.yaml", "a..b.yaml"] {
            assert_eq!(path_problem(name), None, "{name}");
        }
    }
}
