//! Limits written in code: several at once, each by a key of the request, or shared by all.

mod collect;
mod open_charge;
mod settle;

use crate::admission::answer::ResponseSettings;
use crate::admission::{Admission, AdmissionControl, BoxFuture, Grant};
use crate::extract::{KeyExtractor, RequestKey};
use crate::headers::{Dialects, RetryAfter, RetryQueues, RuleQueue};
use crate::rules::is_shaping;
use http::request::Parts;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use tollgate_limiter::core::{Cost, Limit, LimitError};
use tollgate_limiter::limits::{AnyLimit, IntoAnyLimit};
use tollgate_limiter::store::Store;
use tollgate_limiter::store::memory::Memory;
use tollgate_limiter::{ConcurrencyLimit, LeaseRenewer, Limiter, NamedLimit};

/// Limits in code. A request passes all of them, or none is charged.
///
/// ```
/// use tollgate_limiter::Limiter;
/// use tollgate_limiter::core::network::Networks;
/// use tollgate_limiter::limits::{Concurrency, Gcra, TokenBucket};
/// use tollgate_tower::LimitSet;
/// use tollgate_tower::extract::{client_ip, header};
///
/// let limits = LimitSet::new(Limiter::in_memory())
///     .per("per-ip", TokenBucket::per_second(10).burst(20), client_ip(Networks::default()))?
///     .per("in-flight", Concurrency::at_most(20), header("x-api-key"))?
///     .shared("ceiling", Gcra::per_second(5_000))?;
/// # let _ = limits;
/// # Ok::<(), tollgate_tower::LimitSetError>(())
/// ```
///
/// A limit whose key a request lacks does not apply to it, and is counted: see [`LimitSet::missing_keys`].
pub struct LimitSet<S: Store = Memory> {
    inner: Arc<SetInner<S>>,
}

/// The reason a limit cannot be added. Its author can fix it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitSetError {
    /// Numbers out of range.
    Limit(LimitError),
    /// A header cannot hold the name: it has 1 to 64 letters, digits and `_.:/-`.
    Name(Box<str>),
    /// Another limit of the set has the name.
    Duplicate(Box<str>),
}

struct SetInner<S: Store> {
    limiter: Limiter<S>,
    limits: Vec<SetLimit<S>>,
    settings: ResponseSettings,
    caller: Option<Arc<dyn KeyExtractor>>,
    renewer: Option<LeaseRenewer<S>>,
    queues: Arc<RetryQueues>,
    may_delay: bool,
}

struct SetLimit<S: Store> {
    kind: SetLimitKind<S>,
    /// None: all requests share one counter.
    key: Option<Arc<dyn KeyExtractor>>,
    /// The predicted cost; one without it.
    cost: Option<Arc<CostFn>>,
    missing: Arc<AtomicU64>,
    /// Of a limit whose callers are spread.
    queue: Option<Arc<RuleQueue>>,
}

enum SetLimitKind<S: Store> {
    Charged(NamedLimit<S>),
    Held(ConcurrencyLimit<S>),
}

type CostFn = dyn Fn(&Parts) -> u64 + Send + Sync;

impl<S: Store + 'static> LimitSet<S> {
    /// No limits yet, over the store of this limiter. Limiters over one shared store share the limits of one name.
    pub fn new(limiter: Limiter<S>) -> Self {
        Self {
            inner: Arc::new(SetInner {
                limiter,
                limits: Vec::new(),
                settings: ResponseSettings::default(),
                caller: None,
                renewer: Some(LeaseRenewer::new()),
                queues: Arc::default(),
                may_delay: false,
            }),
        }
    }

    /// Adds a limit that every key has for itself.
    ///
    /// # Errors
    /// Numbers out of range, or a name that is taken or that no header can hold.
    pub fn per(self, name: &str, limit: impl IntoAnyLimit, key: impl KeyExtractor) -> Result<Self, LimitSetError> {
        self.add(name, limit, Some(Arc::new(key)))
    }

    /// Adds a limit that all requests share.
    ///
    /// # Errors
    /// Numbers out of range, or a name that is taken or that no header can hold.
    pub fn shared(self, name: &str, limit: impl IntoAnyLimit) -> Result<Self, LimitSetError> {
        self.add(name, limit, None)
    }

    fn add(
        mut self,
        name: &str,
        limit: impl IntoAnyLimit,
        key: Option<Arc<dyn KeyExtractor>>,
    ) -> Result<Self, LimitSetError> {
        let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b"_.:/-".contains(&byte);
        if !(1..=NAME_BYTES_MAX).contains(&name.len()) || !name.bytes().all(is_valid) {
            return Err(LimitSetError::Name(name.into()));
        }
        if self.inner.limits.iter().any(|limit| limit.name() == name) {
            return Err(LimitSetError::Duplicate(name.into()));
        }
        let inner = Arc::make_mut(&mut self.inner);
        let kind = match limit.into_any_limit()? {
            AnyLimit::Charged(limit) => {
                inner.may_delay |= is_shaping(&limit);
                SetLimitKind::Charged(inner.limiter.limit(name, limit)?)
            }
            AnyLimit::Held(limit) => SetLimitKind::Held(inner.limiter.concurrency(name, limit)?),
        };
        inner.limits.push(SetLimit {
            kind,
            queue: key.is_none().then(Arc::default),
            key,
            cost: None,
            missing: Arc::default(),
        });
        Ok(self)
    }

    /// Predicts the cost of requests for the limit that was added last. The handler corrects it by
    /// [`ActualCost`](crate::ActualCost). A concurrency limit takes one slot whatever the cost.
    pub fn cost(mut self, cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static) -> Self {
        if let Some(limit) = Arc::make_mut(&mut self.inner).limits.last_mut() {
            limit.cost = Some(Arc::new(cost));
        }
        self
    }

    /// The rate limit headers of responses; `RateLimit-Policy`, `RateLimit` and `X-RateLimit-*` by default.
    pub fn headers(mut self, dialects: Dialects) -> Self {
        Arc::make_mut(&mut self.inner).settings.dialects = dialects;
        self
    }

    /// The form of `Retry-After`.
    pub fn retry_after(mut self, retry_after: RetryAfter) -> Self {
        Arc::make_mut(&mut self.inner).settings.retry_after = retry_after;
        self
    }

    /// The caller that a return time belongs to, where a limit is shared: the peer's address by default. Behind a proxy it
    /// should be [`client_ip`](crate::extract::client_ip) with that proxy.
    pub fn caller(mut self, caller: impl KeyExtractor) -> Self {
        Arc::make_mut(&mut self.inner).caller = Some(Arc::new(caller));
        self
    }

    /// Leaves leases of concurrency limits to expire, even while their requests run.
    pub fn without_renewal(mut self) -> Self {
        Arc::make_mut(&mut self.inner).renewer = None;
        self
    }

    /// The limiter.
    pub fn limiter(&self) -> &Limiter<S> {
        &self.inner.limiter
    }

    /// The requests that a limit did not apply to because they lack its key. None if there is no such limit.
    pub fn missing_keys(&self, name: &str) -> Option<u64> {
        let limit = self.inner.limits.iter().find(|limit| limit.name() == name)?;
        Some(limit.missing.load(Ordering::Relaxed))
    }
}

