//! The files the rules check.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file by its path from the root, with `/` between the parts. A file that is not UTF-8 has an empty text.
pub(crate) struct File {
    pub(crate) path: String,
    pub(crate) text: String,
}

/// The files git tracks; without git or outside a clone, all files except those git would ignore.
pub(crate) fn repository() -> Vec<File> {
    let root = root();
    let paths = tracked(&root).unwrap_or_else(|| walk(&root));
    assert!(
        paths.iter().any(|path| path == "Cargo.toml"),
        "found no repository at {}",
        root.display()
    );
    paths
        .into_iter()
        // Tracked, and deleted since.
        .filter(|path| root.join(path).is_file())
        .map(|path| {
            let bytes = fs::read(root.join(&path)).unwrap_or_else(|error| panic!("{path}: {error}"));
            let text = String::from_utf8(bytes).unwrap_or_default();
            File { path, text }
        })
        .collect()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn tracked(root: &Path) -> Option<Vec<String>> {
    let output = Command::new("git")
        .args(["ls-files", "-z"])
        .current_dir(root)
        .output()
        .ok()?;
    let list = String::from_utf8(output.stdout).ok()?;
    let paths: Vec<String> = list.split_terminator('\0').map(String::from).collect();
    (output.status.success() && !paths.is_empty()).then_some(paths)
}

fn walk(root: &Path) -> Vec<String> {
    let mut paths = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(root.join(&folder)).expect("a folder of the repository can be listed");
        for entry in entries {
            let name = entry.expect("a folder of the repository can be listed").file_name();
            let name = name.to_str().expect("every name in the repository is Unicode");
            if IGNORED.contains(&name) {
                continue;
            }
            let path = folder.join(name);
            if root.join(&path).is_dir() {
                folders.push(path);
            } else {
                let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
                paths.push(parts.join("/"));
            }
        }
    }
    paths.sort_unstable();
    paths
}

/// The entries of `.gitignore`, and git itself.
const IGNORED: [&str; 3] = [".git", "target", "tollgate-data"];

#[test]
fn walking_finds_what_git_tracks_and_nothing_built() {
    let walked = walk(&root());
    for path in tracked(&root()).unwrap_or_default() {
        assert!(
            walked.contains(&path) || !root().join(&path).exists(),
            "{path} was missed"
        );
    }
    assert!(walked.contains(&"Cargo.toml".into()));
    assert!(!walked.iter().any(|path| path.starts_with("target/")));
}
