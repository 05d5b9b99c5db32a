//! `--offline`: a principal written to the database of a server that is stopped, for machines on which no one reads its setup code.

use super::PrincipalArgs;
use crate::cli::admin::{CommandResult, Failure, report};
use crate::config::{Sources, variables};
use crate::control::DatabaseChoice;
use crate::control::database::{Database, DatabaseError};
use crate::control::disk::Disk;
use crate::control::model::{Author, PrincipalKind, Role};
use crate::rule_source::ConfigLoader;
use crate::server::admin::new_principal;
use serde_json::{Map, json};
use std::path::PathBuf;
use std::time::Duration;

/// The settings that name the database.
#[derive(clap::Args)]
pub(super) struct OfflineArgs {
    /// Writes to the database of a stopped server, without calling it
    #[arg(long, conflicts_with = "setup")]
    pub(super) offline: bool,
    /// With --offline: the settings file of the server; default: ./tollgate.yaml if it exists
    #[arg(long, requires = "offline", value_name = "FILE")]
    config: Option<PathBuf>,
    /// With --offline: overrides one setting, as for `serve`; may be repeated
    #[arg(long, requires = "offline", value_name = "KEY=VALUE")]
    set: Vec<String>,
}

/// Adds a principal and prints its secret once.
pub(super) fn add(args: &PrincipalArgs, kind: PrincipalKind, role: Role, password: Option<String>) -> CommandResult {
    let settings = &args.offline;
    let mut loader = ConfigLoader::new(Sources {
        file: settings.config.clone(),
        variables: variables(),
        store: None,
        set: settings.set.clone(),
    });
    let config = match loader.load() {
        Ok(snapshot) => snapshot.config,
        Err(problems) => {
            let list: Vec<String> = problems.iter().map(ToString::to_string).collect();
            return Err(Failure::error(format!(
                "the settings cannot be read:\n{}",
                list.join("\n")
            )));
        }
    };
    // Held until the principal is written.
    let mut disk = Disk::new(config.data_dir.path.clone());
    let database = match &config.control.database {
        DatabaseChoice::DataDir => {
            let locked = disk.acquire();
            locked
                .map_err(|error| Failure::error(format!("{error}; stop the server first, or leave out --offline")))?;
            Database::sqlite(disk.database_path())
        }
        DatabaseChoice::Postgres(url) => Database::postgres(url).map_err(|error| Failure::error(error.to_string()))?,
        DatabaseChoice::None => {
            return Err(Failure::error(
                "`control.database` is `none`; run this with the settings of an instance that has a database",
            ));
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::error(format!("cannot start a runtime: {error}")))?;
    let (mut principal, secret) = runtime
        .block_on(new_principal(kind, &args.name, role, password))
        .map_err(Failure::error)?;
    principal.domains.clone_from(&args.domain);
    principal.expires_at = args.expires.unwrap_or(0);
    "offline".clone_into(&mut principal.created_by);
    let author = Author {
        actor: "offline".to_owned(),
        via: "cli".to_owned(),
        reason: args.reason.clone().unwrap_or_default(),
        ..Author::default()
    };
    let written = runtime.block_on(async {
        let write = database.add_principal(principal, &author);
        let written = tokio::time::timeout(WRITE_TIMEOUT, write).await;
        written.unwrap_or_else(|_| Err(DatabaseError::Unavailable("it does not answer".to_owned())))
    });
    written.map_err(|error| match error {
        DatabaseError::Exists(_) => Failure::refused(format!("the name `{}` is taken; choose another", args.name)),
        error => Failure::error(format!("nothing was written: {error}")),
    })?;
    let mut body = Map::from_iter([("name".to_owned(), json!(args.name)), ("role".to_owned(), json!(role))]);
    let member = match kind {
        PrincipalKind::Token => "token",
        PrincipalKind::User => "password",
    };
    body.extend(secret.map(|secret| (member.to_owned(), json!(secret))));
    let body = body.into();
    Ok(report(&args.admin, &body, &super::secret_text(&body)))
}

const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
