//! Lists by key, filters, expiry, leases, reports and retention.

use crate::fixture::{START_MS, Storage, attribute, author, commit, key, on_both, row, run};
use std::sync::atomic::Ordering;
use tollgate::control::database::{
    AttributeFilter, AttributeKey, AuditFilter, Database, DatabaseError, Retention, RowFilter, RowKey, StoredSilence,
};
use tollgate::control::model::ChangeBody;

fn row_of(domain: &str, rule: &str, merchant: &str) -> ChangeBody {
    ChangeBody::Row {
        domain: domain.to_owned(),
        rule: rule.to_owned(),
        subject: [("merchant".to_owned(), merchant.to_owned())].into(),
        terms: Some("10/s".to_owned()),
        note: format!("Note of {merchant}"),
        expires_at: 0,
    }
}

#[test]
fn lists_continue_after_a_key_in_the_order_of_bytes() {
    on_both(async |_, database| {
        // With names whose order depends on the collation, and ids with separators.
        let names = ["a", "B", "Z", "_x", "a/b", "ä", "z 100%", "z_1"];
        let rows = names.iter().map(|name| row_of("default", "plan", name));
        let others = [row_of("default/plan", "x", "a"), row_of("default", "plan/x", "a")];
        database.commit(commit(rows.chain(others).collect())).await.unwrap();

        let mut listed: Vec<String> = Vec::new();
        let mut after: Option<RowKey> = None;
        loop {
            let page = database.rows(&RowFilter::default(), after.as_ref(), 3).await.unwrap();
            let Some(last) = page.last() else { break };
            after = Some(RowKey {
                domain: last.domain.clone(),
                rule: last.rule.clone(),
                subject: last.subject.clone(),
            });
            listed.extend(
                page.iter()
                    .map(|row| format!("{} {} {}", row.domain, row.rule, row.subject["merchant"])),
            );
        }
        let mut expected: Vec<String> = names.iter().map(|name| format!("default plan {name}")).collect();
        expected.sort_unstable();
        expected.extend(["default plan/x a".to_owned(), "default/plan x a".to_owned()]);
        assert_eq!(listed, expected);

        let count = async |filter: RowFilter| database.rows(&filter, None, 100).await.unwrap().len();
        let text = |text: &str| RowFilter {
            text: Some(text.to_owned()),
            ..RowFilter::default()
        };
        assert_eq!(count(text("100%")).await, 1, "no wildcard");
        assert_eq!(count(text("z_")).await, 1, "no wildcard");
        assert_eq!(count(text("NOTE OF b")).await, 1, "without regard to case");
        let domains = RowFilter {
            domains: vec!["default/plan".to_owned(), "none".to_owned()],
            ..RowFilter::default()
        };
        assert_eq!(count(domains).await, 1);
        let rule = RowFilter {
            rule: Some("plan/x".to_owned()),
            ..RowFilter::default()
        };
        assert_eq!(count(rule).await, 1);
    });
}

#[test]
fn lists_attributes_by_subject_and_value() {
    on_both(async |_, database| {
        let changes = ["m_1", "m_2", "m_3"].map(|subject| attribute(subject, "gold"));
        database.commit(commit(changes.to_vec())).await.unwrap();
        database.commit(commit(vec![attribute("m_2", "free")])).await.unwrap();
        let all = database
            .attributes(&AttributeFilter::default(), None, 10)
            .await
            .unwrap();
        assert_eq!(
            all.iter().map(|one| one.value.as_str()).collect::<Vec<_>>(),
            ["gold", "free", "gold"]
        );
        let key = AttributeKey {
            source: "merchant".to_owned(),
            subject: "m_2".to_owned(),
            name: "tier".to_owned(),
        };
        assert_eq!(database.attribute(&key).await.unwrap().unwrap().revision, 2);
        let rest = database
            .attributes(&AttributeFilter::default(), Some(&key), 10)
            .await
            .unwrap();
        assert_eq!(rest, all[2..]);
        let gold = AttributeFilter {
            text: Some("GOLD".to_owned()),
            ..AttributeFilter::default()
        };
        assert_eq!(database.attributes(&gold, None, 10).await.unwrap().len(), 2);
    });
}

