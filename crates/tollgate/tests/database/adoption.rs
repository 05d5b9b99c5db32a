//! The adoption of a database that is behind what instances have applied.

use crate::fixture::{
    START_MS, Storage, adopt_request, commit, file, key, on_both, publish, row, save, version, with_row, write,
};
use std::sync::atomic::Ordering;
use tollgate::control::database::{
    AuditFilter, Database, DatabaseError, DatabaseResult, ItemCondition, ItemKey, SeenNumbers,
};
use tollgate::control::model::{ChangeBody, Precondition, VersionState};

const SEEN: SeenNumbers = SeenNumbers {
    epoch: 7,
    revision: 500,
    version: 40,
};

#[test]
fn an_adopted_database_is_above_all_that_was_seen() {
    on_both(async |storage, database| {
        let saved = save(&database, version(0, "api", vec![file("a", "1")])).await;
        database.commit(publish(&saved)).await.unwrap();
        write(&database, vec![row("m_1", "10/s")]).await;
        let before = database.head().await.unwrap().unwrap();

        let request = adopt_request(SEEN);
        let id = request.database_id.clone();
        let adopted = database.adopt(request).await.unwrap();
        let head = database.head().await.unwrap().unwrap();
        assert_eq!(adopted.head, head);
        assert_eq!((head.database_id.as_str(), head.revision), (id.as_str(), 501));
        assert_eq!(
            head.epoch,
            START_MS / 1_000,
            "Unix seconds are above the epochs that were seen"
        );
        assert_eq!(head.live_version, 41);
        assert_ne!(head.chain, before.chain);

        // Its content is what it was.
        let snapshot = storage.open().snapshot().await.unwrap().unwrap();
        assert_eq!((snapshot.head, snapshot.set_revision), (head.clone(), 501));
        assert_eq!(snapshot.files, [file("a", "1")]);
        let live = snapshot.version.unwrap();
        assert_eq!((live.digest, live.state), (saved.digest, VersionState::Published));
        assert_eq!(database.row(&key("m_1")).await.unwrap().unwrap().terms, "10/s");

        // Revisions and versions go on from there, and the log has no gap inside the epoch.
        let next = write(&database, vec![row("m_1", "20/s")]).await;
        assert_eq!(next.revision, 502);
        let saved = save(&database, version(41, "api", vec![file("a", "2")])).await;
        assert_eq!(saved.number, 42);
        assert_eq!(database.changes_since(501, 10).await.unwrap(), next.changes);
        let first = database.changes_since(0, 10).await.unwrap();
        assert_eq!(first.last().unwrap().revision, 2, "those before the adoption");
        assert_eq!(
            database.changes_since(2, 10).await,
            Err(DatabaseError::Pruned { first: 501 })
        );

        let entry = database
            .audit(&AuditFilter::default(), None, 3)
            .await
            .unwrap()
            .remove(2);
        assert_eq!(
            (entry.action.as_str(), entry.actor.as_str(), entry.revision),
            ("adopt", "ada", 501)
        );
        assert!(
            entry.before.contains(&before.database_id) && entry.after.contains(&id),
            "{entry:?}"
        );
        assert!(database.verify_audit(None).await.unwrap().is_intact());
    });
}

#[test]
fn no_tag_from_before_an_adoption_matches() {
    on_both(async |_, database| {
        write(&database, vec![row("m_1", "10/s")]).await;
        database.adopt(adopt_request(SeenNumbers::default())).await.unwrap();
        let mut stale = commit(vec![row("m_1", "20/s")]);
        stale.conditions = vec![ItemCondition {
            item: ItemKey::Row(key("m_1")),
            precondition: Precondition::Unchanged { epoch: 1, revision: 1 },
        }];
        assert!(matches!(database.commit(stale).await, Err(DatabaseError::Stale(_))));
    });
}

#[test]
fn two_clones_of_one_backup_never_meet() {
    on_both(async |storage, database| {
        write(&database, vec![row("m_1", "10/s")]).await;
        // Within one second, as one control service after the other would.
        let first = database.adopt(adopt_request(SEEN)).await.unwrap().head;
        let second = database.adopt(adopt_request(SEEN)).await.unwrap().head;
        assert_ne!(first.database_id, second.database_id);
        assert_eq!((second.epoch, second.revision), (first.epoch + 1, first.revision + 1));
        // A clock that went back does not lower the epoch.
        storage.clock.store(1_000, Ordering::Relaxed);
        let third = database.adopt(adopt_request(SEEN)).await.unwrap().head;
        assert_eq!(third.epoch, second.epoch + 1);
    });
}

