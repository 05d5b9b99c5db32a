//! The layer and its service.

use crate::admission::actual_cost::{ActualCost, CostTotals};
use crate::admission::denial::{Denial, DenialForm};
use crate::admission::{Admission, AdmissionControl, Grant};
use crate::body::{CostGuard, LimitedBody, RequestGuard};
use crate::future::{PendingRequest, ResponseFuture};
use crate::protect::{Protection, ProtectionGate, ProtectionStatus, SlotGuard};
use bytes::Bytes;
use http::request::Parts;
use http::{Extensions, Request, Response, response};
use http_body::Body;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use tollgate_limiter::core::protect::PriorityClass;
use tower_layer::Layer;
use tower_service::Service;

/// A layer that admits requests by limits.
///
/// State lives in the store, so that a clone for each connection shares the limits.
pub struct RateLimitLayer<D> {
    options: LayerOptions<D>,
}

/// A service that admits requests by limits before it calls the service inside.
pub struct RateLimit<S, D> {
    inner: S,
    options: Arc<LayerOptions<D>>,
}

/// The parts of a layer. Cloned for each service, and shared by its clones.
pub(crate) struct LayerOptions<D> {
    pub(crate) control: Arc<D>,
    peer: Option<Arc<PeerFn>>,
    priority: Option<Arc<PriorityFn>>,
    actual_cost: Option<Arc<ActualCostFn>>,
    pub(crate) protection: Option<ProtectionGate>,
    held: Arc<AtomicUsize>,
    max_held: usize,
    totals: CostTotals,
}

type PeerFn = dyn Fn(&Extensions) -> Option<IpAddr> + Send + Sync;
type PriorityFn = dyn Fn(&Parts) -> PriorityClass + Send + Sync;
type ActualCostFn = dyn Fn(&response::Parts) -> Option<u64> + Send + Sync;

/// A counted place among the requests that are held.
#[derive(Debug)]
pub(crate) struct HoldGuard(Arc<AtomicUsize>);

/// The most requests that are held by default.
const MAX_HELD: usize = 10_000;

impl<D: AdmissionControl> RateLimitLayer<D> {
    /// A layer with these limits.
    pub fn new(control: D) -> Self {
        Self {
            options: LayerOptions {
                control: Arc::new(control),
                peer: None,
                priority: None,
                actual_cost: None,
                protection: None,
                held: Arc::default(),
                max_held: MAX_HELD,
                totals: CostTotals::default(),
            },
        }
    }

    /// Reads the address of the other end of the connection from a request's extensions, where servers put it: axum as
    /// `ConnectInfo<SocketAddr>`, tonic as `TcpConnectInfo`.
    pub fn peer(mut self, peer: impl Fn(&Extensions) -> Option<IpAddr> + Send + Sync + 'static) -> Self {
        self.options.peer = Some(Arc::new(peer));
        self
    }

    /// Chooses the priority class of requests; `normal` without it. Rules see it as the attribute `priority`, and
    /// [`Protection`] serves better classes first.
    pub fn priority(mut self, priority: impl Fn(&Parts) -> PriorityClass + Send + Sync + 'static) -> Self {
        self.options.priority = Some(Arc::new(priority));
        self
    }

    /// Reads the actual cost of a request from its response. A handler that knows it later sets [`ActualCost`].
    pub fn actual_cost(mut self, cost: impl Fn(&response::Parts) -> Option<u64> + Send + Sync + 'static) -> Self {
        self.options.actual_cost = Some(Arc::new(cost));
        self
    }

    /// The most requests that are held by shaping limits at a time, 10,000 by default. While so many are held, further
    /// requests are denied before anything is charged.
    pub fn max_held(mut self, requests: usize) -> Self {
        self.options.max_held = requests;
        self
    }

    /// Bounds the requests in flight, and sheds the least important while the service is overloaded.
    ///
    /// # Panics
    /// If the numbers of the load shedder are out of range.
    pub fn protect(mut self, protection: Protection) -> Self {
        let gate = ProtectionGate::new(&protection).expect("the numbers of the load shedder are in range");
        self.options.protection = Some(gate);
        self
    }

