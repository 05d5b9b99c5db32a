//! The way to one server: a connection, dialled and dialled again whenever it breaks.

use crate::clock::Clock;
use crate::store::redis::connection::endpoint::{ConnectOptions, Endpoint};
use crate::store::redis::connection::{AccessMode, ScriptConnection, value_text};
use crate::store::redis::node::KeyScope;
use crate::store::redis::topology::sentinel::Sentinels;
use crate::store::redis::{Functions, RedisMetrics};
use futures_util::future::{Either, select};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, PushInfo, PushKind, RedisError, Value};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};

/// How long each step of connecting may take: so many times what a call may, within these bounds. An attempt that is lost on
/// its way is noticed only then, and until then a server that is back is not found.
const CONNECT_TIMEOUT_FACTOR: u32 = 50;
const CONNECT_TIMEOUT_MIN: Duration = Duration::from_millis(500);
const CONNECT_TIMEOUT_MAX: Duration = Duration::from_secs(5);

/// How long connecting takes where all is well, which is some round trips: so many times what a call may, at most.
const SECOND_ATTEMPT_FACTOR: u32 = 4;

/// The first pause between two attempts, and the longest: each is twice the one before, less up to half of it at random.
/// Connections whose first call fails are attempts too, or a server that takes them and is too slow, or takes no writes,
/// would have to take one for each call.
const BACKOFF: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_millis(250);

/// The shortest pause where the server does not let us in, and up to how much longer it is at random: it may lock out who
/// tries more often than once a second, and whoever mends it should not have to wait.
const AUTH_BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_millis(200));

/// How often a server that loads its data is asked again on one connection, and the pause between.
const LOADING_RETRIES: u32 = 50;
const LOADING_BACKOFF: Duration = Duration::from_millis(150);

/// The way to one server.
pub(crate) struct Connector {
    source: EndpointSource,
    functions: Functions,
    clock: Clock,
    /// How long a call may take.
    deadline: Duration,
    /// How long each step of connecting may take.
    step_timeout: Duration,
    connection: watch::Sender<Option<ScriptConnection>>,
    /// Since when there is none, if there is none.
    disconnected_since: Mutex<Instant>,
    /// Whether there ever was one.
    was_connected: AtomicBool,
    is_connecting: AtomicBool,
    /// That it is worth dialling anew at once.
    retry_now: Arc<Notify>,
    /// Whom is being connected to.
    target: Mutex<Option<Endpoint>>,
    /// Attempts to connect since the script last answered.
    attempts: AtomicU32,
    /// Whether the server did not let us in.
    auth_rejected: AtomicBool,
    connections_opened: AtomicU64,
    /// Why there is no line.
    error: Mutex<Option<String>>,
    metrics: Arc<RedisMetrics>,
    runtime: Handle,
}

/// How the server is found, whenever it is dialled.
#[derive(Debug)]
pub(crate) enum EndpointSource {
    /// It is where it always was.
    Fixed(ConnectOptions),
    /// Sentinels know.
    Sentinel(Arc<Sentinels>),
    /// It is a replica, and only looked at.
    Replica(ConnectOptions, KeyScope),
}

impl Connector {
    /// Begins to dial at once.
    pub(crate) fn new(
        source: EndpointSource,
        functions: Functions,
        deadline: Duration,
        clock: Clock,
        metrics: Arc<RedisMetrics>,
        runtime: Handle,
    ) -> Arc<Self> {
        let connector = Arc::new(Self {
            source,
            functions,
            clock,
            deadline,
            step_timeout: deadline
                .saturating_mul(CONNECT_TIMEOUT_FACTOR)
                .clamp(CONNECT_TIMEOUT_MIN, CONNECT_TIMEOUT_MAX),
            connection: watch::Sender::new(None),
            disconnected_since: Mutex::new(Instant::now()),
            was_connected: AtomicBool::new(false),
            is_connecting: AtomicBool::new(false),
            retry_now: Arc::default(),
            target: Mutex::default(),
            attempts: AtomicU32::new(0),
            auth_rejected: AtomicBool::new(false),
            connections_opened: AtomicU64::new(0),
            error: Mutex::new(Some("not connected yet".to_owned())),
            metrics,
            runtime,
        });
        connector.connect();
        if let EndpointSource::Sentinel(sentinels) = &connector.source {
            sentinels.subscribe_all(&connector, &connector.runtime);
        }
        connector
    }

