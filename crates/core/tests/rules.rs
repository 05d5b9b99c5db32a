//! What is said of rules as they are written: each `rules/X.yaml` is read, and `rules/X.txt` is what is answered.

use std::fs;
use std::path::{Path, PathBuf};
use tollgate_core::problem::{Origin, Problem};
use tollgate_core::rules::{Reader, Settings};
use tollgate_core::yaml;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rules")
}

/// Everything there is to say of a rules file.
fn answer(name: &str, text: &str) -> String {
    let problems = match yaml::parse(&Origin::new(name, text)) {
        Err(problems) => problems,
        Ok(node) => {
            let mut reader = Reader::new(Settings::default());
            reader.file(&node);
            match reader.finish() {
                Ok(read) => read.warnings,
                Err(problems) => problems,
            }
        }
    };
    let told: Vec<String> = problems.iter().map(Problem::to_string).collect();
    told.join("\n")
}

#[test]
fn every_file_is_answered_as_the_text_beside_it_says() {
    let mut names: Vec<String> = fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".yaml"))
        .collect();
    names.sort();
    assert!(names.len() > 10, "{names:?}");
    let mut wrong = Vec::new();
    for name in names {
        let path = folder().join(&name);
        let told = answer(&name, &fs::read_to_string(&path).unwrap());
        let expected = fs::read_to_string(path.with_extension("txt")).unwrap_or_else(|error| format!("{error}\n"));
        if told != expected {
            wrong.push(format!("== {name} is answered:\n{told}== instead of:\n{expected}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
