//! Lists in files: NDJSON and CSV, read for an import and written for an export.

use crate::control::SetProblem;
use crate::server::admin::problem::AdminProblem;
use hyper::header::CONTENT_TYPE;
use hyper::{HeaderMap, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

/// The form of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server::admin) enum TableFormat {
    Ndjson,
    Csv,
}

impl TableFormat {
    /// The form that the query names, or the type of the body; NDJSON otherwise.
    pub(in crate::server::admin) fn of(query: Option<&str>, headers: &HeaderMap) -> Result<Self, AdminProblem> {
        let kind = headers
            .get(CONTENT_TYPE)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default();
        match query {
            Some("ndjson") => Ok(Self::Ndjson),
            Some("csv") => Ok(Self::Csv),
            Some(_) => Err(AdminProblem::field("format", "must be ndjson or csv")),
            None if kind.starts_with("text/csv") => Ok(Self::Csv),
            None => Ok(Self::Ndjson),
        }
    }

    /// The first line of a list in this form; empty where each line names its columns.
    pub(in crate::server::admin) fn header(self, columns: &[&str]) -> String {
        match self {
            Self::Ndjson => String::new(),
            Self::Csv => format!("{}\n", columns.join(",")),
        }
    }

    /// The type of a body in this form.
    pub(in crate::server::admin) const fn content_type(self) -> &'static str {
        match self {
            Self::Ndjson => "application/x-ndjson",
            Self::Csv => "text/csv; charset=utf-8",
        }
    }
}

