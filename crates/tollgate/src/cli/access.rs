//! `tollgate user` and `tollgate token`: who may use the admin API. Secrets are printed once.

mod offline;

use self::offline::{OfflineArgs, OfflinePrincipal};
use super::admin::table::{cell, number, render};
use super::admin::{AdminArgs, AdminCall, CommandResult, Failure, date, finish, report};
use crate::control::model::{PrincipalKind, Role};
use clap::{Subcommand, ValueEnum};
use hyper::Method;
use serde_json::{Map, Value, json};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `tollgate user`.
#[derive(clap::Args)]
pub(crate) struct User {
    #[command(subcommand)]
    command: UserCommand,
}

/// Arguments of `tollgate token`.
#[derive(clap::Args)]
pub(crate) struct Token {
    #[command(subcommand)]
    command: TokenCommand,
}

#[derive(Subcommand)]
enum UserCommand {
    /// Adds a person, and prints the generated password once unless a file has one
    #[command(after_help = "Examples:
  tollgate user add anna --role editor --domain shop
  tollgate user add anna --setup 7K3F-9QXM-2HTD --password-file password
  tollgate user add anna --offline --config /etc/tollgate.yaml")]
    Add {
        #[command(flatten)]
        add: PrincipalArgs,
        /// File whose first line is the password, of 12 characters or more; `-` is stdin
        #[arg(long, value_name = "FILE")]
        password_file: Option<PathBuf>,
    },
    /// Lists the users
    #[command(after_help = "Example:\n  tollgate user list")]
    List {
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Disables a user and ends the sessions
    #[command(after_help = "Example:\n  tollgate user disable anna --reason 'left the company'")]
    Disable {
        #[command(flatten)]
        removal: Removal,
    },
}

#[derive(Subcommand)]
enum TokenCommand {
    /// Adds a token for a program, and prints it once
    #[command(after_help = "Examples:
  tollgate token add ci --role editor --expires 90day
  tollgate token add ops --setup 7K3F-9QXM-2HTD")]
    Add {
        #[command(flatten)]
        add: PrincipalArgs,
    },
    /// Lists the tokens, without their secrets
    #[command(after_help = "Example:\n  tollgate token list")]
    List {
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Revokes a token
    #[command(after_help = "Example:\n  tollgate token revoke ci --reason 'replaced'")]
    Revoke {
        #[command(flatten)]
        removal: Removal,
    },
}

/// The principal to add.
#[derive(clap::Args)]
struct PrincipalArgs {
    /// Its name
    #[arg(value_name = "NAME")]
    name: String,
    /// Its rights; each role includes those before it
    #[arg(long, value_enum, required_unless_present_any = ["setup", "offline"], value_name = "ROLE")]
    role: Option<RoleArg>,
    /// A domain it is limited to; may be repeated
    #[arg(long, value_name = "D")]
    domain: Vec<String>,
    /// Disables it at this time: 2026-12-01, or 90day from now
    #[arg(long, value_parser = date::parse_future, value_name = "TIME")]
    expires: Option<u64>,
    /// The setup code that `tollgate serve` printed: creates the first admin
    #[arg(long, conflicts_with_all = ["role", "domain", "expires", "offline"], value_name = "CODE")]
    setup: Option<String>,
    #[command(flatten)]
    offline: OfflineArgs,
    /// Reason, for the audit log
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    #[command(flatten)]
    admin: AdminArgs,
}

/// The principal to disable.
#[derive(clap::Args)]
struct Removal {
    /// Its name
    #[arg(value_name = "NAME")]
    name: String,
    /// Reason, for the audit log
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    #[command(flatten)]
    admin: AdminArgs,
}

/// A role on the command line.
#[derive(Clone, Copy, ValueEnum)]
enum RoleArg {
    /// Reads, with subjects masked
    Viewer,
    /// Sees subjects, explains, forgets, edits override rows, reads the audit log
    Operator,
    /// Edits rules
    Editor,
    /// Everything
    Admin,
}

impl RoleArg {
    const fn role(self) -> Role {
        match self {
            Self::Viewer => Role::Viewer,
            Self::Operator => Role::Operator,
            Self::Editor => Role::Editor,
            Self::Admin => Role::Admin,
        }
    }
}

impl User {
    pub(crate) fn run(self) -> ExitCode {
        finish(match self.command {
            UserCommand::Add { add, password_file } => password_file
                .as_deref()
                .map(read_password)
                .transpose()
                .and_then(|password| add.run(PrincipalKind::User, password)),
            UserCommand::List { admin } => list("/users", "no users", &admin),
            UserCommand::Disable { removal } => removal.run("/users", "disabled"),
        })
    }
}

impl Token {
    pub(crate) fn run(self) -> ExitCode {
        finish(match self.command {
            TokenCommand::Add { add } => add.run(PrincipalKind::Token, None),
            TokenCommand::List { admin } => list("/tokens", "no tokens", &admin),
            TokenCommand::Revoke { removal } => removal.run("/tokens", "revoked"),
        })
    }
}

impl PrincipalArgs {
    fn run(&self, kind: PrincipalKind, password: Option<String>) -> CommandResult {
        if self.offline.offline {
            let add = OfflinePrincipal {
                kind,
                name: &self.name,
                role: self.role.map_or(Role::Admin, RoleArg::role),
                domains: &self.domain,
                expires_at: self.expires.unwrap_or(0),
                reason: self.reason.as_deref().unwrap_or_default(),
            };
            let done = self.offline.add(&add, password)?;
            return Ok(report(&self.admin, &done, &secret_text(&done)));
        }
        let mut body = Map::from_iter([("name".to_owned(), json!(self.name))]);
        let mut insert = |name: &str, value: Value| {
            body.insert(name.to_owned(), value);
        };
        if let Some(password) = &password {
            insert("password", json!(password));
        }
        let path = match (&self.setup, kind) {
            (Some(code), kind) => {
                insert("code", json!(code));
                match kind {
                    PrincipalKind::Token => insert("kind", json!("token")),
                    PrincipalKind::User if password.is_none() => {
                        return Err(Failure::error(
                            "the first admin needs a password; give it with --password-file",
                        ));
                    }
                    PrincipalKind::User => {}
                }
                "/setup"
            }
            (None, kind) => {
                let role = self.role.map_or(Role::Viewer, RoleArg::role);
                insert("role", serde_json::to_value(role).unwrap_or_default());
                insert("domains", json!(self.domain));
                insert("expires_at", json!(self.expires.unwrap_or(0)));
                if let Some(reason) = &self.reason {
                    insert("reason", json!(reason));
                }
                match kind {
                    PrincipalKind::User => "/users",
                    PrincipalKind::Token => "/tokens",
                }
            }
        };
        let done = self
            .admin
            .json_with("name", AdminCall::new(Method::POST, path).json(&body.into()))?;
        Ok(report(&self.admin, &done, &secret_text(&done)))
    }
}

/// The new principal and its secret, which is not shown again.
fn secret_text(done: &Value) -> String {
    let (name, role) = (cell(done, "name"), cell(done, "role"));
    let secret = ["token", "password"]
        .into_iter()
        .find(|member| done.get(member).is_some_and(Value::is_string));
    match secret {
        Some(member) => format!(
            "{name}: {role}\n{member}: {}\nit is not shown again",
            cell(done, member)
        ),
        None => format!("{name}: {role}"),
    }
}

impl Removal {
    fn run(&self, path: &str, verb: &str) -> CommandResult {
        let call = AdminCall::new(Method::DELETE, path)
            .query("name", &self.name)
            .query_if("reason", self.reason.as_deref());
        self.admin.call(call)?;
        let body = json!({"name": self.name, "disabled": true});
        Ok(report(&self.admin, &body, &format!("{}: {verb}", self.name)))
    }
}

fn list(path: &str, empty: &str, admin: &AdminArgs) -> CommandResult {
    let items = admin.items(path, &[], LIST_MAX)?;
    let rows: Vec<[String; 6]> = items
        .iter()
        .map(|item| {
            let domains = item.get("domains").and_then(Value::as_array);
            let domains: Vec<&str> = domains.into_iter().flatten().filter_map(Value::as_str).collect();
            let state = match (number(item, "disabled_at"), number(item, "expires_at")) {
                (0, 0) => "enabled".to_owned(),
                (0, until) => format!("until {}", date::time_text(until)),
                (since, _) => format!("disabled {}", date::time_text(since)),
            };
            [
                cell(item, "name"),
                cell(item, "role"),
                if domains.is_empty() {
                    "all".to_owned()
                } else {
                    domains.join(",")
                },
                state,
                date::time_text(number(item, "seen_at")),
                cell(item, "created_by"),
            ]
        })
        .collect();
    let text = render(["name", "role", "domains", "state", "seen", "created by"], &rows, empty);
    Ok(report(admin, &json!({ "items": items }), &text))
}

/// The first line of a file.
fn read_password(file: &Path) -> Result<String, Failure> {
    let failure = |text: &dyn std::fmt::Display| Failure::error(format!("password file {}: {text}", file.display()));
    let mut text = String::new();
    let source: Box<dyn Read> = if file == Path::new("-") {
        Box::new(std::io::stdin().lock())
    } else {
        Box::new(std::fs::File::open(file).map_err(|error| failure(&error))?)
    };
    let read = source.take(PASSWORD_BYTES_MAX).read_to_string(&mut text);
    read.map_err(|error| failure(&error))?;
    match text.lines().next() {
        Some(password) if !password.is_empty() => Ok(password.to_owned()),
        _ => Err(failure(&"its first line is empty; write the password into it")),
    }
}

/// The most principals that are listed.
const LIST_MAX: usize = 10_000;

const PASSWORD_BYTES_MAX: u64 = 4 << 10;
