//! The connector of one server: it connects in the background, and reconnects with backoff whenever the connection is lost.

use super::endpoint::{ConnectOptions, Endpoint};
use super::handshake::{
    SCRIPT_NEEDED, check_primary, check_replica_link, error_text, is_auth_error, lacks_script, role_command,
    with_timeout,
};
use super::round_trips::RoundTrips;
use super::{AccessMode, ScriptConnection};
use crate::store::redis::context::StoreContext;
use crate::store::redis::supervise::jittered;
use futures_util::future::{BoxFuture, Either, select};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, PushInfo, PushKind, RedisError};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};

/// The timeout of each step of connecting: this many times the deadline of a call, within these bounds. A lost attempt is
/// noticed only then.
const CONNECT_TIMEOUT_FACTOR: u32 = 50;
const CONNECT_TIMEOUT_MIN: Duration = Duration::from_millis(500);
const CONNECT_TIMEOUT_MAX: Duration = Duration::from_secs(5);

/// The usual time of connecting, which is a few round trips: at most this many times the deadline of a call.
const SECOND_ATTEMPT_FACTOR: u32 = 4;

/// The first backoff between two attempts, and the longest. It doubles with each attempt, less up to half of it as jitter.
/// A connection whose first call fails counts as an attempt too: a server that is too slow or rejects writes would
/// otherwise have to accept a connection for each call.
const BACKOFF: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_millis(250);

/// The backoff after a failed authentication, and its jitter. A server may lock out a client that tries more often, and an
/// operator who corrects the password should not have to wait.
const AUTH_BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_millis(200));

/// The retries on one connection while the server loads its data, and the backoff between them.
const LOADING_RETRIES: u32 = 50;
const LOADING_BACKOFF: Duration = Duration::from_millis(150);

/// The connector of one server.
pub(crate) struct Connector {
    source: EndpointSource,
    context: Arc<StoreContext>,
    step_timeout: Duration,
    round_trips: RoundTrips,
    connection: watch::Sender<Option<ScriptConnection>>,
    /// The start of the time without a connection, while there is no connection.
    disconnected_since: Mutex<Instant>,
    /// True once there was a connection.
    was_connected: AtomicBool,
    is_connecting: AtomicBool,
    /// Ends the backoff and the current attempt.
    retry_now: Arc<Notify>,
    /// The endpoint of the current attempt.
    target: Mutex<Option<Endpoint>>,
    /// Attempts since the last reply of the script.
    attempts: AtomicU32,
    auth_rejected: AtomicBool,
    connections_opened: AtomicU64,
    /// The reason why there is no connection.
    error: Mutex<Option<String>>,
}

/// The way an endpoint is found, at each attempt.
#[derive(Debug)]
pub(crate) enum EndpointSource {
    /// It never changes.
    Fixed(ConnectOptions),
    /// It is looked up: sentinels know the primary.
    Located(Arc<dyn PrimaryLocator>),
    /// It is a replica, which is only read.
    Replica(ConnectOptions),
    /// It is a replica in a cluster, which is only read.
    ClusterReplica(ConnectOptions),
}

/// Finds the primary of a replicated server.
pub(crate) trait PrimaryLocator: std::fmt::Debug + Send + Sync {
    /// The way to connect to the primary.
    ///
    /// # Errors
    /// The reason why it is unknown.
    fn locate(&self) -> BoxFuture<'_, Result<ConnectOptions, String>>;

    /// The endpoint of the primary as last reported, without asking again.
    fn current_primary(&self) -> Option<Endpoint>;
}

impl Connector {
    /// Starts to connect at once.
    pub(crate) fn new(source: EndpointSource, context: &Arc<StoreContext>) -> Arc<Self> {
        let step_timeout = context.deadline.saturating_mul(CONNECT_TIMEOUT_FACTOR);
        let connector = Arc::new(Self {
            source,
            context: Arc::clone(context),
            step_timeout: step_timeout.clamp(CONNECT_TIMEOUT_MIN, CONNECT_TIMEOUT_MAX),
            round_trips: RoundTrips::new(context.deadline),
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
        });
        connector.connect();
        connector
    }

    /// Waits for the connection.
    pub(crate) async fn connection(self: &Arc<Self>) -> ScriptConnection {
        loop {
            if let Some(connection) = &*self.connection.borrow() {
                return connection.clone();
            }
            self.connect();
            // The sender lives as long as this connector, so this cannot fail.
            let _ = self.connection.subscribe().wait_for(Option::is_some).await;
        }
    }

    /// The connection, if there is one.
    pub(crate) fn current(&self) -> Option<ScriptConnection> {
        self.connection.borrow().clone()
    }

