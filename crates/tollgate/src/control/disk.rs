//! The last good state on disk, for a start while the database is away: `rules/good` in the data directory, the one before it, and a
//! journal of later changes.
//!
//! A state is written to a new file, synced and renamed. A line of the journal counts only while it extends the chain of the
//! state, so a torn or foreign tail is left out.

mod saved;

pub use saved::{JournalLine, SavedState};

use super::chain;
use super::model::Change;
use crate::data_dir::{DirLock, LockError};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};

/// The data directory of the control plane. Nothing is created before the first write.
#[derive(Debug)]
pub struct Disk {
    data_dir: PathBuf,
    lock: Option<DirLock>,
    journal: Option<File>,
    journal_bytes: u64,
    good_bytes: u64,
    /// True if the journal has lines that may not be on disk yet.
    is_unsynced: bool,
    /// True if a line is missing: the whole state is written next.
    has_gap: bool,
}

/// A state that was found on disk.
#[derive(Debug)]
pub struct FoundState {
    /// The state.
    pub state: SavedState,
    /// The later changes, verified to extend it.
    pub changes: Vec<Change>,
}

impl Disk {
    /// A directory that may not exist.
    pub fn new(data_dir: PathBuf) -> Self {
        Self {
            data_dir,
            lock: None,
            journal: None,
            journal_bytes: 0,
            good_bytes: 0,
            is_unsynced: false,
            has_gap: true,
        }
    }

    /// True if a database or a state is in the directory.
    pub fn has_state(&self) -> bool {
        self.database_path().exists() || self.folder().exists()
    }

    /// The path of the database file.
    pub fn database_path(&self) -> PathBuf {
        self.data_dir.join("control.db")
    }

    /// Creates the directory if it does not exist, and locks it for this process.
    ///
    /// # Errors
    /// Another process has it, or it is not writable.
    pub fn acquire(&mut self) -> Result<(), LockError> {
        if self.lock.is_none() {
            self.lock = Some(DirLock::acquire_file(&self.data_dir, LOCK_FILE)?);
        }
        Ok(())
    }

    /// True if this process has locked the directory.
    pub const fn is_acquired(&self) -> bool {
        self.lock.is_some()
    }

    /// Reads the state. A file that cannot be used is logged; the one before it is used then.
    pub fn load(&self) -> Option<FoundState> {
        for name in [GOOD, PREVIOUS] {
            let path = self.folder().join(name);
            match read_state(&path) {
                Ok(state) => {
                    let changes = self.read_journal(&state);
                    return Some(FoundState { state, changes });
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    tracing::error!(file = %path.display(), %error, "saved rules are damaged; using the state before them");
                }
            }
        }
        None
    }

    /// Writes the whole state, and starts a new journal.
    ///
    /// # Errors
    /// The directory is locked by another process, not writable, or full. The state before stays.
    pub fn save(&mut self, state: &SavedState) -> io::Result<()> {
        self.has_gap = true;
        self.acquire().map_err(|error| io::Error::other(error.to_string()))?;
        let folder = self.folder();
        fs::create_dir_all(&folder)?;
        let bytes = state.encode();
        let new = folder.join(NEW);
        let mut file = File::create(&new)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        match fs::rename(folder.join(GOOD), folder.join(PREVIOUS)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fs::rename(&new, folder.join(GOOD))?;
        sync_folder(&folder)?;
        // A crash before this leaves lines that the new state has already: they are skipped.
        self.journal = Some(File::create(folder.join(JOURNAL))?);
        (self.journal_bytes, self.good_bytes) = (0, bytes.len() as u64);
        (self.is_unsynced, self.has_gap) = (false, false);
        Ok(())
    }

    /// Appends changes to the journal. They are synced within a second.
    ///
    /// # Errors
    /// The disk is full or failing. The whole state must be written then.
    pub fn append(&mut self, changes: &[Change]) -> io::Result<()> {
        let Some(journal) = self.journal.as_mut().filter(|_| !self.has_gap) else {
            return Err(io::Error::other("the journal has a gap"));
        };
        let mut lines = Vec::new();
        for change in changes {
            lines.extend(JournalLine::encode(change));
        }
        if let Err(error) = journal.write_all(&lines) {
            self.has_gap = true;
            return Err(error);
        }
        self.journal_bytes += lines.len() as u64;
        self.is_unsynced = true;
        Ok(())
    }

    /// True if the whole state is better written than more of the journal.
    pub fn needs_save(&self) -> bool {
        self.has_gap || self.journal_bytes > (self.good_bytes * 2).max(JOURNAL_MIN)
    }

    /// A handle of the journal to be synced, if it has new lines.
    pub fn unsynced_journal(&mut self) -> Option<File> {
        if !std::mem::take(&mut self.is_unsynced) {
            return None;
        }
        self.journal.as_ref().and_then(|journal| journal.try_clone().ok())
    }

    /// The changes of the journal that extend a state. What follows them is ignored: the first change after a start writes the whole
    /// state, and a new journal.
    fn read_journal(&self, state: &SavedState) -> Vec<Change> {
        let path = self.folder().join(JOURNAL);
        let Ok(file) = File::open(&path) else { return Vec::new() };
        let mut reader = BufReader::new(file.take(BYTES_MAX));
        let mut changes = Vec::new();
        let (mut revision, mut chain) = (state.head.revision, state.head.chain);
        let mut line = Vec::new();
        let is_whole = loop {
            line.clear();
            match reader.read_until(b'\n', &mut line) {
                Ok(0) => break true,
                Ok(_) => {}
                Err(_) => break false,
            }
            let Some(change) = JournalLine::decode(&line) else {
                break false;
            };
            if change.revision > state.head.revision {
                let is_next = change.revision == revision + 1
                    && chain::next_chain(&chain, change.revision, &change.body) == change.chain;
                if !is_next {
                    break false;
                }
                (revision, chain) = (change.revision, change.chain);
                changes.push(change);
            }
        };
        if !is_whole {
            tracing::warn!(file = %path.display(), kept = changes.len(), "the journal of rules has a torn tail; ignoring it until the next change rewrites the state");
        }
        changes
    }

    fn folder(&self) -> PathBuf {
        self.data_dir.join("rules")
    }
}

fn read_state(path: &Path) -> io::Result<SavedState> {
    let mut bytes = Vec::new();
    File::open(path)?.take(BYTES_MAX).read_to_end(&mut bytes)?;
    SavedState::decode(&bytes)
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

const LOCK_FILE: &str = "control.lock";
const GOOD: &str = "good";
const PREVIOUS: &str = "previous";
const NEW: &str = "good.new";
const JOURNAL: &str = "journal";
/// A journal below this is not compacted.
const JOURNAL_MIN: u64 = 1 << 20;
/// The most bytes that are read of one file.
const BYTES_MAX: u64 = 2 << 30;