/// Reads rows. Each comes with its line; all errors are reported.
pub(in crate::server::admin) fn read<T: DeserializeOwned>(
    body: &[u8],
    format: TableFormat,
    columns: &[&str],
    rows_max: usize,
) -> Result<Vec<(u32, T)>, AdminProblem> {
    let text = std::str::from_utf8(body).map_err(|_| AdminProblem::malformed("the body is not UTF-8"))?;
    let read: Vec<(u32, Result<T, String>)> = match format {
        TableFormat::Ndjson => text
            .lines()
            .zip(1..)
            .filter(|(line, _)| !line.trim().is_empty())
            .take(rows_max + 1)
            .map(|(line, number)| (number, row_of(line)))
            .collect(),
        TableFormat::Csv => csv_values(text, columns, rows_max)?
            .into_iter()
            .map(|(number, value)| (number, value.and_then(row_of_value)))
            .collect(),
    };
    if read.len() > rows_max {
        let detail = format!("more than {rows_max} rows; import them in parts");
        return Err(AdminProblem::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", detail));
    }
    let (mut rows, mut problems) = (Vec::with_capacity(read.len()), Vec::new());
    for (number, row) in read {
        match row {
            Ok(row) => rows.push((number, row)),
            Err(error) => problems.push(SetProblem::error(error).at_line(number)),
        }
    }
    match problems.is_empty() {
        true => Ok(rows),
        false => Err(invalid(&problems)),
    }
}

/// Reads the row of a line of NDJSON.
fn row_of<T: DeserializeOwned>(line: &str) -> Result<T, String> {
    serde_json::from_str(line).or_else(|_| {
        // An error then names no position, which would be one in a line of its own.
        let value = serde_json::from_str(line).map_err(|error| error.to_string())?;
        row_of_value(value)
    })
}

fn row_of_value<T: DeserializeOwned>(value: Value) -> Result<T, String> {
    serde_json::from_value(value).map_err(|error| error.to_string())
}

/// The problem of rows that cannot be used.
pub(in crate::server::admin) fn invalid(problems: &[SetProblem]) -> AdminProblem {
    let detail = format!("{} problems; nothing was changed", problems.len());
    AdminProblem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", detail).with("problems", json!(problems))
}

/// The rows of a file by their lines, as objects or with the reason why they are none.
type TableRows = Vec<(u32, Result<Value, String>)>;

/// Rows of CSV as objects. Empty cells are left out, and `subject` is read from `merchant=m_42;region=eu` where it is an object.
fn csv_values(text: &str, columns: &[&str], rows_max: usize) -> Result<TableRows, AdminProblem> {
    // Spreadsheets write it before the first column.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut records = csv_records(text, rows_max + 2)
        .map_err(|(line, reason)| invalid(&[SetProblem::error(reason.to_owned()).at_line(line)]))?;
    let Some((_, header)) = (!records.is_empty()).then(|| records.remove(0)) else {
        return Err(AdminProblem::malformed("the first line must name the columns"));
    };
    if let Some(unknown) = header.iter().find(|name| !columns.contains(&name.trim())) {
        let detail = format!("unknown column `{unknown}`; known are: {}", columns.join(", "));
        return Err(AdminProblem::malformed(detail));
    }
    let is_double = |name: &&&str| header.iter().filter(|cell| cell.trim() == **name).count() > 1;
    if let Some(double) = columns.iter().find(is_double) {
        return Err(AdminProblem::malformed(format!("the column `{double}` occurs twice")));
    }
    let is_object = columns.contains(&"rule");
    let row = |cells: Vec<String>| {
        if cells.len() != header.len() {
            return Err(format!(
                "has {} cells, and the header has {}",
                cells.len(),
                header.len()
            ));
        }
        let mut members = Map::new();
        for (name, cell) in header.iter().map(|name| name.trim()).zip(cells) {
            let cell = unquote_formula(cell);
            let value = match name {
                _ if cell.is_empty() => continue,
                "subject" if is_object => subject_from(&cell)?,
                "expires_at" => json!(cell.parse::<u64>().map_err(|_| "expires_at must be a number")?),
                _ => Value::String(cell),
            };
            members.insert(name.to_owned(), value);
        }
        Ok(Value::Object(members))
    };
    Ok(records.into_iter().map(|(line, cells)| (line, row(cells))).collect())
}

fn subject_from(cell: &str) -> Result<Value, String> {
    if cell.starts_with('{') {
        return serde_json::from_str(cell).map_err(|error| error.to_string());
    }
    let pair = |pair: &str| {
        let (name, value) = pair
            .split_once('=')
            .ok_or("a subject is written `merchant=m_42;region=eu`")?;
        Ok((name.to_owned(), Value::String(value.to_owned())))
    };
    let pairs: Result<Map<String, Value>, String> = cell.split(';').map(pair).collect();
    pairs.map(Value::Object)
}

/// The cells of a record, with the line it begins at.
type CsvRecord = (u32, Vec<String>);

/// Records with the line each begins at. Cells may be quoted, and then contain commas, line ends and doubled quotes. An error has
/// its line.
fn csv_records(text: &str, records_max: usize) -> Result<Vec<CsvRecord>, (u32, &'static str)> {
    let mut records = Vec::new();
    let (mut line, mut begins_at) = (1, 1);
    let (mut cells, mut cell, mut is_quoted) = (Vec::new(), String::new(), false);
    // The line of the quote that opened the cell; none: it is not quoted.
    let mut opened_at = None;
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        if character == '\n' {
            line += 1;
        }
        match character {
            '"' if is_quoted && characters.peek() == Some(&'"') => {
                cell.push('"');
                characters.next();
            }
            '"' if is_quoted => is_quoted = false,
            '"' if cell.is_empty() && opened_at.is_none() => {
                is_quoted = true;
                opened_at = Some(line);
            }
            '"' => {
                return Err((
                    line,
                    "a quote inside a cell; put the cell in quotes, and double those inside",
                ));
            }
            ',' if !is_quoted => {
                cells.push(std::mem::take(&mut cell));
                opened_at = None;
            }
            '\r' if !is_quoted => {}
            '\n' if !is_quoted => {
                cells.push(std::mem::take(&mut cell));
                opened_at = None;
                let record = std::mem::take(&mut cells);
                if record.iter().any(|cell| !cell.is_empty()) {
                    records.push((begins_at, record));
                }
                begins_at = line;
                if records.len() >= records_max {
                    return Ok(records);
                }
            }
            _ if !is_quoted && opened_at.is_some() => return Err((line, "a cell goes on after its closing quote")),
            other => cell.push(other),
        }
    }
    if let (true, Some(line)) = (is_quoted, opened_at) {
        return Err((line, "the quote that opens here is not closed"));
    }
    if !cell.is_empty() || !cells.is_empty() {
        cells.push(cell);
        records.push((begins_at, cells));
    }
    Ok(records)
}