#[test]
fn finds_expired_rows() {
    on_both(async |_, database| {
        let until = |merchant: &str, expires_at| ChangeBody::Row {
            domain: "default".to_owned(),
            rule: "plan".to_owned(),
            subject: key(merchant).subject,
            terms: Some("10/s".to_owned()),
            note: String::new(),
            expires_at,
        };
        assert_eq!(database.next_expiry().await, Ok(None));
        let changes = vec![until("m_0", 0), until("m_1", START_MS + 2), until("m_2", START_MS + 1)];
        database.commit(commit(changes)).await.unwrap();
        assert_eq!(database.next_expiry().await, Ok(Some(START_MS + 1)));
        assert_eq!(database.expired_rows(START_MS, 10).await.unwrap(), []);
        let expired = database.expired_rows(START_MS + 2, 10).await.unwrap();
        let merchants: Vec<_> = expired.iter().map(|row| row.subject["merchant"].as_str()).collect();
        assert_eq!(merchants, ["m_2", "m_1"]);
    });
}

#[test]
fn a_lease_has_one_holder_until_it_ends() {
    on_both(async |storage, database| {
        database.commit(commit(vec![row("m_1", "10/s")])).await.unwrap();
        let other = storage.open();
        let acquire = async |database: &Database, holder: &str, for_ms: u64| {
            let until = storage.clock.load(Ordering::Relaxed) + for_ms;
            database.acquire_lease("expiry", holder, until).await
        };
        assert_eq!(acquire(&database, "a", 1_000).await, Ok(true));
        assert_eq!(acquire(&other, "b", 1_000).await, Ok(false));
        assert_eq!(
            other.acquire_lease("retention", "b", START_MS + 1).await,
            Ok(true),
            "another one"
        );
        assert_eq!(acquire(&database, "a", 2_000).await, Ok(true), "renewed");
        storage.clock.fetch_add(1_999, Ordering::Relaxed);
        assert_eq!(acquire(&other, "b", 1_000).await, Ok(false));
        storage.clock.fetch_add(1, Ordering::Relaxed);
        assert_eq!(acquire(&other, "b", 1_000).await, Ok(true));
        assert_eq!(acquire(&database, "a", 1_000).await, Ok(false));
        // One that a clock far ahead has written would be held for ever.
        assert!(matches!(
            acquire(&other, "b", 3_600_001).await,
            Err(DatabaseError::Invalid(_))
        ));
        storage.execute("UPDATE lease SET until = until + 7200000").await;
        assert_eq!(acquire(&database, "a", 1_000).await, Ok(true));
    });
}

#[test]
fn instances_report_to_each_other() {
    on_both(async |storage, database| {
        database.commit(commit(vec![row("m_1", "10/s")])).await.unwrap();
        database.report_instance("a", "1").await.unwrap();
        database.report_instance("b", "2").await.unwrap();
        storage.execute("UPDATE instance SET seen_at = seen_at - 9000").await;
        storage.open().report_instance("a", "3").await.unwrap();
        let reports = async |age_ms| {
            let found = database.instances(age_ms).await.unwrap().into_iter();
            found.map(|report| (report.id, report.status)).collect::<Vec<_>>()
        };
        let pair = |id: &str, status: &str| (id.to_owned(), status.to_owned());
        assert_eq!(reports(60_000).await, [pair("a", "3"), pair("b", "2")]);
        assert_eq!(reports(8_000).await, [pair("a", "3")]);
    });
}

/// An instance behind by more than the age of a report was not seen by the others, so that a publish did not wait for its vote.
#[test]
fn a_clock_that_is_behind_or_ahead_hides_no_instance() {
    run(async {
        let storage = Storage::postgres();
        let first = storage.open();
        first.commit(commit(vec![row("m_1", "10/s")])).await.unwrap();
        let with_offset = |offset_ms: i64| {
            let clock = storage.clock.load(Ordering::Relaxed).saturating_add_signed(offset_ms);
            (storage.open().with_clock(move || clock), offset_ms.to_string())
        };
        let instances = [-3_600_000, -9_000, 0, 9_000, 3_600_000].map(with_offset);
        for (database, id) in &instances {
            database.report_instance(id, "{}").await.unwrap();
        }
        for (database, id) in &instances {
            let seen = database.instances(8_000).await.unwrap();
            assert_eq!(seen.len(), instances.len(), "as the one at {id} ms sees it: {seen:?}");
        }
    });
}

