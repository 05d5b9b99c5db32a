//! The future of a response: the steps of a request after the layer was called.

use crate::admission::denial::{Denial, DenialForm};
use crate::admission::{Admission, AdmissionControl, BoxFuture, Grant};
use crate::body::LimitedBody;
use crate::layer::{HoldGuard, LayerOptions, Serving};
use crate::protect::{SlotGuard, SlotWaiter};
use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Sleep, sleep};
use tower_service::Service;

pin_project! {
    /// The future of a response of the layer. Dropping it releases what the request holds.
    pub struct ResponseFuture<S, D, Q>
    where
        S: Service<Request<Q>>,
    {
        #[pin]
        step: Step<S, Q, S::Future>,
        options: Option<Arc<LayerOptions<D>>>,
    }
}

pin_project! {
    #[project = StepProjection]
    enum Step<S, Q, F> {
        /// In the queue for a slot; then it is decided, or, if it was held before, served.
        Waiting { waiter: Option<SlotWaiter>, pending: Option<PendingRequest<S, Q>>, grant: Option<HeldGrant> },
        /// The shared store decides.
        Deciding {
            decision: BoxFuture<'static, Admission>,
            pending: Option<PendingRequest<S, Q>>,
            slot: Option<SlotGuard>,
            hold: Option<HoldGuard>,
        },
        /// Held by a shaping limit, without a slot.
        Holding {
            #[pin]
            sleep: Sleep,
            pending: Option<PendingRequest<S, Q>>,
            grant: Option<HeldGrant>,
            hold: Option<HoldGuard>,
        },
        /// The service inside runs.
        Serving { #[pin] response: F, serving: Option<Serving> },
        Denied { denial: Option<(Box<Denial>, DenialForm)> },
    }
}

/// A request, and the service that was polled ready for it.
pub(crate) struct PendingRequest<S, Q> {
    pub(crate) service: S,
    pub(crate) head: Parts,
    pub(crate) body: Q,
}

/// The grant of a request that is held. Its charges are reversed if it leaves before it is served.
struct HeldGrant(Option<Grant>);

impl<S, D, Q> ResponseFuture<S, D, Q>
where
    S: Service<Request<Q>>,
{
    pub(crate) const fn denied(denial: Box<Denial>, form: DenialForm) -> Self {
        Self {
            step: Step::Denied {
                denial: Some((denial, form)),
            },
            options: None,
        }
    }

    pub(crate) const fn serving(response: S::Future, serving: Serving, options: Arc<LayerOptions<D>>) -> Self {
        Self {
            step: Step::Serving {
                response,
                serving: Some(serving),
            },
            options: Some(options),
        }
    }

    pub(crate) const fn waiting(
        waiter: SlotWaiter,
        pending: PendingRequest<S, Q>,
        options: Arc<LayerOptions<D>>,
    ) -> Self {
        Self {
            step: Step::Waiting {
                waiter: Some(waiter),
                pending: Some(pending),
                grant: None,
            },
            options: Some(options),
        }
    }

    pub(crate) const fn deciding(
        decision: BoxFuture<'static, Admission>,
        pending: PendingRequest<S, Q>,
        slot: Option<SlotGuard>,
        hold: Option<HoldGuard>,
        options: Arc<LayerOptions<D>>,
    ) -> Self {
        Self {
            step: Step::Deciding {
                decision,
                pending: Some(pending),
                slot,
                hold,
            },
            options: Some(options),
        }
    }

    /// The slot is given back: a held request needs none.
    pub(crate) fn holding(
        delay: Duration,
        grant: Grant,
        pending: PendingRequest<S, Q>,
        slot: Option<SlotGuard>,
        hold: Option<HoldGuard>,
        options: Arc<LayerOptions<D>>,
    ) -> Self {
        drop(slot);
        Self {
            step: Step::hold(delay, grant, pending, hold),
            options: Some(options),
        }
    }
}

impl<S, Q, F> Step<S, Q, F> {
    fn hold(delay: Duration, grant: Grant, pending: PendingRequest<S, Q>, hold: Option<HoldGuard>) -> Self {
        Self::Holding {
            sleep: sleep(delay),
            pending: Some(pending),
            grant: Some(HeldGrant(Some(grant))),
            hold,
        }
    }

    fn deny(denial: Box<Denial>, head: &Parts) -> Self {
        Self::Denied {
            denial: Some((denial, DenialForm::of_request(&head.headers))),
        }
    }
}

impl<S, D, Q, B> Future for ResponseFuture<S, D, Q>
where
    S: Service<Request<Q>, Response = Response<B>>,
    D: AdmissionControl,
    B: Body,
    B::Data: From<Bytes>,
{
    type Output = Result<Response<LimitedBody<B>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let next = match this.step.as_mut().project() {
                StepProjection::Serving { response, serving } => {
                    let response = ready!(response.poll(cx));
                    let serving = serving.take();
                    let response = response?;
                    let (Some(options), Some(serving)) = (this.options.as_ref(), serving) else {
                        unreachable!("a future is not polled after it was ready");
                    };
                    return Poll::Ready(Ok(options.finish(response, serving)));
                }
                StepProjection::Denied { denial } => {
                    let Some((denial, form)) = denial.take() else {
                        unreachable!("a future is not polled after it was ready");
                    };
                    return Poll::Ready(Ok(denial.into_response(form).map(LimitedBody::denial)));
                }
                StepProjection::Waiting { waiter, pending, grant } => {
                    let slot = match waiter {
                        Some(waiter) => ready!(Pin::new(waiter).poll(cx)),
                        None => unreachable!("a waiting request has a waiter"),
                    };
                    // It is gone from the queue.
                    *waiter = None;
                    let (Some(pending), Some(options)) = (pending.take(), this.options.as_ref()) else {
                        unreachable!("a request is served once");
                    };
                    match (slot, grant.take()) {
                        (Ok(slot), None) => options.decide(pending, slot),
                        (Ok(slot), Some(grant)) => options.serve(pending, grant.into_grant(), Some(slot)),
                        (Err(denial), _) => Step::deny(options.refuse(denial), &pending.head),
                    }
                }
                StepProjection::Deciding {
                    decision,
                    pending,
                    slot,
                    hold,
                } => {
                    let admission = ready!(decision.as_mut().poll(cx));
                    let (Some(pending), Some(options)) = (pending.take(), this.options.as_ref()) else {
                        unreachable!("a request is decided once");
                    };
                    options.follow(admission, pending, slot.take(), hold.take())
                }
                StepProjection::Holding {
                    sleep,
                    pending,
                    grant,
                    hold,
                } => {
                    ready!(sleep.poll(cx));
                    *hold = None;
                    let (Some(pending), Some(grant), Some(options)) =
                        (pending.take(), grant.take(), this.options.as_ref())
                    else {
                        unreachable!("a request is held once");
                    };
                    options.resume(pending, grant)
                }
            };
            this.step.set(next);
        }
    }
}

