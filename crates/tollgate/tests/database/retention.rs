//! Bounds, retention, migrations and the columns of the tables.

use crate::fixture::{
    START_MS, adopt_request, assert_whole, attribute, author, commit, file, on_both, publish, row, save, version,
    version_numbers, write,
};
use std::sync::atomic::Ordering;
use tollgate::control::chain::digest_of;
use tollgate::control::database::{DatabaseError, IdempotencyKey, Retention, SeenNumbers, StoredResponse};
use tollgate::control::model::Session;

const DAY_MS: u64 = 86_400_000;
const KEEP: Retention = Retention {
    audit_ms: 400 * DAY_MS,
    versions: 1_000,
};

#[test]
fn more_rows_or_attributes_than_are_kept_are_refused() {
    on_both(async |storage, database| {
        write(&database, vec![row("m_1", "10/s"), attribute("m_1", "gold")]).await;
        storage.execute("UPDATE table_size SET items = 999999").await;
        let two = commit(vec![row("m_2", "10/s"), row("m_3", "10/s")]);
        let refused = database.commit(two).await;
        assert!(
            matches!(&refused, Err(DatabaseError::TooLarge(text)) if text.contains("1000001 override rows")),
            "{refused:?}"
        );
        // One that merges with it is done.
        let two = commit(vec![row("m_2", "10/s"), row("m_3", "10/s")]);
        let (refused, done) = tokio::join!(database.commit(two), database.commit(commit(vec![row("m_1", "20/s")])));
        assert!(
            matches!(refused, Err(DatabaseError::TooLarge(_))) && done.is_ok(),
            "{refused:?} {done:?}"
        );
        write(&database, vec![row("m_2", "10/s"), attribute("m_2", "gold")]).await;
        assert!(matches!(
            database.commit(commit(vec![row("m_3", "10/s")])).await,
            Err(DatabaseError::TooLarge(_))
        ));
        let refused = database.commit(commit(vec![attribute("m_3", "gold")])).await;
        assert!(
            matches!(&refused, Err(DatabaseError::TooLarge(text)) if text.contains("attributes")),
            "{refused:?}"
        );
        // Those that exist can be changed, and one that goes makes room.
        write(&database, vec![row("m_2", "30/s")]).await;
        write(&database, vec![row("m_2", None), row("m_3", "10/s")]).await;
        write(&database, vec![row("m_3", None)]).await;
        let mut raw = storage.raw().await;
        assert_eq!(
            raw.number("SELECT items FROM table_size WHERE name = 'override_row'")
                .await,
            999_999
        );
    });
}

#[test]
fn more_text_than_is_kept_is_refused() {
    on_both(async |_, database| {
        let half = "#".repeat(8 << 20);
        let files = vec![file("a", &half), file("b", &half)];
        save(&database, version(0, "api", files.clone())).await;
        let more = vec![file("a", &half), file("b", &half), file("c", "#")];
        let refused = database.save_version(version(0, "api", more), &author("eve")).await;
        assert!(matches!(refused, Err(DatabaseError::TooLarge(_))), "{refused:?}");
        assert_eq!(database.version_files(1).await.unwrap(), files);
    });
}

#[test]
fn changes_are_kept_for_seven_days_and_at_least_a_hundred_thousand() {
    on_both(async |storage, database| {
        for number in 0..10 {
            write(&database, vec![row(&format!("m_{number}"), "10/s")]).await;
        }
        let count = async || database.changes_since(0, 100).await.map(|changes| changes.len());
        storage.clock.fetch_add(8 * DAY_MS, Ordering::Relaxed);
        assert_eq!(database.prune(KEEP).await, Ok(false));
        assert_eq!(count().await, Ok(10), "there are no hundred thousand");
        let seen = SeenNumbers {
            revision: 100_005,
            ..SeenNumbers::default()
        };
        let head = database.adopt(adopt_request(seen)).await.unwrap().head;
        assert_eq!(head.revision, 100_006);
        database.prune(KEEP).await.unwrap();
        assert_eq!(
            count().await,
            Err(DatabaseError::Pruned { first: 7 }),
            "six are above the number"
        );
        let after = storage.open().changes_since(head.revision, 10).await.unwrap();
        assert_eq!(after, [], "the newest stays");
    });
}