#[test]
fn one_of_two_adoptions_of_one_state_is_done() {
    on_both(async |storage, database| {
        write(&database, vec![row("m_1", "10/s")]).await;
        let id = database.head().await.unwrap().unwrap().database_id;
        let other = storage.open();
        let of = |database: &Database| {
            let mut request = adopt_request(SEEN);
            request.replaces = Some(id.clone());
            let database = database.clone();
            async move { database.adopt(request).await }
        };
        let results: [DatabaseResult<_>; 2] = tokio::join!(of(&database), of(&other)).into();
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1, "{results:?}");
        let refused = results.into_iter().find_map(Result::err).unwrap();
        assert!(matches!(refused, DatabaseError::Stale(_)), "{refused:?}");
    });
}

#[test]
fn an_empty_database_can_be_adopted() {
    on_both(async |_, database| {
        let adopted = database.adopt(adopt_request(SEEN)).await.unwrap();
        assert_eq!((adopted.head.live_version, adopted.revision), (0, 501));
        assert!(matches!(adopted.changes[0].body, ChangeBody::Anchor { .. }));
        let saved = save(&database, version(0, "api", vec![file("a", "1")])).await;
        assert_eq!(saved.number, 42, "above all versions that were seen");
        let committed = database.commit(publish(&saved)).await.unwrap();
        assert_eq!(committed.head.live_version, 42);
        assert_eq!(database.version_files(41).await.unwrap(), []);
        assert!(database.snapshot().await.unwrap().is_some());
    });
}

#[test]
fn numbers_that_no_database_has_are_rejected() {
    on_both(async |storage, database| {
        for seen in [
            SeenNumbers {
                epoch: u64::MAX,
                ..SEEN
            },
            SeenNumbers {
                revision: (1 << 60) + 1,
                ..SEEN
            },
            SeenNumbers {
                version: 1 << 63,
                ..SEEN
            },
        ] {
            let refused = database.adopt(adopt_request(seen)).await;
            assert!(matches!(refused, Err(DatabaseError::Invalid(_))), "{refused:?}");
        }
        let mut unnamed = adopt_request(SEEN);
        unnamed.database_id = "x".to_owned();
        assert!(matches!(database.adopt(unnamed).await, Err(DatabaseError::Invalid(_))));
        assert!(storage.file().is_none_or(|file| !file.exists()), "nothing is written");
    });
}

#[test]
fn a_new_database_has_the_proposed_id_and_an_old_one_its_own() {
    on_both(async |storage, database| {
        let id = Database::new_id().unwrap();
        database.propose_id(id.clone());
        write(&database, vec![row("m_1", "10/s")]).await;
        assert_eq!(database.head().await.unwrap().unwrap().database_id, id);
        let other = storage.open();
        other.propose_id(Database::new_id().unwrap());
        write(&other, vec![row("m_1", "20/s")]).await;
        assert_eq!(other.head().await.unwrap().unwrap().database_id, id);
    });
}

#[test]
fn a_file_that_was_removed_takes_no_writes_until_it_is_adopted() {
    let storage = Storage::sqlite();
    with_row(&storage, async |database| {
        let file = storage.file().unwrap();
        for suffix in ["", "-wal", "-shm"] {
            let path = file.with_file_name(format!("control.db{suffix}"));
            std::fs::remove_file(path).unwrap();
        }
        assert_eq!(database.head().await, Ok(None));
        let refused = database.commit(commit(vec![row("m_1", "20/s")])).await;
        assert!(matches!(refused, Err(DatabaseError::Unavailable(_))), "{refused:?}");
        assert!(!file.exists(), "no new history begins");
        let adopted = database.adopt(adopt_request(SEEN)).await.unwrap();
        assert_eq!(database.head().await.unwrap().unwrap(), adopted.head);
        let committed = write(&database, vec![row("m_1", "20/s")]).await;
        assert_eq!(committed.revision, 502);
        assert_eq!(
            storage.open().head().await.unwrap().unwrap(),
            committed.head,
            "in the new file"
        );
    });
}
