//! `tollgate rules check --live`: the live rules and override rows, loaded by this program before an upgrade to it.

use crate::cli::EXIT_OK;
use crate::cli::admin::table::cell;
use crate::cli::admin::{AdminArgs, AdminCall, CommandResult, EXIT_REFUSED, Failure};
use crate::cli::args::print;
use crate::control::model::{Grammar, OverrideRow, SetFile};
use hyper::Method;
use serde_json::{Value, json};
use std::process::ExitCode;
use tollgate_limiter::core::problem::{Origin, Problem, Problems};
use tollgate_limiter::core::rules::{ParserOptions, RowEdit, RuleSet, RulesParser, ratelimit};
use tollgate_limiter::core::yaml;

/// The most rows that are loaded, as many as a database may have.
const ROWS_MAX: usize = 1_000_000;

/// Exit code 0 if this program reads all of it, 1 if not.
pub(super) fn check(admin: &AdminArgs) -> CommandResult {
    let version = admin.json_with("files", AdminCall::new(Method::GET, "/version").query("number", "live"))?;
    let unreadable = |error: serde_json::Error| {
        Failure::error(format!(
            "the live version cannot be read: {error}; is the server newer?"
        ))
    };
    let files = version.get("files").cloned().unwrap_or_else(|| json!([]));
    let files: Vec<SetFile> = serde_json::from_value(files).map_err(unreadable)?;
    let mut rows: Vec<OverrideRow> = Vec::new();
    for item in admin.items("/overrides", &[], ROWS_MAX)? {
        rows.push(serde_json::from_value(item).map_err(unreadable)?);
    }
    let (problems, row_problems) = match compile(&files) {
        Ok((rules, warnings)) => (warnings, row_problems(&rules, &rows)),
        Err(problems) => (problems, Vec::new()),
    };
    let errors = problems.iter().filter(|problem| problem.is_error()).count() + row_problems.len();
    let number = cell(&version, "number");
    if admin.json {
        let list: Vec<Value> = problems.iter().map(super::as_json).collect();
        print(
            &json!({"valid": errors == 0, "version": version.get("number"), "rows": rows.len(), "problems": list,
                      "row_problems": row_problems})
            .to_string(),
        );
    } else {
        for problem in &problems {
            print(&super::coloured(problem));
        }
        for text in &row_problems {
            print(text);
        }
        let verdict = if errors == 0 { "valid" } else { "invalid" };
        let count = |count: usize, noun: &str| match count {
            1 => format!("1 {noun}"),
            count => format!("{count} {noun}s"),
        };
        let (rows, errors) = (count(rows.len(), "override row"), count(errors, "error"));
        print(&format!("version {number}, {rows}: {verdict}, {errors}"));
    }
    Ok(ExitCode::from(if errors == 0 { EXIT_OK } else { EXIT_REFUSED }))
}

/// Compiles the files of a version, and returns the rules and warnings.
fn compile(files: &[SetFile]) -> Result<(RuleSet, Vec<Problem>), Vec<Problem>> {
    let mut problems = Problems::new();
    let mut parser = RulesParser::new(ParserOptions::default());
    let mut descriptors = ratelimit::DescriptorFiles::new(true);
    for file in files {
        let origin = Origin::new(file.path.clone(), &*file.text);
        match file.grammar {
            Grammar::Own => match yaml::parse(&origin) {
                Ok(root) => parser.add_file(&root),
                Err(found) => problems.extend(found),
            },
            Grammar::Envoy => match ratelimit::parse(&origin) {
                Ok(root) => descriptors.add_file(&root),
                Err(found) => problems.extend(found),
            },
        }
    }
    match descriptors.finish() {
        Ok((_, warnings)) => problems.extend(warnings),
        Err(found) => problems.extend(found),
    }
    match parser.finish() {
        Ok(read) if !problems.has_errors() => {
            problems.extend(read.warnings);
            Ok((read.rules, problems.sorted()))
        }
        Ok(_) => Err(problems.sorted()),
        Err(found) => {
            problems.extend(found);
            Err(problems.sorted())
        }
    }
}

/// The rows that the rules cannot have. Rows of other rules, such as those of files, are left to their servers.
fn row_problems(rules: &RuleSet, rows: &[OverrideRow]) -> Vec<String> {
    let edits: Vec<RowEdit> = rows.iter().map(OverrideRow::edit).collect();
    let (_, problems) = rules.amend(&edits);
    let text = |index: usize| {
        rows.get(index)
            .map(|row| format!("{}/{} {:?}", row.domain, row.rule, row.subject))
    };
    problems
        .iter()
        .filter_map(|problem| {
            Some(format!(
                "row {}: {}; {}",
                text(problem.index)?,
                problem.text,
                problem.hint
            ))
        })
        .collect()
}
