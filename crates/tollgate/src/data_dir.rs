//! The folder a server writes to: made when something must be written, and held by one server at a time.

use std::fmt;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

/// A folder that nobody else writes to while this lives.
#[derive(Debug)]
pub struct DirLock {
    /// The lock goes with it. The file stays: taking it away would let two others lock two files of one name.
    _lock: File,
}

/// Why a folder cannot be held. The operator's to mend.
#[derive(Debug)]
pub enum LockError {
    /// Another server is in it, and how it is known.
    InUse(PathBuf, String),
    /// The file system refused.
    Io(PathBuf, io::Error),
}

impl DirLock {
    /// Makes the folder if it is not there, and holds it.
    ///
    /// # Errors
    /// A folder that another server holds, or that cannot be written.
    pub fn acquire(folder: &Path) -> Result<Self, LockError> {
        let io_error = |error| LockError::Io(folder.to_owned(), error);
        fs::create_dir_all(folder).map_err(io_error)?;
        let mut lock = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(folder.join(LOCK_FILE))
            .map_err(io_error)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                // It is for the message only.
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
                    "another tollgate{by} writes to {}; stop it, or give each its own `data_dir`",
                    folder.display()
                )
            }
            Self::Io(folder, error) => {
                write!(
                    f,
                    "cannot write to {}: {error}; `data_dir` names another folder",
                    folder.display()
                )
            }
        }
    }
}

impl std::error::Error for LockError {}

const LOCK_FILE: &str = "lock";
