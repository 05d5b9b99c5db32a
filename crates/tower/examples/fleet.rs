//! One limit for several processes, over Redis or Valkey. Run it twice:
//!
//! ```text
//! cargo run -p tollgate-tower --example fleet -- redis://127.0.0.1/ 127.0.0.1:3000
//! cargo run -p tollgate-tower --example fleet -- redis://127.0.0.1/ 127.0.0.1:3001
//! ```

use axum::Router;
use axum::routing::get;
use std::error::Error;
use tokio::net::TcpListener;
use tollgate_limiter::Limiter;
use tollgate_limiter::limits::TokenBucket;
use tollgate_tower::{LimitSet, RateLimitLayer};

/// Serves until the program ends: five requests a second, over all processes with this Redis. While it cannot be reached,
/// each process keeps to its share.
pub(crate) async fn serve(redis_url: &str, listener: TcpListener) -> Result<(), Box<dyn Error>> {
    let limits = LimitSet::new(Limiter::redis(redis_url)?).shared("fleet", TokenBucket::per_second(5))?;
    let app = Router::new()
        .route("/", get(async || "hello\n"))
        .layer(RateLimitLayer::new(limits));
    axum::serve(listener, app).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(redis_url), Some(address)) = (arguments.next(), arguments.next()) else {
        return Err("usage: fleet REDIS_URL ADDRESS".into());
    };
    serve(&redis_url, TcpListener::bind(address).await?).await
}
