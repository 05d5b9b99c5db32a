//! The log of changes in the cache: the value of an entry, and the chain that ties entries to a head.

use crate::control::chain::{change_text, next_chain_of_text};
use crate::control::model::{ChangeBody, Digest, LoggedChange};

/// An entry of the log, as text: nothing of it is trusted before its chain ends at a head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogText {
    /// Its revision.
    pub revision: u64,
    /// Unix time in milliseconds.
    pub at: u64,
    /// The chain after it, as its writer says.
    pub chain: Digest,
    /// The canonical text of the change.
    pub body: String,
}

/// The result of a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replay {
    /// Changes that end at the head's chain.
    Reached(Vec<LoggedChange>),
    /// They end at the head's chain. Those before a change of an unknown kind can be applied.
    NeedsNewer {
        /// The changes before it.
        known: Vec<LoggedChange>,
        /// The revision of the unknown change.
        revision: u64,
    },
    /// An entry is missing.
    Gap,
    /// They do not end at the head's chain.
    OtherChain,
}

impl LogText {
    /// The entry of a change.
    pub fn of_change(change: &LoggedChange) -> Self {
        Self {
            revision: change.revision,
            at: change.at,
            chain: change.chain,
            body: change_text(&change.body),
        }
    }

    /// The value of the entry.
    pub fn encode(&self) -> String {
        format!("{} {} {}", self.at, self.chain, self.body)
    }

    /// Reads the value of the entry with this revision.
    pub fn parse(revision: u64, value: &[u8]) -> Option<Self> {
        let mut fields = std::str::from_utf8(value).ok()?.splitn(3, ' ');
        Some(Self {
            revision,
            at: fields.next()?.parse().ok()?,
            chain: Digest::parse(fields.next()?)?,
            body: fields.next()?.to_owned(),
        })
    }
}

/// Replays entries after a position up to a head. `(revision, chain)` is the position.
pub fn replay(from: (u64, Digest), entries: &[LogText], to: (u64, Digest)) -> Replay {
    let (mut revision, mut chain) = from;
    let mut changes = Vec::new();
    let mut unknown = None;
    let wanted = entries
        .iter()
        .filter(|entry| entry.revision > from.0 && entry.revision <= to.0);
    for entry in wanted {
        if entry.revision != revision + 1 {
            return Replay::Gap;
        }
        chain = next_chain_of_text(&chain, entry.revision, &entry.body);
        revision = entry.revision;
        if unknown.is_some() {
            continue;
        }
        let body = serde_json::from_str::<ChangeBody>(&entry.body).ok();
        match body.filter(|body| change_text(body) == entry.body) {
            Some(body) => changes.push(LoggedChange {
                revision,
                body,
                chain,
                at: entry.at,
            }),
            None => unknown = Some(revision),
        }
    }
    match (revision == to.0, chain == to.1, unknown) {
        (false, ..) => Replay::Gap,
        (true, false, _) => Replay::OtherChain,
        (true, true, None) => Replay::Reached(changes),
        (true, true, Some(revision)) => Replay::NeedsNewer {
            known: changes,
            revision,
        },
    }
}

/// True if the entries prove that the history of the head is not that of an instance at `applied`: they lead to the head from another chain at
/// its revision.
pub fn proves_fork(applied: (u64, Digest), entries: &[LogText], head: (u64, Digest)) -> bool {
    let at_applied = entries.iter().find(|entry| entry.revision == applied.0);
    at_applied.is_some_and(|entry| entry.chain != applied.1 && leads_to((entry.revision, entry.chain), entries, head))
}

/// True if the chain of the entries after a position ends at a head. Costs less than a replay: no change is decoded.
pub fn leads_to(from: (u64, Digest), entries: &[LogText], to: (u64, Digest)) -> bool {
    let mut at = from;
    for entry in entries
        .iter()
        .filter(|entry| entry.revision > from.0 && entry.revision <= to.0)
    {
        if entry.revision != at.0 + 1 {
            return false;
        }
        at = (entry.revision, next_chain_of_text(&at.1, entry.revision, &entry.body));
    }
    at == to
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::chain::next_chain;

    fn history(count: u64, seed: &str) -> Vec<LoggedChange> {
        let mut chain = Digest::default();
        (1..=count)
            .map(|revision| {
                let body = ChangeBody::Attribute {
                    source: "merchant".to_owned(),
                    subject: format!("{seed}{revision}"),
                    name: "tier".to_owned(),
                    value: None,
                };
                chain = next_chain(&chain, revision, &body);
                LoggedChange {
                    revision,
                    body,
                    chain,
                    at: 5,
                }
            })
            .collect()
    }

    fn entries(changes: &[LoggedChange]) -> Vec<LogText> {
        changes
            .iter()
            .map(|change| {
                let encoded = LogText::of_change(change).encode();
                LogText::parse(change.revision, encoded.as_bytes()).unwrap()
            })
            .collect()
    }

    #[test]
    fn changes_are_taken_when_their_chain_ends_at_the_head() {
        let changes = history(9, "a");
        let log = entries(&changes);
        let from = (3, changes[2].chain);
        let to = (8, changes[7].chain);
        assert_eq!(replay(from, &log, to), Replay::Reached(changes[3..8].to_vec()));
        assert_eq!(replay(from, &log[..7], to), Replay::Gap, "it ends early");
        assert_eq!(replay(from, &log[5..], to), Replay::Gap, "it starts late");
        let without = [&log[..5], &log[6..]].concat();
        assert_eq!(replay(from, &without, to), Replay::Gap);
        let mut changed = log.clone();
        changed[5].body = changed[4].body.clone();
        assert_eq!(replay(from, &changed, to), Replay::OtherChain);
        assert!(!proves_fork(from, &log, to) && !proves_fork(from, &changed, to));
    }

    #[test]
    fn a_change_of_an_unknown_kind_stops_after_those_before_it() {
        let mut changes = entries(&history(3, "a"));
        let known = history(2, "a");
        changes[2].body = r#"{"kind":"later"}"#.to_owned();
        let chain = next_chain_of_text(&known[1].chain, 3, &changes[2].body);
        let reached = replay((0, Digest::default()), &changes, (3, chain));
        assert_eq!(reached, Replay::NeedsNewer { known, revision: 3 });
    }

    #[test]
    fn another_history_is_proved_by_the_log() {
        let (ours, theirs) = (history(5, "a"), history(8, "b"));
        let log = entries(&theirs);
        let head = (8, theirs[7].chain);
        assert!(proves_fork((5, ours[4].chain), &log, head));
        assert!(!proves_fork((5, theirs[4].chain), &log, head));
        assert!(
            !proves_fork((5, ours[4].chain), &log[5..], head),
            "nothing at that revision"
        );
    }

    #[test]
    fn a_log_leads_to_a_head_as_it_is_replayed_to_it() {
        let changes = history(9, "a");
        let log = entries(&changes);
        let (from, to) = ((3, changes[2].chain), (8, changes[7].chain));
        let mut forged = log.clone();
        forged[4].body.push(' ');
        let other_start = (3, changes[1].chain);
        let cases = [
            (from, log.as_slice(), to, true),
            (to, &log[8..], to, true),
            (from, &log[..7], to, false),
            (from, &log[5..], to, false),
            (from, &forged, to, false),
            (other_start, &log, to, false),
        ];
        for (from, entries, to, expected) in cases {
            assert_eq!(leads_to(from, entries, to), expected);
            let replayed = matches!(replay(from, entries, to), Replay::Reached(_));
            assert_eq!(replayed, expected, "as it is replayed");
        }
    }
}
