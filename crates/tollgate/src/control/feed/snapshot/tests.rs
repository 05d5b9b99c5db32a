use super::*;

#[test]
fn a_snapshot_reads_as_it_was_written() {
    let signer = Signer::new(Some(b"secret"), "tg");
    let snapshot = RowSnapshot {
        head: DatabaseHead {
            database_id: "abc".to_owned(),
            epoch: 1,
            revision: 7,
            live_version: 2,
            chain: Digest([4; 32]),
        },
        set: Digest([5; 32]),
        set_revision: 3,
        rows: vec![Arc::new(OverrideRow {
            domain: "default".to_owned(),
            rule: "plan".to_owned(),
            subject: [("merchant".to_owned(), "m_\n42".to_owned())].into(),
            terms: "5/s".to_owned(),
            note: String::new(),
            expires_at: 0,
            revision: 7,
            actor: "anna".to_owned(),
        })],
        attributes: vec![Arc::new(SubjectAttribute {
            source: "merchant".to_owned(),
            subject: "m_42".to_owned(),
            name: "tier".to_owned(),
            value: "gold".to_owned(),
            revision: 6,
            actor: "anna".to_owned(),
        })],
    };
    let (manifest, parts) = snapshot.encode();
    let value = manifest.encode(&signer);
    let read = Manifest::parse("rows:7", value.as_bytes(), &signer).unwrap();
    assert_eq!(RowSnapshot::decode(&read, &parts), Ok(snapshot));
    assert!(
        Manifest::parse("rows:8", value.as_bytes(), &signer).is_err(),
        "under another name"
    );
}

#[test]
fn the_last_two_snapshots_are_kept() {
    let signer = Signer::new(None, "tg");
    let mut list = SnapshotList::default();
    for (epoch, revision, kept, dropped) in [
        (1, 10, vec![10], vec![]),
        (1, 20, vec![20, 10], vec![]),
        (1, 20, vec![20, 10], vec![]),
        (1, 30, vec![30, 20], vec![10]),
        (2, 31, vec![31], vec![30, 20]),
    ] {
        let (next, gone) = list.with(epoch, revision);
        assert_eq!((&next.revisions, gone), (&kept, dropped));
        assert_eq!(
            SnapshotList::parse(next.encode(&signer).as_bytes(), &signer),
            Some(next.clone())
        );
        list = next;
    }
}
