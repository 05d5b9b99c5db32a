//! Tests of several control planes on one shared store, and on one PostgreSQL database.

use super::link::{STATUS_BYTES_MAX, requests};
use super::*;
use crate::control::feed::Signer;
use crate::control::plan::FORMAT;
use crate::control::start::testing::{FILE_LAYER, Instance, SECRET, author, cache, new_folder, row};
use crate::control::{
    ControlError, ControlOptions, ControlResult, ControlSecret, DatabaseChoice, PublishOptions, PublishSet, Published,
    WriteOptions,
};
use crate::server::telemetry::Protocol;
use crate::server::telemetry::watch::report::FiguresReport;
use crate::server::telemetry::watch::series::{Resolution, RuleName};
use crate::server::telemetry::watch::top::TopQuery;
use tollgate_limiter::core::testing::rules::{attempt, attribute_pairs};
use tollgate_limiter::store::redis::{CacheWrite, ConfigCache};
use tollgate_limiter::testing::eventually;
use tollgate_limiter::testing::servers::{Server, ServerKind};
use tollgate_test_kit::postgres::Postgres;

const SET: &str = "rules:\n  - id: extra\n    per: merchant\n    limit: 5/min\n";
const WINDOW_SET: &str = "rules:\n  - { id: extra, per: merchant, limit: 5/min, algorithm: fixed_window }\n";
const OTHER_SET: &str = "rules:\n  - id: extra\n    per: merchant\n    limit: 6/min\n";

impl Instance {
    async fn start(choice: &DatabaseChoice, file_layer: &str, cache: Option<ConfigCache>) -> Self {
        Self::start_at(FORMAT, choice, file_layer, cache).await
    }

    /// As a program of this format.
    async fn start_at(format: u32, choice: &DatabaseChoice, file_layer: &str, cache: Option<ConfigCache>) -> Self {
        let options = ControlOptions {
            secret: ControlSecret::new(SECRET),
            poll: Duration::from_millis(100),
            prepare_timeout: Duration::from_secs(PREPARE_SECONDS),
            start_without: true,
            format,
            ..ControlOptions::default()
        };
        Self::open(new_folder(file_layer), choice, options, cache).await
    }

    fn id(&self) -> &str {
        self.control.instance()
    }

    async fn publish_now(&self, text: &str, options: PublishOptions) -> ControlResult<Published> {
        let options = PublishOptions {
            wait: Duration::ZERO,
            ..options
        };
        self.publish(text, &options).await
    }

    async fn publish_version(&self, number: u64) -> ControlResult<Published> {
        let options = PublishOptions {
            force: true,
            ..PublishOptions::default()
        };
        self.control
            .publish(PublishSet::Version(number), &options, author())
            .await
    }

    /// Waits until it sees so many instances.
    async fn sees(&self, count: usize) {
        eventually("all instances", async || {
            self.control.instances().await.instances.len() == count
        })
        .await;
    }

    async fn set_row(&self, merchant: &str, terms: &str) {
        let row = row("extra", merchant, Some(terms));
        let options = WriteOptions::default();
        self.control.write_row(row, &options, author()).await.unwrap();
    }

    /// Checks attempts of one merchant.
    async fn check(&self, merchant: &str, times: usize) {
        let attributes = attribute_pairs([("merchant", merchant)]);
        let attempt = attempt(&attributes);
        for _ in 0..times {
            self.control.parts.gate.snapshot(Protocol::Http).check(&attempt).await;
        }
    }

    fn has_compiled(&self) -> bool {
        self.control.parts.prepared().is_some()
    }
}

/// The wait for votes: long enough for a busy machine where all vote.
const PREPARE_SECONDS: u64 = 10;

