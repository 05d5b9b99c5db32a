//! What the tests share: limiters with a clock of their own, services, and clients.

use axum::Router;
use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;
use tollgate_limiter::Limiter;
use tollgate_limiter::clock::Clock;
use tollgate_limiter::core::{Cost, Timestamp};
use tollgate_limiter::limits::TokenBucket;
use tollgate_limiter::store::memory::Memory;
use tollgate_limiter::store::redis::Redis;
use tollgate_limiter::testing::servers::Server;
use tollgate_tower::{AdmissionControl, LimitedBody, RateLimitLayer};
use tower::{Layer, ServiceExt, service_fn};

/// A limiter whose time stands still until it is moved.
pub(crate) fn manual_limiter() -> (Limiter, Clock) {
    let clock = Clock::manual(Timestamp::from_micros(1_794_782_040_000_000));
    (Limiter::new(Memory::options().clock(clock.clone()).build()), clock)
}

/// A limiter over this server, once it is connected. It decides nothing by itself.
pub(crate) async fn redis_limiter(server: &Server) -> Limiter<Redis> {
    // A busy machine is no part of these tests.
    let options = Redis::options(&server.url())
        .expect("a URL")
        .deadline(Duration::from_secs(10));
    let limiter = Limiter::new(options.open());
    let probe = limiter.limit("probe", TokenBucket::per_second(1)).expect("valid");
    for _ in 0..1_000 {
        if limiter.check_cost(&probe, "", Cost::ZERO).await.is_allow() {
            return limiter;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("the server does not answer");
}

/// Serves an app on a free port. It ends with the runtime.
pub(crate) async fn serve(app: Router) -> SocketAddr {
    let listener = listener().await;
    let address = listener.local_addr().expect("it is bound");
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, service).await });
    address
}

pub(crate) async fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.expect("a port is free")
}

/// A connection of one client.
pub(crate) struct Connection(SendRequest<Empty<Bytes>>);

/// A response, read whole.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.expect("the server listens");
        let (sender, connection) = handshake(TokioIo::new(stream)).await.expect("it speaks HTTP");
        tokio::spawn(connection);
        Self(sender)
    }

    pub(crate) async fn get(&mut self, path: &str, headers: &[(&str, &str)]) -> Reply {
        let mut request = Request::get(path).header("host", "localhost");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.0.ready().await.expect("the connection is open");
        let request = request.body(Empty::new()).expect("a request");
        let response = self.0.send_request(request).await.expect("a response");
        read(response).await
    }
}

async fn read<B>(response: Response<B>) -> Reply
where
    B: http_body::Body<Data = Bytes>,
    B::Error: std::fmt::Debug,
{
    let (parts, body) = response.into_parts();
    let body = body.collect().await.expect("a whole body").to_bytes();
    Reply {
        status: parts.status,
        headers: parts.headers,
        body,
    }
}

/// The reply of a layer around a service that answers `ok`.
pub(crate) async fn reply<D: AdmissionControl>(layer: &RateLimitLayer<D>, request: Request<()>) -> Reply {
    read(response(layer, request).await).await
}

/// The response of the same, not read yet.
pub(crate) async fn response<D: AdmissionControl>(
    layer: &RateLimitLayer<D>,
    request: Request<()>,
) -> Response<LimitedBody<Full<Bytes>>> {
    let service =
        service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"ok")))) });
    layer.layer(service).oneshot(request).await.expect("it never fails")
}

/// A request with these headers.
pub(crate) fn request(headers: &[(&str, &str)]) -> Request<()> {
    let mut request = Request::get("/v1/charges");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(()).expect("a request")
}
