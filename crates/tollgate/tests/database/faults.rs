//! Databases that are locked, frozen, killed, damaged, or newer than this program.

use crate::fixture::{Storage, commit, eventually, key, on_both, row, run, with_row, write};
use std::time::{Duration, Instant};
use tollgate::control::database::{Database, DatabaseError, RowFilter};
use tollgate::control::model::ChangeBody;
use tollgate_test_kit::postgres::Postgres;

/// Far longer than a call may take, for a busy machine, and shorter than an import may. How long a call takes is measured by row 35 of the
/// chaos suite.
const DEADLINE: Duration = Duration::from_secs(20);

/// A server that is stopped, and a database on it.
fn own_postgres() -> (Postgres, Storage) {
    let server = Postgres::start();
    let storage = Storage::postgres_at(server.create_database());
    (server, storage)
}

#[test]
fn a_file_locked_by_another_program_is_unavailable_for_writes_only() {
    let storage = Storage::sqlite();
    with_row(&storage, async |database| {
        let mut raw = storage.raw().await;
        raw.execute("BEGIN EXCLUSIVE").await;
        let import = (0..2_000).map(|number| row(&format!("m_{number}"), "20/s")).collect();
        for changes in [vec![row("m_1", "20/s")], import] {
            let started = Instant::now();
            let refused = database.commit(commit(changes)).await;
            assert!(matches!(refused, Err(DatabaseError::Unavailable(_))), "{refused:?}");
            assert!(started.elapsed() < DEADLINE, "{:?}", started.elapsed());
        }
        assert_eq!(database.row(&key("m_1")).await.unwrap().unwrap().terms, "10/s");
        raw.execute("ROLLBACK").await;
        assert_eq!(write(&database, vec![row("m_1", "30/s")]).await.revision, 2);
    });
}

#[test]
fn a_frozen_server_is_unavailable_until_it_answers_again() {
    let (server, storage) = own_postgres();
    with_row(&storage, async |database| {
        server.freeze();
        let started = Instant::now();
        let (written, read) = tokio::join!(database.commit(commit(vec![row("m_1", "20/s")])), database.head());
        assert!(matches!(written, Err(DatabaseError::Unavailable(_))), "{written:?}");
        assert!(matches!(read, Err(DatabaseError::Unavailable(_))), "{read:?}");
        assert!(started.elapsed() < DEADLINE, "{:?}", started.elapsed());
        server.thaw();
        let committed = eventually(|| database.commit(commit(vec![row("m_1", "30/s")]))).await;
        let changes = database.changes_since(0, 10).await.unwrap();
        assert_eq!(changes.last().unwrap().revision, committed.revision);
    });
}

#[test]
fn a_killed_server_has_every_acknowledged_change() {
    let mut server = Postgres::start();
    let url = server.create_database();
    run(async {
        let database = Database::postgres(&url).unwrap();
        let writer = tokio::spawn({
            let database = database.clone();
            async move {
                let mut acknowledged = Vec::new();
                for number in 0.. {
                    match database.commit(commit(vec![row(&format!("m_{number}"), "10/s")])).await {
                        Ok(committed) => acknowledged.push((number, committed.revision)),
                        Err(_) => break,
                    }
                }
                acknowledged
            }
        });
        // Some commits later.
        eventually(|| async { database.changes_since(20, 1).await?.pop().ok_or_else(nothing_yet) }).await;
        server.kill();
        let acknowledged = writer.await.unwrap();
        assert!(acknowledged.len() >= 20);
        server.revive();
        eventually(|| database.head()).await;
        for (number, revision) in acknowledged {
            let row = database.row(&key(&format!("m_{number}"))).await.unwrap().unwrap();
            assert_eq!(row.revision, revision);
        }
        let head = database.head().await.unwrap().unwrap();
        let changes = database.changes_since(0, 100_000).await.unwrap();
        assert_eq!(changes.last().unwrap().chain, head.chain);
        assert!(database.verify_audit(None).await.unwrap().is_intact());
        eventually(|| database.commit(commit(vec![row("after", "10/s")]))).await;
    });
}

#[test]
fn a_locked_table_is_unavailability() {
    let storage = Storage::postgres();
    with_row(&storage, async |database| {
        let mut raw = storage.raw().await;
        raw.execute("BEGIN").await;
        raw.execute("LOCK TABLE override_row, head IN ACCESS EXCLUSIVE MODE")
            .await;
        let started = Instant::now();
        let refused = database.commit(commit(vec![row("m_1", "20/s")])).await;
        assert!(matches!(refused, Err(DatabaseError::Unavailable(_))), "{refused:?}");
        assert!(started.elapsed() < DEADLINE, "{:?}", started.elapsed());
        raw.execute("ROLLBACK").await;
        eventually(|| database.commit(commit(vec![row("m_1", "30/s")]))).await;
    });
}

#[test]
fn a_server_that_vanished_does_not_keep_the_connections() {
    let (mut server, storage) = own_postgres();
    with_row(&storage, async |database| {
        server.freeze();
        // More than there are connections.
        let calls = (0..12).map(|_| {
            let database = database.clone();
            tokio::spawn(async move { database.head().await })
        });
        for call in calls.collect::<Vec<_>>() {
            let answer = call.await.unwrap();
            assert!(matches!(answer, Err(DatabaseError::Unavailable(_))), "{answer:?}");
        }
        server.thaw();
        server.revive();
        eventually(|| database.commit(commit(vec![row("m_1", "30/s")]))).await;
    });
}

