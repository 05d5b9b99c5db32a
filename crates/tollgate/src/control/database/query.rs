//! Texts of queries with optional filters. Values are always parameters.

pub(super) mod record;

use self::record::Record;
use super::connection::Parameter;
use std::fmt::Write as _;

/// Numbered parameters of one statement. SQLite finds each by its name in a list of all, so many of them take their square in time.
pub(super) const PARAMETERS: usize = 480;
/// Parameters of one statement that [`value_rows`] lists: five hundred rows of eight.
pub(super) const LISTED_PARAMETERS: usize = 4_000;

/// The form of parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placeholder {
    /// `$1`, which both databases read.
    Numbered,
    /// `?`, which only SQLite reads, and which it need not find by a name.
    InOrder,
}

/// A query under construction.
pub(super) struct Select<'p> {
    sql: String,
    parameters: Vec<Parameter<'p>>,
    separator: &'static str,
}

impl<'p> Select<'p> {
    /// Starts with all records of a kind.
    pub(super) fn records<R: Record>() -> Self {
        Self::from(R::select())
    }

    /// Starts with `SELECT … FROM …`.
    fn from(sql: String) -> Self {
        Self {
            sql,
            parameters: Vec::new(),
            separator: " WHERE ",
        }
    }

    /// Adds a condition that ends before its value.
    pub(super) fn and(&mut self, condition: &'static str, value: impl Into<Parameter<'p>>) {
        self.separate();
        self.sql.push_str(condition);
        self.push(value.into());
    }

    /// Requires one of these values; an empty list requires nothing.
    pub(super) fn and_one_of(&mut self, column: &'static str, values: &'p [String]) {
        if values.is_empty() {
            return;
        }
        self.separate();
        self.sql.push_str(column);
        self.sql.push_str(" IN ");
        self.push_list(values.iter().map(Into::into));
    }

    /// Requires a pattern in one of these columns, without regard to case.
    pub(super) fn and_text_in(&mut self, columns: &[&'static str], pattern: &str) {
        self.separate();
        for (index, column) in columns.iter().enumerate() {
            let opening = if index == 0 { "(" } else { " OR " };
            let _ = write!(self.sql, "{opening}lower({column}) LIKE ");
            self.push(pattern.to_owned().into());
            self.sql.push_str(" ESCAPE '!'");
        }
        self.sql.push(')');
    }

    /// Requires a pattern in one column.
    pub(super) fn and_like(&mut self, column: &'static str, pattern: &str) {
        self.separate();
        let _ = write!(self.sql, "{column} LIKE ");
        self.push(pattern.to_owned().into());
        self.sql.push_str(" ESCAPE '!'");
    }

    /// Requires a key after this one.
    pub(super) fn and_after(&mut self, columns: &'static str, key: &[Parameter<'p>]) {
        self.separate();
        let _ = write!(self.sql, "({columns}) > ");
        self.push_list(key.iter().cloned());
    }

    /// Finishes the text.
    pub(super) fn order_by(mut self, columns: &'static str, limit: usize) -> (String, Vec<Parameter<'p>>) {
        let _ = write!(self.sql, " ORDER BY {columns} LIMIT ");
        self.push((limit as u64).into());
        (self.sql, self.parameters)
    }

    fn separate(&mut self) {
        self.sql.push_str(self.separator);
        self.separator = " AND ";
    }

    fn push(&mut self, value: Parameter<'p>) {
        self.parameters.push(value);
        let _ = write!(self.sql, "${}", self.parameters.len());
    }

    fn push_list(&mut self, values: impl Iterator<Item = Parameter<'p>>) {
        for (index, value) in values.enumerate() {
            self.sql.push(if index == 0 { '(' } else { ',' });
            self.push(value);
        }
        self.sql.push(')');
    }
}

/// The pattern of texts that contain this one, in lower case, to be escaped by `!`.
pub(super) fn contains(text: &str) -> String {
    format!("%{}%", escaped(&text.to_ascii_lowercase()))
}

/// The pattern of texts that begin with this one, to be escaped by `!`.
pub(super) fn begins_with(text: &str) -> String {
    format!("{}%", escaped(text))
}

/// `($1,$2),($3,$4)` or `(?,?),(?,?)` for two rows of two values: the only parameters of their statement.
pub(super) fn value_rows(placeholder: Placeholder, rows: usize, width: usize) -> String {
    let mut text = String::with_capacity(rows * width * 6);
    for row in 0..rows {
        text.push_str(if row == 0 { "(" } else { ",(" });
        for column in 1..=width {
            text.push_str(if column == 1 { "" } else { "," });
            let _ = match placeholder {
                Placeholder::Numbered => write!(text, "${}", row * width + column),
                Placeholder::InOrder => write!(text, "?"),
            };
        }
        text.push(')');
    }
    text
}

/// `(a=$1 AND b=$2 AND c=$3) OR (a=$4 AND …)`: for each key one look-up in the index, which SQLite does not make of `IN (VALUES …)`.
pub(super) fn one_of_keys(columns: [&'static str; 3], keys: usize) -> String {
    let mut text = String::with_capacity(keys * 60);
    for key in 0..keys {
        text.push_str(if key == 0 { "(" } else { " OR (" });
        for (index, column) in columns.iter().enumerate() {
            let and = if index == 0 { "" } else { " AND " };
            let _ = write!(text, "{and}{column}=${}", key * columns.len() + index + 1);
        }
        text.push(')');
    }
    text
}

fn escaped(text: &str) -> String {
    text.replace('!', "!!").replace('%', "!%").replace('_', "!_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_parameters_in_order() {
        assert_eq!(value_rows(Placeholder::Numbered, 2, 3), "($1,$2,$3),($4,$5,$6)");
        assert_eq!(value_rows(Placeholder::InOrder, 2, 3), "(?,?,?),(?,?,?)");
        assert_eq!(
            one_of_keys(["a", "b", "c"], 2),
            "(a=$1 AND b=$2 AND c=$3) OR (a=$4 AND b=$5 AND c=$6)"
        );
        let wanted = ["x".to_owned(), "y".to_owned()];
        let mut select = Select::from("SELECT a FROM t".to_owned());
        select.and_one_of("a", &wanted);
        select.and_one_of("b", &[]);
        select.and_text_in(&["c", "d"], &contains("5%"));
        select.and_after("a, b", &["x".into(), 7.into()]);
        let (sql, parameters) = select.order_by("a", 10);
        assert_eq!(
            sql,
            "SELECT a FROM t WHERE a IN ($1,$2) AND (lower(c) LIKE $3 ESCAPE '!' OR lower(d) LIKE $4 ESCAPE '!') \
             AND (a, b) > ($5,$6) ORDER BY a LIMIT $7"
        );
        assert_eq!(parameters.len(), 7);
    }
}