    /// The connection, as soon as there is one.
    pub(crate) async fn connection(self: &Arc<Self>) -> ScriptConnection {
        loop {
            if let Some(connection) = &*self.connection.borrow() {
                return connection.clone();
            }
            self.connect();
            // The sender is our own, so this cannot fail.
            let _ = self.connection.subscribe().wait_for(Option::is_some).await;
        }
    }

    /// The connection, if there is one.
    pub(crate) fn current(&self) -> Option<ScriptConnection> {
        self.connection.borrow().clone()
    }

    /// Since when there is no connection, if there is none.
    pub(crate) fn disconnected_since(&self) -> Instant {
        *self.disconnected_since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there ever was a connection.
    pub(crate) fn was_connected(&self) -> bool {
        self.was_connected.load(Ordering::Relaxed)
    }

    /// Whether there is a connection.
    pub(crate) fn is_connected(&self) -> bool {
        self.connection.borrow().is_some()
    }

    /// Whether it leads to a replica, which is only looked at.
    pub(crate) const fn is_replica(&self) -> bool {
        matches!(self.source, EndpointSource::Replica(..))
    }

    pub(crate) fn metrics(&self) -> Arc<RedisMetrics> {
        Arc::clone(&self.metrics)
    }

    /// Why there is no connection, if there is none.
    pub(crate) fn error(&self) -> Option<String> {
        match &*self.connection.borrow() {
            Some(_) => None,
            None => self.error.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }

    /// Gives a connection up that broke, fell silent or spoke nonsense, and dials anew. One that was given up already is
    /// left alone.
    pub(crate) fn disconnect(self: &Arc<Self>, number: u64, reason: &str) {
        let disconnected = self.connection.send_if_modified(|connection| {
            let is_this = connection.as_ref().is_some_and(|connection| connection.id() == number);
            if is_this {
                *connection = None;
                *self.disconnected_since.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
            }
            is_this
        });
        if disconnected {
            self.set_error(reason);
            self.connect();
        }
    }

    /// Leaves whatever server there is a connection to, unless it is this one. If there is none, whoever dials another, or
    /// waits to, does so no longer: one that stood still may answer at any time, and is not to be asked.
    pub(crate) fn switch_to(self: &Arc<Self>, endpoint: &Endpoint) {
        let other = match &*self.connection.borrow() {
            Some(connection) if connection.endpoint() == Some(endpoint) => return,
            connection => connection.as_ref().map(ScriptConnection::id),
        };
        if other.is_none() && self.target().as_ref() == Some(endpoint) {
            return;
        }
        // The new one is worth trying at once, however the old one was.
        self.attempts.store(0, Ordering::Relaxed);
        match other {
            Some(number) => self.disconnect(number, "another server is the primary now"),
            None => self.retry_now.notify_one(),
        }
    }

    /// Dials in the background, unless somebody does.
    fn connect(self: &Arc<Self>) {
        if self.is_connecting.swap(true, Ordering::AcqRel) {
            return;
        }
        self.runtime.spawn(run_connect_task(ConnectTask(Arc::downgrade(self))));
    }

    /// The script has answered: if the connection breaks now, another is worth trying at once.
    pub(crate) fn record_reply(&self) {
        if self.attempts.load(Ordering::Relaxed) > 0 {
            self.attempts.store(0, Ordering::Relaxed);
        }
    }

    /// How long to wait before the next attempt. At random, so that many instances do not all come at the same moment.
    fn backoff(&self) -> Duration {
        let Some(doublings) = self.attempts.load(Ordering::Relaxed).checked_sub(1) else {
            return Duration::ZERO;
        };
        let jitter = u32::from(crate::lease::random_id().0 as u16);
        if self.auth_rejected.load(Ordering::Relaxed) {
            let (base, spread) = AUTH_BACKOFF;
            return base + spread * jitter / (1 << 16);
        }
        let delay = (BACKOFF * (1 << doublings.min(8))).min(BACKOFF_MAX);
        delay - delay / 2 * jitter / (1 << 16)
    }

    /// What is to be said of how the server was found.
    pub(crate) fn warning(&self) -> Option<&'static str> {
        match &self.source {
            EndpointSource::Sentinel(sentinels) if sentinels.uses_last_known() => Some(
                "no sentinel answers: the primary is the one that they named before this server was started, and it is not \
                 heard when they name another",
            ),
            _ => None,
        }
    }

    /// Which primary sentinels have named, if there are any.
    pub(crate) fn known_primary(&self) -> Option<String> {
        match &self.source {
            EndpointSource::Sentinel(sentinels) => sentinels.known_primary(),
            EndpointSource::Fixed(_) | EndpointSource::Replica(..) => None,
        }
    }

    /// Leaves a server that was the primary when it was dialled, and by now is not.
    fn follow_switch(self: &Arc<Self>) {
        if let EndpointSource::Sentinel(sentinels) = &self.source
            && let Some(endpoint) = sentinels.current_primary()
        {
            self.switch_to(&endpoint);
        }
    }

    fn target(&self) -> MutexGuard<'_, Option<Endpoint>> {
        self.target.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_error(&self, reason: &str) {
        *self.error.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason.to_owned());
    }

