//! Tests of a control plane over SQLite: rows, versions, restarts, other histories.

use super::*;
use crate::control::database::{CommitRequest, NewVersion};
use crate::control::model::{ChangeBody, Precondition, VersionState};
use crate::control::start::testing::{FILE_LAYER, Instance, author, file, new_folder, row};
use crate::control::{
    ControlError, ControlOptions, ControlResult, DatabaseChoice, PublishOptions, PublishSet, Published, RowWrite,
    Written,
};
use crate::server::telemetry::Protocol;
use std::path::{Path, PathBuf};
use tollgate_limiter::core::rules::Attempt;
use tollgate_limiter::core::testing::rules::{attempt, attributes};
use tollgate_limiter::core::{Cost, Decision};
use tollgate_limiter::testing::eventually;

const SEARCH: &str = "rules:\n  - id: search\n    per: merchant\n    limit: 7/min\n";

impl Instance {
    async fn start_alone() -> Self {
        Self::open_alone(new_folder(FILE_LAYER), ControlOptions::default()).await
    }

    async fn open_alone(folder: PathBuf, options: ControlOptions) -> Self {
        Self::open(folder, &DatabaseChoice::DataDir, options, None).await
    }

    /// Stops it, and starts it again in the same folder.
    async fn restart_alone(self, prepare: impl FnOnce(&Path)) -> Self {
        let folder = self.close().await;
        prepare(&folder.join("data"));
        Self::open_alone(folder, ControlOptions::default()).await
    }

    async fn write_plan_row(&self, terms: Option<&str>) -> ControlResult<Written> {
        self.write_row(row("plan", "m_42", terms)).await
    }

    async fn publish_set(&self, text: &str) -> ControlResult<Published> {
        self.publish(text, &PublishOptions::default()).await
    }

