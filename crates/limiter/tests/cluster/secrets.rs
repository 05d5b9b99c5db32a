//! A cluster that others may not listen to.

use crate::papers::{Papers, papers};
use crate::site::{charge, key, left, once, subject_on, until};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;
use tollgate_core::LeaseId;
use tollgate_limiter::store::Store;
use tollgate_limiter::store::redis::{RedisOptions, ReadFrom, Redis};
use tollgate_limiter::testing::cluster::Cluster;
use tollgate_limiter::testing::servers::ServerKind;

/// A cluster whose servers show certificates and ask for them, and a folder with these.
struct Guarded {
    cluster: Cluster,
    folder: PathBuf,
}

impl Guarded {
    fn start(papers: &Papers) -> Self {
        let folder = std::env::temp_dir().join(format!("tollgate-cluster-tls-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let write = |name: &str, text: &str| -> String {
            let path = folder.join(name);
            fs::write(&path, text).expect("a file");
            path.to_str().expect("in words").to_owned()
        };
        let (certificate, key) = &papers.server;
        let settings = [
            "--cluster-require-full-coverage",
            "no",
            "--tls-cert-file",
            &write("server.pem", certificate),
            "--tls-key-file",
            &write("server.key", key),
            "--tls-ca-cert-file",
            &write("authority.pem", &papers.authority),
        ];
        let cluster = Cluster::start_tls(ServerKind::Redis70, &settings);
        Self { cluster, folder }
    }

    fn options(&self, authority: &str, papers: &Papers) -> RedisOptions {
        let (certificate, key) = &papers.client;
        let options = Redis::options(&self.cluster.url()).expect("a URL");
        let options = options.deadline(Duration::from_secs(5));
        let tls = options.tls(
            Some(authority.as_bytes()),
            Some((certificate.as_bytes(), key.as_bytes())),
        );
        tls.expect("certificates")
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // A folder that is left behind does no harm.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counters_are_kept_on_a_cluster_over_tls() {
    let papers_here = papers();
    let guarded = Guarded::start(&papers_here);
    let cluster = &guarded.cluster;
    assert!(cluster.url().starts_with("rediss+cluster://"));
    let options = guarded.options(&papers_here.authority, &papers_here);
    let store = options.read_from(ReadFrom::Replica).open();
    assert_eq!(store.diagnose().await.expect("a cluster").warnings, Vec::<String>::new());
    let limit = once(10);
    let subjects = [0, 1, 2].map(|primary| subject_on(cluster, &store, primary, ""));
    let charges = subjects.map(|subject| charge(key(&store, "r", &limit, &[subject.as_bytes()]), &limit));
    let settled = store.settle(&charges, LeaseId::default()).await;
    assert!(settled.allowed, "{settled:?}");
    for charge in charges {
        until("the charge at the replica", async || {
            left(&store, charge.key, &limit).await == 9
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
    let settled = store.settle(&charges, LeaseId::default()).await;
    assert!(settled.allowed, "{settled:?}");
    assert_eq!(store.metrics().errors().map(|(_, count)| count).sum::<u64>(), 0);
    // Whoever trusts somebody else is not served.
    let other = papers();
    let astray = guarded.options(&other.authority, &papers_here);
    let astray = astray.deadline(Duration::from_millis(300)).open();
    let settled = astray.settle(&charges[..1], LeaseId::default()).await;
    assert!(settled.outcomes[0].is_err(), "{settled:?}");
    until("a reason", async || {
        let fault = astray.connection_error().unwrap_or_default();
        fault.contains("certificate")
    })
    .await;
}
