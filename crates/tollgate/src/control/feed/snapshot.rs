//! All rows and attributes at one position as one value of the cache, and the pointer to the latest ones.

use super::Signer;
use super::head::number;
use super::parts::{Manifest, ManifestKind, cut, inflate};
use crate::control::model::{DatabaseHead, Digest, OverrideRow, SubjectAttribute};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read};
use std::sync::Arc;

/// All rows and attributes at one position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowSnapshot {
    /// The position.
    pub head: DatabaseHead,
    /// The digest of the live version's files; zero: none yet.
    pub set: Digest,
    /// The revision of the last publish; 0: none.
    pub set_revision: u64,
    /// All rows.
    pub rows: Vec<Arc<OverrideRow>>,
    /// All attributes.
    pub attributes: Vec<Arc<SubjectAttribute>>,
}

/// The revisions of the snapshots that the cache has: the latest first, at most two.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotList {
    /// Their epoch.
    pub epoch: u64,
    /// Their revisions.
    pub revisions: Vec<u64>,
}

/// The name of the list's key.
pub const SNAPSHOTS: &str = "rows";

#[derive(Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
enum Line {
    Row(OverrideRow),
    Attribute(SubjectAttribute),
}

/// The same, to be written.
#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum LineRef<'a> {
    Row(&'a OverrideRow),
    Attribute(&'a SubjectAttribute),
}

impl RowSnapshot {
    /// The manifest and the parts.
    pub fn encode(&self) -> (Manifest, Vec<Vec<u8>>) {
        let rows = self.rows.iter().map(|row| LineRef::Row(row));
        let attributes = self.attributes.iter().map(|attribute| LineRef::Attribute(attribute));
        let lines = rows.chain(attributes).map(|line| {
            // Texts, numbers and maps with text keys always encode.
            let mut text = serde_json::to_vec(&line).unwrap_or_default();
            text.push(b'\n');
            text
        });
        let kind = ManifestKind::Rows {
            head: self.head.clone(),
            set: self.set,
            set_revision: self.set_revision,
        };
        cut(kind, lines)
    }

    /// Reads a snapshot from its manifest, which was parsed, and its parts.
    ///
    /// # Errors
    /// Parts that no instance has written, or more than a million rows or attributes.
    pub fn decode(manifest: &Manifest, parts: &[Vec<u8>]) -> Result<Self, String> {
        let ManifestKind::Rows {
            head,
            set,
            set_revision,
        } = &manifest.kind
        else {
            return Err("the manifest is not one of rows".to_owned());
        };
        let deflated = manifest.join(parts)?;
        let mut snapshot = Self {
            head: head.clone(),
            set: *set,
            set_revision: *set_revision,
            rows: Vec::new(),
            attributes: Vec::new(),
        };
        let name = manifest.kind.name();
        snapshot
            .read_lines(&deflated)
            .map_err(|error| format!("the cached {name} cannot be used: {error}"))?;
        Ok(snapshot)
    }

    /// Line by line, so that a value of nothing but zeros ends at the first bound.
    fn read_lines(&mut self, deflated: &[u8]) -> Result<(), String> {
        let mut reader = BufReader::new(inflate(deflated, INFLATED_BYTES_MAX));
        let mut line = Vec::new();
        loop {
            line.clear();
            let mut bounded = reader.by_ref().take(LINE_BYTES_MAX);
            let count = bounded
                .read_until(b'\n', &mut line)
                .map_err(|error| error.to_string())?;
            if count == 0 {
                return Ok(());
            }
            let text = line.strip_suffix(b"\n").ok_or("a line is cut, or too long")?;
            match serde_json::from_slice(text).map_err(|error| error.to_string())? {
                Line::Row(row) => self.rows.push(Arc::new(row)),
                Line::Attribute(attribute) => self.attributes.push(Arc::new(attribute)),
            }
            if self.rows.len() > ITEMS_MAX || self.attributes.len() > ITEMS_MAX {
                return Err("it has more rows or attributes than are accepted".to_owned());
            }
        }
    }
}

impl SnapshotList {
    /// The value of its key.
    pub fn encode(&self, signer: &Signer) -> String {
        let mut text = format!("{FORMAT} {}", self.epoch);
        for revision in &self.revisions {
            text.push_str(&format!(" {revision}"));
        }
        signer.seal(SNAPSHOTS, &text)
    }

    /// Reads the value of its key; none if no instance has written it.
    pub fn parse(value: &[u8], signer: &Signer) -> Option<Self> {
        if value.len() > LIST_BYTES_MAX {
            return None;
        }
        let mut fields = signer.open(SNAPSHOTS, value)?.split(' ');
        if number(fields.next()?)? != FORMAT {
            return None;
        }
        let list = Self {
            epoch: number(fields.next()?)?,
            revisions: fields.map(number).collect::<Option<_>>()?,
        };
        (list.revisions.len() <= SNAPSHOTS_MAX).then_some(list)
    }

    /// The list with a newer snapshot, and the revisions that it does not have any more.
    pub fn with(&self, epoch: u64, revision: u64) -> (Self, Vec<u64>) {
        let mut revisions = vec![revision];
        let others = self.revisions.iter().copied().filter(|other| *other != revision);
        let mut dropped = Vec::new();
        for other in others {
            match self.epoch == epoch && revisions.len() < SNAPSHOTS_MAX {
                true => revisions.push(other),
                false => dropped.push(other),
            }
        }
        (Self { epoch, revisions }, dropped)
    }
}

const FORMAT: u64 = 1;
const SNAPSHOTS_MAX: usize = 2;
const LIST_BYTES_MAX: usize = 512;
const ITEMS_MAX: usize = 1_000_000;
/// The longest row: a subject of 16 values, its terms and its note, escaped.
const LINE_BYTES_MAX: u64 = 256 << 10;
const INFLATED_BYTES_MAX: u64 = 1 << 30;

#[cfg(test)]
mod tests;
