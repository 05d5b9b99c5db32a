//! Admission: the decision about one request, and what it carries along.

pub(crate) mod actual_cost;
pub(crate) mod answer;
pub(crate) mod background;
pub(crate) mod denial;

pub use self::actual_cost::{ActualCost, CostTotals};
pub use self::denial::{Denial, DenialKind};

use crate::headers::RetryAfter;
use http::HeaderMap;
use http::request::Parts;
use std::fmt;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::time::Duration;
use tollgate_limiter::AnyPermit;

/// A future on the heap.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Decides about requests. [`LimitSet`](crate::LimitSet) and [`RuleLimits`](crate::RuleLimits) do.
pub trait AdmissionControl: Send + Sync + 'static {
    /// Decides without waiting, as over a store in this process. None: [`AdmissionControl::admit`] decides.
    fn admit_now(&self, head: &Parts, peer: Option<IpAddr>) -> Option<Admission>;

    /// Decides. A caller that drops the future holds nothing.
    fn admit(&self, head: &Parts, peer: Option<IpAddr>) -> BoxFuture<'static, Admission>;

    /// True if it may delay requests: then a layer that holds as many as it may denies before anything is charged.
    fn may_delay(&self) -> bool {
        true
    }

    /// The form of `Retry-After` in denials by the layer itself: those of [`Protection`](crate::protect::Protection), and
    /// of a layer that holds as many requests as it may.
    fn retry_after(&self) -> RetryAfter {
        RetryAfter::default()
    }
}

/// The decision about a request.
#[derive(Debug)]
pub enum Admission {
    /// It passes.
    Admit(Grant),
    /// It passes after this time.
    Delay(Duration, Grant),
    /// It is denied.
    Deny(Box<Denial>),
}

/// The headers, slots and charges of an admitted request.
#[derive(Debug, Default)]
pub struct Grant {
    /// The headers of its response.
    pub headers: HeaderMap,
    /// Its slots of concurrency limits, released at the end of the response's body.
    pub permit: Option<AnyPermit>,
    /// Its charges, if they can still change.
    pub charge: Option<Box<dyn OpenCharge>>,
}

/// The charges of an admitted request, until it has ended. Dropping them leaves the charges as they are.
pub trait OpenCharge: Send + Sync {
    /// True if its cost was predicted, so that [`ActualCost`](crate::ActualCost) corrects it.
    fn is_predicted(&self) -> bool;

    /// Brings the charges to the actual cost, in the background if that takes time.
    fn settle(self: Box<Self>, actual: u64, totals: CostTotals);

    /// Reverses the charges of a request that left while it was delayed; its position in the shaping queue stays taken.
    fn cancel(self: Box<Self>);
}

impl fmt::Debug for dyn OpenCharge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenCharge")
            .field("is_predicted", &self.is_predicted())
            .finish_non_exhaustive()
    }
}