/// A control service and a number of instances that follow the shared store.
async fn fleet(server: &Server, followers: &[&str]) -> (Instance, Vec<Instance>) {
    let publisher = Instance::start(&DatabaseChoice::DataDir, FILE_LAYER, Some(cache(server))).await;
    let mut all = Vec::new();
    for layer in followers {
        all.push(Instance::start(&DatabaseChoice::None, layer, Some(cache(server))).await);
    }
    publisher.sees(all.len() + 1).await;
    (publisher, all)
}

/// An instance that reports and never votes.
struct Mute {
    cache: ConfigCache,
    signer: Signer,
}

impl Mute {
    const ID: &str = "mute";

    async fn report(&self, change: impl FnOnce(&mut InstanceStatus)) {
        let mut status = InstanceStatus {
            formats: FORMAT,
            at: now_ms(),
            ..InstanceStatus::default()
        };
        change(&mut status);
        let sealed = self.signer.seal("i:mute", &serde_json::to_string(&status).unwrap());
        self.write(sealed.as_bytes()).await;
    }

    async fn write(&self, value: &[u8]) {
        let ttl = Duration::from_secs(60);
        let name = "i:mute";
        let index = CacheWrite::Index {
            member: Self::ID,
            seen_ms: now_ms(),
            ttl,
        };
        self.cache
            .write(&[CacheWrite::Set { name, value, ttl }, index])
            .await
            .unwrap();
    }
}

fn mute(publisher: &Instance, server: &Server) -> Mute {
    Mute {
        cache: cache(server),
        signer: publisher.control.parts.signer.clone(),
    }
}

