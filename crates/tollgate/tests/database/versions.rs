//! Versions, their files, publishes and the history of rules.

use crate::fixture::{author, commit, file, key, on_both, publish, row, save, version, version_numbers, write};
use tollgate::control::chain::set_digest;
use tollgate::control::database::{DatabaseError, ItemCondition, ItemKey, Retention, RuleChange};
use tollgate::control::model::{Digest, Precondition, VersionState};

fn changed(rule: &str, kind: &str) -> RuleChange {
    RuleChange {
        domain: "default".to_owned(),
        rule: rule.to_owned(),
        kind: kind.to_owned(),
        path: "a.yaml".to_owned(),
        line: 3,
    }
}

#[test]
fn files_are_kept_byte_for_byte() {
    on_both(async |_, database| {
        let files = vec![
            file("rules/z.yaml", "# ünïcode\r\n- id: a\t\n"),
            file("rules/a.yaml", ""),
            file("rules/same.yaml", ""),
        ];
        let meta = database
            .save_version(version(0, "push 4f1c2e", files.clone()), &author("ci"))
            .await
            .unwrap();
        assert_eq!((meta.number, meta.digest, meta.format), (1, set_digest(&files), 3));
        let mut sorted = files.clone();
        sorted.sort_by(|a, b| a.path.cmp(&b.path));
        assert_eq!(database.version_files(1).await.unwrap(), sorted);
        assert_eq!(database.version(1).await.unwrap(), Some(meta.clone()));
        assert_eq!(database.version_by_digest(&meta.digest).await.unwrap(), Some(meta));
        assert_eq!(database.version_files(2).await.unwrap(), []);
        assert_eq!(
            database.head().await.unwrap().unwrap().revision,
            0,
            "a version alone changes nothing"
        );

        let twice = vec![file("a", "1"), file("a", "2")];
        let error = database.save_version(version(0, "api", twice), &author("ci")).await;
        assert!(matches!(error, Err(DatabaseError::Invalid(_))));
    });
}

#[test]
fn a_publish_moves_the_set_and_the_history_of_its_rules() {
    on_both(async |storage, database| {
        let first = save(&database, version(0, "api", vec![file("a", "1")])).await;
        let second = save(&database, version(1, "api", vec![file("a", "2")])).await;
        assert_eq!(database.set_revision().await, Ok(0));
        write(&database, vec![row("m_1", "10/s")]).await;

        let mut request = publish(&first);
        request.rules = vec![changed("search", "added"), changed("plan", "added")];
        let committed = database.commit(request).await.unwrap();
        assert_eq!((committed.revision, committed.head.live_version), (2, 1));
        assert_eq!(database.set_revision().await, Ok(2));
        assert_eq!(
            database.commit(publish(&first)).await.unwrap().revision,
            2,
            "it is live already"
        );

        let condition = |item, revision| ItemCondition {
            item,
            precondition: Precondition::Unchanged { epoch: 1, revision },
        };
        let mut request = publish(&second);
        // Rows that the new set cannot have go in the same transaction.
        request.changes.insert(0, row("m_1", None));
        request.rules = vec![changed("search", "removed")];
        request.conditions = vec![condition(ItemKey::Set, 1)];
        assert!(matches!(
            database.commit(request.clone()).await,
            Err(DatabaseError::Stale(_))
        ));
        let rule = ItemKey::Rule {
            domain: "default".to_owned(),
            rule: "search".to_owned(),
        };
        request.conditions = vec![condition(ItemKey::Set, 2), condition(rule.clone(), 2)];
        let committed = database.commit(request).await.unwrap();
        assert_eq!(
            (committed.revision, committed.changes.len(), committed.head.live_version),
            (4, 2, 2)
        );
        assert_eq!(database.row(&key("m_1")).await, Ok(None));

        let history = database.rule_history("default", "search", 10).await.unwrap();
        let kinds: Vec<_> = history
            .iter()
            .map(|entry| (entry.revision, entry.kind.as_str()))
            .collect();
        assert_eq!(kinds, [(4, "removed"), (2, "added")]);
        assert_eq!(history[0].actor, "ada");
        let mut request = commit(vec![row("m_2", "10/s")]);
        request.conditions = vec![ItemCondition {
            item: rule,
            precondition: Precondition::Absent,
        }];
        assert_eq!(
            database.commit(request).await.unwrap().revision,
            5,
            "a removed rule does not exist"
        );

        let states: Vec<_> = database
            .versions(None, 10)
            .await
            .unwrap()
            .iter()
            .map(|meta| meta.state)
            .collect();
        assert_eq!(states, [VersionState::Published, VersionState::Published]);
        assert_eq!(database.versions(Some(2), 10).await.unwrap()[0].number, 1);
        let snapshot = storage.open().snapshot().await.unwrap().unwrap();
        assert_eq!(snapshot.version.unwrap().number, 2);
        assert_eq!((snapshot.set_revision, snapshot.files), (4, vec![file("a", "2")]));
    });
}

#[test]
fn only_a_saved_version_can_be_published() {
    on_both(async |_, database| {
        let meta = save(&database, version(0, "api", vec![file("a", "1")])).await;
        let mut other = meta.clone();
        other.digest = Digest::default();
        assert!(matches!(
            database.commit(publish(&other)).await,
            Err(DatabaseError::Missing(_))
        ));
        other = meta.clone();
        other.number = 7;
        assert!(matches!(
            database.commit(publish(&other)).await,
            Err(DatabaseError::Missing(_))
        ));
        database.set_version_state(1, VersionState::Rejected).await.unwrap();
        assert_eq!(
            database.version(1).await.unwrap().unwrap().state,
            VersionState::Rejected
        );
        database.commit(publish(&meta)).await.unwrap();
        let error = database.set_version_state(1, VersionState::Draft).await;
        assert!(matches!(error, Err(DatabaseError::Missing(_))), "it is published");
    });
}

#[test]
fn old_versions_are_removed_except_the_live_one() {
    on_both(async |_, database| {
        for number in 0..6 {
            let files = vec![file("a", &format!("{number}")), file("b", "shared")];
            let meta = save(&database, version(number, "api", files)).await;
            if number == 1 {
                database.commit(publish(&meta)).await.unwrap();
            }
        }
        let retention = Retention {
            audit_ms: u64::MAX >> 1,
            versions: 2,
        };
        database.prune(retention).await.unwrap();
        let kept = version_numbers(&database).await;
        assert_eq!(kept, [6, 5, 2, 1], "the live one and its parent");
        assert_eq!(database.version_files(2).await.unwrap()[1], file("b", "shared"));
    });
}

#[test]
fn a_changed_file_is_found() {
    on_both(async |storage, database| {
        let meta = save(&database, version(0, "api", vec![file("a", "1")])).await;
        database.commit(publish(&meta)).await.unwrap();
        storage.execute("UPDATE blob SET text = '2'").await;
        assert!(matches!(
            database.version_files(1).await,
            Err(DatabaseError::Corrupt(_))
        ));
        assert!(matches!(database.snapshot().await, Err(DatabaseError::Corrupt(_))));
    });
}
