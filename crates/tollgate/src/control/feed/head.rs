//! The head in the cache, and the rule by which an instance accepts one.

use super::Signer;
use crate::control::model::{DatabaseHead, Digest};
use std::time::Duration;

/// The newest position of the control plane, as the cache has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheHead {
    /// The position.
    pub head: DatabaseHead,
    /// The digest of the files of the live version; zero: none yet.
    pub set: Digest,
    /// Unix time in milliseconds at which it was issued.
    pub issued: u64,
}

/// The name of its key.
pub const HEAD: &str = "head";

/// The answer to a head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// It is taken: it extends the applied position, or is the first one.
    Extend,
    /// It is taken: a higher epoch, whose state replaces everything.
    Replace,
    /// It is the applied position.
    Equal,
    /// It is no reason to change anything.
    Ignore(Refusal),
    /// It is another history of the applied epoch. Nothing changes until one is adopted.
    Forked(String),
}

/// The reason why a head is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Its epoch or revision is below the applied one.
    Lower,
    /// It is of another database of the same epoch.
    OtherDatabase,
    /// It was issued longer ago than heads are kept.
    Old,
    /// It was issued in the future.
    Future,
}

impl CacheHead {
    /// The value of its key.
    pub fn encode(&self, signer: &Signer) -> String {
        let DatabaseHead {
            database_id,
            epoch,
            revision,
            live_version,
            chain,
        } = &self.head;
        let (set, issued) = (&self.set, self.issued);
        let text = format!("{FORMAT} {database_id} {epoch} {revision} {live_version} {set} {chain} {issued}");
        signer.seal(HEAD, &text)
    }

    /// Reads the value of its key.
    ///
    /// # Errors
    /// Another format, another secret, or bytes that no instance has written.
    pub fn parse(value: &[u8], signer: &Signer) -> Result<Self, String> {
        if value.len() > HEAD_BYTES_MAX {
            return Err("the cached head is too long".to_owned());
        }
        let Some(text) = signer.open(HEAD, value) else {
            return Err("the cached head has a wrong code; use one control.secret on all instances".to_owned());
        };
        let mut fields = text.split(' ');
        let format = fields.next().and_then(number);
        if format != Some(FORMAT) {
            return Err("the cached head has another format; it needs a newer version of tollgate".to_owned());
        }
        let parsed = (|| {
            let head = Self {
                head: DatabaseHead {
                    database_id: fields.next().filter(|id| is_database_id(id))?.to_owned(),
                    epoch: fields.next().and_then(number)?,
                    revision: fields.next().and_then(number)?,
                    live_version: fields.next().and_then(number)?,
                    chain: Digest::default(),
                },
                set: Digest::parse(fields.next()?)?,
                issued: 0,
            };
            let chain = Digest::parse(fields.next()?)?;
            let issued = fields.next().and_then(number)?;
            let head = Self {
                head: DatabaseHead { chain, ..head.head },
                issued,
                ..head
            };
            fields.next().is_none().then_some(head)
        })();
        parsed.ok_or_else(|| "the cached head is malformed".to_owned())
    }

    /// The answer of an instance at `current`. `now` is Unix time in milliseconds.
    pub fn judge(&self, current: Option<&DatabaseHead>, now: u64, cache_ttl: Duration) -> Judgement {
        let ttl = u64::try_from(cache_ttl.as_millis()).unwrap_or(u64::MAX);
        if self.issued > now.saturating_add(CLOCK_SKEW_MS) {
            return Judgement::Ignore(Refusal::Future);
        }
        if self.issued.saturating_add(ttl) < now {
            return Judgement::Ignore(Refusal::Old);
        }
        judge(current, &self.head)
    }
}

/// The answer of an instance at `current` to a valid head. It never moves to a lower epoch or revision.
pub fn judge(current: Option<&DatabaseHead>, head: &DatabaseHead) -> Judgement {
    let Some(current) = current else {
        return Judgement::Replace;
    };
    if head.epoch != current.epoch {
        return match head.epoch > current.epoch {
            true => Judgement::Replace,
            false => Judgement::Ignore(Refusal::Lower),
        };
    }
    if head.database_id != current.database_id {
        return Judgement::Ignore(Refusal::OtherDatabase);
    }
    if head.revision < current.revision {
        return Judgement::Ignore(Refusal::Lower);
    }
    match (head.revision == current.revision, head.chain == current.chain) {
        (false, _) => Judgement::Extend,
        (true, true) => Judgement::Equal,
        (true, false) => Judgement::Forked(format!("revision {} has another chain", head.revision)),
    }
}

