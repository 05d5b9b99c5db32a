//! Snapshots: a restart does not reset limits.
//!
//! One file: a magic line, the secret of the fingerprints, the store's clock, every live key with its state as numbers,
//! and a keyed checksum over all of it. It is written to a temporary name and renamed, and readable by its owner only:
//! with the secret, colliding keys could be chosen. A damaged or foreign file is rejected and changes nothing.

use super::table::{Entry, Table};
use super::table_kind::{TableKind, Tables};
use super::{Memory, MemoryOptions};
use crate::fingerprint::{Fingerprint, HashSecret};
use siphasher::sip128::{Hasher128, SipHasher13};
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::hash::Hasher;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use tollgate_core::{
    Cell, Concurrency, FixedWindow, Gcra, LeakyBucket, SlidingCounter, SlidingLog, StateNumbers, Timestamp, TokenBucket,
};

/// The error of writing or reading a snapshot.
#[derive(Debug)]
#[non_exhaustive]
pub enum SnapshotError {
    /// An error of the file system, for the operator to fix.
    Io(io::Error),
    /// The file is not a snapshot, or of a version this program does not know.
    Foreign,
    /// The snapshot is damaged; the text says how.
    Damaged(&'static str),
}

/// The first line of every snapshot, with the version of its format.
const MAGIC: &[u8] = b"tollgate snapshot 2\n";

/// The largest number of numbers of one state: a full log of a million runs.
const STATE_NUMBERS_MAX: u64 = 4 + 3 * 1_000_001;

impl Memory {
    /// Writes every live key to a file, and returns how many. Shards are visited one after the other while decisions go
    /// on; what they charge after the visit of their shard is not in the file.
    ///
    /// # Errors
    /// Errors of the file system. A previous file is then still there.
    pub fn snapshot(&self, path: impl AsRef<Path>) -> Result<usize, SnapshotError> {
        let path = path.as_ref();
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        let keys = self
            .write_snapshot(&partial)
            .inspect_err(|_| drop(fs::remove_file(&partial)))?;
        fs::rename(&partial, path)?;
        Ok(keys)
    }

    fn write_snapshot(&self, path: &Path) -> Result<usize, SnapshotError> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(path)?;
        #[cfg(unix)]
        file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
        let mut out = SnapshotWriter {
            file: BufWriter::new(file),
            sum: SipHasher13::new_with_key(&self.secret.0),
        };
        let now = self.clock.now();
        out.bytes(MAGIC)?;
        out.bytes(&self.secret.0)?;
        out.number(now.as_micros())?;
        let mut keys = 0;
        keys += write_kind::<TokenBucket>(&self.tables, now, &mut out)?;
        keys += write_kind::<Gcra>(&self.tables, now, &mut out)?;
        keys += write_kind::<FixedWindow>(&self.tables, now, &mut out)?;
        keys += write_kind::<SlidingCounter>(&self.tables, now, &mut out)?;
        keys += write_kind::<SlidingLog>(&self.tables, now, &mut out)?;
        keys += write_kind::<LeakyBucket>(&self.tables, now, &mut out)?;
        keys += write_kind::<Concurrency>(&self.tables, now, &mut out)?;
        keys += write_kind::<Cell>(&self.tables, now, &mut out)?;
        let sum = out.sum.finish128().as_bytes();
        out.file.write_all(&sum)?;
        let file = out.file.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_all()?;
        Ok(keys)
    }
}

impl MemoryOptions {
    /// Restores a store from a snapshot, with the snapshot's secret, and a clock that starts no earlier than the
    /// snapshot's. The time in between counts as passed.
    ///
    /// All live keys are restored, even over `max_memory`; new ones then wait for capacity.
    ///
    /// # Errors
    /// A file that cannot be read, is not a snapshot, or is damaged.
    pub fn restore(self, path: impl AsRef<Path>) -> Result<Memory, SnapshotError> {
        let mut file = SnapshotReader::open(path.as_ref())?;
        if file.array::<{ MAGIC.len() }>().map_err(|_| SnapshotError::Foreign)? != *MAGIC {
            return Err(SnapshotError::Foreign);
        }
        let secret = HashSecret(file.array()?);
        file.key(&secret);
        let saved = file.timestamp()?;
        let clock = self.clock.not_before(saved);
        let memory = Self { secret, clock, ..self }.build();
        let now = memory.clock.now();
        read_kind::<TokenBucket>(&memory, now, &mut file)?;
        read_kind::<Gcra>(&memory, now, &mut file)?;
        read_kind::<FixedWindow>(&memory, now, &mut file)?;
        read_kind::<SlidingCounter>(&memory, now, &mut file)?;
        read_kind::<SlidingLog>(&memory, now, &mut file)?;
        read_kind::<LeakyBucket>(&memory, now, &mut file)?;
        read_kind::<Concurrency>(&memory, now, &mut file)?;
        read_kind::<Cell>(&memory, now, &mut file)?;
        file.finish()?;
        Ok(memory)
    }
}