    async fn try_connect(self: &Arc<Self>) -> Result<ScriptConnection, String> {
        let connect_options = match &self.source {
            EndpointSource::Fixed(connect_options) | EndpointSource::Replica(connect_options, _) => {
                connect_options.clone()
            }
            EndpointSource::Sentinel(sentinels) => sentinels.primary().await?,
        };
        *self.target() = connect_options.endpoint();
        let connected = self.connect_hedged(&connect_options).await;
        let auth_rejected = connected.as_ref().is_err_and(is_auth_error);
        self.auth_rejected.store(auth_rejected, Ordering::Relaxed);
        connected.map_err(|error| {
            let text = error_text(&error, connect_options.password());
            match lacks_script(&error) {
                true => format!("{text}; {SCRIPT_NEEDED}"),
                false => text,
            }
        })
    }

    /// Connects. In the place of a connection that did well, a second attempt is made beside the first if that takes longer than
    /// is usual: what was lost on its way to a server that is there would be waited for.
    async fn connect_hedged(
        self: &Arc<Self>,
        connect_options: &ConnectOptions,
    ) -> Result<ScriptConnection, RedisError> {
        let mut first = pin!(self.connect_to(connect_options));
        if !self.was_connected() || self.attempts.load(Ordering::Relaxed) > 1 {
            return first.await;
        }
        if let Ok(connected) = timeout(self.deadline * SECOND_ATTEMPT_FACTOR, first.as_mut()).await {
            return connected;
        }
        self.metrics.connect_attempts.add(1);
        match select(first, pin!(self.connect_to(connect_options))).await {
            Either::Left((Ok(opened), _)) | Either::Right((Ok(opened), _)) => Ok(opened),
            Either::Left((Err(_), other)) | Either::Right((Err(_), other)) => other.await,
        }
    }

    async fn connect_to(self: &Arc<Self>, connect_options: &ConnectOptions) -> Result<ScriptConnection, RedisError> {
        let number = self.connections_opened.fetch_add(1, Ordering::Relaxed);
        let connection = with_timeout(self.step_timeout, self.handshake(connect_options, number)).await?;
        let access_mode = match self.is_replica() {
            true => AccessMode::ReadOnly,
            false => AccessMode::ReadWrite,
        };
        let mut retries = 0;
        loop {
            let opening = ScriptConnection::open(
                connection.clone(),
                connect_options.endpoint(),
                number,
                self.functions,
                access_mode,
                &self.clock,
            );
            match with_timeout(self.step_timeout, opening).await {
                // Another connection would be told the same.
                Err(error) if error.code() == Some("LOADING") && retries < LOADING_RETRIES => {
                    retries += 1;
                    self.set_error("the server is loading its data");
                    sleep(LOADING_BACKOFF).await;
                }
                opened => return opened,
            }
        }
    }

    /// A connection, and nothing more.
    async fn handshake(
        self: &Arc<Self>,
        connect_options: &ConnectOptions,
        number: u64,
    ) -> Result<MultiplexedConnection, RedisError> {
        let connector = Arc::downgrade(self);
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_push_sender(move |push: PushInfo| {
                if push.kind == PushKind::Disconnection
                    && let Some(connector) = connector.upgrade()
                {
                    connector.disconnect(number, "the server closed the connection");
                }
                Ok::<(), ()>(())
            });
        let client = connect_options.client()?;
        let connecting = client.get_multiplexed_async_connection_with_config(&config);
        let mut connection = connecting.await?;
        match &self.source {
            EndpointSource::Fixed(_) => {}
            EndpointSource::Sentinel(_) => check_primary(&mut connection).await?,
            EndpointSource::Replica(_, scope) => {
                check_replica_link(&role_command().query_async(&mut connection).await?)?;
                if *scope == KeyScope::OneTag {
                    // Without it, a replica in a cluster sends everybody to its primary.
                    redis::cmd("READONLY").query_async::<()>(&mut connection).await?;
                }
            }
        }
        Ok(connection)
    }
}

