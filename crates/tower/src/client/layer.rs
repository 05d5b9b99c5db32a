//! The layer: the settings of a paced client.

use super::pacing::Pacing;
use super::repeat::{NeverRepeat, RepeatCloned, RepeatEmpty};
use super::service::PacedService;
use super::shared_limits::SharedLimits;
use http::request::Parts;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tollgate_limiter::Limiter;
use tollgate_limiter::core::protect::{LocalRejection, PaceLimit, PacerConfig, PolicySource, RetryBudget};
use tollgate_limiter::core::{Limit, LimitError};
use tollgate_limiter::limits::IntoLimit;
use tollgate_limiter::store::Store;
use tollgate_limiter::store::memory::Memory;
use tower_layer::Layer;

/// Keeps a client to the limits of the services it calls: it waits instead of being denied, and retries within a budget.
///
/// ```
/// use std::time::Duration;
/// use tollgate_limiter::Limiter;
/// use tollgate_limiter::core::protect::RetryBudget;
/// use tollgate_limiter::limits::Gcra;
/// use tollgate_tower::client::PacerLayer;
///
/// // With `Limiter::redis(url)?` all workers keep to it as one.
/// let layer = PacerLayer::new(Limiter::in_memory())
///     .limit(Gcra::per_second(50).burst(10))?
///     .max_wait(Duration::from_secs(30))
///     .retries(2)
///     .budget(RetryBudget::default());
/// # Ok::<(), tollgate_limiter::core::LimitError>(())
/// ```
pub struct PacerLayer<S: Store = Memory, C = RepeatCloned> {
    settings: Settings<S, C>,
}

struct Settings<S: Store, C> {
    limiter: Limiter<S>,
    name: Box<str>,
    limit: Option<Limit>,
    config: PacerConfig,
    host: HostOf,
    repeat: C,
}

/// The key of a request: its requests share a limit.
pub(super) type HostOf = Arc<dyn Fn(&Parts) -> String + Send + Sync>;

impl<S: Store> PacerLayer<S> {
    /// Paces by this limiter: in memory for this process, over a shared store for all processes that use it. A fallback
    /// around that store decides by a share while it is unavailable; without one, requests wait until it answers.
    pub fn new(limiter: Limiter<S>) -> Self {
        Self {
            settings: Settings {
                limiter,
                name: "pacer".into(),
                limit: None,
                config: PacerConfig::default(),
                host: Arc::new(host),
                repeat: RepeatCloned,
            },
        }
    }
}

impl<S: Store, C> PacerLayer<S, C> {
    /// The limit of each service. Give the server's own numbers: the burst that is used is smaller by what may be in
    /// transit.
    ///
    /// # Errors
    /// Numbers out of range, or a limit of concurrency.
    pub fn limit(mut self, limit: impl IntoLimit) -> Result<Self, LimitError> {
        let limit = limit.into_limit()?;
        self.settings.config.limit = PaceLimit::from_limit(&limit);
        self.settings.limit = Some(limit);
        Ok(self)
    }

    /// Learns limits from responses: `RateLimit`, `RateLimit-Policy` and `X-RateLimit-*`.
    pub fn learn(mut self) -> Self {
        self.settings.config.policies = PolicySource::Learned;
        self
    }

    /// The name of its limits in the limiter: clients with the same name and limiter share them. `pacer` by default.
    pub fn name(mut self, name: &str) -> Self {
        self.settings.name = name.into();
        self
    }

    /// The longest wait before a request; one that would wait longer fails at once. Also the longest `Retry-After` that
    /// is waited for. 30 s by default.
    pub fn max_wait(mut self, wait: Duration) -> Self {
        self.settings.config.wait_max = wait.into();
        self
    }

    /// The retries of one request. 2 by default.
    pub fn retries(mut self, retries: u32) -> Self {
        self.settings.config.retries = retries;
        self
    }

    /// The budget of all retries.
    pub fn budget(mut self, budget: RetryBudget) -> Self {
        self.settings.config.budget = budget;
        self
    }

    /// The time in which a request reaches the server. The burst is smaller by what that is at the rate. 100 ms by
    /// default.
    pub fn transit(mut self, transit: Duration) -> Self {
        self.settings.config.transit = transit.into();
        self
    }

    /// Sends a service that accepts less than half of its requests about twice what it accepts, and fails the others at
    /// once.
    pub fn adaptive(mut self) -> Self {
        self.settings.config.rejection = LocalRejection::Adaptive;
        self
    }

    /// The key of a request, where it is not the host and port: an account, a route.
    pub fn key(mut self, key: impl Fn(&Parts) -> String + Send + Sync + 'static) -> Self {
        self.settings.host = Arc::new(key);
        self
    }

    /// Repeats only requests without a body, for bodies that cannot be cloned.
    pub fn repeat_empty(self) -> PacerLayer<S, RepeatEmpty> {
        self.repeat_with(RepeatEmpty)
    }

    /// Repeats none: its requests are paced, and never sent twice.
    pub fn never_repeat(self) -> PacerLayer<S, NeverRepeat> {
        self.repeat_with(NeverRepeat)
    }

    /// Repeats requests whose body this copies.
    pub fn repeat_with<D>(self, repeat: D) -> PacerLayer<S, D> {
        let Settings {
            limiter,
            name,
            limit,
            config,
            host,
            repeat: _,
        } = self.settings;
        PacerLayer {
            settings: Settings {
                limiter,
                name,
                limit,
                config,
                host,
                repeat,
            },
        }
    }

    /// The pace of these settings, for a client that is no tower service. Each call starts a new one.
    pub fn pacing(&self) -> Pacing<S> {
        let Settings {
            limiter,
            name,
            limit,
            config,
            ..
        } = &self.settings;
        let limits = SharedLimits::new(limiter.clone(), name, *limit, config.transit);
        Pacing::new(*config, limits)
    }

    /// A service with this pace, which others may have too.
    pub fn service_with<T>(&self, service: T, pacing: Pacing<S>) -> PacedService<T, S, C>
    where
        C: Clone,
    {
        let Settings { host, repeat, .. } = &self.settings;
        PacedService::new(service, pacing, Arc::clone(host), repeat.clone())
    }
}

impl<T, S: Store, C: Clone> Layer<T> for PacerLayer<S, C> {
    type Service = PacedService<T, S, C>;

    fn layer(&self, service: T) -> Self::Service {
        self.service_with(service, self.pacing())
    }
}

/// The host and port that a request goes to.
fn host(parts: &Parts) -> String {
    let authority = parts.uri.authority().map(|authority| authority.as_str());
    let header = || parts.headers.get(http::header::HOST)?.to_str().ok();
    authority.or_else(header).unwrap_or_default().to_ascii_lowercase()
}

impl<S: Store, C: fmt::Debug> fmt::Debug for PacerLayer<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PacerLayer")
            .field("name", &self.settings.name)
            .field("config", &self.settings.config)
            .field("repeat", &self.settings.repeat)
            .finish_non_exhaustive()
    }
}
