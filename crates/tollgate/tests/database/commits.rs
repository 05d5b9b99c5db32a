//! Revisions, chains, conditions and batches.

use crate::fixture::{Storage, attribute, author, commit, key, on_both, row, run, write};
use tollgate::control::chain::next_chain;
use tollgate::control::database::{
    AttributeKey, AuditFilter, AuditRecord, DatabaseError, ItemCondition, ItemKey, Retention, RowFilter,
};
use tollgate::control::model::{ChangeBody, Digest, Precondition};

#[test]
fn writes_nothing_before_the_first_change() {
    on_both(async |storage, database| {
        assert_eq!(database.head().await, Ok(None));
        assert_eq!(database.snapshot().await, Ok(None));
        assert_eq!(database.changes_since(0, 10).await, Ok(Vec::new()));
        assert_eq!(database.rows(&RowFilter::default(), None, 10).await, Ok(Vec::new()));
        assert_eq!(database.has_principals().await, Ok(false));
        assert_eq!(database.acquire_lease("expiry", "a", 1_000).await, Ok(true));
        database.report_instance("i", "{}").await.unwrap();
        let retention = Retention {
            audit_ms: 1,
            versions: 1,
        };
        database.prune(retention).await.unwrap();
        assert!(database.verify_audit(None).await.unwrap().is_intact());
        assert!(storage.file().is_none_or(|file| !file.exists()));
        assert_eq!(database.head().await, Ok(None));

        // An audit entry is a write, but not a revision.
        database.record(AuditRecord::default()).await.unwrap();
        let head = database.head().await.unwrap().unwrap();
        assert_eq!((head.epoch, head.revision, head.live_version), (1, 0, 0));
        assert_eq!(head.database_id.len(), 32);
        assert_eq!(storage.open().head().await, Ok(Some(head)));
    });
}