#[test]
fn changes_of_less_than_seven_days_are_kept_whatever_their_number() {
    on_both(async |storage, database| {
        write(&database, vec![row("m_1", "10/s")]).await;
        storage.clock.fetch_add(7 * DAY_MS, Ordering::Relaxed);
        storage.execute("UPDATE head SET revision = 500000").await;
        database.prune(KEEP).await.unwrap();
        assert_eq!(database.changes_since(0, 1).await.unwrap().len(), 1);
        storage.clock.fetch_add(1, Ordering::Relaxed);
        database.prune(KEEP).await.unwrap();
        assert_eq!(database.changes_since(0, 1).await.unwrap().len(), 0);
    });
}

#[test]
fn sessions_responses_and_reports_go_when_their_time_is_over() {
    on_both(async |storage, database| {
        for (number, until) in [(1, START_MS + 10), (2, START_MS + 2 * DAY_MS)] {
            let session = Session {
                id_hash: digest_of(&[number]),
                principal: "id-ada".to_owned(),
                created_at: START_MS,
                seen_at: START_MS,
                expires_at: until,
                address: String::new(),
            };
            database.add_session(session, &author("ada")).await.unwrap();
        }
        let key = |number: u8| IdempotencyKey {
            principal: "ada".to_owned(),
            key_hash: digest_of(&[number]),
            request_digest: digest_of(b"request"),
        };
        let response = StoredResponse {
            status: 200,
            body: String::new(),
        };
        database.remember_response(&key(1), &response).await.unwrap();
        database.report_instance("old", "{}").await.unwrap();
        storage.clock.fetch_add(DAY_MS + 1, Ordering::Relaxed);
        database.remember_response(&key(2), &response).await.unwrap();
        // The reports of a server have its own clock, which no test moves.
        storage
            .execute(&format!("UPDATE instance SET seen_at = seen_at - {}", DAY_MS + 1))
            .await;
        database.report_instance("new", "{}").await.unwrap();
        assert_eq!(database.prune(KEEP).await, Ok(false));
        let mut raw = storage.raw().await;
        for table in ["session", "idempotency", "instance"] {
            assert_eq!(raw.number(&format!("SELECT count(*) FROM {table}")).await, 1, "{table}");
        }
        assert_eq!(database.sessions().await.unwrap()[0].id_hash, digest_of(&[2]));
        assert_eq!(database.idempotent(&key(2)).await, Ok(Some(response)));
        assert_eq!(database.instances(DAY_MS).await.unwrap()[0].id, "new");
    });
}

#[test]
fn one_call_removes_a_bounded_number() {
    on_both(async |storage, database| {
        write(&database, vec![row("m_1", "10/s")]).await;
        let numbers = "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 7000)";
        for sql in [
            "INSERT INTO instance (id, status, figures, vote, seen_at) {} SELECT 'i' || n, '', '', '', 0 FROM numbers",
            "INSERT INTO idempotency (principal, key_hash, request_digest, status, body, at)
             {} SELECT 'ada', 'k' || n, '', 200, '', 0 FROM numbers",
        ] {
            storage.execute(&sql.replace("{}", numbers)).await;
        }
        let mut raw = storage.raw().await;
        assert_eq!(database.prune(KEEP).await, Ok(true));
        for table in ["instance", "idempotency"] {
            assert_eq!(
                raw.number(&format!("SELECT count(*) FROM {table}")).await,
                2_000,
                "{table}"
            );
        }
        assert_eq!(database.prune(KEEP).await, Ok(false));
        assert_eq!(raw.number("SELECT count(*) FROM instance").await, 0);
    });
}