    /// The state of the protection, if there is one.
    pub fn protection_status(&self) -> Option<ProtectionStatus> {
        self.options.protection.as_ref().map(ProtectionGate::status)
    }

    /// The limits.
    pub fn control(&self) -> &Arc<D> {
        &self.options.control
    }

    /// The number of requests that are held now.
    pub fn held(&self) -> usize {
        self.options.held.load(Ordering::Acquire)
    }

    /// Units that were refunded or charged because the actual cost was another than predicted.
    pub const fn cost_totals(&self) -> &CostTotals {
        &self.options.totals
    }
}

impl<S, D> Layer<S> for RateLimitLayer<D> {
    type Service = RateLimit<S, D>;

    fn layer(&self, inner: S) -> RateLimit<S, D> {
        RateLimit {
            inner,
            options: Arc::new(self.options.clone()),
        }
    }
}

impl<S, D, Q, B> Service<Request<Q>> for RateLimit<S, D>
where
    S: Service<Request<Q>, Response = Response<B>> + Clone,
    D: AdmissionControl,
    B: Body,
    B::Data: From<Bytes>,
{
    type Response = Response<LimitedBody<B>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, D, Q>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let (mut head, body) = request.into_parts();
        let options = &self.options;
        let class = options.classify(&mut head);
        let slot = match &options.protection {
            None => None,
            Some(protection) => match protection.enter(&head, options.peer(&head), class) {
                Ok(entry) => Some(entry),
                Err(denial) => {
                    let denial = options.refuse(denial);
                    return ResponseFuture::denied(denial, DenialForm::of_request(&head.headers));
                }
            },
        };
        let slot = match slot {
            None => None,
            Some(Ok(slot)) => Some(slot),
            Some(Err(waiter)) => {
                let pending = self.pending(head, body);
                return ResponseFuture::waiting(waiter, pending, Arc::clone(&self.options));
            }
        };
        let Some((admission, hold)) = options.decide_now(&head) else {
            let decision = options.control.admit(&head, options.peer(&head));
            let hold = match options.hold() {
                Ok(hold) => hold,
                Err(denial) => return ResponseFuture::denied(denial, DenialForm::of_request(&head.headers)),
            };
            let pending = self.pending(head, body);
            return ResponseFuture::deciding(decision, pending, slot, hold, Arc::clone(&self.options));
        };
        match admission {
            Admission::Admit(grant) => {
                drop(hold);
                let serving = options.start(grant, slot, &mut head);
                let response = self.inner.call(Request::from_parts(head, body));
                ResponseFuture::serving(response, serving, Arc::clone(&self.options))
            }
            Admission::Delay(delay, grant) => {
                let pending = self.pending(head, body);
                ResponseFuture::holding(delay, grant, pending, slot, hold, Arc::clone(&self.options))
            }
            Admission::Deny(denial) => ResponseFuture::denied(denial, DenialForm::of_request(&head.headers)),
        }
    }
}

impl<S: Clone, D> RateLimit<S, D> {
    /// The request with the instance that was polled ready. A clone stays behind.
    fn pending<Q>(&mut self, head: Parts, body: Q) -> PendingRequest<S, Q> {
        let clone = self.inner.clone();
        PendingRequest {
            service: std::mem::replace(&mut self.inner, clone),
            head,
            body,
        }
    }
}

impl<D: AdmissionControl> LayerOptions<D> {
    #[inline]
    pub(crate) fn peer(&self, head: &Parts) -> Option<IpAddr> {
        self.peer.as_ref().and_then(|peer| peer(&head.extensions))
    }

    /// Chooses the class of a request, where rules find it too.
    #[inline]
    fn classify(&self, head: &mut Parts) -> PriorityClass {
        match &self.priority {
            None => PriorityClass::default(),
            Some(priority) => {
                let class = priority(head);
                head.extensions.insert(class);
                class
            }
        }
    }

