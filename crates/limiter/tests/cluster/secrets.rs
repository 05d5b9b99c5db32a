//! A cluster that others may not listen to.

use crate::fixture::{charge, key, once, remaining, subject_on, until};
use std::time::Duration;
use tollgate_core::LeaseId;
use tollgate_limiter::store::Store;
use tollgate_limiter::store::redis::{ReadFrom, Redis, RedisOptions};
use tollgate_limiter::testing::certificates::{TlsCertificates, TlsFolder, certificates};
use tollgate_limiter::testing::cluster::Cluster;
use tollgate_limiter::testing::servers::ServerKind;

/// A cluster whose servers show certificates and ask for them, and a folder with these.
struct Guarded {
    cluster: Cluster,
    _files: TlsFolder,
}

impl Guarded {
    fn start(certificates: &TlsCertificates) -> Self {
        let files = certificates.install();
        let files_settings = files.settings();
        let mut settings = vec!["--cluster-require-full-coverage", "no"];
        settings.extend(files_settings.iter().map(String::as_str));
        let cluster = Cluster::start_tls(ServerKind::Redis70, &settings);
        Self { cluster, _files: files }
    }

    fn options(&self, authority: &str, certificates: &TlsCertificates) -> RedisOptions {
        let (certificate, key) = &certificates.client;
        let options = Redis::options(&self.cluster.url()).expect("a URL");
        let options = options.deadline(Duration::from_secs(5));
        let tls = options.tls(
            Some(authority.as_bytes()),
            Some((certificate.as_bytes(), key.as_bytes())),
        );
        tls.expect("certificates")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counters_are_kept_on_a_cluster_over_tls() {
    let certificate_files = certificates();
    let guarded = Guarded::start(&certificate_files);
    let cluster = &guarded.cluster;
    assert!(cluster.url().starts_with("rediss+cluster://"));
    let options = guarded.options(&certificate_files.authority, &certificate_files);
    let store = options.read_from(ReadFrom::Replica).open();
    assert_eq!(
        store.diagnose().await.expect("a cluster").warnings,
        Vec::<String>::new()
    );
    let limit = once(10);
    let subjects = [0, 1, 2].map(|primary| subject_on(cluster, &store, primary, ""));
    let charges = subjects.map(|subject| charge(key(&store, "r", &limit, &[subject.as_bytes()]), &limit));
    let settlement = store.settle(&charges, LeaseId::default()).await;
    assert!(settlement.allowed, "{settlement:?}");
    for charge in charges {
        until("the charge at the replica", async || {
            remaining(&store, charge.key, &limit).await == 9
        })
        .await;
    }
    assert!(store.metrics().replica_reads.get() > 0);
    assert_eq!(store.metrics().redirects.get(), 0);
    // Where a server sends us to is over TLS, too.
    cluster.command(3, "CLUSTER FAILOVER").expect("it begins");
    until("another primary", async || {
        cluster.has_line(3, "INFO replication", "role:master")
    })
    .await;
    let settlement = store.settle(&charges, LeaseId::default()).await;
    assert!(settlement.allowed, "{settlement:?}");
    assert_eq!(store.metrics().errors().map(|(_, count)| count).sum::<u64>(), 0);
    // Whoever trusts somebody else is not served.
    let other = certificates();
    let astray = guarded.options(&other.authority, &certificate_files);
    let astray = astray.deadline(Duration::from_millis(300)).open();
    let settlement = astray.settle(&charges[..1], LeaseId::default()).await;
    assert!(settlement.outcomes[0].is_err(), "{settlement:?}");
    until("a reason", async || {
        let error = astray.status().connection_error.unwrap_or_default();
        error.contains("certificate")
    })
    .await;
}