    /// The start of the time without a connection, while there is no connection.
    pub(crate) fn disconnected_since(&self) -> Instant {
        *self.disconnected_since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The recent round trips to the server.
    pub(crate) const fn round_trips(&self) -> &RoundTrips {
        &self.round_trips
    }

    /// True once there was a connection.
    pub(crate) fn was_connected(&self) -> bool {
        self.was_connected.load(Ordering::Relaxed)
    }

    /// True while there is a connection.
    pub(crate) fn is_connected(&self) -> bool {
        self.connection.borrow().is_some()
    }

    /// True if it connects to a replica, which is only read.
    pub(crate) const fn is_replica(&self) -> bool {
        matches!(
            self.source,
            EndpointSource::Replica(_) | EndpointSource::ClusterReplica(_)
        )
    }

    /// The server it is connected to, or is to be. `None` for a Unix socket, and while sentinels have not named one.
    pub(crate) fn endpoint(&self) -> Option<Endpoint> {
        let connection = self.current();
        let current = connection.and_then(|connection| connection.endpoint().cloned());
        current.or_else(|| match &self.source {
            EndpointSource::Fixed(options)
            | EndpointSource::Replica(options)
            | EndpointSource::ClusterReplica(options) => options.endpoint(),
            EndpointSource::Located(locator) => locator.current_primary(),
        })
    }

    /// The reason why there is no connection; `None` while there is one.
    pub(crate) fn error(&self) -> Option<String> {
        match &*self.connection.borrow() {
            Some(_) => None,
            None => self.error.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }

    /// Closes the connection with this id, which was lost, is silent or out of step, and reconnects. Does nothing if it was
    /// closed before.
    pub(crate) fn disconnect(self: &Arc<Self>, id: u64, reason: &str) {
        let disconnected = self.connection.send_if_modified(|connection| {
            let is_current = connection.as_ref().is_some_and(|connection| connection.id() == id);
            if is_current {
                *connection = None;
                *self.disconnected_since.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
            }
            is_current
        });
        if disconnected {
            self.set_error(reason);
            self.connect();
        }
    }

    /// Closes a connection to any other endpoint and reconnects. Without a connection it ends an attempt or backoff for
    /// another endpoint: a server that was frozen may answer at any time, and must not be used.
    pub(crate) fn switch_to(self: &Arc<Self>, endpoint: &Endpoint) {
        let other = match &*self.connection.borrow() {
            Some(connection) if connection.endpoint() == Some(endpoint) => return,
            connection => connection.as_ref().map(ScriptConnection::id),
        };
        if other.is_none() && self.target().as_ref() == Some(endpoint) {
            return;
        }
        // Failures of the old endpoint say nothing about the new one.
        self.attempts.store(0, Ordering::Relaxed);
        match other {
            Some(id) => self.disconnect(id, PRIMARY_CHANGED),
            None => self.retry_now.notify_one(),
        }
    }

    /// Connects in the background, unless it already does.
    fn connect(self: &Arc<Self>) {
        if self.is_connecting.swap(true, Ordering::AcqRel) {
            return;
        }
        let task = run_connect_task(ConnectTask(Arc::downgrade(self)));
        self.context.runtime.spawn(task);
    }

    /// Records a reply of the script: if the connection is lost now, the first attempt is made without backoff.
    pub(crate) fn record_reply(&self) {
        if self.attempts.load(Ordering::Relaxed) > 0 {
            self.attempts.store(0, Ordering::Relaxed);
        }
    }

    /// The time until the next attempt, with jitter so that instances do not reconnect in step.
    fn backoff(&self) -> Duration {
        let Some(doublings) = self.attempts.load(Ordering::Relaxed).checked_sub(1) else {
            return Duration::ZERO;
        };
        if self.auth_rejected.load(Ordering::Relaxed) {
            let (base, jitter) = AUTH_BACKOFF;
            return base + jittered(jitter);
        }
        let delay = (BACKOFF * (1 << doublings.min(8))).min(BACKOFF_MAX);
        delay - jittered(delay / 2)
    }

    /// Closes the connection to a server that was the primary when the attempt started and is not any more.
    fn follow_switch(self: &Arc<Self>) {
        if let EndpointSource::Located(locator) = &self.source
            && let Some(endpoint) = locator.current_primary()
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
        let options = match &self.source {
            EndpointSource::Fixed(options)
            | EndpointSource::Replica(options)
            | EndpointSource::ClusterReplica(options) => options.clone(),
            EndpointSource::Located(locator) => locator.locate().await?,
        };
        *self.target() = options.endpoint();
        let connected = self.connect_hedged(&options).await;
        let auth_rejected = connected.as_ref().is_err_and(is_auth_error);
        self.auth_rejected.store(auth_rejected, Ordering::Relaxed);
        connected.map_err(|error| {
            let text = error_text(&error, options.password());
            match lacks_script(&error) {
                true => format!("{text}; {SCRIPT_NEEDED}"),
                false => text,
            }
        })
    }

    /// Connects. In place of a connection that was healthy, a second attempt runs concurrently if the first takes longer
    /// than usual: a lost packet would otherwise be waited for.
    async fn connect_hedged(self: &Arc<Self>, options: &ConnectOptions) -> Result<ScriptConnection, RedisError> {
        let mut first = pin!(self.connect_to(options));
        if !self.was_connected() || self.attempts.load(Ordering::Relaxed) > 1 {
            return first.await;
        }
        let usual = self.context.deadline * SECOND_ATTEMPT_FACTOR;
        if let Ok(connected) = timeout(usual, first.as_mut()).await {
            return connected;
        }
        self.context.metrics.connect_attempts.add(1);
        match select(first, pin!(self.connect_to(options))).await {
            Either::Left((Ok(opened), _)) | Either::Right((Ok(opened), _)) => Ok(opened),
            Either::Left((Err(_), other)) | Either::Right((Err(_), other)) => other.await,
        }
    }

    async fn connect_to(self: &Arc<Self>, options: &ConnectOptions) -> Result<ScriptConnection, RedisError> {
        let id = self.connections_opened.fetch_add(1, Ordering::Relaxed);
        let connection = with_timeout(self.step_timeout, self.handshake(options, id)).await?;
        let access_mode = match self.is_replica() {
            true => AccessMode::ReadOnly,
            false => AccessMode::ReadWrite,
        };
        let mut retries = 0;
        loop {
            let opening = ScriptConnection::open(
                connection.clone(),
                options.endpoint(),
                id,
                self.context.functions,
                access_mode,
                (&self.context.clock, &self.round_trips),
            );
            match with_timeout(self.step_timeout, opening).await {
                // Another connection would get the same reply.
                Err(error) if error.code() == Some("LOADING") && retries < LOADING_RETRIES => {
                    retries += 1;
                    self.set_error("the server is loading its data");
                    sleep(LOADING_BACKOFF).await;
                }
                opened => return opened,
            }
        }
    }

    /// Opens a connection and checks the role of its server.
    async fn handshake(
        self: &Arc<Self>,
        options: &ConnectOptions,
        id: u64,
    ) -> Result<MultiplexedConnection, RedisError> {
        let connector = Arc::downgrade(self);
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_push_sender(move |push: PushInfo| {
                if push.kind == PushKind::Disconnection
                    && let Some(connector) = connector.upgrade()
                {
                    connector.disconnect(id, "the server closed the connection");
                }
                Ok::<(), ()>(())
            });
        let client = options.client()?;
        let connecting = client.get_multiplexed_async_connection_with_config(&config);
        let mut connection = connecting.await?;
        match &self.source {
            EndpointSource::Fixed(_) => {}
            EndpointSource::Located(_) => check_primary(&mut connection).await?,
            EndpointSource::Replica(_) => {
                check_replica_link(&role_command().query_async(&mut connection).await?)?;
            }
            EndpointSource::ClusterReplica(_) => {
                check_replica_link(&role_command().query_async(&mut connection).await?)?;
                // Without it, a replica in a cluster redirects every call to its primary.
                redis::cmd("READONLY").query_async::<()>(&mut connection).await?;
            }
        }
        Ok(connection)
    }
}

const PRIMARY_CHANGED: &str = "another server is the primary now";

/// The running connect task. When it ends, in whatever way, another may start.
struct ConnectTask(Weak<Connector>);

impl Drop for ConnectTask {
    fn drop(&mut self) {
        if let Some(connector) = self.0.upgrade() {
            connector.is_connecting.store(false, Ordering::Release);
        }
    }
}

/// Makes attempts until there is a connection, or the connector is dropped.
async fn run_connect_task(task: ConnectTask) {
    let connector = loop {
        let upgraded = task.0.upgrade();
        let Some((delay, retry_now)) =
            upgraded.map(|connector| (connector.backoff(), Arc::clone(&connector.retry_now)))
        else {
            return;
        };
        if !delay.is_zero() {
            // Either the backoff is over, or another endpoint is worth an attempt now.
            let _ = timeout(delay, retry_now.notified()).await;
        }
        let Some(connector) = task.0.upgrade() else { return };
        if connector.connection.borrow().is_some() {
            break connector;
        }
        connector.attempts.fetch_add(1, Ordering::Relaxed);
        connector.context.metrics.connect_attempts.add(1);
        let connected = match select(pin!(connector.try_connect()), pin!(retry_now.notified())).await {
            Either::Left((connected, _)) => connected,
            Either::Right(_) => Err(PRIMARY_CHANGED.to_owned()),
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
    // The connection may be lost already, noticed by a caller that saw this task still running.
    if connector.connection.borrow().is_none() {
        connector.connect();
    }
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connector")
            .field("error", &self.error())
            .finish_non_exhaustive()
    }
}
