//! A server with a limit, or one that fails, that counts its answers.

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tollgate_core::{Decision, Gcra, Micros, Rate, Retry};
use tollgate_limiter::{Limiter, NamedLimit};

/// A server on a free port.
pub(super) struct Upstream {
    address: SocketAddr,
    answers: Arc<Answers>,
}

/// The answers of a time.
#[derive(Clone, Copy)]
pub(super) struct Counts {
    pub(super) passed: u64,
    pub(super) denied: u64,
    pub(super) denied_at_start: u64,
    pub(super) elapsed: Duration,
}

struct Answers {
    limit: Option<(Limiter, NamedLimit, HeaderValue)>,
    passed: AtomicU64,
    denied: AtomicU64,
}

impl Upstream {
    /// A server with this limit, which it reports in the fields of the `ietf` dialect.
    pub(super) async fn limited(per_second: u64, burst: u64) -> Result<Self, String> {
        let limiter = Limiter::in_memory();
        let text = |error: tollgate_core::LimitError| error.to_string();
        let rate = Rate::new(per_second, Micros::from_secs(1)).map_err(text)?;
        let gcra = Gcra::new(rate).with_burst(burst).map_err(text)?;
        let limit = limiter.limit("upstream", gcra).map_err(text)?;
        let policy = format!("\"api\";q={burst};w={}", burst.div_ceil(per_second));
        let policy = HeaderValue::from_str(&policy).map_err(|error| error.to_string())?;
        Self::start(Some((limiter, limit, policy))).await
    }

    /// A server that answers 502 to everything.
    pub(super) async fn failing() -> Result<Self, String> {
        Self::start(None).await
    }

    async fn start(limit: Option<(Limiter, NamedLimit, HeaderValue)>) -> Result<Self, String> {
        let answers = Arc::new(Answers {
            limit,
            passed: AtomicU64::new(0),
            denied: AtomicU64::new(0),
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.map_err(|error| format!("no port: {error}"))?;
        let address = listener.local_addr().map_err(|error| error.to_string())?;
        let served = Arc::clone(&answers);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _ = stream.set_nodelay(true);
                let answers = Arc::clone(&served);
                tokio::spawn(async move {
                    let service = service_fn(|_: Request<Incoming>| async { Ok::<_, Infallible>(answers.answer()) });
                    hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await
                });
            }
        });
        Ok(Self { address, answers })
    }

    pub(super) fn uri(&self) -> Uri {
        format!("http://{}/", self.address).parse().unwrap_or_default()
    }

    pub(super) fn counts(&self) -> Counts {
        Counts {
            passed: self.answers.passed.load(Ordering::Relaxed),
            denied: self.answers.denied.load(Ordering::Relaxed),
            denied_at_start: 0,
            elapsed: Duration::ZERO,
        }
    }
}

impl Answers {
    fn answer(&self) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::default());
        let Some((limiter, limit, policy)) = &self.limit else {
            self.denied.fetch_add(1, Ordering::Relaxed);
            *response.status_mut() = StatusCode::BAD_GATEWAY;
            return response;
        };
        let seconds = |time: Micros| time.get().div_ceil(1_000_000);
        let decision = limiter.check(limit, "all");
        let standing = decision.standing();
        let mut reset = seconds(standing.reset_after);
        if let Decision::Deny {
            retry: Retry::After(wait),
            ..
        } = decision
        {
            reset = seconds(wait).max(1);
            response.headers_mut().insert("retry-after", HeaderValue::from(reset));
        }
        if decision.is_allow() {
            self.passed.fetch_add(1, Ordering::Relaxed);
        } else {
            self.denied.fetch_add(1, Ordering::Relaxed);
            *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
        }
        let left = format!("\"api\";r={};t={reset}", standing.remaining);
        response.headers_mut().insert("ratelimit-policy", policy.clone());
        if let Ok(left) = HeaderValue::from_str(&left) {
            response.headers_mut().insert("ratelimit", left);
        }
        response
    }
}
