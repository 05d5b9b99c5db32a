//! Connections that others may not read: certificates made for the test.

use crate::fixture::{Fixture, charge, connection_error, every_limit, lease};
use std::time::Duration;
use tollgate_core::Micros;
use tollgate_limiter::store::Store;
use tollgate_limiter::store::redis::{Redis, RedisOptions, RedisTlsError};
use tollgate_limiter::testing::certificates::{TlsCertificates, TlsFolder, certificates};
use tollgate_limiter::testing::servers::{Server, ServerKind, free_port};

/// A server that speaks TLS at a port of its own, and asks clients for a certificate or not. Its files end with it.
struct Guarded {
    fixture: Fixture,
    port: u16,
    _files: TlsFolder,
}

impl Guarded {
    fn start(certificates: &TlsCertificates, requires_client_cert: &str) -> Self {
        let port = free_port().expect("a port");
        let files = certificates.install();
        let mut settings = files.settings();
        settings.extend(
            [
                "--tls-port",
                &port.to_string(),
                "--tls-auth-clients",
                requires_client_cert,
            ]
            .map(str::to_owned),
        );
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        let fixture = Fixture::on(Server::start_with(ServerKind::Redis70, &settings));
        Self {
            fixture,
            port,
            _files: files,
        }
    }

    fn options(&self) -> RedisOptions {
        let options = Redis::options(&format!("rediss://127.0.0.1:{}/", self.port)).expect("a URL");
        options.deadline(Duration::from_secs(5))
    }
}

async fn works(guarded: &Guarded, options: RedisOptions) {
    let store = options.open();
    let limit = every_limit(5, Micros::from_secs(60))[0];
    let key = guarded.fixture.counter(&store, &limit, "anybody");
    let settlement = store.settle(&[charge(key, &limit, 1)], lease()).await;
    assert!(settlement.allowed, "{:?}", store.status().connection_error);
    assert_eq!(guarded.fixture.audit(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_trusted_by_its_authority_only() {
    let certificates = certificates();
    let guarded = Guarded::start(&certificates, "no");
    let trusting = guarded.options().tls(Some(certificates.authority.as_bytes()), None);
    works(&guarded, trusting.expect("certificates")).await;
    // Neither what the system trusts nor another authority vouches for it.
    let another = self::certificates();
    let another = guarded.options().tls(Some(another.authority.as_bytes()), None);
    for options in [guarded.options(), another.expect("certificates")] {
        let error = connection_error(&options.open()).await;
        assert!(error.contains("certificate"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_may_ask_for_a_certificate() {
    let certificates = certificates();
    let guarded = Guarded::start(&certificates, "yes");
    let authority = Some(certificates.authority.as_bytes());
    let (certificate, key) = &certificates.client;
    let with = guarded
        .options()
        .tls(authority, Some((certificate.as_bytes(), key.as_bytes())));
    works(&guarded, with.expect("certificates")).await;
    let without = guarded.options().tls(authority, None).expect("certificates").open();
    assert!(!connection_error(&without).await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_certificate_is_refused_when_it_is_given() {
    let (certificates, other) = (certificates(), certificates());
    let options = || Redis::options("rediss://127.0.0.1:1/").expect("a URL");
    let authority = certificates.authority.as_bytes();
    let (certificate, key) = (certificates.client.0.as_bytes(), certificates.client.1.as_bytes());
    let plain = Redis::options("redis://127.0.0.1:1/").expect("a URL");
    let tried = [
        (plain.tls(Some(authority), None), RedisTlsError::NoTls),
        (options().tls(Some(b"nothing"), None), RedisTlsError::Authority),
        (options().tls(Some(key), None), RedisTlsError::Authority),
        (options().tls(None, Some((key, key))), RedisTlsError::Client),
        (
            options().tls(None, Some((certificate, certificate))),
            RedisTlsError::Client,
        ),
        (
            options().tls(None, Some((certificate, other.client.1.as_bytes()))),
            RedisTlsError::Client,
        ),
    ];
    for (index, (tried, expected)) in tried.into_iter().enumerate() {
        let error = tried.expect_err("refused");
        assert_eq!(error, expected, "{index}");
    }
}
