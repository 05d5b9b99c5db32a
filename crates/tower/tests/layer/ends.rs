//! Requests that end at any point: each slot is released, once.

use super::fixture::{redis_limiter, request};
use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};
use tollgate_core::testing::random::Random;
use tollgate_limiter::limits::{Concurrency, LeakyBucket};
use tollgate_limiter::store::Store;
use tollgate_limiter::testing::servers::{Server, ServerKind};
use tollgate_limiter::{AnyPermit, Limiter, SlotCheck};
use tollgate_tower::{Admission, AdmissionControl, BoxFuture, LimitSet, RateLimitLayer};
use tower::{Layer, ServiceExt, service_fn};

const SLOTS: u64 = 64;

/// Decides later, as over a slow network.
struct Slow<S: Store + 'static>(LimitSet<S>);

impl<S: Store + 'static> AdmissionControl for Slow<S> {
    fn admit_now(&self, _: &Parts, _: Option<IpAddr>) -> Option<Admission> {
        None
    }

    fn admit(&self, head: &Parts, peer: Option<IpAddr>) -> BoxFuture<'static, Admission> {
        let head = head.clone();
        let limits = self.0.clone();
        Box::pin(async move {
            sleep(Duration::from_millis(2)).await;
            let admission = limits.admit(&head, peer).await;
            sleep(Duration::from_millis(2)).await;
            admission
        })
    }
}

/// The end of a request of the test.
#[derive(Clone, Copy, Debug)]
enum End {
    Normal,
    BodyError,
    Panic,
    Upgrade,
}

/// A body of four frames, each after a millisecond.
struct SlowBody {
    frames: u32,
    end: End,
    sleep: Pin<Box<tokio::time::Sleep>>,
}

impl Body for SlowBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        std::task::ready!(self.sleep.as_mut().poll(cx));
        self.sleep = Box::pin(sleep(Duration::from_millis(1)));
        if self.frames == 0 {
            return Poll::Ready(None);
        }
        self.frames -= 1;
        match self.end {
            End::BodyError if self.frames == 2 => Poll::Ready(Some(Err(io::ErrorKind::ConnectionReset.into()))),
            _ => Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"part"))))),
        }
    }
}

/// Answers after a millisecond, and ends as the request says.
async fn handle(request: Request<End>, served: Arc<AtomicUsize>) -> Result<Response<SlowBody>, Infallible> {
    let permit = request.extensions().get::<AnyPermit>().cloned();
    assert!(permit.is_some(), "a handler gets the permit");
    let end = *request.body();
    sleep(Duration::from_millis(1)).await;
    served.fetch_add(1, Ordering::Relaxed);
    match end {
        End::Panic => panic!("a handler panics, as the test wants"),
        // The connection goes on without the response.
        End::Upgrade => {
            tokio::spawn(async move {
                sleep(Duration::from_millis(3)).await;
                drop(permit);
            });
        }
        End::Normal | End::BodyError => {}
    }
    let sleep = Box::pin(sleep(Duration::from_millis(1)));
    Ok(Response::new(SlowBody { frames: 4, end, sleep }))
}

/// Runs requests that end at random points. Returns how many were served.
async fn run_requests<D: AdmissionControl>(layer: &RateLimitLayer<D>, requests: usize, seed: u64) -> usize {
    let mut random = Random::new(seed);
    let served = Arc::new(AtomicUsize::new(0));
    let mut tasks = Vec::new();
    for index in 0..requests {
        let end = match random.below(8) {
            0 => End::BodyError,
            1 => End::Panic,
            2 => End::Upgrade,
            _ => End::Normal,
        };
        // Twelve milliseconds are enough for all steps.
        let patience = Duration::from_micros(random.below(14_000));
        let handler = Arc::clone(&served);
        let service = layer.layer(service_fn(move |request| handle(request, Arc::clone(&handler))));
        tasks.push(tokio::spawn(timeout(patience, async move {
            let response = service.oneshot(request(&[]).map(|()| end)).await;
            let Ok(response) = response;
            // An error of the body is one way to end.
            let _ = response.into_body().collect().await;
        })));
        if index % 100 == 99 {
            for task in tasks.drain(..) {
                // A panic of the handler ends its task.
                let _ = task.await;
            }
        } else if random.below(4) == 0 {
            yield_now().await;
        }
    }
    for task in tasks {
        let _ = task.await;
    }
    served.load(Ordering::Relaxed)
}

fn limits<S: Store + 'static>(limiter: &Limiter<S>) -> LimitSet<S> {
    LimitSet::new(limiter.clone())
        .shared("slots", Concurrency::at_most(SLOTS))
        .expect("valid limits")
        .shared("shaped", LeakyBucket::per_second(100_000).depth(500).shaping())
        .expect("valid limits")
}

/// The slots that are free now.
async fn free_slots<S: Store + 'static>(limiter: &Limiter<S>) -> u64 {
    let slots = limiter
        .concurrency("slots", Concurrency::at_most(SLOTS))
        .expect("valid");
    let mut held = Vec::new();
    loop {
        // As a set counts a shared limit: without a key.
        let check = SlotCheck {
            limit: &slots,
            subject: b"",
        };
        match limiter.settle_with_slots(&[], &[check]).await {
            (settlement, Some(permit)) if settlement.allowed => held.push(permit),
            _ => return held.len() as u64,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_requests_that_end_anywhere_hold_nothing() {
    let limiter = Limiter::in_memory();
    let at_once = RateLimitLayer::new(limits(&limiter));
    let slow = RateLimitLayer::new(Slow(limits(&limiter)));
    let served = run_requests(&at_once, 5_000, 1).await + run_requests(&slow, 5_000, 2).await;
    assert!(served > 1_000, "{served} were served");
    sleep(Duration::from_millis(100)).await;
    assert_eq!(free_slots(&limiter).await, SLOTS);
    assert_eq!((at_once.held(), slow.held()), (0, 0));
}

#[tokio::test]
async fn over_redis_they_hold_nothing_either() {
    let redis = Server::start(ServerKind::Redis70);
    let limiter = redis_limiter(&redis).await;
    let layer = RateLimitLayer::new(limits(&limiter));
    let served = run_requests(&layer, 2_000, 3).await;
    assert!(served > 200, "{served} were served");
    // The lease reaper releases in the background. The leases themselves last a minute.
    for _ in 0..100 {
        sleep(Duration::from_millis(100)).await;
        if free_slots(&limiter).await == SLOTS {
            return;
        }
    }
    panic!("{} slots are free", free_slots(&limiter).await);
}