impl<S: Store + 'static> AdmissionControl for LimitSet<S> {
    #[inline]
    fn admit_now(&self, head: &Parts, peer: Option<IpAddr>) -> Option<Admission> {
        if !S::IS_IMMEDIATE {
            return None;
        }
        if let Some(grant) = self.inner.admit_only(head, peer) {
            return Some(Admission::Admit(grant));
        }
        let collected = self.inner.collect(head, peer);
        ready_now(Arc::clone(&self.inner).settle(collected))
    }

    fn admit(&self, head: &Parts, peer: Option<IpAddr>) -> BoxFuture<'static, Admission> {
        let collected = self.inner.collect(head, peer);
        Box::pin(Arc::clone(&self.inner).settle(collected))
    }

    fn may_delay(&self) -> bool {
        self.inner.may_delay
    }

    fn retry_after(&self) -> RetryAfter {
        self.inner.settings.retry_after
    }
}

impl<S: Store + 'static> SetInner<S> {
    /// Admits by the only limit, without memory: the usual case without headers. None if it has to be settled, also
    /// because it denies: a denial consumed nothing, so it is decided again.
    #[inline]
    fn admit_only(&self, head: &Parts, peer: Option<IpAddr>) -> Option<Grant> {
        let [only] = &*self.limits else { return None };
        let SetLimitKind::Charged(limit) = &only.kind else {
            return None;
        };
        if self.settings.dialects != Dialects::NONE || only.cost.is_some() || self.may_delay {
            return None;
        }
        let key = match &only.key {
            Some(extractor) => extractor.key(head, peer)?,
            None => RequestKey::from(&b""[..]),
        };
        let decision = self.limiter.check_cost_now(limit, key.as_bytes(), Cost::ONE)?;
        decision.is_allow().then(Grant::default)
    }
}

/// The result of a future over a store that never waits. None, and nothing decided, if it waits all the same.
pub(crate) fn ready_now<T>(future: impl Future<Output = T>) -> Option<T> {
    match std::pin::pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

impl<S: Store> SetLimit<S> {
    fn name(&self) -> &str {
        match &self.kind {
            SetLimitKind::Charged(limit) => limit.id(),
            SetLimitKind::Held(limit) => limit.id(),
        }
    }

    fn limit(&self) -> &Limit {
        match &self.kind {
            SetLimitKind::Charged(limit) => limit.limit(),
            SetLimitKind::Held(limit) => limit.limit(),
        }
    }
}

impl<S: Store> Clone for SetInner<S> {
    fn clone(&self) -> Self {
        Self {
            limiter: self.limiter.clone(),
            limits: self.limits.clone(),
            settings: self.settings,
            caller: self.caller.clone(),
            renewer: self.renewer.clone(),
            queues: Arc::clone(&self.queues),
            may_delay: self.may_delay,
        }
    }
}

impl<S: Store> Clone for SetLimit<S> {
    fn clone(&self) -> Self {
        Self {
            kind: match &self.kind {
                SetLimitKind::Charged(limit) => SetLimitKind::Charged(limit.clone()),
                SetLimitKind::Held(limit) => SetLimitKind::Held(limit.clone()),
            },
            key: self.key.clone(),
            cost: self.cost.clone(),
            missing: Arc::clone(&self.missing),
            queue: self.queue.clone(),
        }
    }
}

impl<S: Store> Clone for LimitSet<S> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
        }
    }
}

impl<S: Store> fmt::Debug for LimitSet<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.inner.limits.iter().map(SetLimit::name);
        f.debug_struct("LimitSet")
            .field("limits", &names.collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

impl From<LimitError> for LimitSetError {
    fn from(error: LimitError) -> Self {
        Self::Limit(error)
    }
}

impl fmt::Display for LimitSetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limit(error) => error.fmt(f),
            Self::Name(name) => write!(
                f,
                "`{name}` cannot be the name of a limit: use 1 to {NAME_BYTES_MAX} letters, digits and _.:/-"
            ),
            Self::Duplicate(name) => write!(f, "two limits have the name `{name}`; give one another name"),
        }
    }
}

impl std::error::Error for LimitSetError {}

/// The longest name of a limit.
const NAME_BYTES_MAX: usize = 64;
