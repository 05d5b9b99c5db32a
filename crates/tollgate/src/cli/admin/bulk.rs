//! Import and export of many rows or attributes, in pieces that the admin API takes.

use super::{AdminArgs, AdminCall, CommandResult, Failure, report, warn_of_write};
use crate::cli::EXIT_OK;
use hyper::Method;
use hyper::header::CONTENT_TYPE;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The form of an imported or exported file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum BulkFormat {
    /// One JSON object per line
    Ndjson,
    /// Comma-separated values with a header
    Csv,
}

/// Arguments of an import.
#[derive(clap::Args)]
pub(crate) struct ImportArgs {
    /// The file to import; `-` is stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The form of the file; by default its extension decides, else NDJSON
    #[arg(long, value_enum, value_name = "FORM")]
    format: Option<BulkFormat>,
    /// Reason, for the audit log
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Checks everything and changes nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

/// Arguments of an export.
#[derive(clap::Args)]
pub(crate) struct ExportArgs {
    /// The form of the output
    #[arg(long, value_enum, default_value = "ndjson", value_name = "FORM")]
    format: BulkFormat,
    /// Writes to this file instead of stdout
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) admin: AdminArgs,
}

/// One request of an import: some records, and the number of the line before the first of them.
#[derive(Debug, PartialEq, Eq)]
struct Piece {
    text: String,
    lines_before: u64,
}

impl ImportArgs {
    /// Sends the file in pieces. Each piece is one transaction: if one is refused, those before it stay.
    pub(crate) fn run(&self, path: &str, query: &[(&str, Option<&str>)], noun: &str) -> CommandResult {
        let text = read(&self.file)?;
        let format = self.format.unwrap_or_else(|| BulkFormat::of_file(&self.file));
        let (mut rows, mut changed, mut revision) = (0, 0, 0);
        let pieces = format.split(&text);
        let count = pieces.len();
        for (index, piece) in pieces.into_iter().enumerate() {
            let mut call = AdminCall::new(Method::POST, path)
                .query("format", format.name())
                .query_if("reason", self.reason.as_deref())
                .query_if("dry_run", self.dry_run.then_some("true"))
                .body(format.media_type(), piece.text)
                .patient();
            for (name, value) in query {
                call = call.query_if(name, *value);
            }
            let lines = u32::try_from(piece.lines_before).unwrap_or(u32::MAX);
            let done = self.admin.json_with("rows", call).map_err(|failure| {
                let failure = failure.shift_lines(lines);
                match index {
                    0 => failure,
                    _ if self.dry_run => failure.with_line(format!("the {rows} {noun} before are valid")),
                    _ => failure.with_line(format!("the {rows} {noun} before are imported, revision {revision}")),
                }
            })?;
            let number = |name: &str| done.get(name).and_then(Value::as_u64).unwrap_or(0);
            rows += number("rows");
            changed += number("changed");
            revision = number("revision");
            warn_of_write(&done, piece.lines_before);
        }
        let body =
            json!({"rows": rows, "changed": changed, "revision": revision, "requests": count, "dry_run": self.dry_run});
        let text = match self.dry_run {
            true => format!("{rows} {noun} are valid, {changed} would change"),
            false => format!("imported {rows} {noun}, {changed} changed, revision {revision}"),
        };
        Ok(report(&self.admin, &body, &text))
    }
}

impl ExportArgs {
    /// Writes page after page.
    pub(crate) fn run(&self, path: &str, query: &[(&str, Option<&str>)]) -> CommandResult {
        let Some(file) = &self.out else {
            return self.write_pages(&mut std::io::stdout().lock(), path, query);
        };
        // An export that fails leaves the file of the last one as it is.
        let mut new_name = file.as_os_str().to_owned();
        new_name.push(".tmp");
        let new_file = Path::new(&new_name);
        let mut out = std::fs::File::create(new_file).map_err(|error| unusable(new_file, &error))?;
        let done = self.write_pages(&mut out, path, query);
        match done {
            Ok(code) => std::fs::rename(new_file, file)
                .map(|()| code)
                .map_err(|error| unusable(file, &error)),
            Err(failure) => {
                // What remains of it is of no use, and harmless.
                let _ = std::fs::remove_file(new_file);
                Err(failure)
            }
        }
    }

    fn write_pages(&self, out: &mut dyn Write, path: &str, query: &[(&str, Option<&str>)]) -> CommandResult {
        let mut after: Option<String> = None;
        let mut is_first = true;
        loop {
            let mut call = AdminCall::new(Method::GET, path)
                .query("format", self.format.name())
                .query("limit", "10000")
                .query_if("after", after.as_deref());
            for (name, value) in query {
                call = call.query_if(name, *value);
            }
            let response = self.admin.call(call)?;
            let media_type = response.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
            if !media_type.is_some_and(|found| found.starts_with(self.format.media_type())) {
                return Err(Failure::unexpected("is not an export"));
            }
            let text = String::from_utf8_lossy(&response.body);
            // Each page has a header of its own.
            let page = match self.format {
                BulkFormat::Csv if !is_first => text.split_once('\n').map_or("", |(_, rest)| rest),
                _ => &text,
            };
            if let Err(error) = out.write_all(page.as_bytes()) {
                // A closed pipe means that the reader has seen enough.
                return match error.kind() {
                    std::io::ErrorKind::BrokenPipe => Ok(ExitCode::from(EXIT_OK)),
                    _ => Err(Failure::error(format!("cannot write the export: {error}"))),
                };
            }
            is_first = false;
            let next = response
                .headers
                .get("x-tollgate-next")
                .and_then(|next| next.to_str().ok());
            match next {
                Some(next) if after.as_deref() == Some(next) => {
                    return Err(Failure::unexpected("repeats a page"));
                }
                Some(next) if !next.is_empty() => after = Some(next.to_owned()),
                _ => break,
            }
        }
        let written = out.flush();
        written.map_err(|error| Failure::error(format!("cannot write the export: {error}")))?;
        Ok(ExitCode::from(EXIT_OK))
    }
}

