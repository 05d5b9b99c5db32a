//! The body of a response: at its end the request's slots are released and its cost is settled.

use crate::admission::OpenCharge;
use crate::admission::actual_cost::{ActualCost, CostTotals};
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tollgate_limiter::AnyPermit;

pin_project! {
    /// The body of a response of the layer: that of the service inside, or of a denial.
    #[derive(Debug)]
    pub struct LimitedBody<B> {
        #[pin]
        source: BodySource<B>,
        guard: Option<RequestGuard>,
    }
}

pin_project! {
    #[project = BodySourceProjection]
    #[derive(Debug)]
    enum BodySource<B> {
        Service { #[pin] body: B },
        Denial { data: Option<Bytes> },
    }
}

/// The slots and charges that a request holds until the end of its response. Dropping it settles the cost, then releases the slots.
#[derive(Debug, Default)]
pub(crate) struct RequestGuard {
    pub(crate) cost: Option<CostGuard>,
    pub(crate) permit: Option<AnyPermit>,
    pub(crate) slot: Option<crate::protect::SlotGuard>,
}

/// A predicted cost, settled when it is dropped.
#[derive(Debug)]
pub(crate) struct CostGuard {
    pub(crate) charge: Option<Box<dyn OpenCharge>>,
    pub(crate) actual: ActualCost,
    pub(crate) totals: CostTotals,
}

impl<B> LimitedBody<B> {
    pub(crate) const fn service(body: B, guard: Option<RequestGuard>) -> Self {
        Self {
            source: BodySource::Service { body },
            guard,
        }
    }

    pub(crate) const fn denial(data: Option<Bytes>) -> Self {
        Self {
            source: BodySource::Denial { data },
            guard: None,
        }
    }
}

impl RequestGuard {
    /// True if nothing is held.
    pub(crate) const fn is_empty(&self) -> bool {
        self.cost.is_none() && self.permit.is_none() && self.slot.is_none()
    }
}

impl<B> Body for LimitedBody<B>
where
    B: Body,
    B::Data: From<Bytes>,
{
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let this = self.project();
        match this.source.project() {
            BodySourceProjection::Service { mut body } => {
                let frame = ready!(body.as_mut().poll_frame(cx));
                let has_ended = !matches!(frame, Some(Ok(_))) || body.is_end_stream();
                if has_ended {
                    *this.guard = None;
                }
                Poll::Ready(frame)
            }
            BodySourceProjection::Denial { data } => {
                let frame = data.take().map(|data| Ok(Frame::data(data.into())));
                Poll::Ready(frame)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            BodySource::Service { body } => body.is_end_stream(),
            BodySource::Denial { data } => data.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            BodySource::Service { body } => body.size_hint(),
            BodySource::Denial { data } => SizeHint::with_exact(data.as_ref().map_or(0, |data| data.len() as u64)),
        }
    }
}

impl<B: Default> Default for LimitedBody<B> {
    fn default() -> Self {
        Self::service(B::default(), None)
    }
}

impl Drop for CostGuard {
    fn drop(&mut self) {
        if let (Some(charge), Some(actual)) = (self.charge.take(), self.actual.get()) {
            charge.settle(actual, self.totals.clone());
        }
    }
}
