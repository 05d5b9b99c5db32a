//! A tonic service with a limit by client: `cargo run -p tollgate-tower --example tonic_service`. A denied call has the
//! status `RESOURCE_EXHAUSTED` and the time after which to retry.

use std::error::Error;
use tokio::net::TcpListener;
use tollgate_limiter::Limiter;
use tollgate_limiter::core::network::Networks;
use tollgate_limiter::limits::TokenBucket;
use tollgate_tower::extract::client_ip;
use tollgate_tower::{LimitSet, RateLimitLayer};
use tonic::transport::Server;
use tonic::transport::server::{TcpConnectInfo, TcpIncoming};

/// Serves until the program ends. The health service stands for yours.
pub(crate) async fn serve(listener: TcpListener) -> Result<(), Box<dyn Error>> {
    let limits = LimitSet::new(Limiter::in_memory()).per(
        "per-ip",
        TokenBucket::per_minute(60).burst(5),
        client_ip(Networks::default()),
    )?;
    let layer =
        RateLimitLayer::new(limits).peer(|extensions| Some(extensions.get::<TcpConnectInfo>()?.remote_addr()?.ip()));
    let (_, health) = tonic_health::server::health_reporter();
    let server = Server::builder().layer(layer).add_service(health);
    server.serve_with_incoming(TcpIncoming::from(listener)).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    serve(TcpListener::bind("127.0.0.1:50051").await?).await
}