#[test]
fn those_who_listen_are_woken_after_the_server_was_away() {
    let (mut server, storage) = own_postgres();
    with_row(&storage, async |_| {
        let listening = storage.open();
        let mut hints = listening.listen();
        // Connected.
        hints.changed().await.unwrap();
        hints.mark_unchanged();
        server.kill();
        server.revive();
        // What was sent meanwhile is lost: the hint says that something may have been.
        let hint = tokio::time::timeout(Duration::from_secs(30), hints.changed());
        hint.await.expect("a hint after the connection is back").unwrap();
    });
}

#[test]
fn an_unreachable_server_is_unavailability() {
    run(async {
        let port = tollgate_limiter::testing::servers::free_port().unwrap();
        let database = Database::postgres(&format!("postgres://u:canary@127.0.0.1:{port}/x")).unwrap();
        let started = Instant::now();
        let error = database.head().await.unwrap_err();
        assert!(matches!(error, DatabaseError::Unavailable(_)));
        assert!(!format!("{error} {error:?} {database:?}").contains("canary"));
        assert!(started.elapsed() < DEADLINE);
        let error = Database::postgres("postgres://u:canary@[::x]/").unwrap_err();
        assert!(matches!(error, DatabaseError::Invalid(_)));
        assert!(!format!("{error} {error:?}").contains("canary"));
    });
}

#[test]
fn a_newer_database_is_read_only() {
    on_both(async |storage, database| {
        write(&database, vec![row("m_1", "10/s")]).await;
        storage
            .execute("INSERT INTO migration (number, at) VALUES (99, 0)")
            .await;
        let other = storage.open();
        assert_eq!(other.rows(&RowFilter::default(), None, 10).await.unwrap().len(), 1);
        // One that has written before it was migrated must not go on.
        for database in [&other, &database] {
            let refused = database.commit(commit(vec![row("m_1", "20/s")])).await;
            assert!(matches!(refused, Err(DatabaseError::Newer(_))), "{refused:?}");
        }
        assert_eq!(database.row(&key("m_1")).await.unwrap().unwrap().terms, "10/s");
    });
}

#[test]
fn a_change_of_an_unknown_kind_stops_there() {
    on_both(async |storage, database| {
        write(&database, vec![row("m_1", "10/s")]).await;
        let body = r#"{"kind":"rollout","version":7}"#;
        let chain = unknown_chain(&database, body).await;
        storage
            .execute(&format!(
                "INSERT INTO change (revision, kind, key, body, chain, at) VALUES (2, 'rollout', '', '{body}', '{chain}', 0)"
            ))
            .await;
        assert_eq!(database.changes_since(0, 10).await.unwrap().len(), 1, "those before it");
        let error = database.changes_since(1, 10).await.unwrap_err();
        assert!(
            matches!(&error, DatabaseError::Newer(detail) if detail.contains("rollout")),
            "{error}"
        );
    });
}

#[test]
fn a_changed_log_is_found() {
    on_both(async |storage, database| {
        for terms in ["10/s", "20/s", "30/s"] {
            write(&database, vec![row("m_1", terms)]).await;
        }
        storage
            .execute("UPDATE change SET body = replace(body, '20/s', '99/s') WHERE revision = 2")
            .await;
        assert!(matches!(
            database.changes_since(0, 10).await,
            Err(DatabaseError::Corrupt(_))
        ));
        assert!(matches!(
            database.changes_since(1, 10).await,
            Err(DatabaseError::Corrupt(_))
        ));
        assert_eq!(database.changes_since(2, 10).await.unwrap().len(), 1);
        storage.execute("DELETE FROM change WHERE revision = 2").await;
        assert!(matches!(
            database.changes_since(0, 10).await,
            Err(DatabaseError::Corrupt(_))
        ));
    });
}

#[test]
fn a_file_that_is_no_database_is_damaged_and_kept() {
    let storage = Storage::sqlite();
    run(async {
        let file = storage.file().unwrap();
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(
            &file,
            "not a database, but a text that is long enough to be read as one ".repeat(100),
        )
        .unwrap();
        let database = storage.open();
        assert!(matches!(database.head().await, Err(DatabaseError::Corrupt(_))));
        let refused = database.commit(commit(vec![row("m_1", "10/s")])).await;
        assert!(matches!(refused, Err(DatabaseError::Corrupt(_))), "{refused:?}");
        assert!(std::fs::read_to_string(&file).unwrap().starts_with("not a database"));
    });
}

#[test]
fn one_bad_request_does_not_fail_those_merged_with_it() {
    on_both(async |_, database| {
        write(&database, vec![row("m", "10/s")]).await;
        let requests = (0..40).map(|number| {
            let database = database.clone();
            tokio::spawn(async move {
                let terms = if number == 20 { "10/s\0" } else { "10/s" };
                (
                    number,
                    database.commit(commit(vec![row(&format!("m_{number}"), terms)])).await,
                )
            })
        });
        for request in requests.collect::<Vec<_>>() {
            let (number, result) = request.await.unwrap();
            assert_eq!(result.is_ok(), number != 20, "{number}: {result:?}");
        }
        assert_eq!(database.head().await.unwrap().unwrap().revision, 40);
    });
}

/// The chain of a change that this program does not know, after revision 1.
async fn unknown_chain(database: &Database, body: &str) -> String {
    let before = database.head().await.unwrap().unwrap().chain;
    let mut bytes = before.0.to_vec();
    bytes.extend(2_u64.to_be_bytes());
    bytes.extend((body.len() as u64).to_be_bytes());
    bytes.extend(body.as_bytes());
    assert!(serde_json::from_str::<ChangeBody>(body).is_err());
    tollgate::control::chain::digest_of(&bytes).to_string()
}

fn nothing_yet() -> DatabaseError {
    DatabaseError::Missing("a change".to_owned())
}
