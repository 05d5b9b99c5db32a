//! The reasons why a write, or a read of the database, is not done.

mod problem;

pub use problem::SetProblem;

use super::database::{DatabaseError, StaleItem};
use super::model::{Author, VersionMeta};
use super::state::RejectedRow;
use serde::Serialize;
use std::fmt;

/// The reason why a call of [`Control`](super::Control) is not done. Each has a code of the admin API.
#[derive(Clone, Debug)]
pub enum ControlError {
    /// The database does not answer in time (503 `database-unavailable`).
    Unavailable(String),
    /// The disk of the database is full (507 `disk-full`).
    Full,
    /// This instance has no database to write to (409 `no-database`).
    NoDatabase,
    /// Another database is the one of this fleet (409 `other-database`).
    OtherDatabase(String),
    /// The database is behind what was acknowledged, or another history of it is followed (409 `database-regressed`).
    Regressed(String),
    /// The item was changed, or exists already (412 `stale`).
    Stale(Box<StaleItem>),
    /// There is no such rule, row, attribute or version (404 `not-found`).
    NotFound(String),
    /// Rules or rows that cannot be used (422 `invalid`).
    Invalid(Vec<SetProblem>),
    /// A rule that cannot be used with the others (422 `invalid`).
    InvalidRule {
        /// The problems in the text of the rule.
        own: Vec<SetProblem>,
        /// The problems elsewhere in the set: they may be about rules of any domain.
        others: Vec<SetProblem>,
    },
    /// A request that is malformed beyond its rules: a path, a subject (400 `malformed`).
    Malformed(String),
    /// More bytes, rows or rules than are accepted (413 `too-large`).
    TooLarge(String),
    /// A publish would make these rows invalid (409 `rows-invalid`).
    RowsInvalid(Vec<RejectedRow>),
    /// The live version was not made by a push, is not the one that was planned, or is a rollback already (409 `drift`).
    Drift {
        /// The text for people.
        text: String,
        /// The live version, if there is one.
        live: Option<Box<VersionMeta>>,
    },
    /// The rule is one of a file of this instance (409 `file-layer`): its location.
    FileLayer(String),
    /// `control.edits` is `git`: only a push creates versions (409 `edits-git`).
    GitOnly,
    /// This instance cannot use the set (409 `prepare-rejected`).
    PrepareRejected(Vec<SetProblem>),
    /// Other instances cannot use the set (409 `prepare-rejected`).
    FleetRejected(Vec<InstanceProblems>),
    /// Instances have not said in time that they can use the set (409 `prepare-incomplete`).
    PrepareIncomplete {
        /// The ids of those that are missing.
        instances: Vec<String>,
        /// The text for people.
        text: String,
    },
}

/// The reasons why an instance cannot use a set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InstanceProblems {
    /// The id of the instance.
    pub instance: String,
    /// The reasons.
    pub problems: Vec<String>,
}

impl ControlError {
    /// An item that has another revision than expected, without its author.
    pub(super) fn stale(epoch: u64, revision: u64) -> Self {
        Self::Stale(Box::new(StaleItem {
            epoch,
            revision,
            author: Author::default(),
            at: 0,
            item: String::new(),
        }))
    }

    /// The code in the admin API.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Unavailable(_) => "database-unavailable",
            Self::Full => "disk-full",
            Self::NoDatabase => "no-database",
            Self::OtherDatabase(_) => "other-database",
            Self::Regressed(_) => "database-regressed",
            Self::Stale(_) => "stale",
            Self::NotFound(_) => "not-found",
            Self::Invalid(_) | Self::InvalidRule { .. } => "invalid",
            Self::Malformed(_) => "malformed",
            Self::TooLarge(_) => "too-large",
            Self::RowsInvalid(_) => "rows-invalid",
            Self::Drift { .. } => "drift",
            Self::FileLayer(_) => "file-layer",
            Self::GitOnly => "edits-git",
            Self::PrepareRejected(_) | Self::FleetRejected(_) => "prepare-rejected",
            Self::PrepareIncomplete { .. } => "prepare-incomplete",
        }
    }
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable(reason) => write!(f, "the database is unavailable: {reason}"),
            Self::Full => f.write_str("the disk of the database is full; free some space and try again"),
            Self::NoDatabase => f.write_str("this instance has no database; send the change to a control service"),
            Self::OtherDatabase(owner) => write!(f, "another database is in use: {owner}"),
            Self::Regressed(reason) => write!(f, "the database lacks acknowledged changes: {reason}"),
            Self::Stale(item) => match item.revision {
                0 => f.write_str("the item does not exist any more; read it again"),
                revision => write!(f, "the item was changed at revision {revision}; read it again"),
            },
            Self::NotFound(what) => write!(f, "there is no {what}"),
            Self::Invalid(problems) => write!(f, "{} problems in the rules", problems.len()),
            Self::InvalidRule { own, others } => write!(f, "{} problems in the rules", own.len() + others.len()),
            Self::Malformed(text)
            | Self::TooLarge(text)
            | Self::Drift { text, .. }
            | Self::PrepareIncomplete { text, .. } => f.write_str(text),
            Self::FleetRejected(instances) => {
                write!(f, "{} instances cannot use the rules", instances.len())?;
                match instances.first() {
                    Some(InstanceProblems { instance, problems }) => {
                        write!(f, ": {instance}: {}", problems.first().map_or("", String::as_str))
                    }
                    None => Ok(()),
                }
            }
            Self::RowsInvalid(rows) => write!(
                f,
                "{} override rows do not fit the new rules; change them first, or publish with drop_rows",
                rows.len()
            ),
            Self::FileLayer(location) => write!(f, "the rule is in a file of this instance, {location}; edit it there"),
            Self::GitOnly => {
                f.write_str("rules are changed by `tollgate rules push` only; an admin may break the glass")
            }
            Self::PrepareRejected(problems) => {
                write!(f, "this instance cannot use the rules: {} problems", problems.len())
            }
        }
    }
}

impl std::error::Error for ControlError {}

impl From<DatabaseError> for ControlError {
    fn from(error: DatabaseError) -> Self {
        match error {
            DatabaseError::Full => Self::Full,
            DatabaseError::Stale(item) => Self::Stale(item),
            DatabaseError::RowsInvalid(rows) => Self::RowsInvalid(rows),
            DatabaseError::Missing(name) => Self::NotFound(name),
            DatabaseError::Exists(text) | DatabaseError::Invalid(text) => Self::Malformed(text),
            DatabaseError::TooLarge(text) => Self::TooLarge(text),
            DatabaseError::Unavailable(detail) => Self::Unavailable(detail),
            error @ (DatabaseError::KeyReused
            | DatabaseError::Pruned { .. }
            | DatabaseError::Newer(_)
            | DatabaseError::Corrupt(_)) => Self::Unavailable(error.to_string()),
        }
    }
}
