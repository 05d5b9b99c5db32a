//! The audit log under tampering.

use crate::fixture::{RawConnection, Storage, attribute, author, on_both, row, run, write};
use tollgate::control::chain::audit_hash;
use tollgate::control::database::{AuditFilter, AuditRecord, Database};
use tollgate::control::model::{AuditEntry, Digest};

const SEEDS: u64 = 1_000;
const ENTRIES: usize = 24;

#[test]
fn one_changed_byte_or_a_cut_end_is_found_in_sqlite() {
    tamper(&Storage::sqlite());
}

#[test]
fn one_changed_byte_or_a_cut_end_is_found_in_postgres() {
    tamper(&Storage::postgres());
}

#[test]
fn a_log_that_was_written_anew_is_found_by_its_anchor() {
    on_both(async |storage, database| {
        let entries = fill(&database).await;
        let anchor = entries[ENTRIES / 2].hash;
        assert!(database.verify_audit(Some(anchor)).await.unwrap().is_intact());

        // With the right to write, all hashes can be made to fit.
        let mut raw = storage.raw().await;
        let mut end = entries[3].prev;
        for mut entry in entries.iter().skip(3).cloned() {
            entry.actor = "mallory".to_owned();
            entry.prev = end;
            entry.hash = audit_hash(&entry);
            end = entry.hash;
            let (seq, prev, hash) = (entry.seq, entry.prev, entry.hash);
            let sql = format!("UPDATE audit SET actor = 'mallory', prev = '{prev}', hash = '{hash}' WHERE seq = {seq}");
            raw.execute(&sql).await;
        }
        assert!(
            database.verify_audit(None).await.unwrap().is_intact(),
            "nothing else names the old hashes"
        );
        let report = database.verify_audit(Some(anchor)).await.unwrap();
        assert!(!report.is_intact());
    });
}

#[test]
fn anchors_in_the_log_of_changes_find_a_cut_end() {
    on_both(async |storage, database| {
        fill(&database).await;
        for _ in 0..3 {
            database.record(record("export")).await.unwrap();
        }
        let seq = database.audit(&AuditFilter::default(), None, 1).await.unwrap()[0].seq;
        let anchored = database.anchor_audit(&author("system")).await.unwrap();
        let again = database.anchor_audit(&author("system")).await.unwrap();
        assert_eq!(
            (again.revision, again.changes.len()),
            (anchored.revision, 0),
            "nothing is new since"
        );
        assert!(database.verify_audit(None).await.unwrap().is_intact());
        storage.execute(&format!("DELETE FROM audit WHERE seq >= {seq}")).await;
        let report = database.verify_audit(None).await.unwrap();
        assert_eq!(report.problem.unwrap().seq, seq, "the anchored entry");
    });
}

#[test]
fn filters_by_actor_action_target_and_time() {
    on_both(async |_, database| {
        fill(&database).await;
        let count = async |filter: AuditFilter| database.audit(&filter, None, 100).await.unwrap().len();
        let all = count(AuditFilter::default()).await;
        assert_eq!(all, ENTRIES);
        let by = |change: fn(&mut AuditFilter)| {
            let mut filter = AuditFilter::default();
            change(&mut filter);
            filter
        };
        assert_eq!(
            count(by(|filter| filter.actor = Some("ada".to_owned()))).await,
            ENTRIES / 3 * 2
        );
        assert_eq!(
            count(by(|filter| filter.action = Some("row.".to_owned()))).await,
            ENTRIES / 3
        );
        assert_eq!(count(by(|filter| filter.action = Some("row".to_owned()))).await, 0);
        assert_eq!(
            count(by(|filter| filter.target = Some("default/".to_owned()))).await,
            ENTRIES / 3
        );
        assert_eq!(count(by(|filter| filter.target = Some("DEFAULT/".to_owned()))).await, 0);
        assert_eq!(count(by(|filter| filter.revision = Some(2))).await, 1);
        assert_eq!(
            count(by(|filter| filter.until = Some(crate::fixture::START_MS))).await,
            0
        );
        let older = database.audit(&AuditFilter::default(), Some(3), 100).await.unwrap();
        assert_eq!(older.iter().map(|entry| entry.seq).collect::<Vec<_>>(), [2, 1]);
    });
}

