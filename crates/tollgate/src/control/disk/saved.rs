//! The encoding of a saved state and of a line of the journal: JSON lines, the state with a SHA-256 at its end.

use super::super::model::{ChangeBody, DatabaseHead, Digest, LoggedChange, OverrideRow, SetFile, SubjectAttribute};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::io::{self, BufRead, Read as _, Write};
use std::sync::Arc;

/// Everything that an instance has applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedState {
    /// The position of the database.
    pub head: DatabaseHead,
    /// The digest of the files of the head's version; zero without a version, or if it is not known.
    pub head_set: Digest,
    /// The revision of the last publish; 0: none.
    pub set_revision: u64,
    /// The version that was in use; 0: none. Another one than that of the head if that was rejected.
    pub version: u64,
    /// The files of the version in use.
    pub files: Vec<SetFile>,
    /// All rows.
    pub rows: Vec<Arc<OverrideRow>>,
    /// All attributes.
    pub attributes: Vec<Arc<SubjectAttribute>>,
}

/// A line of the journal.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JournalLine {
    revision: u64,
    body: ChangeBody,
    chain: Digest,
    at: u64,
}

/// A line of a state.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
enum StateLine {
    Head(HeadLine),
    File(SetFile),
    Row(OverrideRow),
    Attribute(SubjectAttribute),
    /// The SHA-256 of all lines before.
    End(Digest),
}

/// The same, to be written.
#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum StateLineRef<'a> {
    Head(&'a HeadLine),
    File(&'a SetFile),
    Row(&'a OverrideRow),
    Attribute(&'a SubjectAttribute),
    End(Digest),
}

/// The first line of a state.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HeadLine {
    format: u32,
    database_id: String,
    epoch: u64,
    revision: u64,
    live_version: u64,
    chain: Digest,
    /// Zero in states that were written without it.
    #[serde(default)]
    head_set: Digest,
    set_revision: u64,
    version: u64,
}

/// The format of states.
const FORMAT: u32 = 1;
/// The most rows, and the most attributes.
const ITEMS_MAX: usize = 1_000_000;
/// The most bytes of text in the files.
const TEXT_MAX: usize = 16 << 20;
/// The most bytes of one line: a file of that size, escaped.
const LINE_MAX: u64 = 128 << 20;

impl SavedState {
    /// Writes the state.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn write(&self, writer: &mut impl Write) -> io::Result<()> {
        let head = HeadLine {
            format: FORMAT,
            database_id: self.head.database_id.clone(),
            epoch: self.head.epoch,
            revision: self.head.revision,
            live_version: self.head.live_version,
            chain: self.head.chain,
            head_set: self.head_set,
            set_revision: self.set_revision,
            version: self.version,
        };
        let lines = std::iter::once(StateLineRef::Head(&head))
            .chain(self.files.iter().map(StateLineRef::File))
            .chain(self.rows.iter().map(|row| StateLineRef::Row(row)))
            .chain(
                self.attributes
                    .iter()
                    .map(|attribute| StateLineRef::Attribute(attribute)),
            );
        let mut hasher = Sha256::new();
        for line in lines {
            let line = encoded(&line)?;
            hasher.update(&line);
            writer.write_all(&line)?;
        }
        writer.write_all(&encoded(&StateLineRef::End(Digest(hasher.finalize().into())))?)
    }

    /// Reads a state.
    ///
    /// # Errors
    /// Bytes that are cut, changed, of a newer format, or more than is kept.
    pub fn read(mut reader: impl BufRead) -> io::Result<Self> {
        let mut hasher = Sha256::new();
        let mut line = Vec::new();
        next_line(&mut reader, &mut line)?;
        let mut state = match parsed(&line)? {
            StateLine::Head(head) if head.format > FORMAT => return Err(damaged("it was written by a newer version")),
            StateLine::Head(head) => Self::of(head),
            _ => return Err(damaged("it has no head")),
        };
        let mut text_bytes = 0;
        loop {
            hasher.update(&line);
            next_line(&mut reader, &mut line)?;
            match parsed(&line)? {
                StateLine::File(file) => {
                    text_bytes += file.text.len();
                    state.files.push(file);
                }
                StateLine::Row(row) => state.rows.push(Arc::new(row)),
                StateLine::Attribute(attribute) => state.attributes.push(Arc::new(attribute)),
                StateLine::End(digest) if digest.0 != <[u8; 32]>::from(hasher.clone().finalize()) => {
                    return Err(damaged("its digest is another one"));
                }
                StateLine::End(_) => break,
                StateLine::Head(_) => return Err(damaged("its lines are out of order")),
            }
            if state.rows.len() > ITEMS_MAX || state.attributes.len() > ITEMS_MAX || text_bytes > TEXT_MAX {
                return Err(damaged("it has more than is kept"));
            }
        }
        match reader.fill_buf()?.is_empty() {
            true => Ok(state),
            false => Err(damaged("something follows its end")),
        }
    }

    fn of(head: HeadLine) -> Self {
        Self {
            head: DatabaseHead {
                database_id: head.database_id,
                epoch: head.epoch,
                revision: head.revision,
                live_version: head.live_version,
                chain: head.chain,
            },
            head_set: head.head_set,
            set_revision: head.set_revision,
            version: head.version,
            files: Vec::new(),
            rows: Vec::new(),
            attributes: Vec::new(),
        }
    }
}

/// Reads one whole line over the last one.
fn next_line(reader: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<()> {
    line.clear();
    reader.take(LINE_MAX).read_until(b'\n', line)?;
    match line.last() {
        Some(b'\n') => Ok(()),
        _ => Err(damaged("its end is missing")),
    }
}

fn parsed(line: &[u8]) -> io::Result<StateLine> {
    serde_json::from_slice(line).map_err(|error| damaged(&error.to_string()))
}

fn damaged(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.to_owned())
}

impl JournalLine {
    /// The line of a change.
    pub fn encode(change: &LoggedChange) -> Vec<u8> {
        let line = Self {
            revision: change.revision,
            body: change.body.clone(),
            chain: change.chain,
            at: change.at,
        };
        // Texts, numbers and maps with text keys always encode; a line that did not would be cut as torn.
        encoded(&line).unwrap_or_default()
    }

    /// The change of a whole line.
    pub fn decode(line: &[u8]) -> Option<LoggedChange> {
        let line: Self = serde_json::from_slice(line.strip_suffix(b"\n")?).ok()?;
        Some(LoggedChange {
            revision: line.revision,
            body: line.body,
            chain: line.chain,
            at: line.at,
        })
    }
}

fn encoded(line: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut bytes = serde_json::to_vec(line)?;
    bytes.push(b'\n');
    Ok(bytes)
}