    /// The limit that one merchant meets, by the rule of that name.
    async fn limit_of(&self, rule: &str) -> Option<u64> {
        let attributes = attributes(&["merchant=m_42"]);
        let attempt = Attempt {
            cost: Cost::new(0).unwrap(),
            ..attempt(&attributes)
        };
        let snapshot = self.gate.snapshot(Protocol::Http);
        let result = snapshot.check(&attempt).await;
        let ruling = result.verdict.rulings.iter().find(|ruling| ruling.rule.id() == rule)?;
        let standing = match ruling.decision.as_ref()? {
            Decision::Allow { standing, .. } | Decision::Deny { standing, .. } => standing,
        };
        Some(standing.limit)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_applies_survives_a_restart_without_its_database_and_is_deleted() {
    let server = Instance::start_alone().await;
    assert!(
        !server.folder.join("data").exists(),
        "nothing is written before the first change"
    );
    assert_eq!(server.limit_of("plan").await, Some(2));
    let first = server.write_plan_row(Some("20/min")).await.unwrap();
    assert_eq!((first.epoch > 0, first.revision, first.created), (true, 1, true));
    assert_eq!(server.limit_of("plan").await, Some(20));
    assert_eq!(
        server.write_plan_row(Some("20/min")).await.unwrap().revision,
        1,
        "equal: no new revision"
    );
    server.write_plan_row(Some("30/min")).await.unwrap();
    let error = server.write_plan_row(Some("many")).await.unwrap_err();
    assert_eq!(error.code(), "invalid", "{error}");
    let digest = server.control.status().digest;

    // The saved state and its journal have everything.
    let server = server
        .restart_alone(|data| std::fs::remove_file(data.join("control.db")).unwrap())
        .await;
    let status = server.control.status();
    assert_eq!((status.digest, status.revision), (digest, 2));
    assert_eq!(server.limit_of("plan").await, Some(30));
    // The database is gone: another history, which nothing is written to.
    assert!(
        status.regressed.is_some() && status.source == RulesOrigin::Disk,
        "{status:?}"
    );
    let error = server.write_plan_row(Some("40/min")).await.unwrap_err();
    assert_eq!(error.code(), "database-regressed", "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_is_published_refused_and_rolled_back() {
    let server = Instance::start_alone().await;
    let first = server.publish_set(SEARCH).await.unwrap();
    assert_eq!((first.version, first.applied, first.changed), (1, 1, true));
    assert_eq!(server.limit_of("search").await, Some(7));
    assert!(!server.publish_set(SEARCH).await.unwrap().changed);
    let second = server.publish_set(&SEARCH.replace("7/min", "9/min")).await.unwrap();
    assert_eq!((second.version, server.limit_of("search").await), (2, Some(9)));

    // A set is refused whole, and an id of the file layer names both locations.
    let collision = format!("{SEARCH}  - id: plan\n    limit: 1/s\n");
    let Err(ControlError::Invalid(problems)) = server.publish_set(&collision).await else {
        panic!("the id is taken");
    };
    let text = format!("{problems:?}");
    assert!(text.contains("shop.yaml") && text.contains("tollgate.yaml"), "{text}");
    assert_eq!(server.limit_of("search").await, Some(9));

    let back = server
        .control
        .rollback(None, &PublishOptions::default(), author())
        .await
        .unwrap();
    assert_eq!((back.version, server.limit_of("search").await), (3, Some(7)));
    let stale = PublishOptions {
        precondition: Precondition::Unchanged {
            epoch: back.epoch,
            revision: 1,
        },
        ..PublishOptions::default()
    };
    let set = PublishSet::Version(2);
    let error = server.control.publish(set, &stale, author()).await.unwrap_err();
    assert_eq!(error.code(), "stale");
    let digest = server.control.status().digest;
    let server = server.restart_alone(|_| ()).await;
    let status = server.control.status();
    assert_eq!(
        (status.digest, status.version, status.source),
        (digest, 3, RulesOrigin::Database)
    );
    assert_eq!(server.limit_of("search").await, Some(7));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_version_that_cannot_be_used_here_is_rolled_back() {
    let server = Instance::start_alone().await;
    server.publish_set(SEARCH).await.unwrap();
    // Another control service has other files, with which this set is valid.
    let files = vec![file(&SEARCH.replace("search", "plan"))];
    let digest = chain::set_digest(&files);
    let database = server.control.parts.database.clone().unwrap();
    let version = NewVersion {
        parent: 1,
        format: 1,
        state: VersionState::Prepared,
        source: "api".to_owned(),
        files,
    };
    let version = database.save_version(version, &author()).await.unwrap().number;
    let request = CommitRequest {
        author: author(),
        conditions: Vec::new(),
        changes: vec![ChangeBody::Publish { version, digest }],
        rules: Vec::new(),
        row_check: None,
        action: None,
    };
    let committed = database.commit(request).await.unwrap();
    drop(database);
    server.control.parts.wake.notify_one();
    let wait = Duration::from_secs(5);
    assert!(server.control.wait_applied(committed.revision, wait).await);
    let parts = &server.control.parts;
    parts.save(&parts.live.load());
    let server = server.restart_alone(|_| ()).await;
    let live = server.control.parts.live.load_full();
    assert_eq!((live.version, live.head_set), (1, digest));
    let options = PublishOptions::default();
    let back = server.control.rollback(Some(1), &options, author()).await.unwrap();
    assert_eq!((back.version, back.changed, back.applied), (3, true, 1));
    let live = server.control.parts.live.load_full();
    assert_eq!((live.version, live.head_set), (3, live.set_digest));
}

#[tokio::test(flavor = "multi_thread")]
async fn with_edits_from_git_a_version_that_was_not_pushed_needs_an_admin() {
    let options = ControlOptions {
        git_only: true,
        ..ControlOptions::default()
    };
    let server = Instance::open_alone(new_folder(FILE_LAYER), options).await;
    let push = PublishOptions {
        source: "push 4f1c2e".to_owned(),
        ..PublishOptions::default()
    };
    let (any, glass) = (
        PublishOptions::default(),
        PublishOptions {
            break_glass: true,
            ..PublishOptions::default()
        },
    );
    let control = &server.control;
    for text in [SEARCH, &SEARCH.replace("7/min", "9/min")] {
        let set = PublishSet::Files(vec![file(text)]);
        control.publish(set, &push, author()).await.unwrap();
    }
    for options in [&any, &push] {
        let error = control.rollback(None, options, author()).await.unwrap_err();
        assert_eq!(error.code(), "edits-git");
    }
    let published = control.publish(PublishSet::Version(1), &any, author()).await.unwrap();
    assert_eq!((published.version, published.changed), (1, true));
    let back = control.rollback(Some(2), &glass, author()).await.unwrap();
    assert_eq!((back.version, server.limit_of("search").await), (3, Some(9)));
    for version in [1, 3] {
        // The first would be drift for a push, and the second was not pushed.
        let error = control.publish(PublishSet::Version(version), &any, author()).await;
        let code = if version == 1 { "drift" } else { "edits-git" };
        assert_eq!(error.unwrap_err().code(), code);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn edits_of_two_rules_at_once_are_both_kept() {
    let server = Instance::start_alone().await;
    // Each meets the edits of the other at another moment. The condition is on the rule: what happens to the other is no reason to refuse.
    let edit = async |id: &str| {
        let mut last = None;
        let mut options = PublishOptions {
            precondition: Precondition::Absent,
            ..PublishOptions::default()
        };
        for round in 1..=30 {
            let yaml = format!("id: {id}\nper: merchant\nlimit: {round}/min");
            let put = server.control.put_rule("default", id, &yaml, &options, author());
            let Published { epoch, revision, .. } = put.await.unwrap();
            let other = yaml.replace("/min", "/h");
            let stale = server.control.put_rule("default", id, &other, &options, author());
            assert_eq!(stale.await.unwrap_err().code(), "stale");
            options.precondition = Precondition::Unchanged { epoch, revision };
            last = Some(round);
            eventually("the last edit", async || server.limit_of(id).await == last).await;
        }
        last
    };
    let lasts = tokio::join!(edit("a"), edit("b"));
    assert_eq!((server.limit_of("a").await, server.limit_of("b").await), lasts);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_epoch_without_a_version_has_no_managed_rules() {
    let server = Instance::start_alone().await;
    server.publish_set(SEARCH).await.unwrap();
    let server = server
        .restart_alone(|data| std::fs::remove_file(data.join("control.db")).unwrap())
        .await;
    assert_eq!(server.limit_of("search").await, Some(7));
    let head = server.control.adopt(author()).await.unwrap();
    assert_eq!(head.live_version, 0);
    assert!(server.control.wait_applied(head.revision, Duration::from_secs(5)).await);
    eventually("the new epoch", async || {
        server.control.parts.live.load().epoch() == head.epoch
    })
    .await;
    let status = server.control.status();
    assert_eq!((status.version, status.rules.managed), (0, 0));
    assert_eq!(server.limit_of("search").await, None);
    assert_eq!(server.limit_of("plan").await, Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_rule_is_added_changed_and_deleted_and_rows_that_no_longer_fit_are_named() {
    let server = Instance::start_alone().await;
    let options = PublishOptions::default();
    let put = async |yaml: &str| {
        let put = server.control.put_rule("default", "exports", yaml, &options, author());
        put.await.map(|published| published.changed)
    };
    put("id: exports\nper: merchant\nlimit: 5/min").await.unwrap();
    let text = server.control.rule_text("default", "exports").await.unwrap();
    assert_eq!(text.path, "managed/default/exports.yaml");
    assert_eq!(text.yaml.as_deref(), Some("id: exports\nper: merchant\nlimit: 5/min\n"));
    put("id: exports\nper: merchant\nlimit: 6/min").await.unwrap();
    assert_eq!(server.limit_of("exports").await, Some(6));
    let error = put("id: other\nlimit: 6/min").await.unwrap_err();
    assert_eq!(error.code(), "malformed", "{error}");
    let error = server
        .control
        .put_rule("default", "plan", "id: plan\nlimit: 1/s", &options, author());
    assert_eq!(error.await.unwrap_err().code(), "file-layer");

    server
        .write_row(row("exports", "m_42", Some("9/min burst 3")))
        .await
        .unwrap();
    let fixed = "id: exports\nper: merchant\nlimit: 6/min\nalgorithm: fixed_window";
    let error = put(fixed).await.unwrap_err();
    assert_eq!(error.code(), "rows-invalid", "{error}");
    let dropping = PublishOptions {
        drop_rows: true,
        ..options.clone()
    };
    let put = server
        .control
        .put_rule("default", "exports", fixed, &dropping, author());
    put.await.unwrap();
    assert_eq!(server.control.status().override_rows, 0);

    server
        .control
        .delete_rule("default", "exports", &options, author())
        .await
        .unwrap();
    assert_eq!(server.limit_of("exports").await, None);
    assert_eq!(server.limit_of("plan").await, Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_is_deleted_when_it_expires() {
    let server = Instance::start_alone().await;
    let row = RowWrite {
        expires_at: now_ms() + 300,
        ..row("plan", "m_42", Some("50/min"))
    };
    let written = server.write_row(row).await.unwrap();
    assert_eq!(server.limit_of("plan").await, Some(50));
    assert!(
        server
            .control
            .wait_applied(written.revision + 1, Duration::from_secs(10))
            .await
    );
    assert_eq!(server.limit_of("plan").await, Some(2));
}

#[test]
fn of_many_changes_at_most_ten_are_applied_in_any_second() {
    let start = Instant::now();
    let (mut pace, mut now) = (Pace::default(), start);
    let mut applied: Vec<Instant> = Vec::new();
    for number in 0..500 {
        // There is always a change, and applying it takes some time.
        now = pace.next().unwrap_or(now).max(now) + Duration::from_millis(number % 7);
        pace.record(now);
        applied.push(now);
    }
    let within = |first: Instant| {
        let later = applied
            .iter()
            .filter(|at| **at >= first && **at < first + Duration::from_secs(1));
        later.count()
    };
    let most = applied.iter().map(|first| within(*first)).max();
    assert_eq!(most, Some(APPLICATIONS_MAX));
    let took = now - start;
    assert!(took < Duration::from_secs(60), "{took:?}: no slower than that");
}

#[test]
fn a_change_waits_for_no_read_of_the_database_longer_than_the_setting() {
    let setting = Duration::from_secs(5);
    for _ in 0..10_000 {
        let interval = super::shortened(setting);
        assert!(interval >= setting.mul_f64(0.8) && interval <= setting, "{interval:?}");
    }
}
