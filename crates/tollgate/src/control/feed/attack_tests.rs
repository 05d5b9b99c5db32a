//! An attacker that can write the cache and lacks the secret: nothing of it is accepted.

use super::Signer;
use super::head::{CacheHead, HEAD, Judgement};
use super::log::{LogText, Replay, replay};
use super::parts::{Manifest, ManifestKind, PART_BYTES_MAX};
use super::set::{decode_set, encode_set};
use super::snapshot::{RowSnapshot, SNAPSHOTS, SnapshotList};
use crate::control::chain::{digest_of, next_chain, set_digest};
use crate::control::model::{ChangeBody, DatabaseHead, Digest, Grammar, LoggedChange, OverrideRow, SetFile};
use crate::control::plan::FORMAT;
use fastrand::Rng;
use flate2::Compression;
use flate2::write::DeflateEncoder;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

const NOW: u64 = 1_800_000_000_000;
const TTL: Duration = Duration::from_secs(86_400);
const SECRET: &[u8] = b"the secret of the fleet, 32 bytes";

/// Everything that an instance would accept.
struct Genuine {
    signer: Signer,
    /// The position of the instance that is attacked.
    applied: DatabaseHead,
    head: CacheHead,
    changes: Vec<LoggedChange>,
    files: Vec<SetFile>,
    snapshot: RowSnapshot,
}

impl Genuine {
    fn new(random: &mut Rng) -> Self {
        let mut chain = Digest::default();
        let mut changes = Vec::new();
        for revision in 1..=random.u64(12..20) {
            let body = ChangeBody::Row {
                domain: "default".to_owned(),
                rule: "plan".to_owned(),
                subject: [("merchant".to_owned(), format!("m_{}", random.u32(..)))].into(),
                terms: Some("10/s".to_owned()),
                note: String::new(),
                expires_at: 0,
            };
            chain = next_chain(&chain, revision, &body);
            changes.push(LoggedChange {
                revision,
                body,
                chain,
                at: NOW,
            });
        }
        let files = vec![SetFile {
            path: "a.yaml".to_owned(),
            grammar: Grammar::Own,
            text: (0..2_000).map(|_| random.alphanumeric()).collect(),
        }];
        let at = |change: &LoggedChange| DatabaseHead {
            database_id: "d1".to_owned(),
            epoch: 3,
            revision: change.revision,
            live_version: 1,
            chain: change.chain,
        };
        let last = changes.last().unwrap();
        let snapshot = RowSnapshot {
            head: at(&changes[7]),
            set: set_digest(&files),
            set_revision: 0,
            rows: vec![Arc::new(OverrideRow {
                domain: "default".to_owned(),
                rule: "plan".to_owned(),
                subject: [("merchant".to_owned(), "m_1".to_owned())].into(),
                terms: "10/s".to_owned(),
                note: String::new(),
                expires_at: 0,
                revision: 1,
                actor: String::new(),
            })],
            attributes: Vec::new(),
        };
        Self {
            signer: Signer::new(Some(SECRET), "tg"),
            applied: at(&changes[9]),
            head: CacheHead {
                head: at(last),
                set: set_digest(&files),
                issued: NOW,
            },
            changes,
            files,
            snapshot,
        }
    }

    /// True if the instance would move by this value of `head`.
    fn moves_by(&self, value: &[u8]) -> bool {
        let head = CacheHead::parse(value, &self.signer);
        head.is_ok_and(|head| match head.judge(Some(&self.applied), NOW, TTL) {
            Judgement::Extend | Judgement::Replace | Judgement::Forked(_) => true,
            Judgement::Equal | Judgement::Ignore(_) => false,
        })
    }

    fn entries(&self) -> Vec<(u64, Vec<u8>)> {
        let entry = |change: &LoggedChange| (change.revision, LogText::of_change(change).encode().into_bytes());
        self.changes.iter().map(entry).collect()
    }

