//! One limit over many connections: the state is in the store, not in the service that each connection clones.

use super::fixture::{Connection, manual_limiter, redis_limiter, serve};
use axum::Router;
use axum::extract::ConnectInfo;
use axum::routing::get;
use std::net::SocketAddr;
use tokio::time::Instant;
use tollgate_limiter::Limiter;
use tollgate_limiter::core::Micros;
use tollgate_limiter::core::network::Networks;
use tollgate_limiter::limits::TokenBucket;
use tollgate_limiter::store::Store;
use tollgate_limiter::testing::servers::{Server, ServerKind};
use tollgate_tower::extract::client_ip;
use tollgate_tower::{LimitSet, RateLimitLayer};

/// An app that allows each client five requests a second.
fn app<S: Store + 'static>(limiter: Limiter<S>) -> Router {
    let limits = LimitSet::new(limiter)
        .per("per-ip", TokenBucket::per_second(5), client_ip(Networks::default()))
        .expect("valid limits");
    let layer = RateLimitLayer::new(limits)
        .peer(|extensions| extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip()));
    Router::new().route("/", get(async || "hello")).layer(layer)
}

/// Sends five requests on each of `connections` connections at once, spread over the servers. Returns those that passed,
/// and those that were denied.
async fn hammer(servers: &[SocketAddr], connections: usize) -> (usize, usize) {
    let tasks: Vec<_> = (0..connections)
        .map(|index| {
            let address = *servers.get(index % servers.len()).expect("a server");
            tokio::spawn(async move {
                let mut connection = Connection::open(address).await;
                let mut statuses = Vec::new();
                for _ in 0..5 {
                    statuses.push(connection.get("/", &[]).await.status.as_u16());
                }
                statuses
            })
        })
        .collect();
    let mut statuses = Vec::new();
    for task in tasks {
        statuses.extend(task.await.expect("no panic"));
    }
    let count = |status| statuses.iter().filter(|found| **found == status).count();
    assert_eq!(count(200) + count(429), statuses.len(), "nothing else is answered");
    (count(200), count(429))
}

#[tokio::test(flavor = "multi_thread")]
async fn five_of_1500_requests_on_300_connections_pass_and_five_more_a_second_later() {
    let (limiter, clock) = manual_limiter();
    let server = serve(app(limiter)).await;
    assert_eq!(hammer(&[server], 300).await, (5, 1_495));
    clock.advance(Micros::from_secs(1));
    assert_eq!(hammer(&[server], 300).await, (5, 1_495));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_servers_on_one_redis_are_one_limit() {
    let redis = Server::start(ServerKind::Redis70);
    let servers = [
        serve(app(redis_limiter(&redis).await)).await,
        serve(app(redis_limiter(&redis).await)).await,
    ];
    let started = Instant::now();
    let (passed, denied) = hammer(&servers, 300).await;
    let elapsed_ms = usize::try_from(started.elapsed().as_millis()).expect("minutes");
    assert_eq!(passed + denied, 1_500);
    let refilled = 5 * elapsed_ms.div_ceil(1_000);
    assert!(
        (5..=5 + refilled).contains(&passed),
        "{passed} passed in {elapsed_ms} ms"
    );
}
