//! Large values in the cache: deflated, cut into parts, and named by a manifest that binds all of them.
//!
//! A reader never allocates by a declared length: the number of parts, the bytes of each and the bytes of text are bounded.

use super::Signer;
use super::head::{is_database_id, number};
use crate::control::chain::digest_of;
use crate::control::model::{DatabaseHead, Digest};
use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use std::io::{self, Read, Write};

/// The most bytes of one part.
pub const PART_BYTES_MAX: usize = 256 << 10;

/// The description of a value in parts. Its code covers it, and with it every part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The content.
    pub kind: ManifestKind,
    /// The number of parts.
    pub parts: usize,
    /// The digest of all parts, one after the other.
    pub digest: Digest,
}

/// The content of a value in parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ManifestKind {
    /// The files of a version.
    Set {
        /// Their digest.
        set: Digest,
        /// The format of the version.
        format: u32,
    },
    /// All rows and attributes at a position.
    Rows {
        /// The position.
        head: DatabaseHead,
        /// The digest of the live version's files; zero: none yet.
        set: Digest,
        /// The revision of the last publish; 0: none.
        set_revision: u64,
    },
}

impl ManifestKind {
    /// The name of the manifest's key.
    pub fn name(&self) -> String {
        match self {
            Self::Set { set, .. } => set_name(set),
            Self::Rows { head, .. } => format!("rows:{}", head.revision),
        }
    }

    /// The most parts of such a value.
    const fn parts_max(&self) -> usize {
        match self {
            Self::Set { .. } => SET_PARTS_MAX,
            Self::Rows { .. } => ROWS_PARTS_MAX,
        }
    }
}

impl Manifest {
    /// The name of the key of a part. It has the digest of the parts: two control services that write one value in different bytes, such as
    /// rows in another order, write different keys, so that the parts of a manifest are never those of another one.
    pub fn part_name(&self, index: usize) -> String {
        format!("{}:{}:{index}", self.kind.name(), self.digest)
    }

    /// The names of the keys of all parts.
    pub fn part_names(&self) -> Vec<String> {
        (0..self.parts).map(|index| self.part_name(index)).collect()
    }

    /// The value of its key.
    pub fn encode(&self, signer: &Signer) -> String {
        let (parts, digest) = (self.parts, &self.digest);
        let text = match &self.kind {
            ManifestKind::Set { set, format } => format!("{format} set {set} {parts} {digest}"),
            ManifestKind::Rows {
                head,
                set,
                set_revision,
            } => {
                let DatabaseHead {
                    database_id,
                    epoch,
                    revision,
                    live_version,
                    chain,
                } = head;
                format!(
                    "{FORMAT} rows {database_id} {epoch} {revision} {live_version} {chain} {set} {set_revision} {parts} {digest}"
                )
            }
        };
        signer.seal(&self.kind.name(), &text)
    }

    /// Reads the value of the key of this name.
    ///
    /// # Errors
    /// Another format or secret, a value of another key, or bytes that no instance has written.
    pub fn parse(name: &str, value: &[u8], signer: &Signer) -> Result<Self, String> {
        if value.len() > MANIFEST_BYTES_MAX {
            return Err(format!("the cached {name} is too long"));
        }
        let Some(text) = signer.open(name, value) else {
            return Err(format!("the cached {name} has a wrong code"));
        };
        let fields: Vec<&str> = text.split(' ').collect();
        let manifest = match fields.as_slice() {
            [format, "set", set, parts, digest] => (|| {
                Some(Self {
                    kind: ManifestKind::Set {
                        set: Digest::parse(set)?,
                        // The reader knows which it can use.
                        format: u32::try_from(number(format)?).ok()?,
                    },
                    parts: usize::try_from(number(parts)?).ok()?,
                    digest: Digest::parse(digest)?,
                })
            })(),
            [format, ..] if number(format) != Some(FORMAT) => {
                return Err(format!("the cached {name} needs a newer version of tollgate"));
            }
            [
                _,
                "rows",
                id,
                epoch,
                revision,
                version,
                chain,
                set,
                set_revision,
                parts,
                digest,
            ] => (|| {
                Some(Self {
                    kind: ManifestKind::Rows {
                        head: DatabaseHead {
                            database_id: Some(*id).filter(|id| is_database_id(id))?.to_owned(),
                            epoch: number(epoch)?,
                            revision: number(revision)?,
                            live_version: number(version)?,
                            chain: Digest::parse(chain)?,
                        },
                        set: Digest::parse(set)?,
                        set_revision: number(set_revision)?,
                    },
                    parts: usize::try_from(number(parts)?).ok()?,
                    digest: Digest::parse(digest)?,
                })
            })(),
            _ => None,
        };
        manifest
            .filter(|manifest| manifest.kind.name() == name && manifest.parts <= manifest.kind.parts_max())
            .ok_or_else(|| format!("the cached {name} is malformed"))
    }

    /// Joins the parts in order.
    ///
    /// # Errors
    /// Parts that are not those of the manifest.
    pub fn join(&self, parts: &[Vec<u8>]) -> Result<Vec<u8>, String> {
        let name = self.kind.name();
        if parts.len() != self.parts || parts.iter().any(|part| part.len() > PART_BYTES_MAX) {
            return Err(format!("the cached {name} has other parts than its manifest says"));
        }
        let joined = parts.concat();
        match digest_of(&joined) == self.digest {
            true => Ok(joined),
            false => Err(format!("the parts of the cached {name} have another digest")),
        }
    }
}

/// The name of the manifest of a set.
pub fn set_name(set: &Digest) -> String {
    format!("set:{set}")
}

/// Deflates a value, given piece by piece, and cuts it into parts. All rows as one text would be many times the deflated value.
pub fn cut(kind: ManifestKind, texts: impl IntoIterator<Item = Vec<u8>>) -> (Manifest, Vec<Vec<u8>>) {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
    for text in texts {
        // A vector takes every byte.
        let _ = encoder.write_all(&text);
    }
    let deflated = encoder.finish().unwrap_or_default();
    let parts: Vec<Vec<u8>> = deflated.chunks(PART_BYTES_MAX).map(<[u8]>::to_vec).collect();
    let manifest = Manifest {
        kind,
        parts: parts.len(),
        digest: digest_of(&deflated),
    };
    (manifest, parts)
}

/// A reader of deflated bytes that ends with an error after `max` bytes of text.
pub fn inflate(deflated: &[u8], max: u64) -> impl Read + '_ {
    BoundedReader {
        inner: DeflateDecoder::new(deflated),
        left: max,
    }
}

/// A reader with a bound that is an error, not an end.
struct BoundedReader<R> {
    inner: R,
    left: u64,
}

impl<R: Read> Read for BoundedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.left = self
            .left
            .checked_sub(count as u64)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it inflates to more than is accepted"))?;
        Ok(count)
    }
}

/// The format of the manifests of rows.
const FORMAT: u64 = 1;
const MANIFEST_BYTES_MAX: usize = 2_048;
/// 16 MiB of text that does not deflate at all, and the paths of its files.
const SET_PARTS_MAX: usize = 80;
/// 128 MiB: a million rows and a million attributes, deflated.
const ROWS_PARTS_MAX: usize = 512;
