//! What is said of rules as they are written: each `rules/X.yaml` is read, and `rules/X.txt` is what is answered.

use std::fs;
use std::path::{Path, PathBuf};
use tollgate_core::problem::{Origin, Problem};
use tollgate_core::rules::{ParserOptions, RulesParser};
use tollgate_core::yaml;

const PAGE: &str = include_str!("../../../docs/rules.md");

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rules")
}

/// Everything there is to say of a rules file, or of a list of rules as it stands in one.
fn check(name: &str, text: &str, part: Part) -> String {
    let problems = match yaml::parse(&Origin::new(name, text)) {
        Err(problems) => problems,
        Ok(node) => {
            let mut reader = RulesParser::new(ParserOptions::default());
            match part {
                Part::File => reader.add_file(&node),
                Part::List => reader.add_rules(&node, "default"),
            }
            match reader.finish() {
                Ok(read) => read.warnings,
                Err(problems) => problems,
            }
        }
    };
    let lines: Vec<String> = problems.iter().map(Problem::to_string).collect();
    lines.join("\n")
}

enum Part {
    File,
    List,
}

#[test]
fn every_example_of_the_page_is_sound() {
    let mut examples = 0;
    for after in PAGE.split("```yaml\n").skip(1) {
        let (text, _) = after.split_once("```").unwrap();
        let part = if text.starts_with('-') { Part::List } else { Part::File };
        assert_eq!(check("rules.md", text, part), "", "{text}");
        examples += 1;
    }
    assert!(examples >= 10, "{examples} examples");
}

#[test]
fn every_key_of_a_rule_is_on_the_page() {
    // Of a key that nobody has all are told.
    let text = check("x", "rules: [{ nothing_like_it_at_all: 1 }]", Part::File);
    let hint = text.lines().find(|line| line.contains("write one of")).unwrap();
    let keys: Vec<&str> = hint.split('`').skip(1).step_by(2).collect();
    assert!(keys.len() >= 16, "{hint}");
    for key in keys {
        assert!(
            PAGE.contains(&format!("| `{key}` |")),
            "`{key}` is not in the table of docs/rules.md"
        );
    }
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
        let text = check(&name, &fs::read_to_string(&path).unwrap(), Part::File);
        let expected = fs::read_to_string(path.with_extension("txt")).unwrap_or_else(|error| format!("{error}\n"));
        if text != expected {
            wrong.push(format!("== {name} is answered:\n{text}== instead of:\n{expected}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
