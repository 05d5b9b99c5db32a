//! The hash chains over the log of changes and over the audit log, and the digests of rule sets.
//!
//! A chain value covers everything before it, so two logs with an equal end are equal. Every part of a hashed value has its length
//! in front: no two different values have the same bytes.

use crate::control::model::{AuditEntry, ChangeBody, Digest, Grammar, SetFile};
use sha2::{Digest as _, Sha256};

/// The SHA-256 of these bytes.
pub fn digest_of(bytes: &[u8]) -> Digest {
    Digest(Sha256::digest(bytes).into())
}

/// The chain after a change: SHA-256 over the chain before it, its revision, and the change with its length.
///
/// The chain before the first change is [`Digest::default`].
pub fn next_chain(before: &Digest, revision: u64, body: &ChangeBody) -> Digest {
    next_chain_of_text(before, revision, &change_text(body))
}

/// The canonical text of a change: JSON without spaces, members in the order of their declaration, subjects sorted.
pub fn change_text(body: &ChangeBody) -> String {
    serde_json::to_string(body).expect("a change has only texts, numbers and maps with text keys")
}

/// The hash of an audit entry, over the hash of the entry before it and all its members but the hash itself.
pub fn audit_hash(entry: &AuditEntry) -> Digest {
    let mut hasher = ChainHasher::after(&entry.prev);
    hasher.number(entry.seq);
    hasher.number(entry.at);
    for text in entry.texts() {
        hasher.text(text);
    }
    hasher.number(entry.revision);
    hasher.finish()
}

/// The digest of the files of a version, in the order of their paths: equal files have equal digests.
pub fn set_digest(files: &[SetFile]) -> Digest {
    let mut sorted: Vec<&SetFile> = files.iter().collect();
    sorted.sort_by(|a, b| a.path.cmp(&b.path));
    let mut hasher = ChainHasher::default();
    for file in sorted {
        hasher.text(&file.path);
        hasher.text(match file.grammar {
            Grammar::Own => "own",
            Grammar::Envoy => "envoy",
        });
        hasher.text(&file.text);
    }
    hasher.finish()
}

/// The chain after a change whose canonical text is known.
pub(super) fn next_chain_of_text(before: &Digest, revision: u64, text: &str) -> Digest {
    let mut hasher = ChainHasher::after(before);
    hasher.number(revision);
    hasher.text(text);
    hasher.finish()
}

/// A hash over numbers and texts.
#[derive(Default)]
struct ChainHasher(Sha256);

impl ChainHasher {
    fn after(before: &Digest) -> Self {
        Self(Sha256::new().chain_update(before.0))
    }

    fn number(&mut self, number: u64) {
        self.0.update(number.to_be_bytes());
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.0.update(text.as_bytes());
    }

    fn finish(self) -> Digest {
        Digest(self.0.finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(terms: Option<&str>) -> ChangeBody {
        ChangeBody::Row {
            domain: "default".to_owned(),
            rule: "plan".to_owned(),
            subject: [("merchant".to_owned(), "m_42".to_owned())].into(),
            terms: terms.map(str::to_owned),
            note: String::new(),
            expires_at: 0,
        }
    }

    #[test]
    fn a_chain_depends_on_everything_before_it() {
        let start = Digest::default();
        let first = next_chain(&start, 1, &row(Some("10/s")));
        assert_ne!(first, next_chain(&start, 2, &row(Some("10/s"))), "on the revision");
        assert_ne!(first, next_chain(&first, 1, &row(Some("10/s"))), "on the chain before");
        assert_ne!(first, next_chain(&start, 1, &row(None)), "on the change");
        assert_eq!(first, next_chain(&start, 1, &row(Some("10/s"))));
    }

    #[test]
    fn the_chain_of_a_known_change_never_changes() {
        // Written to databases and disks: another value here is a new format.
        assert_eq!(
            change_text(&row(Some("10/s"))),
            r#"{"kind":"row","domain":"default","rule":"plan","subject":{"merchant":"m_42"},"terms":"10/s","note":"","expires_at":0}"#
        );
        assert_eq!(
            next_chain(&Digest::default(), 1, &row(Some("10/s"))).to_string(),
            digest_of(
                &[
                    &[0; 32][..],
                    &1_u64.to_be_bytes(),
                    &117_u64.to_be_bytes(),
                    change_text(&row(Some("10/s"))).as_bytes()
                ]
                .concat()
            )
            .to_string()
        );
    }

    #[test]
    fn text_that_moves_between_members_changes_the_hash() {
        let entry = |actor: &str, via: &str| AuditEntry {
            seq: 1,
            at: 2,
            actor: actor.to_owned(),
            via: via.to_owned(),
            address: String::new(),
            request: String::new(),
            action: String::new(),
            target: String::new(),
            reason: String::new(),
            before: String::new(),
            after: String::new(),
            revision: 0,
            prev: Digest::default(),
            hash: Digest::default(),
        };
        assert_ne!(audit_hash(&entry("ab", "c")), audit_hash(&entry("a", "bc")));
    }

    #[test]
    fn the_digest_of_a_set_ignores_the_order_of_its_files() {
        let file = |path: &str, text: &str| SetFile {
            path: path.to_owned(),
            grammar: Grammar::Own,
            text: text.to_owned(),
        };
        let (a, b) = (file("a.yaml", "x"), file("b.yaml", "y"));
        assert_eq!(set_digest(&[a.clone(), b.clone()]), set_digest(&[b.clone(), a.clone()]));
        assert_ne!(set_digest(&[a.clone(), b]), set_digest(&[a]));
    }
}