    /// True if the instance would apply changes from these entries.
    fn applies(&self, entries: &[(u64, Vec<u8>)]) -> bool {
        let read = |(revision, value): &(u64, Vec<u8>)| LogText::parse(*revision, value);
        let Some(entries) = entries.iter().map(read).collect::<Option<Vec<_>>>() else {
            return false;
        };
        let from = (self.applied.revision, self.applied.chain);
        let to = (self.head.head.revision, self.head.head.chain);
        !matches!(replay(from, &entries, to), Replay::Gap | Replay::OtherChain)
    }

    fn takes_set(&self, manifest: &[u8], parts: &[Vec<u8>]) -> bool {
        decode_set(&self.head.set, manifest, parts, &self.signer).is_ok()
    }

    fn takes_snapshot(&self, manifest: &[u8], parts: &[Vec<u8>]) -> bool {
        let name = format!("rows:{}", self.snapshot.head.revision);
        let manifest = Manifest::parse(&name, manifest, &self.signer);
        manifest.is_ok_and(|manifest| RowSnapshot::decode(&manifest, parts).is_ok())
    }
}

#[test]
fn nothing_of_a_thousand_attacks_is_accepted() {
    for seed in 0..1_000 {
        let mut random = Rng::with_seed(seed);
        let genuine = Genuine::new(&mut random);
        assert_genuine_is_accepted(&genuine);
        attack_heads(&genuine, &mut random, seed);
        attack_log(&genuine, &mut random, seed);
        attack_values(&genuine, &mut random, seed);
    }
}

/// Or the attacks would prove nothing.
fn assert_genuine_is_accepted(genuine: &Genuine) {
    let signer = &genuine.signer;
    assert!(genuine.moves_by(genuine.head.encode(signer).as_bytes()));
    assert!(genuine.applies(&genuine.entries()));
    let (manifest, parts) = encode_set(&genuine.files, FORMAT);
    assert!(genuine.takes_set(manifest.encode(signer).as_bytes(), &parts));
    let (manifest, parts) = genuine.snapshot.encode();
    assert!(genuine.takes_snapshot(manifest.encode(signer).as_bytes(), &parts));
}

fn attack_heads(genuine: &Genuine, random: &mut Rng, seed: u64) {
    let above = CacheHead {
        head: DatabaseHead {
            epoch: 3 + random.u64(0..2),
            revision: genuine.head.head.revision + random.u64(1..1_000),
            chain: Digest([random.u8(..); 32]),
            ..genuine.head.head.clone()
        },
        ..genuine.head.clone()
    };
    let valid = genuine.head.encode(&genuine.signer);
    let (text, code) = valid.rsplit_once(' ').unwrap();
    let (forged_text, _) = (above.encode(&genuine.signer), ());
    let (forged_text, _) = forged_text.rsplit_once(' ').unwrap();
    let guess = Signer::new(Some(&random.u64(..).to_be_bytes()), "tg");
    let issued = |issued| CacheHead {
        issued,
        ..genuine.head.clone()
    };
    let lower = CacheHead {
        head: DatabaseHead {
            revision: random.u64(0..genuine.applied.revision),
            ..genuine.head.head.clone()
        },
        ..genuine.head.clone()
    };
    let mut attacks = vec![
        ("forged with another secret", above.encode(&guess)),
        ("forged without a secret", above.encode(&Signer::new(None, "tg"))),
        ("forged with a known code", format!("{forged_text} {code}")),
        ("of another fleet", above.encode(&Signer::new(Some(SECRET), "other"))),
        ("another value as a head", genuine.signer.seal(SNAPSHOTS, forged_text)),
        ("a code alone", code.to_owned()),
        ("without a code", text.to_owned()),
        ("replayed, below the applied one", lower.encode(&genuine.signer)),
        (
            "replayed, too old",
            issued(NOW - random.u64(86_400_001..u64::from(u32::MAX))).encode(&genuine.signer),
        ),
        (
            "issued in the future",
            issued(NOW + random.u64(10_001..1_000_000)).encode(&genuine.signer),
        ),
        ("a field more", genuine.signer.seal("head ", text)),
    ];
    attacks.push(("nothing", String::new()));
    for (attack, value) in attacks {
        assert!(!genuine.moves_by(value.as_bytes()), "seed {seed}: {attack}");
    }
    let bytes = valid.as_bytes();
    let cut = random.usize(..bytes.len());
    assert!(!genuine.moves_by(&bytes[..cut]), "seed {seed}: truncated at {cut}");
    assert!(!genuine.moves_by(&flipped(bytes, random)), "seed {seed}: a bit flipped");
    let noise: Vec<u8> = (0..random.usize(..2_000)).map(|_| random.u8(..)).collect();
    assert!(!genuine.moves_by(&noise), "seed {seed}: noise");
    assert!(!genuine.signer.verify(HEAD, text, &code[..63]));
}

