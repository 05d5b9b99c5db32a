use super::*;
use crate::control::model::{ChangeBody, DatabaseHead, Digest, Grammar, OverrideRow, SetFile, SubjectAttribute};
use std::sync::atomic::{AtomicU32, Ordering};

/// A data directory of one test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        Self(std::env::temp_dir().join(format!("tollgate-disk-{}-{number}", std::process::id())))
    }

    fn open(&self) -> Disk {
        let mut disk = Disk::new(self.0.clone());
        disk.acquire().unwrap();
        disk
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join("rules").join(name)
    }

    fn load(&self) -> Option<FoundState> {
        self.open().load()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A folder with the state of revision 20, and that of revision 10 before it.
fn saved_twice() -> (Folder, Disk) {
    let folder = Folder::new();
    let mut disk = folder.open();
    disk.save(&state(10)).unwrap();
    disk.save(&state(20)).unwrap();
    (folder, disk)
}

fn state(revision: u64) -> SavedState {
    SavedState {
        head: DatabaseHead {
            database_id: "0123456789abcdef".repeat(2),
            epoch: 3,
            revision,
            live_version: 2,
            chain: chain::digest_of(&revision.to_be_bytes()),
        },
        head_set: chain::digest_of(b"a set"),
        set_revision: 1,
        version: 2,
        files: vec![SetFile {
            path: "a.yaml".to_owned(),
            grammar: Grammar::Own,
            text: "rules:\n  - id: ünïcode\n".to_owned(),
        }],
        rows: (0..3).map(|number| saved_row(number, revision).into()).collect(),
        attributes: vec![
            SubjectAttribute {
                source: "merchant".to_owned(),
                subject: "m_1".to_owned(),
                name: "tier".to_owned(),
                value: "gold".to_owned(),
                revision,
                actor: "ada".to_owned(),
            }
            .into(),
        ],
    }
}

fn saved_row(number: u64, revision: u64) -> OverrideRow {
    OverrideRow {
        domain: "default".to_owned(),
        rule: "plan".to_owned(),
        subject: [("merchant".to_owned(), format!("m_{number}"))].into(),
        terms: "10/s".to_owned(),
        note: String::new(),
        expires_at: 0,
        revision,
        actor: "ada".to_owned(),
    }
}

/// The changes after a state.
fn changes(state: &SavedState, count: u64) -> Vec<LoggedChange> {
    let mut chain = state.head.chain;
    (1..=count)
        .map(|number| {
            let revision = state.head.revision + number;
            let body = ChangeBody::Row {
                domain: "default".to_owned(),
                rule: "plan".to_owned(),
                subject: [("merchant".to_owned(), format!("m_{number}"))].into(),
                terms: Some("20/s".to_owned()),
                note: String::new(),
                expires_at: 0,
            };
            chain = chain::next_chain(&chain, revision, &body);
            LoggedChange {
                revision,
                body,
                chain,
                at: 7,
            }
        })
        .collect()
}

/// A saved state with a journal of three changes.
fn saved(folder: &Folder) -> (SavedState, Vec<LoggedChange>) {
    let (state, changes) = (state(10), changes(&state(10), 3));
    let mut disk = folder.open();
    disk.save(&state).unwrap();
    disk.append(&changes).unwrap();
    (state, changes)
}

#[test]
fn a_state_and_its_journal_are_read_back() {
    let folder = Folder::new();
    assert!(folder.open().load().is_none());
    let (state, changes) = saved(&folder);
    let found = folder.load().unwrap();
    assert_eq!((found.state, found.changes), (state, changes));
    assert!(!folder.file(NEW).exists());
}

#[test]
fn the_journal_goes_on_after_a_restart() {
    let folder = Folder::new();
    let (state, all) = (state(10), changes(&state(10), 5));
    let mut disk = folder.open();
    assert!(disk.needs_save(), "nothing is saved yet");
    assert!(disk.append(&all).is_err());
    disk.save(&state).unwrap();
    disk.append(&all[..2]).unwrap();
    drop(disk);
    let mut disk = folder.open();
    assert_eq!(disk.load().unwrap().changes, all[..2]);
    assert!(!disk.needs_save());
    disk.append(&all[2..]).unwrap();
    drop(disk);
    assert_eq!(folder.load().unwrap().changes, all);
}

#[test]
fn the_state_before_is_used_if_the_good_one_is_damaged() {
    let (folder, mut disk) = saved_twice();
    disk.append(&changes(&state(20), 2)).unwrap();
    drop(disk);
    fs::write(folder.file(GOOD), "x").unwrap();
    let journal = fs::read(folder.file(JOURNAL)).unwrap();
    let found = folder.load().unwrap();
    assert_eq!((found.state, found.changes), (state(10), Vec::new()));
    assert_eq!(
        fs::read(folder.file(JOURNAL)).unwrap(),
        journal,
        "it belongs to the other one"
    );
    // A crash between the two renames.
    fs::remove_file(folder.file(GOOD)).unwrap();
    let mut disk = folder.open();
    assert_eq!(disk.load().unwrap().state, state(10));
    assert!(disk.needs_save(), "the next change writes the whole state");
}

#[test]
fn a_torn_tail_is_cut() {
    let folder = Folder::new();
    let (_, all) = saved(&folder);
    let journal = fs::read(folder.file(JOURNAL)).unwrap();
    let lines: Vec<usize> = all.iter().map(|change| JournalLine::encode(change).len()).collect();
    for length in 0..=journal.len() {
        fs::write(folder.file(JOURNAL), &journal[..length]).unwrap();
        let whole = lines.iter().scan(0, |end, line| {
            *end += line;
            Some(*end)
        });
        let whole: Vec<usize> = whole.take_while(|end| *end <= length).collect();
        let mut disk = folder.open();
        assert_eq!(disk.load().unwrap().changes, all[..whole.len()], "cut at {length}");
        let kept = whole.last().copied().unwrap_or(0);
        assert_eq!(fs::read(folder.file(JOURNAL)).unwrap(), journal[..kept]);
        // The next line is a line of its own.
        disk.append(&all[whole.len()..]).unwrap();
        drop(disk);
        assert_eq!(folder.load().unwrap().changes, all);
    }
}

#[test]
fn lines_of_another_history_are_cut_and_older_ones_skipped() {
    let folder = Folder::new();
    let (_, all) = saved(&folder);
    let mut foreign = all[2].clone();
    foreign.chain = Digest::default();
    let gap = changes(&state(20), 1);
    for bad in [foreign, gap[0].clone()] {
        let lines = [&all[0], &bad, &all[1]].map(JournalLine::encode);
        fs::write(folder.file(JOURNAL), lines.concat()).unwrap();
        assert_eq!(folder.load().unwrap().changes, all[..1]);
        assert_eq!(fs::read(folder.file(JOURNAL)).unwrap(), lines[0]);
    }
    // A crash after the new state was renamed, before the journal was emptied.
    let mut later = state(12);
    later.head.chain = all[1].chain;
    let mut bytes = Vec::new();
    later.write(&mut bytes).unwrap();
    fs::write(folder.file(GOOD), bytes).unwrap();
    fs::write(
        folder.file(JOURNAL),
        all.iter().map(JournalLine::encode).collect::<Vec<_>>().concat(),
    )
    .unwrap();
    assert_eq!(folder.load().unwrap().changes, all[2..]);
}

#[test]
fn a_journal_of_twice_the_size_is_compacted() {
    let folder = Folder::new();
    let mut disk = folder.open();
    disk.save(&state(10)).unwrap();
    let line = changes(&state(10), 1);
    while !disk.needs_save() {
        disk.append(&line).unwrap();
    }
    assert!(fs::metadata(folder.file(JOURNAL)).unwrap().len() > JOURNAL_MIN);
    disk.save(&state(11)).unwrap();
    assert!(!disk.needs_save());
    assert_eq!(fs::metadata(folder.file(JOURNAL)).unwrap().len(), 0);
}

#[test]
fn a_failed_save_leaves_the_state_before_and_is_made_up_for() {
    let folder = Folder::new();
    let (state, all) = saved(&folder);
    let mut disk = folder.open();
    disk.load().unwrap();
    // A file cannot be created where a folder is.
    fs::create_dir(folder.file(NEW)).unwrap();
    assert!(disk.save(&self::state(20)).is_err());
    assert!(disk.needs_save());
    assert!(disk.append(&all).is_err(), "a line would be missing");
    assert_eq!(Disk::new(folder.0.clone()).load().unwrap().state, state);
    fs::remove_dir(folder.file(NEW)).unwrap();
    disk.save(&self::state(20)).unwrap();
    assert!(!disk.needs_save());
}

#[test]
fn hostile_bytes_are_never_taken_for_rules() {
    let (folder, mut disk) = saved_twice();
    let all = changes(&state(20), 8);
    disk.append(&all).unwrap();
    drop(disk);
    let originals = [GOOD, JOURNAL].map(|name| (name, fs::read(folder.file(name)).unwrap()));
    let disk = folder.open();
    for seed in 0..10_000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (name, original) = &originals[random.usize(..2)];
        let mutated = mutate(original.clone(), &mut random);
        // Past the files: ten thousand syncs take minutes.
        if *name == GOOD {
            match SavedState::read(mutated.as_slice()) {
                Ok(found) => assert_eq!(found, state(20), "seed {seed}"),
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::InvalidData, "seed {seed}: {error}"),
            }
        } else {
            let path = folder.file("mutated");
            fs::write(&path, &mutated).unwrap();
            let (found, length) = read_journal(File::open(&path).unwrap(), &state(20));
            assert!(length <= mutated.len() as u64);
            // The chain covers what is applied; the time is for people.
            let applied = |change: &LoggedChange| (change.revision, change.body.clone(), change.chain);
            let expected = all.iter().take(found.len()).map(applied);
            assert!(found.iter().map(applied).eq(expected), "seed {seed}: {found:?}");
        }
    }
    drop(disk);
    let found = folder.load().unwrap();
    assert_eq!((found.state, found.changes), (state(20), all));
}