/// A cell of an export. One that a spreadsheet would run as a formula begins with a quote.
pub(in crate::server::admin) fn csv_cell(text: &str) -> String {
    let text = match is_formula(text) {
        true => format!("'{text}"),
        false => text.to_owned(),
    };
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text,
    }
}

/// The cell as it was before its export.
fn unquote_formula(cell: String) -> String {
    match cell.strip_prefix('\'') {
        Some(rest) if is_formula(rest) => rest.to_owned(),
        _ => cell,
    }
}

/// True for a text that a spreadsheet would run, and for one that looks like the quoted form of such a text.
fn is_formula(text: &str) -> bool {
    text.trim_start_matches('\'').starts_with(FORMULA)
}

const FORMULA: [char; 4] = ['=', '+', '-', '@'];

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [&str; 4] = ["rule", "subject", "terms", "note"];

    #[test]
    fn csv_is_read_back_as_it_was_written() {
        let note = "=1+1, \"quoted\"\nsecond line";
        let text = format!(
            "rule,subject,terms,note\nplan,merchant=m_1;region=eu,5/min,{}\n",
            csv_cell(note)
        );
        let rows: Vec<(u32, Value)> = read(text.as_bytes(), TableFormat::Csv, &COLUMNS, 9).unwrap();
        let expected = json!({"rule":"plan","subject":{"merchant":"m_1","region":"eu"},"terms":"5/min","note":note});
        assert_eq!(rows, [(2, expected)]);
        assert_eq!(csv_cell("@x"), "'@x");
        for text in ["=x", "'=x", "''=x", "'x", "x'"] {
            assert_eq!(unquote_formula(csv_cell(text)), text);
        }
    }

    #[test]
    fn csv_that_is_ambiguous_is_rejected_with_its_line() {
        let marked = "\u{feff}rule,terms\r\nplan,\"5/min\"\r\n";
        let rows: Vec<(u32, Value)> = read(marked.as_bytes(), TableFormat::Csv, &COLUMNS, 9).unwrap();
        assert_eq!(rows, [(2, json!({ "rule": "plan", "terms": "5/min" }))]);
        for (text, line) in [
            ("rule,terms\nplan,\"5/min\nother,6/min\n", 2),
            ("rule,terms\nplan,5/min\nplan,5\"/min\n", 3),
            ("rule,terms\nplan,\"5\"/min\n", 2),
            ("rule,terms\nplan,\"5\"\"6\" \"7\"\n", 2),
        ] {
            let problem = read::<Value>(text.as_bytes(), TableFormat::Csv, &COLUMNS, 9).unwrap_err();
            let body: Value = serde_json::from_slice(&problem.into_reply().body).unwrap();
            assert_eq!(body["problems"][0]["line"], line, "{text}: {body}");
        }
        let double = read::<Value>(b"rule,terms, rule\na,b,c\n", TableFormat::Csv, &COLUMNS, 9).unwrap_err();
        assert_eq!(double.detail(), "the column `rule` occurs twice");
    }

    #[test]
    fn every_bad_line_is_reported() {
        let problem = read::<Value>(b"{}\n{\n\n[", TableFormat::Ndjson, &COLUMNS, 9).unwrap_err();
        let body: Value = serde_json::from_slice(&problem.into_reply().body).unwrap();
        let lines: Vec<u64> = body["problems"]
            .as_array()
            .unwrap()
            .iter()
            .map(|p| p["line"].as_u64().unwrap())
            .collect();
        assert_eq!(lines, [2, 4]);
        assert!(read::<Value>(b"{}\n{}\n{}", TableFormat::Ndjson, &COLUMNS, 2).is_err());
    }
}