/// Writes every live key of one algorithm: a record of numbers each, and a zero after the last.
fn write_kind<A: TableKind<Entry: StateNumbers>>(
    tables: &Tables,
    now: Timestamp,
    out: &mut SnapshotWriter,
) -> Result<usize, SnapshotError> {
    let (shards, mut keys, mut numbers) = (A::shards(tables), 0, Vec::new());
    for index in 0..shards.created() {
        let mut records = Vec::new();
        for (print, entry) in shards.lock(index).entries().filter(|(_, entry)| entry.fresh_at() > now) {
            numbers.clear();
            entry.write_numbers(&mut numbers);
            records.extend([numbers.len() as u64, print.high, u64::from(print.low.get())]);
            records.append(&mut numbers);
            keys += 1;
        }
        // Written with the shard unlocked: a slow disk delays no decision.
        for number in records {
            out.number(number)?;
        }
    }
    out.number(0)?;
    Ok(keys)
}

fn read_kind<A: TableKind<Entry: StateNumbers>>(
    memory: &Memory,
    now: Timestamp,
    file: &mut SnapshotReader,
) -> Result<(), SnapshotError> {
    let (shards, mut numbers) = (A::shards(&memory.tables), Vec::new());
    loop {
        let count = file.number()?;
        if count == 0 {
            return Ok(());
        }
        if count > STATE_NUMBERS_MAX {
            return Err(SnapshotError::Damaged("a state is longer than any can be"));
        }
        let high = file.number()?;
        let low = u32::try_from(file.number()?).ok().and_then(NonZeroU32::new);
        let low = low.ok_or(SnapshotError::Damaged("a key is invalid"))?;
        numbers.clear();
        for _ in 0..count {
            numbers.push(file.number()?);
        }
        let entry = A::Entry::from_numbers(&numbers).ok_or(SnapshotError::Damaged("a state is invalid"))?;
        if entry.fresh_at() > now {
            let print = Fingerprint { high, low };
            let mut table: crate::sync::Guard<'_, Table<A::Entry>> = shards.lock(shards.index_of(print));
            memory.restore_key(&mut table, print, entry);
        }
    }
}

/// A file being written, with the checksum of its content.
struct SnapshotWriter {
    file: BufWriter<File>,
    sum: SipHasher13,
}

impl SnapshotWriter {
    fn bytes(&mut self, bytes: &[u8]) -> Result<(), SnapshotError> {
        self.sum.write(bytes);
        Ok(self.file.write_all(bytes)?)
    }

    fn number(&mut self, number: u64) -> Result<(), SnapshotError> {
        self.bytes(&number.to_le_bytes())
    }
}

/// A file being read, with the checksum of its content.
struct SnapshotReader {
    file: BufReader<File>,
    sum: SipHasher13,
}

impl SnapshotReader {
    fn open(path: &Path) -> Result<Self, SnapshotError> {
        Ok(Self {
            file: BufReader::new(File::open(path)?),
            sum: SipHasher13::new(),
        })
    }

    /// Starts the checksum, keyed by the secret just read.
    fn key(&mut self, secret: &HashSecret) {
        self.sum = SipHasher13::new_with_key(&secret.0);
        self.sum.write(MAGIC);
        self.sum.write(&secret.0);
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], SnapshotError> {
        let mut bytes = [0; N];
        self.file.read_exact(&mut bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => SnapshotError::Damaged("it ends too early"),
            _ => SnapshotError::Io(error),
        })?;
        self.sum.write(&bytes);
        Ok(bytes)
    }

    fn number(&mut self) -> Result<u64, SnapshotError> {
        self.array().map(u64::from_le_bytes)
    }

    fn timestamp(&mut self) -> Result<Timestamp, SnapshotError> {
        self.number().map(Timestamp::from_micros)
    }

    /// Verifies the checksum, and that nothing follows it.
    fn finish(mut self) -> Result<(), SnapshotError> {
        let sum = self.sum.finish128().as_bytes();
        if self.array::<16>()? != sum {
            return Err(SnapshotError::Damaged("its checksum is wrong"));
        }
        match self.file.read(&mut [0])? {
            0 => Ok(()),
            _ => Err(SnapshotError::Damaged("something follows its end")),
        }
    }
}

impl From<io::Error> for SnapshotError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "the snapshot cannot be read or written: {error}"),
            Self::Foreign => f.write_str("the file is not a snapshot of this version: move it away to start empty"),
            Self::Damaged(what) => write!(f, "the snapshot is damaged, {what}: move it away to start empty"),
        }
    }
}

impl std::error::Error for SnapshotError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(error) => Some(error),
            Self::Foreign | Self::Damaged(_) => None,
        }
    }
}
