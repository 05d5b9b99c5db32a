use super::*;
use crate::control::model::Digest;

fn subject(pairs: &[(&str, &str)]) -> SubjectValues {
    pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

fn row(merchant: &str, terms: Option<&str>, expires_at: u64) -> ChangeBody {
    ChangeBody::Row {
        domain: "default".to_owned(),
        rule: "plan".to_owned(),
        subject: subject(&[("merchant", merchant)]),
        terms: terms.map(str::to_owned),
        note: "Sale".to_owned(),
        expires_at,
    }
}

fn attribute(merchant: &str, value: Option<&str>) -> ChangeBody {
    ChangeBody::Attribute {
        source: "merchant".to_owned(),
        subject: merchant.to_owned(),
        name: "tier".to_owned(),
        value: value.map(str::to_owned),
    }
}

fn apply(tables: &RowTables, revision: u64, body: ChangeBody) -> TableEdits {
    tables.apply(&[LoggedChange {
        revision,
        body,
        chain: Digest::default(),
        at: 0,
    }])
}

fn key(merchant: &str) -> RowKey {
    RowKey {
        domain: "default".to_owned(),
        rule: "plan".to_owned(),
        subject: subject(&[("merchant", merchant)]),
    }
}

#[test]
fn changes_set_and_delete_rows_and_attributes() {
    let tables = RowTables::default();
    let batch = ChangeBody::Batch {
        changes: vec![
            row("m_1", Some("10/s"), 0),
            row("m_2", Some("20/s"), 0),
            attribute("m_1", Some("gold")),
        ],
    };
    let edits = apply(&tables, 1, batch);
    assert_eq!((edits.rows.len(), edits.attributes.len()), (2, 1));
    assert_eq!(tables.counts(), (2, 1, 0));
    let found = tables.row(&key("m_2")).unwrap();
    assert_eq!((found.terms.as_str(), found.revision), ("20/s", 1));
    let edits = apply(&tables, 2, row("m_2", None, 0));
    assert_eq!(edits.rows[0].terms, None);
    apply(&tables, 3, attribute("m_1", None));
    assert_eq!(tables.counts(), (1, 0, 0));
    assert_eq!(tables.row(&key("m_2")), None);
    let edits = apply(
        &tables,
        4,
        ChangeBody::Publish {
            version: 1,
            digest: Digest::default(),
        },
    );
    assert!(edits.rows.is_empty() && edits.attributes.is_empty());
}

#[test]
fn the_next_expiry_follows_every_change() {
    let tables = RowTables::default();
    assert_eq!(tables.next_expiry(), None);
    for (revision, (body, next)) in (1..).zip([
        (row("m_1", Some("10/s"), 0), None),
        (row("m_2", Some("10/s"), 50), Some(50)),
        (row("m_3", Some("10/s"), 40), Some(40)),
        (row("m_4", Some("10/s"), 40), Some(40)),
        (row("m_3", None, 0), Some(40)),
        (row("m_4", Some("10/s"), 60), Some(50)),
        (row("m_4", Some("20/s"), 60), Some(50)),
        (row("m_2", Some("10/s"), 0), Some(60)),
        (row("m_9", None, 0), Some(60)),
        (row("m_4", None, 0), None),
    ]) {
        apply(&tables, revision, body);
        assert_eq!(tables.next_expiry(), next, "after revision {revision}");
    }
    apply(&tables, 11, row("m_5", Some("10/s"), 70));
    let (rows, attributes) = tables.all();
    tables.replace(Vec::new(), Vec::new());
    assert_eq!(tables.next_expiry(), None);
    tables.replace(rows, attributes);
    assert_eq!(tables.next_expiry(), Some(70));
}

#[test]
fn lists_have_the_order_and_the_filters_of_the_database() {
    let tables = RowTables::default();
    let of = |subject: SubjectValues| OverrideRow {
        domain: "default".to_owned(),
        rule: "plan".to_owned(),
        subject,
        terms: "10/s".to_owned(),
        note: "Sale".to_owned(),
        expires_at: 5,
        revision: 1,
        actor: String::new(),
    };
    // The database orders texts: a comma is before a brace.
    let one = subject(&[("a", "1")]);
    let two = subject(&[("a", "1"), ("b", "2")]);
    tables.replace(vec![of(one.clone()).into(), of(two.clone()).into()], Vec::new());
    let all = tables.rows(&RowFilter::default(), None, 10);
    assert_eq!(
        all.iter().map(|row| row.subject.clone()).collect::<Vec<_>>(),
        [two.clone(), one.clone()]
    );
    let after = RowKey {
        subject: two,
        ..key("")
    };
    let rest = tables.rows(&RowFilter::default(), Some(&after), 10);
    assert_eq!(rest[0].subject, one);
    assert_eq!(tables.rows(&RowFilter::default(), None, 1).len(), 1);
    let count = |filter: RowFilter| tables.rows(&filter, None, 10).len();
    let text = |text: &str| RowFilter {
        text: Some(text.to_owned()),
        ..RowFilter::default()
    };
    assert_eq!((count(text("SALE")), count(text("B")), count(text("x"))), (2, 1, 0));
    let expiring = |expires_before| RowFilter {
        expires_before: Some(expires_before),
        ..RowFilter::default()
    };
    assert_eq!((count(expiring(5)), count(expiring(6))), (0, 2));
}

#[test]
fn a_rejected_row_is_listed_until_it_is_replaced_or_deleted() {
    let tables = RowTables::default();
    let problem = |index| RowProblem {
        index,
        text: "no".to_owned(),
        hint: String::new(),
    };
    let edits = apply(&tables, 1, row("m_1", Some("bad"), 0));
    tables.record_problems(&edits.rows, &[problem(0)]);
    let rejected = tables.rejected(10);
    assert_eq!(rejected, RowTables::rejected_by(&edits.rows, &[problem(0)]));
    assert_eq!(
        (rejected[0].terms.as_str(), rejected[0].subject["merchant"].as_str()),
        ("bad", "m_1")
    );
    assert_eq!(
        tables.row_error("default", "plan", &key("m_1").subject).as_deref(),
        Some("no")
    );
    let edits = apply(&tables, 2, row("m_1", Some("10/s"), 0));
    tables.record_problems(&edits.rows, &[]);
    assert_eq!(tables.rejected(10), []);
    let edits = apply(&tables, 3, row("m_1", Some("bad"), 0));
    tables.record_problems(&edits.rows, &[problem(0)]);
    apply(&tables, 4, row("m_1", None, 0));
    assert_eq!(tables.counts(), (0, 0, 0));
}
