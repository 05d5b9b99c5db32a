//! The data directory: created when something must be written, and locked by one server at a time.

use std::fmt;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

/// The lock of a data directory, held until dropped.
#[derive(Debug)]
pub struct DirLock {
    /// Dropping it releases the lock. The file stays: if it were removed, two servers could lock two files of one name.
    _lock: File,
}

/// The reason why a directory cannot be locked. For the operator to fix.
#[derive(Debug)]
pub enum LockError {
    /// Another server has it: its path, and the text of the lock file.
    InUse(PathBuf, String),
    /// An error of the file system.
    Io(PathBuf, io::Error),
}

impl DirLock {
    /// Creates the directory if it does not exist, and locks it.
    ///
    /// # Errors
    /// A directory that another server has locked, or that is not writable.
    pub fn acquire(folder: &Path) -> Result<Self, LockError> {
        Self::acquire_file(folder, LOCK_FILE)
    }

    /// The same with a lock file of another name, for a part of the directory that is locked on its own.
    ///
    /// # Errors
    /// As for the directory.
    pub fn acquire_file(folder: &Path, name: &str) -> Result<Self, LockError> {
        let io_error = |error| LockError::Io(folder.to_owned(), error);
        fs::create_dir_all(folder).map_err(io_error)?;
        let mut lock = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(folder.join(name))
            .map_err(io_error)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                // For the message only.
                let _ = (&lock).take(64).read_to_string(&mut holder);
                return Err(LockError::InUse(folder.to_owned(), holder.trim().to_owned()));
            }
            Err(TryLockError::Error(error)) => return Err(io_error(error)),
        }
        lock.set_len(0)
            .and_then(|()| lock.rewind())
            .and_then(|()| writeln!(lock, "process {}", std::process::id()))
            .map_err(io_error)?;
        Ok(Self { _lock: lock })
    }
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse(folder, holder) => {
                let by = if holder.is_empty() {
                    String::new()
                } else {
                    format!(" ({holder})")
                };
                write!(
                    f,
                    "another tollgate{by} has locked {}; stop it, or give each server its own `data_dir`",
                    folder.display()
                )
            }
            Self::Io(folder, error) => {
                write!(
                    f,
                    "cannot write to {}: {error}; set `data_dir` to another directory",
                    folder.display()
                )
            }
        }
    }
}

impl std::error::Error for LockError {}

const LOCK_FILE: &str = "lock";
