//! A server with a limit, or one that always fails, that counts what it answers; and the client that calls it.

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use bytes::Bytes;
use http::{Request, Uri};
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tollgate_limiter::core::{Decision, Gcra, Micros, Rate, Retry};
use tollgate_limiter::{Limiter, NamedLimit};

/// The client that a layer wraps.
pub(crate) type HyperClient = Client<HttpConnector, Full<Bytes>>;

/// A server on a free port. It stops with the runtime of its test.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    answers: Arc<Answers>,
}

/// What it does, and what it did.
struct Answers {
    kind: Kind,
    passed: AtomicU64,
    denied: AtomicU64,
}

enum Kind {
    Limited(Box<LimitedAnswers>),
    Status(StatusCode),
}

/// A limit, and the field that tells it.
struct LimitedAnswers {
    limiter: Limiter,
    limit: NamedLimit,
    policy: String,
}

impl Upstream {
    /// A server that allows this many a second, and this many at once. It sends the fields of the `ietf` dialect.
    pub(crate) async fn limited(per_second: u64, burst: u64) -> Self {
        let limiter = Limiter::in_memory();
        let rate = Rate::new(per_second, Micros::from_secs(1)).unwrap();
        let limit = limiter
            .limit("upstream", Gcra::new(rate).with_burst(burst).unwrap())
            .unwrap();
        let window = burst.div_ceil(per_second);
        Self::start(Kind::Limited(Box::new(LimitedAnswers {
            limiter,
            limit,
            policy: format!("\"api\";q={burst};w={window}"),
        })))
        .await
    }

    /// A server that answers everything with this status.
    pub(crate) async fn answering(status: StatusCode) -> Self {
        Self::start(Kind::Status(status)).await
    }

    async fn start(kind: Kind) -> Self {
        let answers = Arc::new(Answers {
            kind,
            passed: AtomicU64::new(0),
            denied: AtomicU64::new(0),
        });
        let router = Router::new().fallback(answer).with_state(Arc::clone(&answers));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { address, answers }
    }

    pub(crate) fn passed(&self) -> u64 {
        self.answers.passed.load(Ordering::SeqCst)
    }

    pub(crate) fn denied(&self) -> u64 {
        self.answers.denied.load(Ordering::SeqCst)
    }

    pub(crate) fn uri(&self) -> Uri {
        format!("http://{}/", self.address).parse().unwrap()
    }

    /// A request without a body.
    pub(crate) fn get(&self) -> Request<Full<Bytes>> {
        Request::get(self.uri()).body(Full::default()).unwrap()
    }
}

pub(crate) fn hyper_client() -> HyperClient {
    Client::builder(TokioExecutor::new()).build_http()
}

async fn answer(State(answers): State<Arc<Answers>>) -> (StatusCode, HeaderMap) {
    let mut headers = HeaderMap::new();
    let LimitedAnswers { limiter, limit, policy } = match &answers.kind {
        Kind::Limited(limited) => &**limited,
        Kind::Status(status) => {
            answers.denied.fetch_add(1, Ordering::SeqCst);
            return (*status, headers);
        }
    };
    let seconds = |time: Micros| time.get().div_ceil(1_000_000);
    let decision = limiter.check(limit, "all");
    let standing = decision.standing();
    let mut reset = seconds(standing.reset_after);
    let status = match decision {
        Decision::Allow { .. } => {
            answers.passed.fetch_add(1, Ordering::SeqCst);
            StatusCode::OK
        }
        Decision::Deny { retry, .. } => {
            answers.denied.fetch_add(1, Ordering::SeqCst);
            if let Retry::After(wait) = retry {
                reset = seconds(wait).max(1);
                headers.insert("retry-after", HeaderValue::from(reset));
            }
            StatusCode::TOO_MANY_REQUESTS
        }
    };
    let left = format!("\"api\";r={};t={reset}", standing.remaining);
    headers.insert("ratelimit-policy", HeaderValue::from_str(policy).unwrap());
    headers.insert("ratelimit", HeaderValue::from_str(&left).unwrap());
    (status, headers)
}
