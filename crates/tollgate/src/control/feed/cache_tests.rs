//! Several control planes on one shared store: what one of them commits, the others apply, and nothing else.

use super::Signer;
use super::claim::{CLAIM, Claim};
use super::head::{CacheHead, HEAD};
use super::log::LogText;
use super::parts::{Manifest, set_name};
use super::reader::CacheReader;
use super::snapshot::{RowSnapshot, SNAPSHOTS, SnapshotList};
use crate::control::chain::{change_text, next_chain_of_text};
use crate::control::database::now_ms;
use crate::control::model::{ChangeBody, DatabaseHead, Digest, OverrideRow};
use crate::control::start::testing::{FILE_LAYER, Instance, SECRET, author, cache, new_folder, row};
use crate::control::{
    ControlOptions, ControlResult, ControlSecret, ControlStatus, DatabaseChoice, InstanceStatus, PublishOptions,
    RowWrite, RulesOrigin, WriteOptions, Written,
};
use sqlx::ConnectOptions as _;
use sqlx::sqlite::SqliteConnectOptions;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tollgate_limiter::store::redis::{CacheWrite, LogId};
use tollgate_limiter::testing::admin::{connect, query};
use tollgate_limiter::testing::eventually;
use tollgate_limiter::testing::servers::{Server, ServerKind};

const SET: &str = "rules:\n  - id: search\n    per: merchant\n    limit: 7/min\n";
const TTL: Duration = Duration::from_secs(60);

impl Instance {
    async fn start_with(choice: DatabaseChoice, server: &Server) -> Self {
        Self::open_on(new_folder(FILE_LAYER), choice, server).await
    }

    async fn open_on(folder: PathBuf, choice: DatabaseChoice, server: &Server) -> Self {
        let options = ControlOptions {
            secret: ControlSecret::new(SECRET),
            poll: Duration::from_millis(100),
            database_poll: Duration::from_millis(200),
            is_managed: true,
            ..ControlOptions::default()
        };
        Self::open(folder, &choice, options, Some(cache(server))).await
    }

    /// Stops it, and starts it again in the same folder.
    async fn restart_with(self, choice: DatabaseChoice, server: &Server, prepare: impl FnOnce(&Path)) -> Self {
        let folder = self.close().await;
        prepare(&folder.join("data"));
        Self::open_on(folder, choice, server).await
    }

    async fn write_terms(&self, merchant: &str, terms: &str) -> ControlResult<Written> {
        self.write_row(row("plan", merchant, Some(terms))).await
    }

    async fn publish_example(&self) {
        let options = PublishOptions {
            skip_prepare: true,
            ..PublishOptions::default()
        };
        let published = self.publish(SET, &options).await.unwrap();
        self.applies(published.revision).await;
    }

    /// Waits until it has what another one has.
    async fn equals(&self, other: &Self) {
        eventually("the same state", async || {
            let (own, other) = (self.control.status(), other.control.status());
            (own.chain, own.digest, own.revision) == (other.chain, other.digest, other.revision)
        })
        .await;
    }

    fn status(&self) -> ControlStatus {
        self.control.status()
    }
}

/// A control service that has written one row, and an instance that has applied it.
async fn with_one_row(server: &Server) -> (Instance, Instance) {
    let service = Instance::start_with(DatabaseChoice::DataDir, server).await;
    let follower = Instance::start_with(DatabaseChoice::None, server).await;
    service.write_terms("m_1", "20/min").await.unwrap();
    follower.equals(&service).await;
    (service, follower)
}

