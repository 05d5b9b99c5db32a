//! The data of the control plane: versions, rows, attributes, changes, and who made them.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// A SHA-256 digest.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(pub [u8; 32]);

/// The position of a database: the identity, the order and the state of everything committed so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatabaseHead {
    /// Random, chosen when the database was created or adopted.
    pub database_id: String,
    /// The epoch.
    pub epoch: u64,
    /// The last revision.
    pub revision: u64,
    /// The published version; 0: none yet.
    pub live_version: u64,
    /// The chain over all changes up to the revision.
    pub chain: Digest,
}

/// The grammar of a rule file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Grammar {
    /// Rules of our own.
    Own,
    /// Descriptors of envoyproxy/ratelimit.
    Envoy,
}

/// One file of a version, byte for byte as it was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetFile {
    /// Its relative path, unique in its version.
    pub path: String,
    /// Its grammar.
    pub grammar: Grammar,
    /// Its text.
    pub text: String,
}

/// The state of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VersionState {
    /// Saved, never checked by instances.
    Draft,
    /// Checked, not live yet.
    Prepared,
    /// Live now, or once.
    Published,
    /// Rejected by an instance.
    Rejected,
}

/// A version without its files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VersionMeta {
    /// Its number.
    pub number: u64,
    /// The version it was made from; 0: none.
    pub parent: u64,
    /// The digest of its files: equal files have equal digests.
    pub digest: Digest,
    /// The grammar level that is needed to read it.
    pub format: u32,
    /// Its state.
    pub state: VersionState,
    /// The name of the principal that made it.
    pub actor: String,
    /// `api`, `push` or `rollback`, with a commit if one was given: `push 4f1c2e`.
    pub source: String,
    /// The reason that was given.
    pub reason: String,
    /// Unix time in milliseconds.
    pub created_at: u64,
}

/// The subject of a row: attribute values by name, in canonical order.
pub type SubjectValues = BTreeMap<String, String>;

/// One override, stored on its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverrideRow {
    /// The domain of its rule.
    pub domain: String,
    /// The id of its rule.
    pub rule: String,
    /// The subject it applies to.
    pub subject: SubjectValues,
    /// A limit as rules write it.
    pub terms: String,
    /// A note for people.
    pub note: String,
    /// Unix time in milliseconds at which it is deleted; 0: never.
    pub expires_at: u64,
    /// The revision that last changed it.
    pub revision: u64,
    /// The principal that last changed it.
    pub actor: String,
}

/// One attribute of a subject, for `derive`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubjectAttribute {
    /// The attribute that names the subject, such as `merchant`.
    pub source: String,
    /// The subject, such as `m_42`.
    pub subject: String,
    /// The attribute, such as `tier`.
    pub name: String,
    /// Its value.
    pub value: String,
    /// The revision that last changed it.
    pub revision: u64,
    /// The principal that last changed it.
    pub actor: String,
}

/// The content of one change. Encoded as JSON in the log; an unknown kind stops a follower.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum ChangeBody {
    /// A version became live.
    Publish {
        /// Its number.
        version: u64,
        /// Its digest, as hex.
        digest: Digest,
    },
    /// A row was set, or deleted where there are no terms.
    Row {
        /// The domain of its rule.
        domain: String,
        /// The id of its rule.
        rule: String,
        /// Its subject.
        subject: SubjectValues,
        /// Its terms; none: deleted.
        terms: Option<String>,
        /// A note for people.
        #[serde(default)]
        note: String,
        /// Unix time in milliseconds at which it is deleted; 0: never.
        #[serde(default)]
        expires_at: u64,
    },
    /// A subject attribute was set, or deleted where there is no value.
    Attribute {
        /// The attribute that names the subject.
        source: String,
        /// The subject.
        subject: String,
        /// The attribute.
        name: String,
        /// Its value; none: deleted.
        value: Option<String>,
    },
    /// Several rows and attributes of one request.
    Batch {
        /// The changes: rows and attributes only.
        changes: Vec<Self>,
    },
    /// The end of the audit chain, recorded in the log.
    Anchor {
        /// The sequence number of the last audit entry.
        seq: u64,
        /// Its hash, as hex.
        hash: Digest,
    },
}

/// One entry of the log of changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedChange {
    /// Its revision.
    pub revision: u64,
    /// Its content.
    pub body: ChangeBody,
    /// The chain after it.
    pub chain: Digest,
    /// Unix time in milliseconds.
    pub at: u64,
}