#[test]
fn every_change_has_a_revision_a_chain_and_an_audit_entry() {
    on_both(async |_, database| {
        let first = write(&database, vec![row("m_1", "10/s")]).await;
        assert_eq!(first.revision, 1);
        let second = write(&database, vec![attribute("m_1", "gold")]).await;
        let third = write(&database, vec![row("m_1", None)]).await;
        assert_eq!((second.revision, third.revision), (2, 3));

        let changes = database.changes_since(0, 10).await.unwrap();
        let mut chain = Digest::default();
        for (revision, change) in (1..).zip(&changes) {
            chain = next_chain(&chain, revision, &change.body);
            assert_eq!((change.revision, change.chain), (revision, chain));
        }
        assert_eq!(changes.len(), 3);
        assert_eq!(third.head.chain, chain);
        assert_eq!(database.head().await.unwrap().unwrap(), third.head);
        assert_eq!(database.changes_since(2, 10).await.unwrap(), third.changes);
        assert_eq!(database.changes_since(1, 1).await.unwrap(), second.changes);
        assert_eq!(database.changes_since(3, 10).await.unwrap(), []);

        let audit = database.audit(&AuditFilter::default(), None, 10).await.unwrap();
        let actions: Vec<_> = audit
            .iter()
            .map(|entry| (entry.action.as_str(), entry.revision))
            .collect();
        assert_eq!(actions, [("row.delete", 3), ("attribute.set", 2), ("row.set", 1)]);
        assert_eq!(audit[0].target, r#"default/plan {"merchant":"m_1"}"#);
        assert_eq!(audit[0].before, audit[2].after);
        assert_eq!((audit[0].after.as_str(), audit[2].before.as_str()), ("", ""));
        assert_eq!(audit[1].target, "merchant=m_1 tier");
    });
}

#[test]
fn an_equal_item_gets_no_revision() {
    on_both(async |_, database| {
        write(&database, vec![row("m_1", "10/s")]).await;
        write(&database, vec![row("m_2", "10/s")]).await;
        let again = write(&database, vec![row("m_1", "10/s")]).await;
        assert_eq!((again.revision, again.head.revision), (1, 2), "the revision of the row");
        assert_eq!(again.changes, []);
        let missing = write(&database, vec![row("m_3", None)]).await;
        assert_eq!((missing.revision, missing.head.revision), (0, 2));
        assert_eq!(
            database.audit(&AuditFilter::default(), None, 10).await.unwrap().len(),
            2
        );
    });
}

#[test]
fn a_stale_condition_writes_nothing_and_names_the_author() {
    on_both(async |_, database| {
        let on = |precondition| {
            let mut request = commit(vec![row("m_1", "20/s")]);
            request.author = author("bob");
            request.conditions = vec![ItemCondition {
                item: ItemKey::Row(key("m_1")),
                precondition,
            }];
            request
        };
        let unchanged = |epoch, revision| on(Precondition::Unchanged { epoch, revision });
        let Err(DatabaseError::Stale(stale)) = database.commit(unchanged(1, 1)).await else {
            panic!("there is no such row yet");
        };
        assert_eq!((stale.revision, stale.item.as_str()), (0, ""));

        let mut first = unchanged(0, 0);
        first.changes = vec![row("m_1", "10/s")];
        first.author = author("ada");
        database
            .commit(first)
            .await
            .expect("of an instance that has seen nothing yet");
        for request in [
            on(Precondition::Absent),
            unchanged(0, 0),
            unchanged(1, 0),
            unchanged(1, 2),
            unchanged(2, 1),
        ] {
            let Err(DatabaseError::Stale(stale)) = database.commit(request).await else {
                panic!("the row was changed");
            };
            assert_eq!((stale.epoch, stale.revision), (1, 1));
            assert_eq!(stale.author, author("ada"));
            assert!(stale.item.contains("10/s"), "{}", stale.item);
        }
        assert_eq!(database.head().await.unwrap().unwrap().revision, 1);
        assert_eq!(database.commit(unchanged(1, 1)).await.unwrap().revision, 2);
        assert_eq!(
            database.commit(on(Precondition::Any)).await.unwrap().revision,
            2,
            "equal content"
        );

        let mut other = commit(vec![attribute("m_1", "gold")]);
        other.conditions = vec![ItemCondition {
            item: ItemKey::Attribute(AttributeKey {
                source: "merchant".to_owned(),
                subject: "m_1".to_owned(),
                name: "tier".to_owned(),
            }),
            precondition: Precondition::Absent,
        }];
        assert_eq!(database.commit(other.clone()).await.unwrap().revision, 3);
        assert!(matches!(database.commit(other).await, Err(DatabaseError::Stale(_))));
    });
}

#[test]
fn an_import_has_one_revision_for_500_rows_and_is_one_transaction() {
    on_both(async |_, database| {
        let mut rows: Vec<ChangeBody> = (0..1_200).map(|number| row(&format!("m_{number}"), "10/s")).collect();
        // A later line for the same subject wins.
        rows.push(row("m_1199", "30/s"));
        rows.push(attribute("m_0", "gold"));
        let imported = write(&database, rows.clone()).await;
        assert_eq!(imported.revision, 3);
        let sizes: Vec<usize> = imported.changes.iter().map(|change| items(&change.body)).collect();
        assert_eq!(sizes, [500, 500, 201]);
        let snapshot = database.snapshot().await.unwrap().unwrap();
        assert_eq!((snapshot.rows.len(), snapshot.attributes.len()), (1_200, 1));
        assert_eq!(database.row(&key("m_1199")).await.unwrap().unwrap().terms, "30/s");
        assert_eq!(database.row(&key("m_500")).await.unwrap().unwrap().revision, 2);
        let changes = database.changes_since(0, 10).await.unwrap();
        assert_eq!(changes, imported.changes, "as they were written");

        // Only what differs is a change.
        rows[7] = row("m_7", None);
        let again = write(&database, rows).await;
        assert_eq!((again.revision, again.changes.len()), (4, 1));
        assert_eq!(database.row(&key("m_7")).await, Ok(None));

        let bad = vec![row("m_8", "1/s"), row("m_9", "1/s\0")];
        assert!(matches!(
            database.commit(commit(bad)).await,
            Err(DatabaseError::Invalid(_))
        ));
        assert_eq!(database.row(&key("m_8")).await.unwrap().unwrap().terms, "10/s");
    });
}

#[test]
fn concurrent_writers_get_revisions_without_gaps() {
    const WRITERS: u64 = 8;
    const COMMITS: u64 = 25;
    on_both(async |storage, _| {
        // As two processes.
        let databases = [storage.open(), storage.open()];
        let mut writers = Vec::new();
        for writer in 0..WRITERS {
            let database = databases[usize::try_from(writer % 2).unwrap()].clone();
            writers.push(tokio::spawn(async move {
                let mut revisions = Vec::new();
                for number in 0..COMMITS {
                    let change = row(&format!("m_{writer}_{number}"), "10/s");
                    revisions.push(write(&database, vec![change]).await.revision);
                }
                revisions
            }));
        }
        let mut revisions = Vec::new();
        for writer in writers {
            let own = writer.await.unwrap();
            assert!(own.is_sorted(), "in the order of their commits");
            revisions.extend(own);
        }
        revisions.sort_unstable();
        assert_eq!(revisions, (1..=WRITERS * COMMITS).collect::<Vec<_>>());
        let changes = databases[0].changes_since(0, 1_000).await.unwrap();
        assert_eq!(changes.len() as u64, WRITERS * COMMITS, "with an unbroken chain");
        assert!(databases[1].verify_audit(None).await.unwrap().is_intact());
    });
}

#[test]
fn one_of_many_writers_wins_each_round() {
    on_both(async |_, database| {
        for round in 0..20_u64 {
            let mut writers = Vec::new();
            for writer in 0..16 {
                let database = database.clone();
                let mut request = commit(vec![ChangeBody::Row {
                    domain: "default".to_owned(),
                    rule: "plan".to_owned(),
                    subject: key("m_1").subject,
                    terms: Some(format!("{}/s", round * 16 + writer + 1)),
                    note: String::new(),
                    expires_at: 0,
                }]);
                let precondition = match round {
                    0 => Precondition::Absent,
                    revision => Precondition::Unchanged { epoch: 1, revision },
                };
                request.conditions = vec![ItemCondition {
                    item: ItemKey::Row(key("m_1")),
                    precondition,
                }];
                writers.push(tokio::spawn(async move { database.commit(request).await }));
            }
            let mut won = 0;
            for writer in writers {
                match writer.await.unwrap() {
                    Ok(committed) => {
                        assert_eq!(committed.revision, round + 1);
                        won += 1;
                    }
                    Err(DatabaseError::Stale(stale)) => assert_eq!(stale.revision, round + 1),
                    Err(error) => panic!("{error}"),
                }
            }
            assert_eq!(won, 1, "in round {round}");
        }
    });
}

#[test]
fn both_databases_have_the_same_chains_after_the_same_changes() {
    let ends = Storage::both().map(|storage| {
        run(async {
            let database = storage.open();
            for number in 0..20 {
                let merchant = format!("m_{}", number % 7);
                let terms = ["10/s", "20/s", "[10/s, 100/min]"][number % 3];
                write(&database, vec![row(&merchant, terms), attribute(&merchant, "gold")]).await;
            }
            database.anchor_audit(&author("system")).await.unwrap();
            let report = database.verify_audit(None).await.unwrap();
            assert!(report.is_intact(), "{report:?}");
            let head = database.head().await.unwrap().unwrap();
            (head.revision, head.chain, report.end, report.entries)
        })
    });
    assert_eq!(ends[0], ends[1]);
}

fn items(change: &ChangeBody) -> usize {
    match change {
        ChangeBody::Batch { changes } => changes.len(),
        _ => 1,
    }
}