#[test]
fn versions_are_kept_by_their_number_and_texts_by_their_use() {
    on_both(async |storage, database| {
        for number in 0..5 {
            let files = vec![file("a", &format!("{number}")), file("b", "shared")];
            save(&database, version(0, "api", files)).await;
        }
        let live = database.version(2).await.unwrap().unwrap();
        database.commit(publish(&live)).await.unwrap();
        // The numbers jump, and those that are kept are still three.
        let seen = SeenNumbers {
            version: 5_000,
            ..SeenNumbers::default()
        };
        database.adopt(adopt_request(seen)).await.unwrap();
        let keep = Retention { versions: 3, ..KEEP };
        database.prune(keep).await.unwrap();
        let kept = version_numbers(&database).await;
        assert_eq!(kept, [5_001, 5, 4, 2], "and the parent of the live one");
        let mut raw = storage.raw().await;
        assert_eq!(
            raw.number("SELECT count(*) FROM blob").await,
            4,
            "of those that are left, and the shared one"
        );
        database.prune(Retention { versions: 0, ..KEEP }).await.unwrap();
        assert_eq!(
            database.versions(None, 10).await.unwrap()[0].number,
            5_001,
            "numbers are never used twice"
        );
        assert!(database.snapshot().await.is_ok());
    });
}

#[test]
fn a_database_of_the_migration_before_is_migrated() {
    on_both(async |storage, database| {
        write(&database, vec![row("m_1", "10/s"), row("m_2", "10/s")]).await;
        drop(database);
        for sql in [
            "DROP TABLE silence",
            "DROP TABLE table_size",
            "DROP INDEX idempotency_at",
            "DELETE FROM migration WHERE number >= 2",
        ] {
            storage.execute(sql).await;
        }
        let newer = storage.open();
        assert_eq!(
            newer.head().await.unwrap().unwrap().revision,
            1,
            "reading migrates nothing"
        );
        write(&newer, vec![row("m_3", "10/s")]).await;
        assert_whole(&newer, storage).await;
        let mut raw = storage.raw().await;
        assert_eq!(raw.number("SELECT max(number) FROM migration").await, 3);
    });
}

#[test]
fn the_tables_have_the_columns_of_the_data_model() {
    const TABLES: &[(&str, &str)] = &[
        ("head", "one, database_id, epoch, revision, live_version, chain"),
        ("blob", "digest, text"),
        (
            "version",
            "number, parent, digest, format, state, actor, source, reason, created_at, revision",
        ),
        ("version_file", "version, path, grammar, blob"),
        ("rule_change", "domain, rule, revision, kind, path, line"),
        (
            "override_row",
            "domain, rule, subject, terms, note, expires_at, revision, actor",
        ),
        ("subject_attribute", "source, subject, name, value, revision, actor"),
        ("change", "revision, kind, key, body, chain, at"),
        (
            "audit",
            "seq, at, actor, via, address, request, action, target, reason, before, after, revision, prev, hash",
        ),
        ("audit_base", "one, seq, hash"),
        (
            "principal",
            "id, kind, name, role, domains, secret, created_at, created_by, expires_at, seen_at, disabled_at",
        ),
        (
            "session",
            "id_hash, principal, created_at, seen_at, expires_at, address",
        ),
        ("idempotency", "principal, key_hash, request_digest, status, body, at"),
        ("lease", "name, holder, until"),
        ("instance", "id, status, figures, vote, seen_at"),
        ("table_size", "name, items"),
        ("silence", "id, body, until"),
        ("migration", "number, at"),
    ];
    on_both(async |storage, database| {
        write(&database, vec![row("m_1", "10/s")]).await;
        let mut raw = storage.raw().await;
        for (table, columns) in TABLES {
            let (names, nullable) = if storage.file().is_some() {
                (
                    format!("SELECT group_concat(name, ', ') FROM pragma_table_info('{table}')"),
                    format!("SELECT count(*) FROM pragma_table_info('{table}') WHERE \"notnull\" = 0"),
                )
            } else {
                let of = format!("FROM information_schema.columns WHERE table_name = '{table}'");
                (
                    format!("SELECT string_agg(column_name, ', ' ORDER BY ordinal_position) {of}"),
                    format!("SELECT count(*) {of} AND is_nullable = 'YES'"),
                )
            };
            assert_eq!(raw.text(&names).await, *columns, "{table}");
            assert_eq!(raw.number(&nullable).await, 0, "{table} has a column that can be null");
        }
    });
}
