//! `tollgate attributes`: attributes of subjects that the server adds to attempts (`derive`).

use super::admin::bulk::{ExportArgs, ImportArgs};
use super::admin::table::{cell, render};
use super::admin::{AdminArgs, AdminCall, CommandResult, Failure, finish, report};
use super::args::attribute;
use super::overrides::WriteArgs;
use clap::Subcommand;
use hyper::Method;
use serde_json::json;
use std::process::ExitCode;

/// Arguments of `tollgate attributes`.
#[derive(clap::Args)]
pub(crate) struct Attributes {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Lists subject attributes
    #[command(after_help = "Example:\n  tollgate attributes list --source merchant")]
    List {
        /// Only subjects of this attribute
        #[arg(long, value_name = "NAME")]
        source: Option<String>,
        /// Only this subject
        #[arg(long, value_name = "VALUE")]
        subject: Option<String>,
        /// Only attributes with this text in the subject or the value
        #[arg(long, value_name = "TEXT")]
        query: Option<String>,
        /// The most attributes to list
        #[arg(long, default_value_t = 100, value_name = "N")]
        max: usize,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Sets an attribute of one subject
    #[command(after_help = "Example:\n  tollgate attributes set merchant=m_42 tier=enterprise --reason 'contract 7'")]
    Set {
        /// The subject, as name=value
        #[arg(value_name = "SUBJECT", value_parser = attribute)]
        subject: (String, String),
        /// The attribute, as name=value
        #[arg(value_name = "K=V", value_parser = attribute)]
        attribute: (String, String),
        #[command(flatten)]
        write: WriteArgs,
    },
    /// Deletes an attribute of one subject
    #[command(after_help = "Example:\n  tollgate attributes delete merchant=m_42 tier")]
    Delete {
        /// The subject, as name=value
        #[arg(value_name = "SUBJECT", value_parser = attribute)]
        subject: (String, String),
        /// The name of the attribute
        #[arg(value_name = "NAME")]
        name: String,
        #[command(flatten)]
        write: WriteArgs,
    },
    /// Imports attributes from NDJSON or CSV; 10,000 at a time are one transaction
    #[command(after_help = "Example:\n  tollgate attributes import tiers.csv --reason 'migration'")]
    Import {
        #[command(flatten)]
        import: ImportArgs,
    },
    /// Exports attributes as NDJSON or CSV, in the form that `import` takes
    #[command(after_help = "Example:\n  tollgate attributes export --format csv --out tiers.csv")]
    Export {
        #[command(flatten)]
        export: ExportArgs,
    },
}

impl Attributes {
    pub(crate) fn run(self) -> ExitCode {
        finish(match self.command {
            Command::List {
                source,
                subject,
                query,
                max,
                admin,
            } => {
                let filter = [("source", source), ("subject", subject), ("q", query)];
                let filter: Vec<(&str, String)> = filter
                    .into_iter()
                    .filter_map(|(name, value)| Some((name, value?)))
                    .collect();
                list(&filter, max, &admin)
            }
            Command::Set {
                subject,
                attribute: (name, value),
                write,
            } => set(&subject, &name, &value, &write),
            Command::Delete { subject, name, write } => delete(&subject, &name, &write),
            Command::Import { import } => import.run("/attributes/import", &[], "attributes"),
            Command::Export { export } => export.run("/attributes/export", &[]),
        })
    }
}

fn call(method: Method, (source, subject): &(String, String), name: &str) -> AdminCall {
    AdminCall::new(method, "/attribute")
        .query("source", source)
        .query("subject", subject)
        .query("name", name)
}

fn list(filter: &[(&str, String)], max: usize, admin: &AdminArgs) -> CommandResult {
    let items = admin.items("/attributes", filter, max)?;
    let rows: Vec<[String; 4]> = items
        .iter()
        .map(|item| {
            [
                format!("{}={}", cell(item, "source"), cell(item, "subject")),
                format!("{}={}", cell(item, "name"), cell(item, "value")),
                cell(item, "actor"),
                cell(item, "revision"),
            ]
        })
        .collect();
    let text = render(
        ["subject", "attribute", "by", "revision"],
        &rows,
        "no subject attributes",
    );
    Ok(report(admin, &json!({ "items": items }), &text))
}

/// Sets an attribute under the condition that it is as it was when the command looked.
fn set(subject: &(String, String), name: &str, value: &str, write: &WriteArgs) -> CommandResult {
    let tag = write.admin.entity_tag(call(Method::GET, subject, name))?;
    let mut body = json!({ "value": value });
    if let (Some(members), Some(reason)) = (body.as_object_mut(), &write.reason) {
        members.insert("reason".to_owned(), json!(reason));
    }
    write.put(call(Method::PUT, subject, name), tag.as_deref(), &body, |_| {
        format!("{}={}: {name}={value}", subject.0, subject.1)
    })
}

fn delete(subject: &(String, String), name: &str, write: &WriteArgs) -> CommandResult {
    let text = format!("{}={}: {name}", subject.0, subject.1);
    let Some(tag) = write.admin.entity_tag(call(Method::GET, subject, name))? else {
        return Err(Failure::error(format!(
            "{text} is not set; see `tollgate attributes list --subject {}`",
            subject.1
        )));
    };
    write.delete(call(Method::DELETE, subject, name), &tag, &text)
}
