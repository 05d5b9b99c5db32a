//! `tollgate rules`: validates and converts rule files, without a server; plans, publishes and restores managed rules.
//!
//! This file has the commands without a server. `rules/apply.rs` plans and applies, `rules/publish.rs` pushes and rolls back,
//! `rules/pull.rs` reads versions, `rules/live.rs` checks the live rules, `rules/files.rs` reads the files of a version.

mod apply;
mod files;
mod live;
mod publish;
mod pull;

use super::EXIT_OK;
use super::admin::{AdminArgs, finish};
use super::args::print;
use crate::compat::ratelimit::merges_domains;
use crate::config::{Sources, is_settings, read_text, schema, variables};
use crate::rule_source::{ConfigLoader, is_rule_file};
use clap::Subcommand;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tollgate_limiter::core::problem::{Location, Origin, Problem, Problems, Severity};
use tollgate_limiter::core::rules::{self, RulesParser, ratelimit};
use tollgate_limiter::core::yaml;

/// Arguments of `tollgate rules`.
#[derive(clap::Args)]
pub(crate) struct Rules {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Validates rule files, settings files and files of envoyproxy/ratelimit; exit code 0 valid, 1 errors
    #[command(
        after_help = "Examples:\n  tollgate rules check tollgate.yaml rules/*.yaml\n  tollgate rules check --live"
    )]
    Check {
        /// Files to check, or folders of them; rule files are checked as one set, files of envoyproxy/ratelimit as another
        #[arg(required_unless_present = "live", value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Allows several files of envoyproxy/ratelimit to share a domain, as MERGE_DOMAIN_CONFIG=true does
        #[arg(long)]
        merge_domains: bool,
        /// Loads the live rules and override rows of a control plane with this program, before an upgrade to it
        #[arg(long, conflicts_with_all = ["files", "merge_domains"])]
        live: bool,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Prints what publishing these files would change; exit code 0 equal, 1 differs, 2 error
    #[command(after_help = "Example:\n  tollgate rules diff rules/*.yaml --rows")]
    Diff(apply::Diff),
    /// Plans, asks, publishes, and waits until instances have it
    #[command(after_help = "Example:\n  tollgate rules apply rules/*.yaml --reason 'lower the free plan'")]
    Apply(apply::Apply),
    /// Publishes a set from CI; refused if the live version was not pushed
    #[command(after_help = "Example:\n  tollgate rules push rules/ --reason \"$SUBJECT\" --commit \"$SHA\"")]
    Push(publish::Push),
    /// Writes the files of a version back, byte for byte
    #[command(after_help = "Example:\n  tollgate rules pull --to rules")]
    Pull(pull::Pull),
    /// Lists versions, or the changes of one rule
    #[command(after_help = "Example:\n  tollgate rules history --rule merchant-plan")]
    History(pull::History),
    /// Publishes an earlier version again, as a new revision
    #[command(after_help = "Example:\n  tollgate rules rollback 41 --reason 'checkout denied'")]
    Rollback(publish::Rollback),
    /// Converts files of envoyproxy/ratelimit to rules, with comments where the meaning differs
    #[command(after_help = "Example:\n  tollgate rules import-envoy config/*.yaml > rules/imported.yaml")]
    ImportEnvoy {
        /// Files to convert; several of one domain are merged
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Prints the JSON Schema of settings and rules, for editors
    #[command(after_help = "Example:\n  tollgate rules schema > tollgate.schema.json")]
    Schema,
}

impl Rules {
    pub(crate) fn run(self) -> ExitCode {
        match self.command {
            Command::Check {
                files,
                merge_domains,
                live,
                admin,
            } => match live {
                true => finish(live::check(&admin)),
                false => check(&files, merge_domains || merges_domains(&variables()), admin.json),
            },
            Command::Diff(diff) => finish(diff.run()),
            Command::Apply(apply) => finish(apply.run()),
            Command::Push(push) => finish(push.run()),
            Command::Pull(pull) => finish(pull.run()),
            Command::History(history) => finish(history.run()),
            Command::Rollback(rollback) => finish(rollback.run()),
            Command::ImportEnvoy { files } => import_envoy(&files),
            Command::Schema => {
                print(&format!("{:#}", schema()));
                ExitCode::from(EXIT_OK)
            }
        }
    }
}

fn check(paths: &[PathBuf], merges_domains: bool, json: bool) -> ExitCode {
    let mut problems = Problems::new();
    let files = expand_folders(paths, &mut problems);
    let mut reader = RulesParser::new(rules::ParserOptions::default());
    let mut envoy = ratelimit::DescriptorFiles::new(merges_domains);
    for path in &files {
        match parse_any(path) {
            Ok(root) if ratelimit::is_descriptor_file(&root) => envoy.add_file(&root),
            Ok(root) if is_settings(&root) => {
                let sources = Sources {
                    file: Some(path.clone()),
                    ..Sources::default()
                };
                match ConfigLoader::new(sources).load() {
                    Ok(loaded) => problems.extend(loaded.warnings.into_iter().chain(loaded.quarantined)),
                    Err(found) => problems.extend(found),
                }
            }
            Ok(root) => reader.add_file(&root),
            Err(found) => problems.extend(found),
        }
    }
    match reader.finish() {
        Ok(read) => problems.extend(read.warnings),
        Err(found) => problems.extend(found),
    }
    match envoy.finish() {
        Ok((_, warnings)) => problems.extend(warnings),
        Err(found) => problems.extend(found),
    }
    let errors = problems.error_count();
    let found = problems.sorted();
    if json {
        let list: Vec<Value> = found.iter().map(as_json).collect();
        print(&json!({ "valid": errors == 0, "problems": list }).to_string());
    } else {
        print(&as_text(&found, errors, files.len()));
    }
    ExitCode::from(if errors == 0 { EXIT_OK } else { EXIT_INVALID })
}

/// Prints the rules to stdout and the problems to stderr, so that stdout can be redirected to a file.
fn import_envoy(files: &[PathBuf]) -> ExitCode {
    let mut problems = Problems::new();
    let mut envoy = ratelimit::DescriptorFiles::new(true);
    for path in files {
        match parse_ratelimit(path) {
            Ok(root) => envoy.add_file(&root),
            Err(found) => problems.extend(found),
        }
    }
    let converted = match envoy.finish() {
        Ok((descriptors, warnings)) => {
            problems.extend(warnings);
            Some(descriptors.as_rules())
        }
        Err(found) => {
            problems.extend(found);
            None
        }
    };
    let errors = problems.error_count();
    let mut out = anstream::stderr().lock();
    for problem in problems.sorted() {
        // A closed stderr has no reader.
        let _ = writeln!(out, "{}", coloured(&problem));
    }
    match converted.filter(|_| errors == 0) {
        Some(rules) => {
            print(rules.trim_end());
            ExitCode::from(EXIT_OK)
        }
        None => ExitCode::from(EXIT_INVALID),
    }
}

/// Replaces each folder by the rule files in it, sorted by name.
fn expand_folders(paths: &[PathBuf], problems: &mut Problems) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        let found = entries.map(|entry| entry.path());
        let mut found: Vec<PathBuf> = found.filter(|path| path.is_file() && is_rule_file(path)).collect();
        if found.is_empty() {
            let location = Location::start(&Origin::new(path.display().to_string(), ""));
            let hint = "name a folder with rules files; hidden files, `.md` and copies such as `.bak` are left out";
            problems.error_with(&location, "no rule files in this folder", hint);
        }
        found.sort();
        files.append(&mut found);
    }
    files
}

