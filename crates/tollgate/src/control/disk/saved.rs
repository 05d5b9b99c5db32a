//! The encoding of a saved state and of a line of the journal: JSON lines, the state with a SHA-256 at its end.

use super::super::chain;
use super::super::model::{Change, ChangeBody, DatabaseHead, Digest, OverrideRow, SetFile, SubjectAttribute};
use serde::{Deserialize, Serialize};
use std::io;

/// Everything that an instance has applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedState {
    /// The position of the database.
    pub head: DatabaseHead,
    /// The revision of the last publish; 0: none.
    pub set_revision: u64,
    /// The version that was in use; 0: none. Another one than that of the head if that was rejected.
    pub version: u64,
    /// The files of the version in use.
    pub files: Vec<SetFile>,
    /// All rows.
    pub rows: Vec<OverrideRow>,
    /// All attributes.
    pub attributes: Vec<SubjectAttribute>,
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
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
enum StateLine {
    Head {
        format: u32,
        database_id: String,
        epoch: u64,
        revision: u64,
        live_version: u64,
        chain: Digest,
        set_revision: u64,
        version: u64,
    },
    File(SetFile),
    Row(OverrideRow),
    Attribute(SubjectAttribute),
    /// The SHA-256 of all lines before.
    End(Digest),
}

/// The format of states.
const FORMAT: u32 = 1;

impl SavedState {
    /// The state as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let head = StateLine::Head {
            format: FORMAT,
            database_id: self.head.database_id.clone(),
            epoch: self.head.epoch,
            revision: self.head.revision,
            live_version: self.head.live_version,
            chain: self.head.chain,
            set_revision: self.set_revision,
            version: self.version,
        };
        let mut bytes = Vec::new();
        push_line(&mut bytes, &head);
        for file in &self.files {
            push_line(&mut bytes, &StateLine::File(file.clone()));
        }
        for row in &self.rows {
            push_line(&mut bytes, &StateLine::Row(row.clone()));
        }
        for attribute in &self.attributes {
            push_line(&mut bytes, &StateLine::Attribute(attribute.clone()));
        }
        let end = chain::digest_of(&bytes);
        push_line(&mut bytes, &StateLine::End(end));
        bytes
    }

    /// The state of bytes.
    ///
    /// # Errors
    /// Bytes that are cut, changed, or of a newer format.
    pub fn decode(bytes: &[u8]) -> io::Result<Self> {
        let damaged = |text: &str| io::Error::new(io::ErrorKind::InvalidData, text.to_owned());
        let mut state: Option<Self> = None;
        let mut read_bytes = 0;
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            let parsed = serde_json::from_slice(line).map_err(|error| damaged(&error.to_string()))?;
            match (parsed, state.as_mut()) {
                (StateLine::Head { format, .. }, _) if format > FORMAT => {
                    return Err(damaged("it was written by a newer version"));
                }
                (
                    StateLine::Head {
                        database_id,
                        epoch,
                        revision,
                        live_version,
                        chain,
                        set_revision,
                        version,
                        ..
                    },
                    None,
                ) => {
                    state = Some(Self {
                        head: DatabaseHead {
                            database_id,
                            epoch,
                            revision,
                            live_version,
                            chain,
                        },
                        set_revision,
                        version,
                        files: Vec::new(),
                        rows: Vec::new(),
                        attributes: Vec::new(),
                    });
                }
                (StateLine::File(file), Some(state)) => state.files.push(file),
                (StateLine::Row(row), Some(state)) => state.rows.push(row),
                (StateLine::Attribute(attribute), Some(state)) => state.attributes.push(attribute),
                (StateLine::End(digest), Some(_)) => {
                    let before = bytes.get(..read_bytes).unwrap_or_default();
                    return match chain::digest_of(before) == digest {
                        true => state.ok_or_else(|| damaged("it has no head")),
                        false => Err(damaged("its digest is another one")),
                    };
                }
                _ => return Err(damaged("its lines are out of order")),
            }
            read_bytes += line.len();
        }
        Err(damaged("its end is missing"))
    }
}

impl JournalLine {
    /// The line of a change.
    pub fn encode(change: &Change) -> Vec<u8> {
        let mut bytes = Vec::new();
        push_line(
            &mut bytes,
            &Self {
                revision: change.revision,
                body: change.body.clone(),
                chain: change.chain,
                at: change.at,
            },
        );
        bytes
    }

    /// The change of a whole line.
    pub fn decode(line: &[u8]) -> Option<Change> {
        let line: Self = serde_json::from_slice(line.strip_suffix(b"\n")?).ok()?;
        Some(Change {
            revision: line.revision,
            body: line.body,
            chain: line.chain,
            at: line.at,
        })
    }
}

fn push_line(bytes: &mut Vec<u8>, line: &impl Serialize) {
    // Texts, numbers and maps with text keys always encode; a line that did not would fail the digest.
    bytes.extend(serde_json::to_vec(line).unwrap_or_default());
    bytes.push(b'\n');
}
