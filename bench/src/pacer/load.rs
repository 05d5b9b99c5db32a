//! The clients: ours, and what they are compared with.

use bytes::Bytes;
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use http_body_util::{BodyExt, Full};
use hyper::{Request, StatusCode, Uri};
use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;
use tollgate_limiter::Limiter;
use tollgate_limiter::limits::Gcra;
use tollgate_limiter::store::redis::Redis;
use tollgate_tower::client::{PacedService, PacerLayer, RepeatCloned};
use tower_layer::Layer;
use tower_service::Service;

/// A kind of client.
#[derive(Clone, Copy)]
pub(super) enum ClientKind {
    Paced,
    PacedOverRedis,
    Learning,
    Unlimited,
    Governor,
    RetryAfter,
}

type Http = HyperClient<HttpConnector, Full<Bytes>>;

/// A client, shared by tasks.
#[derive(Clone)]
pub(super) enum Client {
    Paced(PacedService<Http, tollgate_limiter::store::memory::Memory, RepeatCloned>),
    Shared(PacedService<Http, Redis, RepeatCloned>),
    Governor(Http, Arc<DefaultDirectRateLimiter>),
    RetryAfter(Http),
}

impl ClientKind {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Paced => "PacerLayer, limit configured",
            Self::PacedOverRedis => "PacerLayer, four limiters on one Redis",
            Self::Learning => "PacerLayer, learning",
            Self::Unlimited => "PacerLayer, no limit",
            Self::Governor => "governor, until_ready before each request",
            Self::RetryAfter => "no limit, retries after Retry-After",
        }
    }
}

impl Client {
    /// The clients of one load, which share a limit.
    pub(super) fn several(kind: ClientKind, per_second: u64, burst: u64, redis: &str) -> Result<Vec<Self>, String> {
        let limit = Gcra::per_second(per_second).burst(burst);
        let http: Http = HyperClient::builder(TokioExecutor::new()).build_http();
        let layer = PacerLayer::new(Limiter::in_memory());
        let text = |error: tollgate_core::LimitError| error.to_string();
        Ok(match kind {
            ClientKind::Paced => vec![Self::Paced(layer.limit(limit).map_err(text)?.layer(http))],
            ClientKind::Learning => vec![Self::Paced(layer.learn().layer(http))],
            ClientKind::Unlimited => vec![Self::Paced(layer.layer(http))],
            ClientKind::PacedOverRedis => {
                let mut clients = Vec::new();
                for _ in 0..4 {
                    // Without a fallback: a client whose store does not answer waits, and sends nothing uncounted.
                    let store = Redis::options(redis).map_err(|error| error.to_string())?.open();
                    let limiter = Limiter::new(store);
                    let layer = PacerLayer::new(limiter).limit(limit).map_err(text)?;
                    clients.push(Self::Shared(layer.layer(http.clone())));
                }
                clients
            }
            ClientKind::Governor => {
                let number = |number: u64| {
                    u32::try_from(number)
                        .ok()
                        .and_then(NonZeroU32::new)
                        .ok_or("out of range")
                };
                let quota = Quota::per_second(number(per_second)?).allow_burst(number(burst)?);
                vec![Self::Governor(http, Arc::new(RateLimiter::direct(quota)))]
            }
            ClientKind::RetryAfter => vec![Self::RetryAfter(http)],
        })
    }

    /// Sends one request after the other, until it is aborted.
    pub(super) async fn send_forever(mut self, uri: Uri) {
        loop {
            self.send_one(&uri).await;
        }
    }

    /// Sends this many.
    pub(super) async fn send(mut self, uri: Uri, requests: u64) {
        for _ in 0..requests {
            self.send_one(&uri).await;
        }
    }

    async fn send_one(&mut self, uri: &Uri) {
        let mut request = Request::new(Full::default());
        *request.uri_mut() = uri.clone();
        let response = match self {
            Self::Paced(client) => client.call(request).await.ok(),
            Self::Shared(client) => client.call(request).await.ok(),
            Self::Governor(http, limiter) => {
                limiter.until_ready().await;
                http.call(request).await.ok()
            }
            Self::RetryAfter(http) => {
                let response = http.call(request).await.ok();
                let denied = response
                    .as_ref()
                    .filter(|response| response.status() == StatusCode::TOO_MANY_REQUESTS);
                let asked = denied.and_then(|denied| denied.headers().get("retry-after")?.to_str().ok()?.parse().ok());
                tokio::time::sleep(Duration::from_secs(asked.unwrap_or(0))).await;
                response
            }
        };
        if let Some(response) = response {
            // The connection is free again once the body has been read.
            let _ = response.into_body().collect().await;
        }
    }
}
