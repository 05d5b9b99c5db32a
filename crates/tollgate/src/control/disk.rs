//! The last good state on disk, for a start while the database is away: `rules/good` in the data directory, the one before it, and a
//! journal of later changes.
//!
//! A state is written to a new file, synced and renamed. A line of the journal counts only while it extends the chain of the
//! state: a torn or foreign tail is cut.

mod saved;
#[cfg(test)]
mod tests;

pub use saved::{JournalLine, SavedState};

use super::chain;
use super::model::LoggedChange;
use crate::data_dir::{DirLock, LockError};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The data directory of the control plane. Nothing is created before the first write.
#[derive(Debug)]
pub struct Disk {
    data_dir: PathBuf,
    lock: Option<DirLock>,
    /// True if there is a lock.
    is_acquired: Arc<AtomicBool>,
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
    pub changes: Vec<LoggedChange>,
}

impl Disk {
    /// A directory that may not exist.
    pub fn new(data_dir: PathBuf) -> Self {
        Self {
            data_dir,
            lock: None,
            is_acquired: Arc::default(),
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
            self.is_acquired.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// True if this process has locked the directory. Read without the lock of this value, which is held while files are synced.
    pub fn acquired(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_acquired)
    }

    /// Reads the state, and goes on with its journal. A file that cannot be used is logged; the one before it is used then.
    pub fn load(&mut self) -> Option<FoundState> {
        for name in [GOOD, PREVIOUS] {
            let path = self.folder().join(name);
            match read_state(&path) {
                Ok((state, bytes)) => {
                    let changes = self.replay(&state, (name == GOOD).then_some(bytes));
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
        let new = folder.join(NEW);
        let bytes = write_state(&new, state).inspect_err(|_| {
            // On a full disk its part would stay in the way.
            let _ = fs::remove_file(&new);
        })?;
        match fs::rename(folder.join(GOOD), folder.join(PREVIOUS)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fs::rename(&new, folder.join(GOOD))?;
        sync_folder(&folder)?;
        // A crash before this leaves lines that the new state has already: they are skipped.
        let journal = File::create(folder.join(JOURNAL))?;
        journal.sync_all()?;
        sync_folder(&folder)?;
        self.journal = Some(journal);
        (self.journal_bytes, self.good_bytes) = (0, bytes);
        (self.is_unsynced, self.has_gap) = (false, false);
        Ok(())
    }

    /// Appends changes to the journal. They are synced within a second.
    ///
    /// # Errors
    /// The disk is full or failing. The whole state must be written then.
    pub fn append(&mut self, changes: &[LoggedChange]) -> io::Result<()> {
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

    /// A handle of the journal to be synced, if it has new lines: a slow disk then holds no lock.
    ///
    /// # Errors
    /// Too many open files. The whole state is written next.
    pub fn unsynced_journal(&mut self) -> io::Result<Option<File>> {
        if !std::mem::take(&mut self.is_unsynced) {
            return Ok(None);
        }
        let journal = self.journal.as_ref().map(File::try_clone).transpose();
        self.has_gap |= journal.is_err();
        journal
    }

    /// Notes that lines of the journal may be lost: the whole state is written next.
    pub const fn note_gap(&mut self) {
        self.has_gap = true;
    }

    /// The changes of the journal that extend a state. Behind a good state of this size, what follows them is cut, and the journal
    /// goes on there.
    fn replay(&mut self, state: &SavedState, good_bytes: Option<u64>) -> Vec<LoggedChange> {
        let path = self.folder().join(JOURNAL);
        let (changes, length) = match File::open(&path) {
            Ok(file) => read_journal(file, state),
            Err(_) => return Vec::new(),
        };
        let (Some(good_bytes), Some(_)) = (good_bytes, &self.lock) else {
            return changes;
        };
        match cut(&path, length) {
            Ok((journal, is_cut)) => {
                if is_cut {
                    tracing::warn!(file = %path.display(), kept = changes.len(), "the journal of rules had a torn tail; it was cut");
                }
                self.journal = Some(journal);
                (self.journal_bytes, self.good_bytes) = (length, good_bytes);
                (self.is_unsynced, self.has_gap) = (false, false);
            }
            Err(error) => {
                tracing::warn!(file = %path.display(), %error, "the journal of rules cannot be continued; the next change writes the whole state");
            }
        }
        changes
    }

    fn folder(&self) -> PathBuf {
        self.data_dir.join("rules")
    }
}

/// A state and the size of its file.
fn read_state(path: &Path) -> io::Result<(SavedState, u64)> {
    let file = File::open(path)?;
    let bytes = file.metadata()?.len();
    let state = SavedState::read(BufReader::new(file.take(BYTES_MAX)))?;
    Ok((state, bytes))
}

/// Writes a state to a new file, synced, and returns its size.
fn write_state(path: &Path, state: &SavedState) -> io::Result<u64> {
    let mut writer = BufWriter::new(File::create(path)?);
    state.write(&mut writer)?;
    let file = writer.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.sync_all()?;
    Ok(file.metadata()?.len())
}

/// The changes of a journal that extend a state, and the number of bytes up to the last line that does, or that the state has.
fn read_journal(file: File, state: &SavedState) -> (Vec<LoggedChange>, u64) {
    let mut reader = BufReader::new(file.take(BYTES_MAX));
    let (mut revision, mut chain) = (state.head.revision, state.head.chain);
    let (mut changes, mut length) = (Vec::new(), 0);
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut reader).take(LINE_MAX).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
        let Some(change) = JournalLine::decode(&line) else {
            break;
        };
        if change.revision > state.head.revision {
            let is_next = change.revision == revision + 1
                && chain::next_chain(&chain, change.revision, &change.body) == change.chain;
            if !is_next {
                break;
            }
            (revision, chain) = (change.revision, change.chain);
            changes.push(change);
        }
        length += line.len() as u64;
    }
    (changes, length)
}

/// A journal that ends after this many bytes, to be continued, and true if something was cut.
fn cut(path: &Path, length: u64) -> io::Result<(File, bool)> {
    let journal = OpenOptions::new().append(true).open(path)?;
    let is_cut = journal.metadata()?.len() > length;
    if is_cut {
        journal.set_len(length)?;
        journal.sync_all()?;
    }
    Ok((journal, is_cut))
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
/// The most bytes of one line: a set of 16 MiB, escaped.
const LINE_MAX: u64 = 128 << 20;