/// Bytes that were cut, changed, doubled, moved or written over.
fn mutate(mut bytes: Vec<u8>, random: &mut fastrand::Rng) -> Vec<u8> {
    for _ in 0..random.usize(1..4) {
        let at = random.usize(..bytes.len().max(1));
        match random.u8(..6) {
            0 => bytes.truncate(at),
            1 => bytes.extend(bytes.clone().into_iter().skip(at)),
            2 if !bytes.is_empty() => drop(bytes.remove(at)),
            3 => bytes.insert(at, random.u8(..)),
            4 => {
                let mut lines: Vec<Vec<u8>> = bytes
                    .split_inclusive(|byte| *byte == b'\n')
                    .map(<[u8]>::to_vec)
                    .collect();
                random.shuffle(&mut lines);
                bytes = lines.concat();
            }
            _ => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << random.u8(..8);
                }
            }
        }
    }
    bytes
}

#[test]
fn a_state_with_more_than_is_kept_is_refused() {
    let mut large = state(10);
    large.files[0].text = "#".repeat((16 << 20) + 1);
    let mut bytes = Vec::new();
    large.write(&mut bytes).unwrap();
    assert!(SavedState::read(bytes.as_slice()).is_err());
    let mut newer = Vec::new();
    state(10).write(&mut newer).unwrap();
    let newer = String::from_utf8(newer)
        .unwrap()
        .replace("\"format\":1", "\"format\":2");
    let error = SavedState::read(newer.as_bytes()).unwrap_err();
    assert!(error.to_string().contains("newer"), "{error}");
}

#[test]
fn a_state_without_the_digest_of_its_set_is_read() {
    let mut bytes = Vec::new();
    state(10).write(&mut bytes).unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let field = format!("\"head_set\":\"{}\",", chain::digest_of(b"a set"));
    assert!(text.contains(&field), "{text}");
    let lines = text.replace(&field, "");
    let lines = &lines[..lines.trim_end().rfind('\n').unwrap() + 1];
    let end = format!("{lines}{{\"end\":\"{}\"}}\n", chain::digest_of(lines.as_bytes()));
    let expected = SavedState {
        head_set: Digest::default(),
        ..state(10)
    };
    assert_eq!(SavedState::read(end.as_bytes()).unwrap(), expected);
}