/// The origin of a write: for the audit log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Author {
    /// The name of the principal; `system` for background work.
    pub actor: String,
    /// The way in: `api`, `cli`, `dashboard`, `system`.
    pub via: String,
    /// The address of the client; may be empty.
    pub address: String,
    /// The id of the request.
    pub request: String,
    /// The reason that was given; may be empty.
    pub reason: String,
}

/// The condition under which a write is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Precondition {
    /// Always (`If-Match: *`).
    Any,
    /// The item must not exist (`If-None-Match: *`).
    Absent,
    /// The item, or the set, was last changed at this epoch and revision.
    Unchanged {
        /// The epoch.
        epoch: u64,
        /// The revision.
        revision: u64,
    },
}

impl Precondition {
    /// True for an item that was last changed at this epoch and revision; revision 0: it does not exist.
    pub fn holds(&self, epoch: u64, revision: u64) -> bool {
        match *self {
            Self::Any => true,
            Self::Absent => revision == 0,
            Self::Unchanged {
                epoch: expected,
                revision: at,
            } => (expected, at) == (epoch, revision),
        }
    }
}

/// The role of a principal; each includes the rights of those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Reads, with subjects masked.
    Viewer,
    /// Sees subjects, explains, forgets, edits rows, reads the audit log.
    Operator,
    /// Edits rules.
    Editor,
    /// Everything.
    Admin,
}

/// The kind of a principal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PrincipalKind {
    /// A person with a password.
    User,
    /// A program with a token.
    Token,
}

/// A user or a token.
#[derive(Clone, PartialEq, Eq)]
pub struct Principal {
    /// Its id.
    pub id: String,
    /// Its kind.
    pub kind: PrincipalKind,
    /// Its name, unique.
    pub name: String,
    /// Its role.
    pub role: Role,
    /// The domains it is limited to; empty: all.
    pub domains: Vec<String>,
    /// The password hash of a user, or the hex SHA-256 of a token's secret.
    pub secret: String,
    /// Unix time in milliseconds.
    pub created_at: u64,
    /// The principal that created it.
    pub created_by: String,
    /// Unix time in milliseconds; 0: never.
    pub expires_at: u64,
    /// Unix time in milliseconds of the last use; 0: never.
    pub seen_at: u64,
    /// Unix time in milliseconds; 0: enabled.
    pub disabled_at: u64,
}

/// A session of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// The SHA-256 of its id.
    pub id_hash: Digest,
    /// The id of its principal.
    pub principal: String,
    /// Unix time in milliseconds.
    pub created_at: u64,
    /// Unix time in milliseconds of the last request.
    pub seen_at: u64,
    /// Unix time in milliseconds of its absolute end.
    pub expires_at: u64,
    /// The address of the client at login.
    pub address: String,
}

/// One entry of the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AuditEntry {
    /// Its sequence number.
    pub seq: u64,
    /// Unix time in milliseconds.
    pub at: u64,
    /// The principal.
    pub actor: String,
    /// The way in.
    pub via: String,
    /// The address of the client.
    pub address: String,
    /// The id of the request.
    pub request: String,
    /// The action: `publish`, `row.set`, `login.failed`, …
    pub action: String,
    /// The object of the action.
    pub target: String,
    /// The reason that was given.
    pub reason: String,
    /// The state before, as JSON text; empty if there was none.
    pub before: String,
    /// The state after, as JSON text; may be empty.
    pub after: String,
    /// The revision it led to; 0: none.
    pub revision: u64,
    /// The hash of the entry before it.
    pub prev: Digest,
    /// Its hash.
    pub hash: Digest,
}

impl AuditEntry {
    /// Its texts, in the order of the hash and of the columns.
    pub fn texts(&self) -> [&String; 9] {
        [
            &self.actor,
            &self.via,
            &self.address,
            &self.request,
            &self.action,
            &self.target,
            &self.reason,
            &self.before,
            &self.after,
        ]
    }
}

impl Digest {
    /// Parses 64 hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(Self(bytes))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom("expected 64 hexadecimal digits"))
    }
}

impl fmt::Debug for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without its secret.
        f.debug_struct("Principal")
            .field("id", &self.id)
            .field("kind", &self.kind)
            .field("name", &self.name)
            .field("role", &self.role)
            .finish_non_exhaustive()
    }
}
