//! The rules about the tree of source files: how many lie side by side, and that the code map names each of them.

use super::{extension, vocabulary};
use crate::repository::File;
use std::collections::{BTreeMap, BTreeSet};

/// A folder with more files than a reader can take in is divided by concern.
pub(crate) fn folder_sizes(files: &[File]) -> Vec<String> {
    let mut folders: BTreeMap<&str, usize> = BTreeMap::new();
    for file in files.iter().filter(|file| extension(&file.path) == "rs") {
        if let Some((folder, _)) = file.path.rsplit_once('/') {
            *folders.entry(folder).or_default() += 1;
        }
    }
    let mut violations = Vec::new();
    for (folder, count) in folders {
        let max = match below_crate(folder) {
            Some("src") => SOURCE_FILES_MAX,
            Some("tests") => TEST_FILES_MAX,
            _ => continue,
        };
        if count > max {
            violations.push(format!("{folder}: has {count} .rs files; divide it at {max}"));
        }
    }
    violations
}

/// The code map of ARCHITECTURE.md has one line for each source file and folder, and for nothing that is not there.
///
/// A heading names the root (``### `crates/core/src` ``), an entry is ``- `rules/plan.rs`: purpose`` below it. A folder's
/// entry (`rules/`) stands for `rules.rs` as well, and that of `gcra.rs` for its twin `gcra.lua`. Tests have no line.
pub(crate) fn code_map(files: &[File]) -> Vec<String> {
    let Some(page) = files.iter().find(|file| file.path == PAGE) else {
        return vec![format!("{PAGE}: is missing, and the code map with it")];
    };
    let expected = source_entries(files);
    let listed = map_entries(&page.text);
    let missing = expected
        .difference(&listed)
        .map(|entry| format!("{entry}: has no line in the code map of {PAGE}"));
    let stale = listed
        .difference(&expected)
        .map(|entry| format!("{entry}: is in the code map of {PAGE} and not in the tree"));
    missing.chain(stale).collect()
}

/// Files, and folders with a `/` at the end.
fn source_entries(files: &[File]) -> BTreeSet<String> {
    let is_source = |path: &str| below_crate(path) == Some("src") && !vocabulary::is_test(path);
    let all: BTreeSet<&str> = files
        .iter()
        .map(|file| file.path.as_str())
        .filter(|path| is_source(path))
        .collect();
    let is_twin = |path: &str| all.contains(path.replace(".lua", ".rs").as_str());
    let sources: Vec<&str> = all
        .iter()
        .copied()
        .filter(|path| extension(path) == "rs" || (extension(path) == "lua" && !is_twin(path)))
        .collect();
    let mut folders = BTreeSet::new();
    for path in &sources {
        let mut folder = *path;
        while let Some((parent, _)) = folder.rsplit_once('/') {
            if parent.ends_with("/src") {
                break;
            }
            folders.insert(format!("{parent}/"));
            folder = parent;
        }
    }
    let of_folder = |path: &str| folders.contains(&format!("{}/", path.trim_end_matches(".rs")));
    let mut entries: BTreeSet<String> = sources
        .iter()
        .filter(|path| !of_folder(path))
        .map(|path| (*path).into())
        .collect();
    entries.extend(folders);
    entries
}

/// The entries of the page that say something.
fn map_entries(page: &str) -> BTreeSet<String> {
    let mut root = None;
    let mut entries = BTreeSet::new();
    for line in page.lines() {
        if line.starts_with('#') {
            root = line.split('`').nth(1).filter(|path| path.ends_with("/src"));
        } else if let Some(root) = root
            && let Some(entry) = line.trim_start().strip_prefix("- `")
            && let Some((path, purpose)) = entry.split_once("`:")
            && !purpose.trim().is_empty()
        {
            entries.insert(format!("{root}/{path}"));
        }
    }
    entries
}

/// `src` or `tests`: the folder of the crate in which a path lies.
fn below_crate(path: &str) -> Option<&str> {
    path.strip_prefix("crates/")?.split('/').nth(1)
}

const PAGE: &str = "ARCHITECTURE.md";
const SOURCE_FILES_MAX: usize = 14;
const TEST_FILES_MAX: usize = 20;