impl<D: AdmissionControl> LayerOptions<D> {
    /// Decides about a request that has waited for its slot.
    fn decide<S, Q>(&self, pending: PendingRequest<S, Q>, slot: SlotGuard) -> Step<S, Q, S::Future>
    where
        S: Service<Request<Q>>,
    {
        if let Some((admission, hold)) = self.decide_now(&pending.head) {
            return self.follow(admission, pending, Some(slot), hold);
        }
        match self.hold() {
            Ok(hold) => Step::Deciding {
                decision: self.control.admit(&pending.head, self.peer(&pending.head)),
                pending: Some(pending),
                slot: Some(slot),
                hold,
            },
            Err(denial) => Step::deny(denial, &pending.head),
        }
    }

    /// Does what was decided.
    fn follow<S, Q>(
        &self,
        admission: Admission,
        pending: PendingRequest<S, Q>,
        slot: Option<SlotGuard>,
        hold: Option<HoldGuard>,
    ) -> Step<S, Q, S::Future>
    where
        S: Service<Request<Q>>,
    {
        match admission {
            Admission::Admit(grant) => self.serve(pending, grant, slot),
            Admission::Delay(delay, grant) => Step::hold(delay, grant, pending, hold),
            Admission::Deny(denial) => Step::deny(denial, &pending.head),
        }
    }

    /// Serves a request that was held, with a slot at the head of its class.
    fn resume<S, Q>(&self, pending: PendingRequest<S, Q>, grant: HeldGrant) -> Step<S, Q, S::Future>
    where
        S: Service<Request<Q>>,
    {
        let entry = self
            .protection
            .as_ref()
            .map(|protection| protection.enter_again(&pending.head));
        match entry {
            None => self.serve(pending, grant.into_grant(), None),
            Some(Ok(Ok(slot))) => self.serve(pending, grant.into_grant(), Some(slot)),
            Some(Ok(Err(waiter))) => Step::Waiting {
                waiter: Some(waiter),
                pending: Some(pending),
                grant: Some(grant),
            },
            Some(Err(denial)) => Step::deny(self.refuse(denial), &pending.head),
        }
    }

    fn serve<S, Q>(&self, pending: PendingRequest<S, Q>, grant: Grant, slot: Option<SlotGuard>) -> Step<S, Q, S::Future>
    where
        S: Service<Request<Q>>,
    {
        let PendingRequest {
            mut service,
            mut head,
            body,
        } = pending;
        let serving = self.start(grant, slot, &mut head);
        Step::Serving {
            response: service.call(Request::from_parts(head, body)),
            serving: Some(serving),
        }
    }
}

impl HeldGrant {
    fn into_grant(mut self) -> Grant {
        self.0.take().unwrap_or_default()
    }
}

impl Drop for HeldGrant {
    fn drop(&mut self) {
        if let Some(charge) = self.0.take().and_then(|grant| grant.charge) {
            charge.cancel();
        }
    }
}

impl<S, D, Q> fmt::Debug for ResponseFuture<S, D, Q>
where
    S: Service<Request<Q>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