/// Parses a file of any kind: one of envoyproxy/ratelimit may use more of YAML than our own.
fn parse_any(path: &Path) -> Result<yaml::Node, Vec<Problem>> {
    let origin = read_text(path).map_err(|problem| vec![problem])?;
    yaml::parse(&origin).or_else(|problems| match ratelimit::parse(&origin) {
        Ok(root) if ratelimit::is_descriptor_file(&root) => Ok(root),
        _ => Err(problems),
    })
}

fn parse_ratelimit(path: &Path) -> Result<yaml::Node, Vec<Problem>> {
    let origin = read_text(path).map_err(|problem| vec![problem])?;
    ratelimit::parse(&origin)
}

/// Every problem, then the counts.
fn as_text(found: &[Problem], errors: usize, files: usize) -> String {
    let mut text = String::new();
    for problem in found {
        let _ = writeln!(text, "{}", coloured(problem));
    }
    let count_text = |count: usize, what: &str| match count {
        1 => format!("1 {what}"),
        count => format!("{count} {what}s"),
    };
    let warnings = found.iter().filter(|problem| !problem.is_error()).count();
    let verdict = if errors == 0 { "valid" } else { "invalid" };
    let _ = write!(
        text,
        "{}: {verdict}, {}, {}",
        count_text(files, "file"),
        count_text(errors, "error"),
        count_text(warnings, "warning")
    );
    text
}

/// A problem with its severity in colour.
pub(super) fn coloured(problem: &Problem) -> String {
    let (label, colour) = match problem.severity {
        Severity::Error => ("error", "1;31"),
        Severity::Warning => ("warning", "1;33"),
    };
    let painted = format!(": \u{1b}[{colour}m{label}\u{1b}[0m: ");
    problem.to_string().replacen(&format!(": {label}: "), &painted, 1)
}

fn as_json(problem: &Problem) -> Value {
    json!({
        "severity": match problem.severity { Severity::Error => "error", Severity::Warning => "warning" },
        "file": &*problem.location.origin.name,
        "line": problem.location.line,
        "column": problem.location.column,
        "text": problem.text,
        "hint": problem.hint,
    })
}

const EXIT_INVALID: u8 = 1;