#[test]
fn retention_keeps_the_chains_verifiable() {
    const DAY_MS: u64 = 86_400_000;
    on_both(async |storage, database| {
        for number in 0..10 {
            database
                .commit(commit(vec![row(&format!("m_{number}"), "10/s")]))
                .await
                .unwrap();
            storage.clock.fetch_add(DAY_MS, Ordering::Relaxed);
        }
        let retention = Retention {
            audit_ms: 5 * DAY_MS,
            versions: 1_000,
        };
        database.prune(retention).await.unwrap();
        let audit = database.audit(&AuditFilter::default(), None, 100).await.unwrap();
        assert_eq!(
            audit.iter().map(|entry| entry.seq).collect::<Vec<_>>(),
            [10, 9, 8, 7, 6]
        );
        let report = database.verify_audit(Some(audit[4].prev)).await.unwrap();
        assert!(report.is_intact(), "with the removed end as the anchor: {report:?}");
        assert_eq!(
            database.changes_since(0, 100).await.unwrap().len(),
            10,
            "100,000 changes are kept"
        );
        database.commit(commit(vec![row("m_1", None)])).await.unwrap();
        assert!(database.verify_audit(None).await.unwrap().is_intact());

        storage.execute("DELETE FROM change WHERE revision <= 3").await;
        assert_eq!(
            database.changes_since(2, 10).await,
            Err(DatabaseError::Pruned { first: 4 })
        );
        assert_eq!(database.changes_since(3, 100).await.unwrap().len(), 8);
    });
}

#[test]
fn those_who_listen_are_woken_by_commits() {
    on_both(async |storage, database| {
        database.commit(commit(vec![row("m_1", "10/s")])).await.unwrap();
        let mut own = database.listen();
        own.mark_unchanged();
        database.commit(commit(vec![row("m_2", "10/s")])).await.unwrap();
        own.changed().await.unwrap();
        if storage.file().is_none() {
            // Another process, notified by the server.
            let other = storage.open();
            let mut hints = other.listen();
            // Connected.
            hints.changed().await.unwrap();
            hints.mark_unchanged();
            database.commit(commit(vec![row("m_3", "10/s")])).await.unwrap();
            let hint = tokio::time::timeout(std::time::Duration::from_secs(5), hints.changed());
            hint.await.expect("a notification").unwrap();
            assert_eq!(other.head().await.unwrap().unwrap().revision, 3);
        }
        database.anchor_audit(&author("system")).await.unwrap();
    });
}

#[test]
fn silences_last_until_they_are_ended_or_over() {
    on_both(async |_, database| {
        assert_eq!(database.silences(0).await, Ok(Vec::new()), "nothing is written for it");
        let silence = |id: &str, until| StoredSilence {
            id: id.to_owned(),
            body: format!("{{\"reason\":\"o'brien {id}\"}}"),
            until,
        };
        for (id, until) in [("a", START_MS + 100), ("b", START_MS + 200)] {
            database.add_silence(silence(id, until), &author("ada")).await.unwrap();
        }
        let ids = async |now| -> Vec<String> {
            let found = database.silences(now).await.unwrap();
            found.into_iter().map(|silence| silence.id).collect()
        };
        assert_eq!(ids(START_MS).await, ["a", "b"]);
        assert_eq!(ids(START_MS + 100).await, ["b"]);
        assert_eq!(
            database.silences(START_MS + 100).await.unwrap(),
            [silence("b", START_MS + 200)]
        );
        database.delete_silence("b", &author("eve")).await.unwrap();
        assert!(matches!(
            database.delete_silence("b", &author("eve")).await,
            Err(DatabaseError::Missing(_))
        ));
        let entries = database.audit(&AuditFilter::default(), None, 3).await.unwrap();
        let actions: Vec<(&str, &str)> = entries
            .iter()
            .map(|entry| (entry.action.as_str(), entry.actor.as_str()))
            .collect();
        assert_eq!(
            actions,
            [
                ("silence.delete", "eve"),
                ("silence.add", "ada"),
                ("silence.add", "ada")
            ]
        );
        assert!(entries[0].before.contains("o'brien b"), "{}", entries[0].before);
    });
}