/// One step of connecting, which may take so long.
async fn with_timeout<T>(time: Duration, step: impl Future<Output = Result<T, RedisError>>) -> Result<T, RedisError> {
    let timed_out = (redis::ErrorKind::Io, "the server did not answer in time");
    timeout(time, step).await.unwrap_or_else(|_| Err(timed_out.into()))
}

/// Whether the server knows us and does not let us in, or does not know us.
pub(crate) fn is_auth_error(error: &RedisError) -> bool {
    error.kind() == redis::ErrorKind::AuthenticationFailed
        || matches!(error.code(), Some("NOAUTH" | "WRONGPASS" | "NOPERM"))
}

/// Whether the server, or a proxy before it, lets us in but not load the script.
fn lacks_script(error: &RedisError) -> bool {
    let is_unknown = || error.detail().unwrap_or_default().contains("unknown command");
    error.code() == Some("NOPERM") || is_unknown()
}

/// What to do then. Counters of envoyproxy/ratelimit need no script; that the server is there, and how many instances are, is
/// found out by it.
const SCRIPT_NEEDED: &str = "nothing is counted there without the script, counters of `envoy_rules` neither: allow what \
                             docs/redis.md lists under least privilege, such as +script|load +evalsha +eval";

/// What went wrong, for whoever reads logs, and never a password: a server that does not know a command repeats what it was
/// told with it.
pub(crate) fn error_text(error: &RedisError, password: Option<&str>) -> String {
    let message = error.to_string();
    let message = message.split(", with args").next().unwrap_or_default();
    match password {
        Some(password) if !password.is_empty() => message.replace(password, "..."),
        _ => message.to_owned(),
    }
}

/// Sentinels may name a server that is not the primary yet, or no more.
async fn check_primary(connection: &mut MultiplexedConnection) -> Result<(), RedisError> {
    let role: Vec<Value> = role_command().query_async(connection).await?;
    match role.first().map(value_text).as_deref() {
        Some("master") => Ok(()),
        _ => Err(RedisError::from((
            redis::ErrorKind::Client,
            "the server that the sentinels name is not the primary",
        ))),
    }
}

/// Whether a replica hears of what its primary writes, as its own `ROLE` says. One that does not may be far behind.
///
/// # Errors
/// That it does not.
pub(crate) fn check_replica_link(role: &Value) -> Result<(), RedisError> {
    let role_fields: Vec<String> = match role {
        Value::Array(fields) => fields.iter().map(value_text).collect(),
        _ => Vec::new(),
    };
    match &*role_fields {
        [role, _, _, state, ..] if role == "slave" && state == "connected" => Ok(()),
        _ => Err((
            redis::ErrorKind::Client,
            "the server is no replica that hears its primary",
        )
            .into()),
    }
}

pub(crate) fn role_command() -> redis::Cmd {
    redis::cmd("ROLE")
}

/// Whoever dials. When it ends, however it ends, somebody else may.
struct ConnectTask(Weak<Connector>);

impl Drop for ConnectTask {
    fn drop(&mut self) {
        if let Some(connector) = self.0.upgrade() {
            connector.is_connecting.store(false, Ordering::Release);
        }
    }
}

/// Dials until there is a connection, or nobody wants one any more.
async fn run_connect_task(task: ConnectTask) {
    let connector = loop {
        let Some((delay, retry_now)) = task
            .0
            .upgrade()
            .map(|connector| (connector.backoff(), Arc::clone(&connector.retry_now)))
        else {
            return;
        };
        if !delay.is_zero() {
            // Whether it was heard or the pause is over, it is time.
            let _ = timeout(delay, retry_now.notified()).await;
        }
        let Some(connector) = task.0.upgrade() else { return };
        if connector.connection.borrow().is_some() {
            break connector;
        }
        connector.attempts.fetch_add(1, Ordering::Relaxed);
        connector.metrics.connect_attempts.add(1);
        let connected = match select(pin!(connector.try_connect()), pin!(retry_now.notified())).await {
            Either::Left((connected, _)) => connected,
            Either::Right(_) => Err("another server is the primary now".to_owned()),
        };
        *connector.target() = None;
        match connected {
            Ok(connection) => {
                connector.was_connected.store(true, Ordering::Relaxed);
                connector.connection.send_replace(Some(connection));
                connector.follow_switch();
                break connector;
            }
            Err(reason) => connector.set_error(&reason),
        }
    };
    drop(task);
    // It may be gone again already, and whoever saw that saw us dial.
    if connector.connection.borrow().is_none() {
        connector.connect();
    }
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link")
            .field("fault", &self.error())
            .finish_non_exhaustive()
    }
}