async fn has_head(server: &Server) -> bool {
    cache(server)
        .read(&[HEAD])
        .await
        .is_ok_and(|mut values| values.pop().flatten().is_some())
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_and_sets_reach_followers_with_and_without_messages() {
    let server = Server::start(ServerKind::Redis70);
    let service = Instance::start_with(DatabaseChoice::DataDir, &server).await;
    let followers = [
        Instance::start_with(DatabaseChoice::None, &server).await,
        Instance::start_with(DatabaseChoice::None, &server).await,
    ];
    assert!(
        followers.iter().all(|follower| follower.control.is_waiting()),
        "an absence is not a fact"
    );
    service.write_terms("m_1", "20/min").await.unwrap();
    for follower in &followers {
        follower.equals(&service).await;
        assert!(!follower.control.is_waiting());
        assert_eq!(follower.status().source, RulesOrigin::Cache);
    }
    service.publish_example().await;
    for follower in &followers {
        follower.equals(&service).await;
        assert!(follower.control.has_rule("default", "search"));
        assert_eq!(
            follower.write_terms("m_1", "1/s").await.unwrap_err().code(),
            "no-database"
        );
    }
    let mut connection = connect(&server);
    let _: i64 = query(&mut connection, &["CLIENT", "KILL", "TYPE", "pubsub"]);
    for number in 0..30 {
        service.write_terms(&format!("m_{number}"), "30/min").await.unwrap();
    }
    for follower in &followers {
        follower.equals(&service).await;
    }
    let keys: Vec<String> = query(&mut connection, &["KEYS", "tg:{cfg}:*"]);
    assert!(keys.len() >= 6, "{keys:?}");
    for key in &keys {
        let ttl: i64 = query(&mut connection, &["PTTL", key]);
        assert!(ttl > 0, "{key} has no TTL");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn values_that_no_instance_writes_are_replaced() {
    let server = Server::start(ServerKind::Redis70);
    let (service, follower) = with_one_row(&server).await;
    let mut connection = connect(&server);
    for (key, value) in [("database", ""), ("log", "x"), ("head", ""), ("rows", "9")] {
        query::<()>(&mut connection, &["SET", &format!("tg:{{cfg}}:{key}"), value]);
    }
    service.write_terms("m_2", "30/min").await.unwrap();
    follower.equals(&service).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_store_is_filled_again_and_starts_new_instances() {
    let server = Server::start(ServerKind::Valkey);
    let service = Instance::start_with(DatabaseChoice::DataDir, &server).await;
    service.publish_example().await;
    service.write_terms("m_1", "20/min").await.unwrap();
    eventually("a head", async || has_head(&server).await).await;
    let mut connection = connect(&server);
    let _: () = query(&mut connection, &["FLUSHALL"]);
    eventually("everything again", async || {
        let keys: Vec<String> = query(&mut connection, &["KEYS", "tg:{cfg}:*"]);
        let has = |start: &str| keys.iter().any(|key| key.starts_with(start));
        has("tg:{cfg}:head") && has("tg:{cfg}:set:") && has("tg:{cfg}:rows:") && has("tg:{cfg}:log")
    })
    .await;
    // Nobody is left but the store.
    let expected = service.status();
    drop(service);
    let late = Instance::start_with(DatabaseChoice::None, &server).await;
    let status = late.status();
    assert_eq!(
        (status.chain, status.digest),
        (expected.chain, expected.digest),
        "within its start"
    );
    assert!(late.control.has_rule("default", "search") && status.override_rows == 1);
    // Then not even that: it starts from its disk.
    let other = Server::start(ServerKind::Redis70);
    let late = late.restart_with(DatabaseChoice::None, &other, |_| {}).await;
    assert_eq!(
        (late.status().chain, late.status().source),
        (expected.chain, RulesOrigin::Disk)
    );
    assert!(!late.control.is_waiting());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forged_head_changes_nothing_and_is_replaced() {
    let server = Server::start(ServerKind::Redis70);
    let (service, follower) = with_one_row(&server).await;
    let before = follower.status();
    let forger = Signer::new(Some(b"another secret"), cache(&server).prefix());
    let forged = CacheHead {
        head: DatabaseHead {
            database_id: before.database.id.clone().unwrap(),
            epoch: before.epoch + 1,
            revision: 1,
            live_version: 0,
            chain: Digest::default(),
        },
        set: Digest::default(),
        issued: now_ms(),
    };
    let value = forged.encode(&forger).into_bytes();
    let write = |value: &[u8]| {
        let value = value.to_vec();
        let cache = cache(&server);
        async move {
            let set = CacheWrite::Set {
                name: HEAD,
                value: &value,
                ttl: TTL,
            };
            cache.write(&[set]).await.unwrap();
        }
    };
    write(&value).await;
    eventually("the genuine head again", async || {
        let found = cache(&server).read(&[HEAD]).await.unwrap().pop().flatten();
        found.is_some_and(|found| found != value)
    })
    .await;
    follower.equals(&service).await;
    assert_eq!(
        (follower.status().epoch, follower.status().chain),
        (before.epoch, before.chain)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_databases_one_is_written() {
    let server = Server::start(ServerKind::Redis70);
    let first = Instance::start_with(DatabaseChoice::DataDir, &server).await;
    let second = Instance::start_with(DatabaseChoice::DataDir, &server).await;
    let results = tokio::join!(first.write_terms("m_1", "20/min"), second.write_terms("m_1", "30/min"));
    let codes: Vec<&str> = [&results.0, &results.1]
        .into_iter()
        .map(|result| result.as_ref().map_or_else(|error| error.code(), |_| "done"))
        .collect();
    let (winner, loser) = match codes.as_slice() {
        ["done", "other-database"] => (&first, &second),
        ["other-database", "done"] => (&second, &first),
        other => panic!("{other:?}"),
    };
    loser.equals(winner).await;
    let error = loser.write_terms("m_2", "20/min").await.unwrap_err();
    assert_eq!(error.code(), "other-database", "{error}");
    assert!(!loser.folder.join("data/control.db").exists(), "no second database");
    // Even when the claim has lapsed.
    let mut connection = connect(&server);
    let _: () = query(&mut connection, &["FLUSHALL"]);
    assert_eq!(
        loser.write_terms("m_2", "20/min").await.unwrap_err().code(),
        "other-database"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_follows_another_database_creates_none_for_its_own_work() {
    let server = Server::start(ServerKind::Redis70);
    let service = Instance::start_with(DatabaseChoice::DataDir, &server).await;
    let follower = Instance::start_with(DatabaseChoice::DataDir, &server).await;
    let row = RowWrite {
        expires_at: now_ms() + 1_000,
        ..row("plan", "m_1", Some("20/min"))
    };
    let options = WriteOptions::default();
    service.control.write_row(row, &options, author()).await.unwrap();
    follower.equals(&service).await;
    eventually("an expired row", async || service.status().override_rows == 0).await;
    eventually("its deletion", async || follower.status().override_rows == 0).await;
    follower.equals(&service).await;
    assert!(!follower.folder.join("data/control.db").exists(), "a second database");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_cannot_be_checked_creates_nothing() {
    let mut server = Server::start(ServerKind::Redis70);
    let instance = Instance::start_with(DatabaseChoice::DataDir, &server).await;
    server.kill();
    let error = instance.write_terms("m_1", "20/min").await.unwrap_err();
    assert_eq!(error.code(), "database-unavailable", "{error}");
    assert!(!instance.folder.join("data/control.db").exists());
    server.revive();
    eventually("a write", async || instance.write_terms("m_1", "20/min").await.is_ok()).await;
    // A database that exists is written without the store.
    server.kill();
    eventually("a write without the store", async || {
        instance.write_terms("m_2", "20/min").await.is_ok()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_database_is_behind_until_it_is_adopted() {
    let server = Server::start(ServerKind::Redis70);
    let service = Instance::start_with(DatabaseChoice::DataDir, &server).await;
    let follower = Instance::start_with(DatabaseChoice::None, &server).await;
    service.publish_example().await;
    follower.equals(&service).await;
    let copy = |data: &Path, from: &str, to: &str| {
        for suffix in ["", "-wal", "-shm"] {
            let (from, to) = (data.join(format!("{from}{suffix}")), data.join(format!("{to}{suffix}")));
            let _ = std::fs::remove_file(&to);
            let _ = std::fs::copy(from, to);
        }
    };
    let service = service
        .restart_with(DatabaseChoice::DataDir, &server, |data| {
            copy(data, "control.db", "backup.db");
        })
        .await;
    service.write_terms("m_1", "20/min").await.unwrap();
    service.write_terms("m_1", "30/min").await.unwrap();
    follower.equals(&service).await;
    let before = follower.status();
    let service = service
        .restart_with(DatabaseChoice::DataDir, &server, |data| {
            copy(data, "backup.db", "control.db");
            std::fs::remove_dir_all(data.join("rules")).unwrap();
        })
        .await;
    eventually("control_regressed", async || service.status().regressed.is_some()).await;
    assert_eq!(
        service.write_terms("m_2", "5/min").await.unwrap_err().code(),
        "database-regressed"
    );
    assert_eq!(
        (follower.status().revision, follower.status().chain),
        (before.revision, before.chain)
    );

    let head = service.control.adopt(author()).await.unwrap();
    assert!(head.epoch > before.epoch && head.revision > before.revision, "{head:?}");
    follower.equals(&service).await;
    assert_eq!(follower.status().epoch, head.epoch);
    assert!(follower.control.has_rule("default", "search") && follower.status().override_rows == 0);
    service.write_terms("m_2", "5/min").await.unwrap();
    follower.equals(&service).await;
    let claim = cache(&server).read(&[CLAIM]).await.unwrap().pop().flatten().unwrap();
    let signer = Signer::new(Some(SECRET.as_bytes()), cache(&server).prefix());
    assert_eq!(Claim::parse(&claim, &signer).unwrap().database_id, head.database_id);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_adoption_that_is_not_committed_leaves_the_claim_with_its_database() {
    let server = Server::start(ServerKind::Redis70);
    let service = Instance::start_with(DatabaseChoice::DataDir, &server).await;
    service.write_terms("m_1", "20/min").await.unwrap();
    eventually("a head", async || has_head(&server).await).await;
    let before = cache(&server).read(&[CLAIM]).await.unwrap().pop().flatten().unwrap();

    // No number is above that of this instance: the database refuses.
    let signer = Signer::new(Some(SECRET.as_bytes()), cache(&server).prefix());
    let status = InstanceStatus {
        epoch: u64::MAX,
        ..InstanceStatus::default()
    };
    let sealed = signer.seal("i:last", &serde_json::to_string(&status).unwrap());
    let writes = [
        CacheWrite::Set {
            name: "i:last",
            value: sealed.as_bytes(),
            ttl: TTL,
        },
        CacheWrite::Index {
            member: "last",
            seen_ms: now_ms(),
            ttl: TTL,
        },
    ];
    cache(&server).write(&writes).await.unwrap();
    assert_eq!(service.control.adopt(author()).await.unwrap_err().code(), "malformed");
    assert_eq!(
        cache(&server).read(&[CLAIM]).await.unwrap().pop().flatten(),
        Some(before)
    );
    cache(&server)
        .write(&[CacheWrite::Delete { name: "i:last" }])
        .await
        .unwrap();

    // Without an answer of the database, nothing follows the new claim for long.
    let mut locking = SqliteConnectOptions::new()
        .filename(service.folder.join("data/control.db"))
        .connect()
        .await
        .unwrap();
    sqlx::query("BEGIN EXCLUSIVE").execute(&mut locking).await.unwrap();
    assert_eq!(
        service.control.adopt(author()).await.unwrap_err().code(),
        "database-unavailable"
    );
    let ttl: i64 = query(&mut connect(&server), &["PTTL", "tg:{cfg}:database"]);
    assert!((1..=60_000).contains(&ttl), "{ttl}");
    sqlx::query("ROLLBACK").execute(&mut locking).await.unwrap();
    let head = service.control.adopt(author()).await.unwrap();
    let claim = cache(&server).read(&[CLAIM]).await.unwrap().pop().flatten().unwrap();
    assert_eq!(Claim::parse(&claim, &signer).unwrap().database_id, head.database_id);
    let ttl: i64 = query(&mut connect(&server), &["PTTL", "tg:{cfg}:database"]);
    assert!(ttl > 60_000, "{ttl}");
    service.write_terms("m_1", "30/min").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_stops_before_a_change_of_a_kind_that_it_does_not_know() {
    let server = Server::start(ServerKind::Redis70);
    let (service, follower) = with_one_row(&server).await;
    let held = Arc::downgrade(&service.control.parts);
    drop(service);
    eventually("the end of its tasks", async || held.strong_count() == 0).await;

    // A newer control service goes on.
    let live = follower.control.live();
    let mut head = live.head.clone().unwrap();
    let row = |merchant: &str| {
        change_text(&ChangeBody::Row {
            domain: "default".to_owned(),
            rule: "plan".to_owned(),
            subject: [("merchant".to_owned(), merchant.to_owned())].into(),
            terms: Some("9/min".to_owned()),
            note: String::new(),
            expires_at: 0,
        })
    };
    let known = head.revision + 1;
    for body in [row("m_2"), "{\"kind\":\"rollout\"}".to_owned(), row("m_3")] {
        head.revision += 1;
        head.chain = next_chain_of_text(&head.chain, head.revision, &body);
        let entry = LogText {
            revision: head.revision,
            at: now_ms(),
            chain: head.chain,
            body,
        }
        .encode();
        let append = CacheWrite::Append {
            id: LogId {
                epoch: head.epoch,
                revision: head.revision,
            },
            value: entry.as_bytes(),
            length_max: 1_000,
            ttl: TTL,
        };
        cache(&server).write(&[append]).await.unwrap();
    }
    let signer = Signer::new(Some(SECRET.as_bytes()), cache(&server).prefix());
    let newest = CacheHead {
        head,
        set: live.head_set,
        issued: now_ms(),
    }
    .encode(&signer);
    let head = CacheWrite::Set {
        name: HEAD,
        value: newest.as_bytes(),
        ttl: TTL,
    };
    cache(&server).write(&[head]).await.unwrap();
    eventually("the reason", async || {
        let error = follower.status().error;
        error.is_some_and(|error| error.contains(&format!("revision {} needs a newer version", known + 1)))
    })
    .await;
    let status = follower.status();
    assert_eq!((status.revision, status.override_rows), (known, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_log_is_replaced_by_a_snapshot() {
    let server = Server::start(ServerKind::Redis70);
    let service = Instance::start_with(DatabaseChoice::DataDir, &server).await;
    service.write_terms("m_1", "20/min").await.unwrap();
    service.write_terms("m_2", "20/min").await.unwrap();
    eventually("a head", async || has_head(&server).await).await;
    let mut connection = connect(&server);
    let _: i64 = query(&mut connection, &["DEL", "tg:{cfg}:log"]);
    let _: String = query(&mut connection, &["XADD", "tg:{cfg}:log", "9999999999999-1", "c", "x"]);
    let _: i64 = query(&mut connection, &["DEL", "tg:{cfg}:rows"]);
    service.write_terms("m_3", "20/min").await.unwrap();
    let late = Instance::start_with(DatabaseChoice::None, &server).await;
    late.equals(&service).await;
    assert_eq!(late.status().override_rows, 3);
}

/// Snapshots of one state by two control services: one knows the authors of rows, the other has applied them without.
#[tokio::test]
async fn parts_of_another_control_service_replace_none_of_a_manifest() {
    let server = Server::start(ServerKind::Redis70);
    let signer = Signer::new(Some(SECRET.as_bytes()), cache(&server).prefix());
    let reader = CacheReader::with_signer(cache(&server), signer);
    let snapshot = |actor: &str| RowSnapshot {
        head: DatabaseHead {
            database_id: "0".repeat(32),
            epoch: 1,
            revision: 7,
            live_version: 0,
            chain: Digest([4; 32]),
        },
        set: Digest::default(),
        set_revision: 0,
        rows: vec![Arc::new(OverrideRow {
            domain: "default".to_owned(),
            rule: "plan".to_owned(),
            subject: [("merchant".to_owned(), "m_1".to_owned())].into(),
            terms: "5/s".to_owned(),
            note: String::new(),
            expires_at: 0,
            revision: 7,
            actor: actor.to_owned(),
        })],
        attributes: Vec::new(),
    };
    let list = SnapshotList {
        epoch: 1,
        revisions: vec![7],
    };
    let list = list.encode(&reader.signer);
    let set = CacheWrite::Set {
        name: SNAPSHOTS,
        value: list.as_bytes(),
        ttl: TTL,
    };
    reader.cache.write(&[set]).await.unwrap();
    let (manifest, parts) = snapshot("anna").encode();
    reader.write_parts(&manifest, &parts, TTL).await.unwrap();
    // The other one is stopped between its parts and its manifest.
    let (other, parts) = snapshot("").encode();
    assert_ne!(manifest.digest, other.digest);
    for (index, value) in parts.iter().enumerate() {
        let name = &other.part_name(index);
        reader
            .cache
            .write(&[CacheWrite::Set { name, value, ttl: TTL }])
            .await
            .unwrap();
    }
    let fetched = reader.fetch(&snapshot("").head, None).await.unwrap();
    assert_eq!(fetched.snapshot, Some(snapshot("anna")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_snapshot_or_set_is_written_anew_by_the_next_control_service() {
    let server = Server::start(ServerKind::Redis70);
    let service = Instance::start_with(DatabaseChoice::DataDir, &server).await;
    service.publish_example().await;
    service.write_terms("m_1", "20/min").await.unwrap();
    let signer = Signer::new(Some(SECRET.as_bytes()), cache(&server).prefix());
    let reader = CacheReader::with_signer(cache(&server), signer);
    let head = service.control.live().head.clone().unwrap();
    let mut manifests: Vec<Manifest> = Vec::new();
    eventually("a snapshot and a set", async || {
        let snapshot = reader.snapshots(&head).await.unwrap().first().copied();
        let name = set_name(&service.control.live().head_set);
        let value = reader.cache.read(&[&name]).await.unwrap().pop().flatten();
        let set = value.and_then(|value| Manifest::parse(&name, &value, &reader.signer).ok());
        let rows = match snapshot {
            Some(revision) => reader.manifest(revision).await.unwrap(),
            None => None,
        };
        manifests = set.into_iter().chain(rows).collect();
        manifests.len() == 2
    })
    .await;
    let service = service
        .restart_with(DatabaseChoice::DataDir, &server, |_| {
            let mut connection = connect(&server);
            for manifest in &manifests {
                let key = format!("tg:{{cfg}}:{}", manifest.part_name(0));
                let _: String = query(&mut connection, &["SET", &key, "damaged", "PX", "60000"]);
            }
        })
        .await;
    let late = Instance::start_with(DatabaseChoice::None, &server).await;
    late.equals(&service).await;
    assert!(late.control.has_rule("default", "search") && late.status().override_rows == 1);
}
