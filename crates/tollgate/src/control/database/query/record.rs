//! Records: values that a query returns column by column, and the statements that all tables with keys of three texts share.

use super::{LISTED_PARAMETERS, PARAMETERS, one_of_keys, value_rows};
use crate::control::database::connection::{Connection, Parameter, ResultRow, parameters};
use crate::control::database::error::{DatabaseError, DatabaseResult};
use crate::control::database::writer::ledger::ITEMS_MAX;
use crate::control::model::{Digest, SubjectValues};
use sqlx::AssertSqlSafe;

/// A value that a query returns. `record!` implements it.
pub(in crate::control::database) trait Record: Sized {
    /// The table it is kept in.
    const TABLE: &'static str;
    /// The columns it is read from, in order.
    const COLUMNS: &'static str;

    /// Reads it from the next columns.
    fn take(columns: &mut Columns<'_>) -> DatabaseResult<Self>;

    /// Reads it from the first columns of a row.
    fn read(row: &ResultRow) -> DatabaseResult<Self> {
        Self::take(&mut Columns::of(row))
    }

    /// `SELECT … FROM …`, without a condition.
    fn select() -> String {
        format!("SELECT {} FROM {}", Self::COLUMNS, Self::TABLE)
    }
}

/// A record with a key of three texts.
pub(in crate::control::database) trait KeyedRecord: Record {
    /// The columns of the key.
    const KEY: [&'static str; 3];
    /// Several of them, in messages.
    const PLURAL: &'static str;
}

/// A key as its table has it.
pub(in crate::control::database) type KeyText<'k> = [&'k str; 3];

/// A value of one column.
pub(in crate::control::database) trait Column: Sized {
    fn read(row: &ResultRow, column: usize) -> DatabaseResult<Self>;
}

/// The columns of a row that were not read yet.
pub(in crate::control::database) struct Columns<'r> {
    row: &'r ResultRow,
    next: usize,
}

/// All records, by key.
pub(in crate::control::database) async fn all<R: KeyedRecord>(connection: &mut Connection) -> DatabaseResult<Vec<R>> {
    let sql = format!("{} ORDER BY {} LIMIT $1", R::select(), R::KEY.join(", "));
    let found = connection.fetch(AssertSqlSafe(sql), parameters![ITEMS_MAX + 1]).await?;
    if found.len() as u64 > ITEMS_MAX {
        return Err(DatabaseError::TooLarge(format!(
            "there are more than {ITEMS_MAX} {}",
            R::PLURAL
        )));
    }
    found.iter().map(R::read).collect()
}

/// The records with these keys.
pub(in crate::control::database) async fn find<R: KeyedRecord>(
    connection: &mut Connection,
    keys: &[KeyText<'_>],
) -> DatabaseResult<Vec<R>> {
    let [first, second, third] = R::KEY;
    let mut records = Vec::new();
    for keys in keys.chunks(LISTED_PARAMETERS / 3) {
        // A join: SQLite reads the whole table for `IN (VALUES …)`.
        let sql = format!(
            "WITH wanted (wanted_{first}, wanted_{second}, wanted_{third}) AS (VALUES {}) {}
             JOIN wanted ON {first} = wanted_{first} AND {second} = wanted_{second} AND {third} = wanted_{third}",
            value_rows(connection.placeholder(), keys.len(), 3),
            R::select()
        );
        for row in connection.fetch(AssertSqlSafe(sql), &key_parameters(keys)).await? {
            records.push(R::read(&row)?);
        }
    }
    Ok(records)
}

/// Deletes the records with these keys.
pub(in crate::control::database) async fn delete<R: KeyedRecord>(
    connection: &mut Connection,
    keys: &[KeyText<'_>],
) -> DatabaseResult<()> {
    for keys in keys.chunks(PARAMETERS / 3) {
        let sql = format!("DELETE FROM {} WHERE {}", R::TABLE, one_of_keys(R::KEY, keys.len()));
        connection.execute(AssertSqlSafe(sql), &key_parameters(keys)).await?;
    }
    Ok(())
}

fn key_parameters<'k>(keys: &[KeyText<'k>]) -> Vec<Parameter<'k>> {
    keys.iter().flatten().map(|text| Parameter::from(*text)).collect()
}

impl<'r> Columns<'r> {
    /// Starts with the first.
    pub(in crate::control::database) const fn of(row: &'r ResultRow) -> Self {
        Self { row, next: 0 }
    }

    /// Reads the next one.
    pub(in crate::control::database) fn take<C: Column>(&mut self) -> DatabaseResult<C> {
        let column = self.next;
        self.next += 1;
        C::read(self.row, column)
    }
}

impl Column for String {
    fn read(row: &ResultRow, column: usize) -> DatabaseResult<Self> {
        row.text(column)
    }
}

impl Column for u64 {
    fn read(row: &ResultRow, column: usize) -> DatabaseResult<Self> {
        row.number(column)
    }
}

impl Column for u32 {
    fn read(row: &ResultRow, column: usize) -> DatabaseResult<Self> {
        let number = row.number(column)?;
        Self::try_from(number).map_err(|_| DatabaseError::Corrupt(format!("{number} is too large")))
    }
}

impl Column for Digest {
    fn read(row: &ResultRow, column: usize) -> DatabaseResult<Self> {
        row.parsed(column, Self::parse)
    }
}

impl Column for SubjectValues {
    fn read(row: &ResultRow, column: usize) -> DatabaseResult<Self> {
        row.parsed(column, |text| serde_json::from_str(text).ok())
    }
}

impl Column for Vec<String> {
    fn read(row: &ResultRow, column: usize) -> DatabaseResult<Self> {
        row.parsed(column, |text| serde_json::from_str(text).ok())
    }
}

/// Reads a type from the columns of a table that are named like its members, in this order.
macro_rules! record {
    ($record:ty, $table:literal: $first:ident $(, $column:ident)* $(,)?) => {
        impl $crate::control::database::query::record::Record for $record {
            const TABLE: &'static str = $table;
            const COLUMNS: &'static str = concat!(stringify!($first) $(, ", ", stringify!($column))*);

            fn take(
                columns: &mut $crate::control::database::query::record::Columns<'_>,
            ) -> $crate::control::database::error::DatabaseResult<Self> {
                Ok(Self {
                    $first: columns.take()?,
                    $($column: columns.take()?,)*
                })
            }
        }
    };
}
pub(in crate::control::database) use record;