fn attack_log(genuine: &Genuine, random: &mut Rng, seed: u64) {
    let entries = genuine.entries();
    let first = usize::try_from(genuine.applied.revision).unwrap();
    let target = random.usize(first..entries.len());
    let change = |edit: &dyn Fn(&mut Entries)| {
        let mut changed = entries.clone();
        edit(&mut changed);
        changed
    };
    let mut forged = LogText::of_change(&genuine.changes[target]);
    forged.body = forged.body.replace("10/s", "99999/s");
    let attacks = [
        (
            "terms changed",
            change(&|log| log[target].1 = forged.encode().into_bytes()),
        ),
        ("an entry removed", change(&|log| drop(log.remove(target)))),
        ("truncated", change(&|log| log.truncate(target))),
        (
            "an entry twice",
            change(&|log| log[target].1 = log[target - 1].1.clone()),
        ),
        (
            "another kind",
            change(&|log| log[target].1 = entry_of(genuine, target, r#"{"kind":"later"}"#)),
        ),
        ("an empty value", change(&|log| log[target].1.clear())),
    ];
    for (attack, log) in attacks {
        assert!(!genuine.applies(&log), "seed {seed}: {attack}");
    }
    // A bit of the body; those of the time and of the writer's chain are used for nothing.
    let body_start = entries[target].1.iter().position(|byte| *byte == b'{').unwrap();
    let mut value = entries[target].1.clone();
    let index = random.usize(body_start..value.len());
    value[index] ^= 1 << random.u8(..7);
    assert!(
        !genuine.applies(&change(&|log| log[target].1 = value.clone())),
        "seed {seed}: a bit flipped"
    );
}

fn entry_of(genuine: &Genuine, target: usize, body: &str) -> Vec<u8> {
    let mut entry = LogText::of_change(&genuine.changes[target]);
    entry.body = body.to_owned();
    entry.encode().into_bytes()
}

fn attack_values(genuine: &Genuine, random: &mut Rng, seed: u64) {
    let guess = Signer::new(Some(&random.u64(..).to_be_bytes()), "tg");
    let keyless = Signer::new(None, "tg");
    let other_files = vec![SetFile {
        text: "rules: []".to_owned(),
        ..genuine.files[0].clone()
    }];
    let mut rows = genuine.snapshot.clone();
    Arc::make_mut(&mut rows.rows[0]).terms = "99999/s".to_owned();
    let sets = (encode_set(&genuine.files, FORMAT), encode_set(&other_files, FORMAT));
    let snapshots = (genuine.snapshot.encode(), rows.encode());
    type Taken<'g> = &'g dyn Fn(&[u8], &[Vec<u8>]) -> bool;
    let takes_set: Taken<'_> = &|manifest, parts| genuine.takes_set(manifest, parts);
    let takes_snapshot: Taken<'_> = &|manifest, parts| genuine.takes_snapshot(manifest, parts);
    for (kind, takes, (own, other)) in [("set", takes_set, sets), ("rows", takes_snapshot, snapshots)] {
        let (manifest, parts) = own;
        let value = manifest.encode(&genuine.signer).into_bytes();
        let cut = random.usize(..value.len());
        let named = |signer: &Signer, manifest: &Manifest| manifest.encode(signer).into_bytes();
        let bomb = bomb(&manifest, random);
        let attacks = [
            ("parts of another value", value.clone(), other.1.clone()),
            ("forged with another secret", named(&guess, &other.0), other.1.clone()),
            ("forged without a secret", named(&keyless, &other.0), other.1.clone()),
            (
                "a manifest of another name",
                genuine.signer.seal("set:x", "1 set x 0 x").into_bytes(),
                Vec::new(),
            ),
            ("a truncated manifest", value[..cut].to_vec(), parts.clone()),
            ("a bit of the manifest", flipped(&value, random), parts.clone()),
            ("a bit of a part", value.clone(), vec![flipped(&parts[0], random)]),
            (
                "a truncated part",
                value.clone(),
                vec![parts[0][..parts[0].len() / 2].to_vec()],
            ),
            ("no parts", value.clone(), Vec::new()),
            (
                "a part too many",
                value.clone(),
                [parts.clone(), vec![vec![0]]].concat(),
            ),
            ("a part too long", value.clone(), vec![vec![0; PART_BYTES_MAX + 1]]),
            ("a bomb", named(&keyless, &bomb.0), bomb.1.clone()),
            // As if the secret were known.
            ("a signed bomb", named(&genuine.signer, &bomb.0), bomb.1.clone()),
        ];
        for (attack, manifest, parts) in attacks {
            assert!(!takes(&manifest, &parts), "seed {seed}: {kind}: {attack}");
        }
        let huge = Manifest {
            parts: random.usize(1_000..),
            ..manifest
        };
        assert!(
            !takes(&named(&genuine.signer, &huge), &parts),
            "seed {seed}: {kind}: a declared length"
        );
    }
    let list = SnapshotList {
        epoch: 3,
        revisions: vec![8],
    };
    assert_eq!(
        SnapshotList::parse(list.encode(&guess).as_bytes(), &genuine.signer),
        None
    );
    let value = list.encode(&genuine.signer);
    assert_eq!(
        SnapshotList::parse(&flipped(value.as_bytes(), random), &genuine.signer),
        None
    );
}

/// Few bytes that inflate to more than is accepted; 64 MiB of it, in one seed of ten, else of one line of a mebibyte and more.
fn bomb(manifest: &Manifest, random: &mut Rng) -> (Manifest, Vec<Vec<u8>>) {
    let is_set = matches!(manifest.kind, ManifestKind::Set { .. });
    let mebibytes = if is_set && random.u8(..100) == 0 { 64 } else { 1 };
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
    for _ in 0..mebibytes {
        encoder.write_all(&vec![b'0'; 1 << 20]).unwrap();
    }
    let deflated = encoder.finish().unwrap();
    let manifest = Manifest {
        kind: manifest.kind.clone(),
        parts: deflated.len().div_ceil(PART_BYTES_MAX),
        digest: digest_of(&deflated),
    };
    (manifest, deflated.chunks(PART_BYTES_MAX).map(<[u8]>::to_vec).collect())
}

#[test]
fn a_bomb_ends_at_the_stated_bound() {
    use std::io::Read as _;
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
    for _ in 0..64 {
        encoder.write_all(&vec![0; 1 << 20]).unwrap();
    }
    let deflated = encoder.finish().unwrap();
    let mut read = 0;
    let mut reader = super::parts::inflate(&deflated, 16 << 20);
    let mut buffer = [0; 8_192];
    let error = loop {
        match reader.read(&mut buffer) {
            Ok(count) => read += count,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
    assert!(read <= 16 << 20, "{read} bytes");
}

fn flipped(bytes: &[u8], random: &mut Rng) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let index = random.usize(..bytes.len());
    bytes[index] ^= 1 << random.u8(..8);
    bytes
}

/// Entries of a log: revision and value.
type Entries = Vec<(u64, Vec<u8>)>;
