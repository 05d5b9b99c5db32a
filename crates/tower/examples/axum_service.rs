//! An axum service with limits by client, by API key and for all: `cargo run -p tollgate-tower --example axum_service`.

use axum::extract::ConnectInfo;
use axum::routing::get;
use axum::{Extension, Router};
use std::error::Error;
use std::net::SocketAddr;
use tokio::net::TcpListener;
use tollgate_limiter::Limiter;
use tollgate_limiter::core::network::Networks;
use tollgate_limiter::limits::{Concurrency, Gcra, TokenBucket};
use tollgate_tower::extract::{client_ip, header};
use tollgate_tower::protect::{PriorityClass, Protection, Share};
use tollgate_tower::{ActualCost, LimitSet, RateLimitLayer};

/// Serves until the program ends.
pub(crate) async fn serve(listener: TcpListener) -> Result<(), Box<dyn Error>> {
    // The proxies in front of this service, if there are any. Nobody else's `X-Forwarded-For` is believed.
    let trusted = Networks::parse(["10.0.0.0/8"])?;
    let limits = LimitSet::new(Limiter::in_memory())
        .per("per-ip", TokenBucket::per_second(10).burst(20), client_ip(trusted))?
        .per("in-flight", Concurrency::at_most(20), header("x-api-key"))?
        .per("tokens", TokenBucket::per_minute(10_000), header("x-api-key"))?
        .cost(|_| 500)
        .shared("ceiling", Gcra::per_second(5_000))?;
    let layer = RateLimitLayer::new(limits)
        .peer(|extensions| extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip()))
        .priority(|head| match head.uri.path() {
            "/v1/charges" => PriorityClass::Critical,
            _ => PriorityClass::Normal,
        })
        .protect(Protection::in_flight(200).reserve(Share::percent(20)));
    let app = Router::new()
        .route("/", get(async || "hello\n"))
        .route("/complete", get(complete))
        .layer(layer);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}

/// 500 units were predicted; what was not used is refunded at the end of the response.
async fn complete(Extension(cost): Extension<ActualCost>) -> &'static str {
    cost.set(120);
    "done\n"
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    serve(TcpListener::bind("127.0.0.1:3000").await?).await
}