impl BulkFormat {
    fn of_file(file: &Path) -> Self {
        match file.extension().and_then(|extension| extension.to_str()) {
            Some("csv") => Self::Csv,
            _ => Self::Ndjson,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Ndjson => "ndjson",
            Self::Csv => "csv",
        }
    }

    const fn media_type(self) -> &'static str {
        match self {
            Self::Ndjson => "application/x-ndjson",
            Self::Csv => "text/csv",
        }
    }

    /// Splits a file into pieces of at most so many records, each of them with the header.
    fn split(self, text: &str) -> Vec<Piece> {
        let mut records = records(text, self == Self::Csv);
        let header = match self {
            Self::Csv if !records.is_empty() => records.remove(0),
            _ => "",
        };
        let mut lines_before = header.matches('\n').count() as u64;
        let mut pieces: Vec<Piece> = Vec::new();
        let mut rest = records.as_slice();
        while !rest.is_empty() {
            let (chunk, later) = rest.split_at(piece_length(rest));
            rest = later;
            let body: String = chunk.concat();
            let lines = body.matches('\n').count() as u64;
            // The header of a later piece takes the place of the lines before it.
            let before = lines_before - header.matches('\n').count() as u64;
            pieces.push(Piece {
                text: format!("{header}{body}"),
                lines_before: before,
            });
            lines_before += lines;
        }
        if pieces.is_empty() && !header.is_empty() {
            pieces.push(Piece {
                text: header.to_owned(),
                lines_before: 0,
            });
        }
        pieces
    }
}

/// The number of records of the next piece, at least one.
fn piece_length(records: &[&str]) -> usize {
    let mut bytes = 0;
    let fits = records.iter().take(RECORDS_MAX).take_while(|record| {
        bytes += record.len();
        bytes <= PIECE_BYTES_MAX
    });
    fits.count().max(1)
}

/// The records of a file with their line ends. In CSV a quoted cell may contain line ends.
fn records(text: &str, has_quotes: bool) -> Vec<&str> {
    let mut found = Vec::new();
    let (mut start, mut is_quoted) = (0, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'"' if has_quotes => is_quoted = !is_quoted,
            b'\n' if !is_quoted => {
                found.extend(text.get(start..=at));
                start = at + 1;
            }
            _ => {}
        }
    }
    found.extend(text.get(start..).filter(|rest| !rest.is_empty()));
    found
}

fn read(file: &Path) -> Result<String, Failure> {
    let mut text = String::new();
    let source: Box<dyn Read> = if file == Path::new("-") {
        Box::new(std::io::stdin().lock())
    } else {
        Box::new(std::fs::File::open(file).map_err(|error| unusable(file, &error))?)
    };
    let read = source.take(FILE_BYTES_MAX + 1).read_to_string(&mut text);
    read.map_err(|error| unusable(file, &error))?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(Failure::error(format!("{}: more than 1 GiB; split it", file.display())));
    }
    Ok(text)
}

fn unusable(file: &Path, error: &std::io::Error) -> Failure {
    Failure::error(format!("{}: {error}", file.display()))
}

/// The most records of one request.
const RECORDS_MAX: usize = 10_000;

/// The most bytes of one request, below what the API takes.
const PIECE_BYTES_MAX: usize = 8 << 20;

/// The most bytes of an imported file: a million rows of a kilobyte.
const FILE_BYTES_MAX: u64 = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_of_csv_may_have_quoted_line_ends() {
        assert_eq!(records("h\n\"a\nb\",1\nc,2", true), ["h\n", "\"a\nb\",1\n", "c,2"]);
        assert_eq!(records("{\"a\":1}\n{\"b\":2}\n", false), ["{\"a\":1}\n", "{\"b\":2}\n"]);
        assert!(records("", true).is_empty());
    }

    #[test]
    fn every_piece_of_a_long_file_has_the_header_and_knows_its_line() {
        let mut text = "rule,terms\n".to_owned();
        for row in 0..RECORDS_MAX + 5 {
            text.push_str(&format!("r,{row}/s\n"));
        }
        let pieces = BulkFormat::Csv.split(&text);
        assert_eq!(pieces.len(), 2);
        assert!(pieces.iter().all(|piece| piece.text.starts_with("rule,terms\nr,")));
        let lines: Vec<u64> = pieces.iter().map(|piece| piece.lines_before).collect();
        assert_eq!(lines, [0, RECORDS_MAX as u64]);
        assert_eq!(pieces.last().map(|piece| piece.text.lines().count()), Some(6));
    }
}
