//! Snapshots: a restart does not reset limits.
//!
//! One file: a heading, the secret of the fingerprints, the store's clock, every live key with its state as numbers,
//! and a keyed sum over all of it. It is written beside its name and moved there, readable by its owner alone, because
//! who has the secret can choose keys that meet. A file that is damaged, or not ours, is refused and changes nothing.

use super::table::{Entry, Table};
use super::table_kind::{Kind, Tables};
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

/// Why a snapshot could not be written or read.
#[derive(Debug)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The file system refused. The operator's to mend.
    Io(io::Error),
    /// The file is not a snapshot, or of a version this program does not know.
    Foreign,
    /// The file is a snapshot and was damaged: what is wrong.
    Damaged(&'static str),
}

/// The first line of every snapshot, with the version of its form.
const MAGIC: &[u8] = b"tollgate snapshot 1\n";

/// Numbers of one state at the most: a full log of a million runs.
const STATE_NUMBERS_MAX: u64 = 4 + 3 * 1_000_001;

impl Memory {
    /// Writes every live key to a file and says how many. Shards are visited one after the other, so decisions go on
    /// meanwhile; what they take after their shard was visited is not in the file.
    ///
    /// # Errors
    /// What the file system refuses. The file that was there before is then still there.
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
    /// A store that goes on where a snapshot ended: it adopts the snapshot's secret, and its clock starts no earlier
    /// than the snapshot's stood. The time in between counts: what would have refilled has refilled.
    ///
    /// All live keys are taken over, even past `max_memory`; new ones then wait for room.
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

/// Every live key of one algorithm: a line of numbers each, and a zero behind the last.
fn write_kind<A: Kind<Entry: StateNumbers>>(
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
        // Written with the shard free again: a slow disk holds up nobody.
        for number in records {
            out.number(number)?;
        }
    }
    out.number(0)?;
    Ok(keys)
}

fn read_kind<A: Kind<Entry: StateNumbers>>(
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
        let low = low.ok_or(SnapshotError::Damaged("a key is none"))?;
        numbers.clear();
        for _ in 0..count {
            numbers.push(file.number()?);
        }
        let entry = A::Entry::from_numbers(&numbers).ok_or(SnapshotError::Damaged("a state is none"))?;
        if entry.fresh_at() > now {
            let print = Fingerprint { high, low };
            let mut table: crate::sync::Guard<'_, Table<A::Entry>> = shards.lock(shards.index_of(print));
            memory.restore_key(&mut table, print, entry);
        }
    }
}

/// A file being written, with the sum of what went into it.
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

/// A file being read, with the sum of what came out of it.
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

    /// Starts the sum, which the secret read just now is the key of.
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

    /// The sum must be right, and nothing may follow it.
    fn finish(mut self) -> Result<(), SnapshotError> {
        let sum = self.sum.finish128().as_bytes();
        if self.array::<16>()? != sum {
            return Err(SnapshotError::Damaged("its sum is wrong"));
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
