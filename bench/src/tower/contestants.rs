//! The bare service, and the layers around it.

use axum::body::Body;
use hyper::{Request, Response};
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use tollgate_core::network::Networks;
use tollgate_core::testing::random::Random;
use tollgate_limiter::Limiter;
use tollgate_limiter::limits::TokenBucket;
use tollgate_tower::extract::client_ip;
use tollgate_tower::headers::Dialects;
use tollgate_tower::{LimitSet, RateLimitLayer};
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;
use tower_governor::key_extractor::KeyExtractor;
use tower_layer::Layer;
use tower_service::Service;

/// A contestant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Bare,
    Tollgate,
    TowerGovernor,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Bare, Self::Tollgate, Self::TowerGovernor];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare service",
            Self::Tollgate => "tollgate-tower",
            Self::TowerGovernor => "tower_governor 0.8",
        }
    }
}

/// A contestant with its addresses.
pub(crate) struct Contestant {
    kind: Kind,
    call: Box<dyn FnMut(Request<()>)>,
    returned: Returned,
    addresses: u32,
    random: Random,
}

/// The request of the last call, to be used again: making one takes memory.
type Returned = Arc<Mutex<Option<Request<()>>>>;

/// A service that keeps the request and answers at once.
#[derive(Clone)]
struct Bare(Returned);

impl Service<Request<()>> for Bare {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<()>) -> Self::Future {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(request);
        ready(Ok(Response::new(Body::empty())))
    }
}

/// The same key as ours: the peer's address.
#[derive(Clone)]
struct PeerAddress;

impl KeyExtractor for PeerAddress {
    type Key = IpAddr;

    fn extract<T>(&self, request: &Request<T>) -> Result<IpAddr, tower_governor::GovernorError> {
        let peer = request.extensions().get::<SocketAddr>();
        peer.map(SocketAddr::ip)
            .ok_or(tower_governor::GovernorError::UnableToExtractKey)
    }
}

impl Contestant {
    pub(crate) fn new(kind: Kind, addresses: u32) -> Self {
        let returned = Returned::default();
        let bare = Bare(Arc::clone(&returned));
        let call: Box<dyn FnMut(Request<()>)> = match kind {
            Kind::Bare => Box::new(caller(bare)),
            Kind::Tollgate => {
                let limits = LimitSet::new(Limiter::in_memory())
                    .per(
                        "per-ip",
                        TokenBucket::per_second(1).burst(BURST.into()),
                        client_ip(Networks::default()),
                    )
                    .expect("valid limits")
                    .headers(Dialects::NONE);
                let layer =
                    RateLimitLayer::new(limits).peer(|extensions| extensions.get::<SocketAddr>().map(SocketAddr::ip));
                Box::new(caller(layer.layer(bare)))
            }
            Kind::TowerGovernor => {
                let config = GovernorConfigBuilder::default()
                    .per_second(1)
                    .burst_size(BURST)
                    .key_extractor(PeerAddress)
                    .finish()
                    .expect("valid limits");
                Box::new(caller(GovernorLayer::new(config).layer(bare)))
            }
        };
        let mut request = Request::new(());
        request.extensions_mut().insert(SocketAddr::from(([10, 0, 0, 0], 443)));
        *returned.lock().unwrap_or_else(PoisonError::into_inner) = Some(request);
        Self {
            kind,
            call,
            returned,
            addresses,
            random: Random::new(1),
        }
    }

    pub(crate) const fn kind(&self) -> Kind {
        self.kind
    }

    /// Sends requests from random addresses, one after the other.
    pub(crate) fn run(&mut self, requests: u32) {
        for _ in 0..requests {
            let number = u32::try_from(self.random.below(self.addresses.into())).unwrap_or(0);
            let last = self.returned.lock().unwrap_or_else(PoisonError::into_inner).take();
            let mut request = last.expect("every request reached the service");
            if let Some(peer) = request.extensions_mut().get_mut::<SocketAddr>() {
                peer.set_ip(IpAddr::V4(Ipv4Addr::from(0x0A00_0000 + number)));
            }
            (self.call)(request);
        }
    }
}

/// Calls a service that answers at once, and drops its response.
fn caller<S, B>(mut service: S) -> impl FnMut(Request<()>)
where
    S: Service<Request<()>, Response = Response<B>, Error = Infallible>,
{
    move |request| {
        let mut context = Context::from_waker(Waker::noop());
        assert!(service.poll_ready(&mut context).is_ready(), "it is always ready");
        match pin!(service.call(request)).poll(&mut context) {
            Poll::Ready(Ok(response)) => assert_eq!(response.status(), 200, "every request is allowed"),
            Poll::Pending => unreachable!("no service of the benchmark waits"),
        }
    }
}

/// Never used up.
const BURST: u32 = 1_000_000_000;
