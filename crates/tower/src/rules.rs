//! Rules as data, as the server has them: files of rules decide which limits apply to a request.

mod open_charge;
mod settle;

use crate::admission::answer::ResponseSettings;
use crate::admission::{Admission, AdmissionControl, BoxFuture};
use crate::extract::{ClientIp, KeyExtractor};
use crate::headers::{Dialects, RetryAfter, RetryCaller, RetryQueues, RuleQueues};
use crate::limits::ready_now;
use http::request::Parts;
use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use tollgate_limiter::core::Limit;
use tollgate_limiter::core::protect::PriorityClass;
use tollgate_limiter::core::rules::{Attempt, Attribute, RuleSet};
use tollgate_limiter::store::CounterStore;
use tollgate_limiter::store::memory::Memory;
use tollgate_limiter::{LeaseRenewer, RuleLimiter};

/// Limits from rules, over the attributes of requests. Cheap to clone: all clones have the same rules.
///
/// ```
/// use std::sync::Arc;
/// use tollgate_limiter::RuleLimiter;
/// use tollgate_limiter::store::memory::Memory;
/// use tollgate_tower::RuleLimits;
/// use tollgate_tower::extract::{header, path};
/// # use tollgate_limiter::core::rules::RuleSet;
///
/// # fn limits(rules: RuleSet) {
/// let limits = RuleLimits::new(RuleLimiter::new(rules, Arc::new(Memory::default())))
///     .attribute("merchant", header("x-merchant-id"))
///     .attribute("endpoint", path());
/// # let _ = limits;
/// # }
/// ```
///
/// The attribute `priority` is set by [`RateLimitLayer::priority`](crate::RateLimitLayer::priority).
pub struct RuleLimits<S: CounterStore = Memory> {
    inner: Arc<RulesInner<S>>,
}

struct RulesInner<S: CounterStore> {
    active: RwLock<Arc<ActiveRules<S>>>,
    options: RuleOptions,
    queues: RetryQueues,
    renewer: LeaseRenewer<S>,
    missing_keys: AtomicU64,
}

/// The rules that decide, and what depends on them.
struct ActiveRules<S: CounterStore> {
    limiter: RuleLimiter<S>,
    queues: RuleQueues,
    may_delay: bool,
}

#[derive(Clone)]
struct RuleOptions {
    domain: Box<str>,
    attributes: Vec<(Arc<str>, Arc<dyn KeyExtractor>)>,
    /// The attribute with the cost that is corrected.
    cost: Option<Arc<str>>,
    settings: ResponseSettings,
    caller: Option<ClientIp>,
}

/// A request as its rules see it, independent of it.
struct OwnedAttempt {
    attributes: Vec<(Arc<str>, Vec<u8>)>,
    /// The peer of the connection, or the client behind trusted proxies.
    caller: RetryCaller,
}

impl<S: CounterStore + 'static> RuleLimits<S> {
    /// Limits by these rules, without attributes yet.
    pub fn new(limiter: RuleLimiter<S>) -> Self {
        let queues = RetryQueues::default();
        Self {
            inner: Arc::new(RulesInner {
                active: RwLock::new(Arc::new(ActiveRules::new(limiter, &queues))),
                options: RuleOptions {
                    domain: Attempt::DOMAIN.into(),
                    attributes: Vec::new(),
                    cost: None,
                    settings: ResponseSettings::default(),
                    caller: None,
                },
                queues,
                renewer: LeaseRenewer::new(),
                missing_keys: AtomicU64::new(0),
            }),
        }
    }

    /// Adds an attribute. It is absent from requests that have no such key.
    pub fn attribute(self, name: &str, key: impl KeyExtractor) -> Self {
        self.with(|options| options.attributes.push((name.into(), Arc::new(key))))
    }

    /// Adds the attribute with the predicted cost of requests, as a whole number. The handler corrects it by
    /// [`ActualCost`](crate::ActualCost), for the rules whose cost came from it.
    pub fn cost(self, name: &str, key: impl KeyExtractor) -> Self {
        let limits = self.attribute(name, key);
        limits.with(|options| options.cost = Some(name.into()))
    }

    /// The domain of the rules; `default` by default.
    pub fn domain(self, domain: &str) -> Self {
        self.with(|options| options.domain = domain.into())
    }

    /// The rate limit headers of responses; `RateLimit-Policy`, `RateLimit` and `X-RateLimit-*` by default.
    pub fn headers(self, dialects: Dialects) -> Self {
        self.with(|options| options.settings.dialects = dialects)
    }

    /// The form of `Retry-After`.
    pub fn retry_after(self, retry_after: RetryAfter) -> Self {
        self.with(|options| options.settings.retry_after = retry_after)
    }

    /// The client behind trusted proxies, that a return time belongs to where a limit is shared. By default the peer.
    pub fn caller(self, caller: ClientIp) -> Self {
        self.with(|options| options.caller = Some(caller))
    }

    /// Changes the options. Only of limits that no layer has yet: their clones would not see the change.
    fn with(self, change: impl FnOnce(&mut RuleOptions)) -> Self {
        match Arc::try_unwrap(self.inner) {
            Ok(mut inner) => {
                change(&mut inner.options);
                Self { inner: Arc::new(inner) }
            }
            Err(shared) => {
                let mut options = shared.options.clone();
                change(&mut options);
                let active = shared.active();
                let queues = RetryQueues::default();
                let limiter = active.limiter.amended(&[], &[]).0;
                Self {
                    inner: Arc::new(RulesInner {
                        active: RwLock::new(Arc::new(ActiveRules::new(limiter, &queues))),
                        options,
                        queues,
                        renewer: shared.renewer.clone(),
                        missing_keys: AtomicU64::new(0),
                    }),
                }
            }
        }
    }

    /// Replaces the rules, for all clones. Counters continue, if the limiter is over the same store.
    pub fn replace(&self, limiter: RuleLimiter<S>) {
        let next = Arc::new(ActiveRules::new(limiter, &self.inner.queues));
        *self.inner.active.write().unwrap_or_else(PoisonError::into_inner) = next;
    }

    /// The requests that rules did not apply to because they lack a `per` attribute.
    pub fn missing_keys(&self) -> u64 {
        self.inner.missing_keys.load(Ordering::Relaxed)
    }
}