fn incomplete(result: ControlResult<Published>) -> Vec<String> {
    match result {
        Err(ControlError::PrepareIncomplete { instances, .. }) => instances,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_set_is_compiled_by_all_before_it_is_live() {
    let server = Server::start(ServerKind::Redis70);
    let (publisher, followers) = fleet(&server, &[FILE_LAYER, FILE_LAYER]).await;
    let published = publisher.publish_now(SET, PublishOptions::default()).await.unwrap();
    assert_eq!((published.prepared, published.version), (3, 1));
    let digest = publisher.control.live().set_digest;
    for follower in &followers {
        // Kept for the swap, or in use by now.
        let is_kept = follower
            .control
            .parts
            .prepared()
            .as_ref()
            .is_some_and(|set| set.digest == digest);
        assert!(is_kept || follower.control.live().set_digest == digest);
    }
    // Every key of the fleet goes away by itself.
    let mut connection = tollgate_limiter::testing::admin::connect(&server);
    let keys: Vec<String> = tollgate_limiter::testing::admin::query(&mut connection, &["KEYS", "tg:{cfg}:*"]);
    assert!(keys.iter().any(|key| key.contains(":vote:")), "{keys:?}");
    for key in keys {
        let ttl: i64 = tollgate_limiter::testing::admin::query(&mut connection, &["PTTL", &key]);
        assert!(ttl != -1, "{key}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_cannot_use_a_set_is_named_and_nothing_is_live() {
    let server = Server::start(ServerKind::Redis70);
    let colliding = format!("{FILE_LAYER}  - id: extra\n    per: user\n    limit: 1/min\n");
    let (publisher, followers) = fleet(&server, &[FILE_LAYER, &colliding]).await;
    match publisher.publish_now(SET, PublishOptions::default()).await {
        Err(ControlError::FleetRejected(rejections)) => {
            let [rejection] = &rejections[..] else {
                panic!("{rejections:?}")
            };
            assert_eq!(rejection.instance, followers[1].id());
            assert!(
                rejection.problems.iter().any(|text| text.contains("extra")),
                "{rejection:?}"
            );
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(publisher.control.live().version, 0);
    // Without being asked they do not stop it.
    let skip = PublishOptions {
        skip_prepare: true,
        ..PublishOptions::default()
    };
    let published = publisher.publish_now(SET, skip).await.unwrap();
    assert_eq!(published.prepared, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silence_is_no_consent_until_whoever_is_silent_has_left() {
    let server = Server::start(ServerKind::Valkey);
    let (publisher, followers) = fleet(&server, &[FILE_LAYER]).await;
    let mute = mute(&publisher, &server);
    mute.report(|_| {}).await;
    publisher.sees(3).await;
    assert_eq!(
        incomplete(publisher.publish_now(SET, PublishOptions::default()).await),
        [Mute::ID]
    );
    assert_eq!(publisher.control.live().version, 0);
    assert!(followers[0].has_compiled());
    // It leaves while it is waited for, and another joins, which must vote too.
    let publishing = publisher.publish_now(SET, PublishOptions::default());
    let meanwhile = async {
        let joined = Instance::start(&DatabaseChoice::None, FILE_LAYER, Some(cache(&server))).await;
        eventually("its vote", async || joined.has_compiled()).await;
        mute.report(|status| status.left = true).await;
        joined
    };
    let (published, joined) = tokio::join!(publishing, meanwhile);
    assert_eq!(published.unwrap().prepared, 3);
    // One that leaves in good order is gone at once.
    publisher.sees(3).await;
    joined.control.leave().await;
    publisher.sees(2).await;
}

/// Rows were checked once, before the fleet was asked to compile the set, which may take half a minute.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_written_while_a_set_is_prepared_is_checked_at_its_commit() {
    let server = Server::start(ServerKind::Redis70);
    let (publisher, _) = fleet(&server, &[]).await;
    let first = publisher.publish_now(SET, PublishOptions::default()).await.unwrap();
    publisher.applies(first.revision).await;
    let mute = mute(&publisher, &server);
    let publish_while = async |options: PublishOptions, rows: &[(&str, &str)]| {
        mute.report(|_| {}).await;
        publisher.sees(2).await;
        let meanwhile = async {
            eventually("the request for votes", async || {
                !requests(&publisher.control.parts).await.unwrap().is_empty()
            })
            .await;
            for (merchant, terms) in rows {
                publisher.set_row(merchant, terms).await;
            }
            mute.report(|status| status.left = true).await;
        };
        tokio::join!(publisher.publish_now(WINDOW_SET, options), meanwhile).0
    };
    match publish_while(PublishOptions::default(), &[("m_1", "9/min burst 20")]).await {
        Err(ControlError::RowsInvalid(rows)) => assert_eq!(rows[0].subject["merchant"], "m_1"),
        other => panic!("{other:?}"),
    }
    assert_eq!(publisher.control.live().version, first.version);
    // What does not fit by then is deleted, and not what has come to fit.
    let dropping = PublishOptions {
        drop_rows: true,
        ..PublishOptions::default()
    };
    let rows = [("m_1", "8/min"), ("m_2", "9/min"), ("m_2", "9/min burst 20")];
    let published = publish_while(dropping, &rows).await.unwrap();
    publisher.applies(published.revision).await;
    let tables = &publisher.control.parts.tables;
    let kept: Vec<String> = tables.all().0.iter().map(|row| row.terms.clone()).collect();
    assert_eq!(kept, ["8/min"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rollback_waits_for_nobody_for_long() {
    let server = Server::start(ServerKind::Redis70);
    let (publisher, _followers) = fleet(&server, &[FILE_LAYER]).await;
    for text in [SET, OTHER_SET] {
        let published = publisher.publish_now(text, PublishOptions::default()).await.unwrap();
        publisher.applies(published.revision).await;
    }
    mute(&publisher, &server).report(|_| {}).await;
    publisher.sees(3).await;
    let options = PublishOptions {
        wait: Duration::ZERO,
        ..PublishOptions::default()
    };
    let rolled_back = publisher.control.rollback(Some(1), &options, author()).await.unwrap();
    assert_eq!((rolled_back.prepared, rolled_back.changed), (2, true));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_is_too_old_is_named_and_one_with_another_secret_is_warned_of() {
    let server = Server::start(ServerKind::Redis70);
    let (publisher, _) = fleet(&server, &[]).await;
    let mute = mute(&publisher, &server);
    mute.report(|status| status.formats = FORMAT - 1).await;
    publisher.sees(2).await;
    match publisher.publish_now(SET, PublishOptions::default()).await {
        Err(ControlError::FleetRejected(rejections)) => {
            assert_eq!(rejections[0].instance, Mute::ID);
            assert!(rejections[0].problems[0].contains("format"), "{rejections:?}");
        }
        other => panic!("{other:?}"),
    }
    // What is not signed with the secret, or not a status at all, counts for nothing.
    let other = Signer::new(Some(b"another secret of 32 characters."), "tg");
    let status = serde_json::to_string(&InstanceStatus::default()).unwrap();
    let huge = vec![b'x'; 100_000];
    for value in [other.seal("i:mute", &status).as_bytes(), b"x", &huge, b"\xff\xfe"] {
        mute.write(value).await;
        let view = publisher.control.instances().await;
        assert_eq!(view.instances.len(), 1);
        assert!(
            view.warnings.iter().any(|text| text.contains("control.secret")),
            "{view:?}"
        );
    }
    assert_eq!(
        publisher
            .publish_now(SET, PublishOptions::default())
            .await
            .unwrap()
            .prepared,
        1
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_is_too_old_for_a_set_keeps_its_own_and_goes_on_with_rows() {
    let (postgres, redis) = (Postgres::shared(), Server::start(ServerKind::Redis70));
    for shares_store in [false, true] {
        let choice = DatabaseChoice::Postgres(postgres.create_database());
        let store = || shares_store.then(|| cache(&redis));
        let follower_choice = if shares_store { &DatabaseChoice::None } else { &choice };
        let older = Instance::start_at(FORMAT - 1, &choice, FILE_LAYER, store()).await;
        let follower = Instance::start_at(FORMAT - 1, follower_choice, FILE_LAYER, store()).await;
        let first = older.publish_now(SET, PublishOptions::default()).await.unwrap();
        let current = Instance::start(&choice, FILE_LAYER, store()).await;
        current.sees(3).await;
        let all = [&older, &follower, &current];
        let reach = async |revision: u64| {
            for member in all {
                assert!(member.control.wait_applied(revision, Duration::from_secs(10)).await);
            }
        };
        reach(first.revision).await;
        assert!(all.iter().all(|member| member.control.live().version == first.version));

        let named = match current.publish_now(OTHER_SET, PublishOptions::default()).await {
            Err(ControlError::FleetRejected(rejections)) => rejections,
            other => panic!("{other:?}"),
        };
        let mut old = [older.id(), follower.id()];
        old.sort_unstable();
        assert!(
            named.iter().map(|rejection| rejection.instance.as_str()).eq(old),
            "{named:?}"
        );
        let skip = PublishOptions {
            skip_prepare: true,
            ..PublishOptions::default()
        };
        let skipped = current.publish_now(OTHER_SET, skip).await.unwrap();
        let written = current.write_row(row("plan", "m_1", Some("9/min"))).await.unwrap();
        reach(written.revision).await;
        assert_eq!(current.control.live().version, skipped.version);
        for member in [&older, &follower] {
            let status = member.control.status();
            assert_eq!((status.version, status.override_rows), (first.version, 1));
            assert!(
                status
                    .error
                    .is_some_and(|error| error.contains("needs a newer version"))
            );
        }
        eventually("they are known", async || {
            let mut known = current.control.too_old();
            known.sort_unstable();
            known == old
        })
        .await;
        // It cannot publish what it cannot read.
        match older.publish_version(skipped.version).await {
            Err(ControlError::FleetRejected(rejections)) => {
                assert!(
                    rejections.iter().any(|rejection| rejection.instance == older.id()),
                    "{rejections:?}"
                );
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_shared_store_a_publish_must_say_that_it_skips_the_fleet() {
    let mut server = Server::start(ServerKind::Redis70);
    let (publisher, _followers) = fleet(&server, &[FILE_LAYER]).await;
    let published = publisher.publish_now(SET, PublishOptions::default()).await.unwrap();
    publisher.applies(published.revision).await;
    server.kill();
    assert_eq!(
        incomplete(publisher.publish_now(OTHER_SET, PublishOptions::default()).await),
        Vec::<String>::new()
    );
    let skip = PublishOptions {
        skip_prepare: true,
        ..PublishOptions::default()
    };
    assert_eq!(publisher.publish_now(OTHER_SET, skip).await.unwrap().version, 3);
    assert!(publisher.control.instances().await.error.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_shared_store_instances_meet_in_the_database() {
    let postgres = Postgres::shared();
    let choice = DatabaseChoice::Postgres(postgres.create_database());
    let colliding = format!("{FILE_LAYER}  - id: extra\n    per: user\n    limit: 1/min\n");
    let publisher = Instance::start(&choice, FILE_LAYER, None).await;
    let other = Instance::start(&choice, FILE_LAYER, None).await;
    let published = publisher.publish_now(SET, PublishOptions::default()).await.unwrap();
    assert_eq!(published.prepared, 2);
    publisher.sees(2).await;
    // Both count for themselves.
    eventually("a warning", async || {
        let view = publisher.control.instances().await;
        view.warnings.iter().any(|text| text.contains("store.url"))
    })
    .await;
    eventually("the warning where operators look", async || {
        let warnings = publisher.control.parts.gate.metrics().control.fleet_warnings();
        warnings.is_some_and(|warnings| warnings.iter().any(|text| text.contains("store.url")))
    })
    .await;
    let third = Instance::start(&choice, &colliding, None).await;
    publisher.sees(3).await;
    match publisher.publish_now(OTHER_SET, PublishOptions::default()).await {
        Err(ControlError::FleetRejected(rejections)) => assert_eq!(rejections[0].instance, third.id()),
        other => panic!("{other:?}"),
    }
    third.control.leave().await;
    publisher.sees(2).await;
    let published = publisher
        .publish_now(OTHER_SET, PublishOptions::default())
        .await
        .unwrap();
    assert_eq!(published.prepared, 2);
    other.task.abort();
}

fn instance(id: &str, store: &str) -> FleetInstance {
    FleetInstance {
        id: id.to_owned(),
        status: InstanceStatus {
            store: store.to_owned(),
            ..InstanceStatus::default()
        },
    }
}

#[test]
fn counters_in_the_memory_of_several_instances_are_warned_of() {
    let one = [instance("a", "memory"), instance("b", "redis")];
    assert_eq!(warnings(&one, 0), Vec::<String>::new());
    let two = [instance("a", "memory"), instance("b", "redis"), instance("c", "memory")];
    let [warning] = &warnings(&two, 0)[..] else {
        panic!("one warning")
    };
    assert!(warning.contains("(a, c)") && warning.contains("store.url"), "{warning}");
    assert!(warnings(&one, 2)[0].contains("control.secret"));
}

#[test]
fn a_status_fits_its_bound_and_reads_as_it_was_written() {
    let request = PrepareRequest {
        id: "0123456789abcdef".to_owned(),
        from: "0123456789abcdef".to_owned(),
        epoch: u64::MAX,
        version: u64::MAX,
        digest: Digest([255; 32]),
    };
    let status = InstanceStatus {
        error: Some("\u{1f600}".repeat(ERROR_CHARACTERS_MAX)),
        database_id: "d".repeat(64),
        preparing: Some(request),
        ..instance("a", "redis").status
    };
    let text = serde_json::to_string(&status).unwrap();
    assert!(text.len() < STATUS_BYTES_MAX, "{}", text.len());
    assert_eq!(serde_json::from_str::<InstanceStatus>(&text).unwrap(), status);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_looks_often_does_not_read_all_statuses_each_time() {
    let server = Server::start(ServerKind::Redis70);
    let first = Instance::start(&DatabaseChoice::None, FILE_LAYER, Some(cache(&server))).await;
    assert_eq!(first.control.recent_instances().await.instances.len(), 1);
    let _second = Instance::start(&DatabaseChoice::None, FILE_LAYER, Some(cache(&server))).await;
    first.sees(2).await;
    // Its own status is that of now, and the others are those of before.
    let view = first.control.recent_instances().await;
    let ids: Vec<&str> = view.instances.iter().map(|instance| &*instance.id).collect();
    assert_eq!(ids, [first.id()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_has_expired_withdraws_none_that_came_after_it() {
    let server = Server::start(ServerKind::Redis70);
    let member = Instance::start(&DatabaseChoice::None, FILE_LAYER, Some(cache(&server))).await;
    let parts = &member.control.parts;
    let request = |id: &str| PrepareRequest {
        id: id.to_owned(),
        from: "another".to_owned(),
        epoch: 1,
        version: 1,
        digest: Digest::default(),
    };
    assert_eq!(link::write_request(parts, &request("second")).await, Ok(true));
    link::end_request(parts, &request("first")).await;
    assert_eq!(link::requests(parts).await, Ok(vec![request("second")]));
    link::end_request(parts, &request("second")).await;
    assert_eq!(link::write_request(parts, &request("third")).await, Ok(true));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn figures_of_all_instances_add_up_on_a_dashboard() {
    let server = Server::start(ServerKind::Redis70);
    let (publisher, followers) = fleet(&server, &[FILE_LAYER, FILE_LAYER]).await;
    // Each counts in its own memory, so each allows two.
    for (member, times) in followers.iter().zip([3, 5]) {
        member.check("m_1", times).await;
    }
    let forged = [vec![b'0'; 64], b"figures".to_vec()].concat();
    let ttl = Duration::from_secs(60);
    let (name, value) = ("f:mute", forged.as_slice());
    let index = CacheWrite::Index {
        member: Mute::ID,
        seen_ms: now_ms(),
        ttl,
    };
    cache(&server)
        .write(&[CacheWrite::Set { name, value, ttl }, index])
        .await
        .unwrap();
    let plan = RuleName::new("default", "plan");
    eventually("the figures of both", async || {
        let reports = publisher.control.fleet_figures(Some(&plan)).await.unwrap_or_default();
        let windows = reports
            .iter()
            .filter_map(|report| report.rule(&plan, Resolution::Second));
        let counts: Vec<_> = windows.flat_map(|window| window.values).flatten().collect();
        let allowed: u32 = counts.iter().map(|counts| counts.allowed).sum();
        let denied: u32 = counts.iter().map(|counts| counts.denied).sum();
        (reports.len(), allowed, denied) == (2, 4, 4)
    })
    .await;
    let query = TopQuery {
        domains: Vec::new(),
        rule: None,
        minutes: 15,
        limit: 20,
    };
    eventually("the refused subject", async || {
        let reports = publisher.control.fleet_figures(None).await.unwrap_or_default();
        let others = reports.iter().map(FiguresReport::top).collect();
        let list = publisher
            .control
            .parts
            .gate
            .watch()
            .top()
            .list(others, &query, now_ms());
        let rows: Vec<_> = list
            .items
            .iter()
            .map(|item| (&*item.subject, item.lower, item.upper))
            .collect();
        list.instances == 3 && rows == [("{\"merchant\":\"m_1\"}", 4, 4)]
    })
    .await;
    drop(server);
    eventually("the store is unavailable", async || {
        publisher.control.fleet_figures(None).await.is_none()
    })
    .await;
    // Also who asks in the next moment, before they are read again: the scope does not flip.
    assert_eq!(publisher.control.fleet_figures(None).await, None);
    assert_eq!(publisher.control.fleet_figures(Some(&plan)).await, None);
}
