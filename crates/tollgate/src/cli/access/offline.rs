//! `--offline`: a principal written to the database of a stopped server, for machines without a browser and for the first admin
//! of an address that others reach.

use crate::cli::admin::Failure;
use crate::config::{Config, Sources, variables};
use crate::control::DatabaseChoice;
use crate::control::database::{Database, DatabaseError};
use crate::control::disk::Disk;
use crate::control::model::{Author, Principal, PrincipalKind, Role};
use crate::reload::error_lines;
use crate::server::admin::NewPrincipal;
use serde_json::Value;
use std::path::PathBuf;
use tollgate_limiter::core::problem::Problem;

/// The way to the database.
#[derive(clap::Args)]
pub(super) struct OfflineArgs {
    /// Writes to the database of a stopped server, which its settings name; the role is admin unless --role says another
    #[arg(long)]
    pub(super) offline: bool,
    /// Settings file of that server; default: ./tollgate.yaml if it exists
    #[arg(long, requires = "offline", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Overrides one of its settings: data_dir=/var/lib/tollgate; may be repeated
    #[arg(long, requires = "offline", value_name = "KEY=VALUE")]
    set: Vec<String>,
}

/// The principal to add.
pub(super) struct OfflinePrincipal<'a> {
    pub(super) kind: PrincipalKind,
    pub(super) name: &'a str,
    pub(super) role: Role,
    pub(super) domains: &'a [String],
    pub(super) expires_at: u64,
    pub(super) reason: &'a str,
}

impl OfflineArgs {
    /// Adds a principal, and returns it as JSON with its generated secret.
    pub(super) fn add(&self, add: &OfflinePrincipal<'_>, password: Option<String>) -> Result<Value, Failure> {
        let config = self.settings()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Failure::error(format!("cannot start threads: {error}")))?;
        runtime.block_on(async {
            let new = NewPrincipal::new(add.kind, add.name, add.role, password).await;
            let mut new = new.map_err(Failure::refused)?;
            new.principal = Principal {
                domains: add.domains.to_vec(),
                expires_at: add.expires_at,
                created_by: AUTHOR.to_owned(),
                ..new.principal
            };
            let mut disk = Disk::new(config.data_dir.path);
            let database = match &config.control.database {
                DatabaseChoice::DataDir => {
                    let locked = disk.acquire();
                    locked.map_err(|error| {
                        Failure::error(format!("{error}; without --offline a running server is asked"))
                    })?;
                    Database::sqlite(disk.database_path())
                }
                DatabaseChoice::Postgres(url) => Database::postgres(url).map_err(failure)?,
                DatabaseChoice::None => {
                    let text =
                        "`control.database` is `none`: this server has no principals but those in `admin.tokens`";
                    return Err(Failure::refused(text));
                }
            };
            let author = Author {
                actor: AUTHOR.to_owned(),
                via: "cli".to_owned(),
                reason: add.reason.to_owned(),
                ..Author::default()
            };
            let added = database.add_principal(new.principal.clone(), &author).await;
            added.map_err(failure)?;
            Ok(new.json())
        })
    }

    fn settings(&self) -> Result<Config, Failure> {
        let sources = Sources {
            file: self.config.clone(),
            variables: variables(),
            store: None,
            set: self.set.clone(),
        };
        let read = sources.read().and_then(|raw| Config::read(&raw));
        let failure = |problems: Vec<Problem>| {
            Failure::error(format!(
                "the settings cannot be used:\n{}",
                error_lines(&problems).join("\n")
            ))
        };
        read.map(|(config, _)| config).map_err(failure)
    }
}

fn failure(error: DatabaseError) -> Failure {
    match error {
        DatabaseError::Exists(_) => Failure::refused(error.to_string()),
        _ => Failure::error(error.to_string()),
    }
}

/// The actor in the audit log: no one was authenticated.
const AUTHOR: &str = "offline";