impl<S: CounterStore + 'static> AdmissionControl for RuleLimits<S> {
    fn admit_now(&self, head: &Parts, peer: Option<IpAddr>) -> Option<Admission> {
        if !S::IS_IMMEDIATE {
            return None;
        }
        let attempt = self.inner.attempt(head, peer);
        ready_now(Arc::clone(&self.inner).settle(attempt))
    }

    fn admit(&self, head: &Parts, peer: Option<IpAddr>) -> BoxFuture<'static, Admission> {
        let attempt = self.inner.attempt(head, peer);
        Box::pin(Arc::clone(&self.inner).settle(attempt))
    }

    fn may_delay(&self) -> bool {
        self.inner.active().may_delay
    }

    fn retry_after(&self) -> RetryAfter {
        self.inner.options.settings.retry_after
    }
}

impl<S: CounterStore> RulesInner<S> {
    fn active(&self) -> Arc<ActiveRules<S>> {
        Arc::clone(&self.active.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The attributes of a request.
    fn attempt(&self, head: &Parts, peer: Option<IpAddr>) -> OwnedAttempt {
        let mut attributes = Vec::with_capacity(self.options.attributes.len() + 1);
        for (name, key) in &self.options.attributes {
            let value = key.attribute(head, peer).map(Cow::into_owned);
            attributes.extend(value.map(|value| (Arc::clone(name), value)));
        }
        if let Some(class) = head.extensions.get::<PriorityClass>() {
            attributes.push((PRIORITY.into(), class.name().as_bytes().to_vec()));
        }
        let caller = match (peer, &self.options.caller) {
            (Some(peer), Some(client)) => RetryCaller::Address(client.address(head, peer)),
            (Some(peer), None) => RetryCaller::Address(peer),
            (None, _) => RetryCaller::Attributes,
        };
        OwnedAttempt { attributes, caller }
    }
}

impl<S: CounterStore> ActiveRules<S> {
    fn new(limiter: RuleLimiter<S>, queues: &RetryQueues) -> Self {
        Self {
            queues: queues.rule_queues(limiter.rules()),
            may_delay: has_shaping(limiter.rules()),
            limiter,
        }
    }
}

/// True if a counter of the rules shapes requests.
fn has_shaping(rules: &RuleSet) -> bool {
    let counters = rules.counters().iter().chain(rules.added_counters());
    counters.into_iter().any(|counter| is_shaping(&counter.limit))
}

/// True if a limit delays requests.
pub(crate) fn is_shaping(limit: &Limit) -> bool {
    matches!(limit, Limit::LeakyBucket(bucket) if bucket.is_shaping())
}

impl OwnedAttempt {
    fn attributes(&self) -> Vec<Attribute<'_>> {
        let each = self.attributes.iter();
        each.map(|(name, value)| Attribute { name, value }).collect()
    }
}

impl<S: CounterStore> Clone for RuleLimits<S> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
        }
    }
}

impl<S: CounterStore> fmt::Debug for RuleLimits<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuleLimits")
            .field("rules", &self.inner.active().limiter)
            .finish_non_exhaustive()
    }
}

/// The attribute with the priority class.
const PRIORITY: &str = "priority";