/// True if a text can be the id of a database: nothing that would move other fields.
pub(super) fn is_database_id(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// A decimal number in its only spelling.
pub(super) fn number(text: &str) -> Option<u64> {
    text.parse().ok().filter(|number: &u64| number.to_string() == text)
}

/// The format of heads.
const FORMAT: u64 = 1;
/// The most bytes of a head.
const HEAD_BYTES_MAX: usize = 1_024;
/// The difference between clocks that is accepted.
const CLOCK_SKEW_MS: u64 = 10_000;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TTL: Duration = Duration::from_secs(100);
    const NOW: u64 = 1_000_000;

    fn at(database: &str, epoch: u64, revision: u64, chain: u8) -> DatabaseHead {
        DatabaseHead {
            database_id: database.to_owned(),
            epoch,
            revision,
            live_version: 3,
            chain: Digest([chain; 32]),
        }
    }

    fn cached(head: DatabaseHead, issued: u64) -> CacheHead {
        CacheHead {
            head,
            set: Digest([9; 32]),
            issued,
        }
    }

    #[test]
    fn a_head_reads_as_it_was_written() {
        for signer in [Signer::new(Some(b"secret"), "tg"), Signer::new(None, "tg")] {
            let head = cached(at("abc", 2, 10, 1), NOW);
            assert_eq!(CacheHead::parse(head.encode(&signer).as_bytes(), &signer), Ok(head));
        }
    }

    #[test]
    fn a_field_too_many_or_too_few_is_refused() {
        let signer = Signer::new(Some(b"secret"), "tg");
        let encoded = cached(at("abc", 2, 10, 1), NOW).encode(&signer);
        let (text, _) = encoded.rsplit_once(' ').unwrap();
        for text in [
            format!("{text} 1"),
            text.rsplit_once(' ').unwrap().0.to_owned(),
            text.replacen("1 abc", "2 abc", 1),
            text.replacen("abc", "", 1),
            text.replacen(" 10 ", " +10 ", 1),
            text.replacen(" 10 ", " 010 ", 1),
        ] {
            assert!(
                CacheHead::parse(signer.seal(HEAD, &text).as_bytes(), &signer).is_err(),
                "{text}"
            );
        }
    }

    #[test]
    fn heads_are_judged_by_position_and_time() {
        let current = at("a", 2, 10, 1);
        let fork = Judgement::Forked("revision 10 has another chain".to_owned());
        let cases = [
            (Some(&current), at("a", 2, 10, 1), NOW, Judgement::Equal),
            (Some(&current), at("a", 2, 11, 2), NOW, Judgement::Extend),
            (Some(&current), at("a", 3, 1, 2), NOW, Judgement::Replace),
            (Some(&current), at("b", 3, 1, 2), NOW, Judgement::Replace),
            (Some(&current), at("a", 2, 10, 2), NOW, fork),
            (Some(&current), at("a", 2, 9, 1), NOW, Judgement::Ignore(Refusal::Lower)),
            (
                Some(&current),
                at("a", 1, 99, 1),
                NOW,
                Judgement::Ignore(Refusal::Lower),
            ),
            (
                Some(&current),
                at("b", 2, 99, 1),
                NOW,
                Judgement::Ignore(Refusal::OtherDatabase),
            ),
            (None, at("a", 1, 1, 1), NOW, Judgement::Replace),
            (None, at("a", 1, 1, 1), NOW + 10_000, Judgement::Replace),
            (None, at("a", 1, 1, 1), NOW + 10_001, Judgement::Ignore(Refusal::Future)),
            (None, at("a", 1, 1, 1), NOW - 100_000, Judgement::Replace),
            (None, at("a", 1, 1, 1), NOW - 100_001, Judgement::Ignore(Refusal::Old)),
        ];
        for (current, head, issued, expected) in cases {
            assert_eq!(
                cached(head.clone(), issued).judge(current, NOW, TTL),
                expected,
                "{head:?} {issued}"
            );
        }
    }

    proptest! {
        #[test]
        fn no_head_moves_an_instance_back(
            (epoch, revision) in (0_u64..4, 0_u64..4),
            heads in proptest::collection::vec((0_u64..4, 0_u64..4, 0_u8..3, 0_u8..2), 0..32),
        ) {
            let mut current = at("0", epoch, revision, 0);
            for (epoch, revision, chain, database) in heads {
                let head = at(&database.to_string(), epoch, revision, chain);
                let judgement = judge(Some(&current), &head);
                if matches!(judgement, Judgement::Extend | Judgement::Replace) {
                    prop_assert!((head.epoch, head.revision) > (current.epoch, current.revision) || head.epoch > current.epoch);
                    current = head;
                }
            }
        }
    }
}
