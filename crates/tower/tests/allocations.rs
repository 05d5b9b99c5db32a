//! The memory that the layer takes: none for an allowed request without headers and slots.

use http::{Request, Response};
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use tollgate_limiter::Limiter;
use tollgate_limiter::core::network::Networks;
use tollgate_limiter::limits::TokenBucket;
use tollgate_tower::extract::client_ip;
use tollgate_tower::headers::Dialects;
use tollgate_tower::{LimitSet, RateLimitLayer};
use tower::{Layer, Service};

/// A service that gives the request back, so that the next call takes none.
#[derive(Clone, Default)]
struct Keep(Arc<Mutex<Option<Request<()>>>>);

impl Service<Request<()>> for Keep {
    type Response = Response<http_body_util::Empty<bytes::Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<()>) -> Self::Future {
        *self.0.lock().expect("no panic") = Some(request);
        ready(Ok(Response::default()))
    }
}

#[test]
fn an_allowed_request_takes_no_memory() {
    let limits = LimitSet::new(Limiter::in_memory())
        .per(
            "per-ip",
            TokenBucket::per_second(1_000_000),
            client_ip(Networks::default()),
        )
        .unwrap()
        .headers(Dialects::NONE);
    let layer = RateLimitLayer::new(limits).peer(|extensions| extensions.get::<SocketAddr>().map(SocketAddr::ip));
    let kept = Keep::default();
    let mut service = layer.layer(kept.clone());
    let mut request = Request::new(());
    request
        .extensions_mut()
        .insert(SocketAddr::new(IpAddr::from([192, 0, 2, 1]), 443));
    *kept.0.lock().unwrap() = Some(request);
    let mut call = || {
        let request = kept.0.lock().unwrap().take().unwrap();
        let mut context = Context::from_waker(Waker::noop());
        assert!(service.poll_ready(&mut context).is_ready());
        match pin!(service.call(request)).poll(&mut context) {
            Poll::Ready(Ok(response)) => assert_eq!(response.status(), 200),
            Poll::Pending => panic!("nothing waits"),
        }
    };
    // The first request of a key takes its entry.
    call();
    let measured = allocation_counter::measure(|| (0..1_000).for_each(|_| call()));
    assert_eq!(measured.count_total, 0);
}