    /// Decides without waiting, if the limits can. With a place for the request if it might be held: taken before
    /// anything is charged.
    #[inline]
    pub(crate) fn decide_now(&self, head: &Parts) -> Option<(Admission, Option<HoldGuard>)> {
        let hold = match self.hold() {
            Ok(hold) => hold,
            Err(denial) => return Some((Admission::Deny(denial), None)),
        };
        let admission = self.control.admit_now(head, self.peer(head))?;
        Some((admission, hold))
    }

    /// A place for a request that might be held. None if the limits hold nothing.
    #[inline]
    pub(crate) fn hold(&self) -> Result<Option<HoldGuard>, Box<Denial>> {
        if !self.control.may_delay() {
            return Ok(None);
        }
        let held = HoldGuard(Arc::clone(&self.held));
        if self.held.fetch_add(1, Ordering::AcqRel) >= self.max_held {
            // Dropping it gives the place back.
            return Err(self.refuse(Denial::reduced("max_held", "Too many requests are held already.")));
        }
        Ok(Some(held))
    }

    /// A denial by the layer itself, with its `Retry-After`.
    pub(crate) fn refuse(&self, denial: Box<Denial>) -> Box<Denial> {
        denial.with_retry_after(self.control.retry_after())
    }

    /// Hands the permit and the cell of the actual cost to the handler, and returns what the response needs.
    #[inline]
    pub(crate) fn start(&self, grant: Grant, slot: Option<SlotGuard>, head: &mut Parts) -> Serving {
        if let Some(permit) = &grant.permit {
            head.extensions.insert(permit.clone());
        }
        let cost = grant.charge.filter(|charge| charge.is_predicted()).map(|charge| {
            let actual = ActualCost::new();
            head.extensions.insert(actual.clone());
            CostGuard {
                charge: Some(charge),
                actual,
                totals: self.totals.clone(),
            }
        });
        Serving {
            headers: grant.headers,
            guard: RequestGuard {
                cost,
                permit: grant.permit,
                slot,
            },
        }
    }

    /// Adds to a response what the layer has for it.
    #[inline]
    pub(crate) fn finish<B>(&self, response: Response<B>, serving: Serving) -> Response<LimitedBody<B>> {
        let Serving { headers, guard } = serving;
        let (mut parts, body) = response.into_parts();
        if let (Some(cost), Some(actual_cost)) = (&guard.cost, &self.actual_cost)
            && let Some(units) = actual_cost(&parts)
        {
            cost.actual.set(units);
        }
        if !headers.is_empty() {
            // Ours replace those of the service.
            parts.headers.extend(headers);
        }
        let guard = (!guard.is_empty()).then_some(guard);
        Response::from_parts(parts, LimitedBody::service(body, guard))
    }
}

/// The part of a grant that the layer keeps while the service inside runs.
#[derive(Debug)]
pub(crate) struct Serving {
    headers: http::HeaderMap,
    guard: RequestGuard,
}

impl Drop for HoldGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl<D> Clone for LayerOptions<D> {
    fn clone(&self) -> Self {
        Self {
            control: Arc::clone(&self.control),
            peer: self.peer.clone(),
            priority: self.priority.clone(),
            actual_cost: self.actual_cost.clone(),
            protection: self.protection.clone(),
            held: Arc::clone(&self.held),
            max_held: self.max_held,
            totals: self.totals.clone(),
        }
    }
}

impl<D> Clone for RateLimitLayer<D> {
    fn clone(&self) -> Self {
        Self {
            options: self.options.clone(),
        }
    }
}

impl<S: Clone, D> Clone for RateLimit<S, D> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            options: Arc::clone(&self.options),
        }
    }
}

impl<D> fmt::Debug for RateLimitLayer<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer").finish_non_exhaustive()
    }
}

impl<S: fmt::Debug, D> fmt::Debug for RateLimit<S, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}