/// Changes the log in one way per seed, expects a finding, and restores it.
fn tamper(storage: &Storage) {
    run(async {
        let database = storage.open();
        let entries = fill(&database).await;
        let anchor = entries[ENTRIES - 1].hash;
        let intact = database.verify_audit(Some(anchor)).await.unwrap();
        assert!(intact.is_intact(), "{intact:?}");
        assert_eq!((intact.entries, intact.end), (ENTRIES as u64, anchor));
        let mut raw = storage.raw().await;
        for seed in 0..SEEDS {
            let mut random = fastrand::Rng::with_seed(seed);
            let damage = if random.u8(..5) == 0 {
                cut(&mut raw, &entries, &mut random).await
            } else {
                change_one_byte(&mut raw, &entries, &mut random).await
            };
            let report = database.verify_audit(Some(anchor)).await.unwrap();
            assert!(!report.is_intact(), "seed {seed}: {damage} is not found");
            restore(&mut raw, &entries).await;
        }
        assert_eq!(database.verify_audit(Some(anchor)).await.unwrap(), intact);
    });
}

/// A log of three kinds of entries, the oldest first.
async fn fill(database: &Database) -> Vec<AuditEntry> {
    for number in 0..ENTRIES / 3 {
        write(database, vec![row(&format!("m_{number}"), "10/s")]).await;
        write(database, vec![attribute(&format!("m_{number}"), "gold")]).await;
        database.record(record("login.failed")).await.unwrap();
    }
    let mut entries = database.audit(&AuditFilter::default(), None, 100).await.unwrap();
    entries.reverse();
    entries
}

fn record(action: &str) -> AuditRecord {
    AuditRecord {
        author: author("bob"),
        action: action.to_owned(),
        target: "it's".to_owned(),
        ..AuditRecord::default()
    }
}

/// Removes the last entries, or one of them.
async fn cut(raw: &mut RawConnection, entries: &[AuditEntry], random: &mut fastrand::Rng) -> String {
    let first = entries[random.usize(..entries.len())].seq;
    let comparison = if random.bool() { ">=" } else { "=" };
    let sql = format!("DELETE FROM audit WHERE seq {comparison} {first}");
    raw.execute(&sql).await;
    sql
}

/// Changes one byte of a text, or a number by one.
async fn change_one_byte(raw: &mut RawConnection, entries: &[AuditEntry], random: &mut fastrand::Rng) -> String {
    let entry = &entries[random.usize(..entries.len())];
    let columns = columns(entry);
    let (name, value) = &columns[random.usize(1..columns.len())];
    let value = match value {
        Cell::Number(number) => Cell::Number(number + 1),
        Cell::Text(text) if text.is_empty() => Cell::Text("x".to_owned()),
        Cell::Text(text) => {
            let mut bytes = text.clone().into_bytes();
            let at = random.usize(..bytes.len());
            bytes[at] = if bytes[at] == b'0' { b'1' } else { b'0' };
            Cell::Text(String::from_utf8(bytes).unwrap())
        }
    };
    let sql = format!(
        "UPDATE audit SET {name} = {} WHERE seq = {}",
        value.literal(),
        entry.seq
    );
    raw.execute(&sql).await;
    sql
}

async fn restore(raw: &mut RawConnection, entries: &[AuditEntry]) {
    raw.execute("DELETE FROM audit").await;
    let rows: Vec<String> = entries
        .iter()
        .map(|entry| {
            let values: Vec<String> = columns(entry).iter().map(|(_, value)| value.literal()).collect();
            format!("({})", values.join(","))
        })
        .collect();
    let names: Vec<&str> = columns(&entries[0]).iter().map(|(name, _)| *name).collect();
    let sql = format!("INSERT INTO audit ({}) VALUES {}", names.join(","), rows.join(","));
    raw.execute(&sql).await;
}

enum Cell {
    Number(u64),
    Text(String),
}

impl Cell {
    fn literal(&self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Text(text) => format!("'{}'", text.replace('\'', "''")),
        }
    }
}

fn columns(entry: &AuditEntry) -> Vec<(&'static str, Cell)> {
    let text = |text: &str| Cell::Text(text.to_owned());
    let digest = |digest: Digest| Cell::Text(digest.to_string());
    vec![
        ("seq", Cell::Number(entry.seq)),
        ("at", Cell::Number(entry.at)),
        ("actor", text(&entry.actor)),
        ("via", text(&entry.via)),
        ("address", text(&entry.address)),
        ("request", text(&entry.request)),
        ("action", text(&entry.action)),
        ("target", text(&entry.target)),
        ("reason", text(&entry.reason)),
        ("before", text(&entry.before)),
        ("after", text(&entry.after)),
        ("revision", Cell::Number(entry.revision)),
        ("prev", digest(entry.prev)),
        ("hash", digest(entry.hash)),
    ]
}
