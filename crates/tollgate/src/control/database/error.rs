//! The errors of the database.

use crate::control::model::Author;
use crate::control::state::RejectedRow;
use std::fmt;

/// The result of a call to the database.
pub type DatabaseResult<T> = Result<T, DatabaseError>;

/// The reason why a call to the database failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DatabaseError {
    /// No answer within the deadline, no connection, or too many writes in the queue. A write may have been done or not.
    Unavailable(String),
    /// The disk is full. Nothing was written.
    Full,
    /// A precondition does not hold: the item has another revision than expected. Nothing was written.
    Stale(Box<StaleItem>),
    /// These rows, written meanwhile, do not fit the rules that were to be published. Nothing was written.
    RowsInvalid(Vec<RejectedRow>),
    /// It exists already: the name of a principal, or any principal where the first one was to be created.
    Exists(String),
    /// It does not exist.
    Missing(String),
    /// An idempotency key was used before with another request.
    KeyReused,
    /// The log of changes begins after the revision that was asked for: read a snapshot.
    Pruned {
        /// The first revision in the log.
        first: u64,
    },
    /// The database was written by a newer program: it can be read, not written. Or a change is of a kind that this program
    /// does not know.
    Newer(String),
    /// The request cannot be stored.
    Invalid(String),
    /// More rows, attributes or text than are kept. Nothing was written.
    TooLarge(String),
    /// The database holds something that this program never writes.
    Corrupt(String),
}

/// The present state of an item that was expected to be another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaleItem {
    /// The epoch of the database.
    pub epoch: u64,
    /// The revision that last changed the item; 0: it does not exist.
    pub revision: u64,
    /// The author of that change, as the audit log has it.
    pub author: Author,
    /// Unix time in milliseconds of that change; 0: unknown.
    pub at: u64,
    /// The item, as the JSON text of the audit log; empty: it does not exist.
    pub item: String,
}

impl fmt::Display for DatabaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable(detail) => write!(f, "the control database is unavailable: {detail}"),
            Self::Full => f.write_str("the disk of the control database is full; free some space"),
            Self::Stale(item) if item.revision == 0 => f.write_str("the item does not exist; read it again"),
            Self::Stale(item) => write!(f, "the item was changed at revision {}; read it again", item.revision),
            Self::RowsInvalid(rows) => write!(f, "{} override rows do not fit the rules", rows.len()),
            Self::Exists(name) => write!(f, "{name} exists already"),
            Self::Missing(name) => write!(f, "{name} does not exist"),
            Self::KeyReused => f.write_str("the idempotency key was used with another request; use a new one"),
            Self::Pruned { first } => write!(f, "the log of changes begins at revision {first}; read a snapshot"),
            Self::Newer(detail) => write!(f, "the control database needs a newer version of tollgate: {detail}"),
            Self::Invalid(detail) | Self::TooLarge(detail) => f.write_str(detail),
            Self::Corrupt(detail) => write!(f, "the control database is damaged: {detail}; restore a backup"),
        }
    }
}

impl std::error::Error for DatabaseError {}

impl DatabaseError {
    /// True if a request was refused before it wrote anything, so that others in its transaction can go on.
    pub(super) const fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::Stale(_) | Self::RowsInvalid(_) | Self::Exists(_) | Self::Missing(_) | Self::KeyReused
        )
    }

    /// True if another request may have caused it.
    pub(super) const fn is_of_one_request(&self) -> bool {
        matches!(self, Self::Invalid(_) | Self::TooLarge(_) | Self::Corrupt(_))
    }
}

impl From<sqlx::Error> for DatabaseError {
    fn from(error: sqlx::Error) -> Self {
        let sqlx::Error::Database(answer) = &error else {
            return match error {
                sqlx::Error::PoolTimedOut => Self::Unavailable("no connection within the deadline".to_owned()),
                sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => Self::Corrupt(error.to_string()),
                sqlx::Error::Encode(_) | sqlx::Error::InvalidArgument(_) => Self::Invalid(error.to_string()),
                _ => Self::Unavailable(error.to_string()),
            };
        };
        let detail = answer.message().to_owned();
        let code = answer.code().unwrap_or_default();
        if answer.try_downcast_ref::<sqlx::sqlite::SqliteError>().is_some() {
            of_sqlite(code.parse().unwrap_or(0), detail)
        } else {
            of_postgres(&code, detail)
        }
    }
}

/// The meaning of an extended result code of SQLite.
fn of_sqlite(code: u32, detail: String) -> DatabaseError {
    /// The index of the log could not grow.
    const IOERR_SHMSIZE: u32 = 10 | (19 << 8);
    match (code, code & 0xff) {
        (IOERR_SHMSIZE, _) | (_, 13) => DatabaseError::Full,
        // Too big.
        (_, 18) => DatabaseError::Invalid(detail),
        // An error in a statement, a damaged file, a violated constraint, a value of another type, no database at all.
        (_, 1 | 11 | 19 | 20 | 26) => DatabaseError::Corrupt(detail),
        // Busy, locked, read-only, interrupted, an I/O error, not to be opened.
        _ => DatabaseError::Unavailable(detail),
    }
}

/// The meaning of an SQLSTATE of PostgreSQL.
fn of_postgres(code: &str, detail: String) -> DatabaseError {
    match (code, code.get(..2).unwrap_or_default()) {
        ("53100", _) => DatabaseError::Full,
        // Data that cannot be stored, or is too big.
        (_, "22" | "54") => DatabaseError::Invalid(detail),
        ("42501", _) => DatabaseError::Unavailable(detail),
        // A violated constraint, an error in a statement, a damaged database.
        (_, "23" | "42" | "XX") => DatabaseError::Corrupt(detail),
        // No connection, no resources, a timeout, a conflict of transactions, a standby, no permission.
        _ => DatabaseError::Unavailable(detail),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_named_by_both_databases() {
        assert_eq!(of_sqlite(13, String::new()), DatabaseError::Full);
        assert_eq!(of_sqlite(4874, String::new()), DatabaseError::Full);
        assert_eq!(of_postgres("53100", String::new()), DatabaseError::Full);
    }

    #[test]
    fn a_lock_held_elsewhere_is_unavailability() {
        let busy = DatabaseError::Unavailable("locked".to_owned());
        assert_eq!(of_sqlite(5, "locked".to_owned()), busy);
        assert_eq!(of_sqlite(517, "locked".to_owned()), busy, "an extended code");
        assert_eq!(of_postgres("55P03", "locked".to_owned()), busy);
        assert_eq!(of_postgres("57014", "locked".to_owned()), busy, "a statement timeout");
    }
}
