//! The way to one server: a connection, dialled and dialled again whenever it breaks.

use super::line::{Line, Purpose, text};
use super::node::Span;
use super::sentinel::Sentinels;
use super::servers::{Access, Host};
use super::{Figures, Functions};
use crate::clock::Clock;
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
const DIAL: u32 = 50;
const DIAL_LEAST: Duration = Duration::from_millis(500);
const DIAL_MOST: Duration = Duration::from_secs(5);

/// How long connecting takes where all is well, which is some round trips: so many times what a call may, at most.
const USUAL: u32 = 4;

/// The first pause between two attempts, and the longest: each is twice the one before, less up to half of it at random.
/// Connections whose first call fails are attempts too, or a server that takes them and is too slow, or takes no writes,
/// would have to take one for each call.
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MOST: Duration = Duration::from_millis(250);

/// The shortest pause where the server does not let us in, and up to how much longer it is at random: it may lock out who
/// tries more often than once a second, and whoever mends it should not have to wait.
const PAUSE_OUTSIDE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_millis(200));

/// How often a server that loads its data is asked again on one connection, and the pause between.
const LOADING_ASKED: u32 = 50;
const LOADING_PAUSE: Duration = Duration::from_millis(150);

/// The way to one server.
pub(super) struct Link {
    finder: Finder,
    functions: Functions,
    clock: Clock,
    /// How long a call may take.
    deadline: Duration,
    /// How long each step of connecting may take.
    patience: Duration,
    line: watch::Sender<Option<Line>>,
    /// Since when there is none, if there is none.
    gone: Mutex<Instant>,
    /// Whether there ever was one.
    was_up: AtomicBool,
    is_dialling: AtomicBool,
    /// That it is worth dialling anew at once.
    news: Arc<Notify>,
    /// Whom is being connected to.
    target: Mutex<Option<Host>>,
    /// Attempts to connect since the script last answered.
    attempts: AtomicU32,
    /// Whether the server did not let us in.
    is_outside: AtomicBool,
    lines: AtomicU64,
    /// Why there is no line.
    fault: Mutex<Option<String>>,
    figures: Arc<Figures>,
    runtime: Handle,
}

/// How the server is found, whenever it is dialled.
#[derive(Debug)]
pub(super) enum Finder {
    /// It is where it always was.
    Fixed(Access),
    /// Sentinels know.
    Sentinel(Arc<Sentinels>),
    /// It is a replica, and only looked at.
    Replica(Access, Span),
}

impl Link {
    /// Begins to dial at once.
    pub(super) fn new(
        finder: Finder,
        functions: Functions,
        deadline: Duration,
        clock: Clock,
        figures: Arc<Figures>,
        runtime: Handle,
    ) -> Arc<Self> {
        let link = Arc::new(Self {
            finder,
            functions,
            clock,
            deadline,
            patience: deadline.saturating_mul(DIAL).clamp(DIAL_LEAST, DIAL_MOST),
            line: watch::Sender::new(None),
            gone: Mutex::new(Instant::now()),
            was_up: AtomicBool::new(false),
            is_dialling: AtomicBool::new(false),
            news: Arc::default(),
            target: Mutex::default(),
            attempts: AtomicU32::new(0),
            is_outside: AtomicBool::new(false),
            lines: AtomicU64::new(0),
            fault: Mutex::new(Some("not connected yet".to_owned())),
            figures,
            runtime,
        });
        link.dial();
        if let Finder::Sentinel(sentinels) = &link.finder {
            sentinels.follow(&link, &link.runtime);
        }
        link
    }

    /// The connection, as soon as there is one.
    pub(super) async fn line(self: &Arc<Self>) -> Line {
        loop {
            if let Some(line) = &*self.line.borrow() {
                return line.clone();
            }
            self.dial();
            // The sender is our own, so this cannot fail.
            let _ = self.line.subscribe().wait_for(Option::is_some).await;
        }
    }

    /// The connection, if there is one.
    pub(super) fn line_now(&self) -> Option<Line> {
        self.line.borrow().clone()
    }

    /// Since when there is no connection, if there is none.
    pub(super) fn gone(&self) -> Instant {
        *self.gone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there ever was a connection.
    pub(super) fn was_up(&self) -> bool {
        self.was_up.load(Ordering::Relaxed)
    }

    /// Whether there is a connection.
    pub(super) fn is_up(&self) -> bool {
        self.line.borrow().is_some()
    }

    /// Whether it leads to a replica, which is only looked at.
    pub(super) const fn is_to_a_replica(&self) -> bool {
        matches!(self.finder, Finder::Replica(..))
    }

    pub(super) fn figures(&self) -> Arc<Figures> {
        Arc::clone(&self.figures)
    }

    /// Why there is no connection, if there is none.
    pub(super) fn fault(&self) -> Option<String> {
        match &*self.line.borrow() {
            Some(_) => None,
            None => self.fault.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }

    /// Gives a connection up that broke, fell silent or spoke nonsense, and dials anew. One that was given up already is
    /// left alone.
    pub(super) fn hang_up(self: &Arc<Self>, number: u64, why: &str) {
        let gave_up = self.line.send_if_modified(|line| {
            let is_this = line.as_ref().is_some_and(|line| line.number() == number);
            if is_this {
                *line = None;
                *self.gone.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
            }
            is_this
        });
        if gave_up {
            self.note(why);
            self.dial();
        }
    }

    /// Leaves whatever server there is a connection to, unless it is this one. If there is none, whoever dials another, or
    /// waits to, does so no longer: one that stood still may answer at any time, and is not to be asked.
    pub(super) fn leave_unless(self: &Arc<Self>, host: &Host) {
        let other = match &*self.line.borrow() {
            Some(line) if line.host() == Some(host) => return,
            line => line.as_ref().map(Line::number),
        };
        if other.is_none() && self.target().as_ref() == Some(host) {
            return;
        }
        // The new one is worth trying at once, however the old one was.
        self.attempts.store(0, Ordering::Relaxed);
        match other {
            Some(number) => self.hang_up(number, "another server is the primary now"),
            None => self.news.notify_one(),
        }
    }

    /// Dials in the background, unless somebody does.
    fn dial(self: &Arc<Self>) {
        if self.is_dialling.swap(true, Ordering::AcqRel) {
            return;
        }
        self.runtime.spawn(dial(Dialling(Arc::downgrade(self))));
    }

    /// The script has answered: if the connection breaks now, another is worth trying at once.
    pub(super) fn answered(&self) {
        if self.attempts.load(Ordering::Relaxed) > 0 {
            self.attempts.store(0, Ordering::Relaxed);
        }
    }

    /// How long to wait before the next attempt. At random, so that many instances do not all come at the same moment.
    fn pause(&self) -> Duration {
        let Some(doublings) = self.attempts.load(Ordering::Relaxed).checked_sub(1) else {
            return Duration::ZERO;
        };
        let random = u32::from(crate::lease::random_id().0 as u16);
        if self.is_outside.load(Ordering::Relaxed) {
            let (least, spread) = PAUSE_OUTSIDE;
            return least + spread * random / (1 << 16);
        }
        let pause = (PAUSE * (1 << doublings.min(8))).min(PAUSE_MOST);
        pause - pause / 2 * random / (1 << 16)
    }

    /// What is to be said of how the server was found.
    pub(super) fn warning(&self) -> Option<&'static str> {
        match &self.finder {
            Finder::Sentinel(sentinels) if sentinels.is_kept() => Some(
                "no sentinel answers: the primary is the one that they named before this server was started, and it is not \
                 heard when they name another",
            ),
            _ => None,
        }
    }

    /// Which primary sentinels have named, if there are any.
    pub(super) fn named(&self) -> Option<String> {
        match &self.finder {
            Finder::Sentinel(sentinels) => sentinels.named(),
            Finder::Fixed(_) | Finder::Replica(..) => None,
        }
    }

    /// Leaves a server that was the primary when it was dialled, and by now is not.
    fn leave_if_switched(self: &Arc<Self>) {
        if let Finder::Sentinel(sentinels) = &self.finder
            && let Some(host) = sentinels.believed()
        {
            self.leave_unless(&host);
        }
    }

    fn target(&self) -> MutexGuard<'_, Option<Host>> {
        self.target.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, why: &str) {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(why.to_owned());
    }

    async fn connect(self: &Arc<Self>) -> Result<Line, String> {
        let access = match &self.finder {
            Finder::Fixed(access) | Finder::Replica(access, _) => access.clone(),
            Finder::Sentinel(sentinels) => sentinels.primary().await?,
        };
        *self.target() = access.host();
        let connected = self.connect_soon(&access).await;
        let is_outside = connected.as_ref().is_err_and(is_refused_entry);
        self.is_outside.store(is_outside, Ordering::Relaxed);
        connected.map_err(|error| {
            let words = in_words(&error, access.password());
            match is_without_script(&error) {
                true => format!("{words}; {SCRIPT_NEEDED}"),
                false => words,
            }
        })
    }

    /// Connects. In the place of a connection that did well, a second attempt is made beside the first if that takes longer than
    /// is usual: what was lost on its way to a server that is there would be waited for.
    async fn connect_soon(self: &Arc<Self>, access: &Access) -> Result<Line, RedisError> {
        let mut first = pin!(self.connect_to(access));
        if !self.was_up() || self.attempts.load(Ordering::Relaxed) > 1 {
            return first.await;
        }
        if let Ok(connected) = timeout(self.deadline * USUAL, first.as_mut()).await {
            return connected;
        }
        self.figures.dials.add(1);
        match select(first, pin!(self.connect_to(access))).await {
            Either::Left((Ok(line), _)) | Either::Right((Ok(line), _)) => Ok(line),
            Either::Left((Err(_), other)) | Either::Right((Err(_), other)) => other.await,
        }
    }

    async fn connect_to(self: &Arc<Self>, access: &Access) -> Result<Line, RedisError> {
        let number = self.lines.fetch_add(1, Ordering::Relaxed);
        let connection = in_time(self.patience, self.greet(access, number)).await?;
        let purpose = match self.is_to_a_replica() {
            true => Purpose::Looks,
            false => Purpose::All,
        };
        let mut asked = 0;
        loop {
            let opening = Line::open(
                connection.clone(),
                access.host(),
                number,
                self.functions,
                purpose,
                &self.clock,
            );
            match in_time(self.patience, opening).await {
                // Another connection would be told the same.
                Err(error) if error.code() == Some("LOADING") && asked < LOADING_ASKED => {
                    asked += 1;
                    self.note("the server is loading its data");
                    sleep(LOADING_PAUSE).await;
                }
                opened => return opened,
            }
        }
    }

    /// A connection, and nothing more.
    async fn greet(self: &Arc<Self>, access: &Access, number: u64) -> Result<MultiplexedConnection, RedisError> {
        let link = Arc::downgrade(self);
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_push_sender(move |push: PushInfo| {
                if push.kind == PushKind::Disconnection
                    && let Some(link) = link.upgrade()
                {
                    link.hang_up(number, "the server closed the connection");
                }
                Ok::<(), ()>(())
            });
        let client = access.client()?;
        let connecting = client.get_multiplexed_async_connection_with_config(&config);
        let mut connection = connecting.await?;
        match &self.finder {
            Finder::Fixed(_) => {}
            Finder::Sentinel(_) => is_primary(&mut connection).await?,
            Finder::Replica(_, span) => {
                is_linked(&role_command().query_async(&mut connection).await?)?;
                if *span == Span::OneTag {
                    // Without it, a replica in a cluster sends everybody to its primary.
                    redis::cmd("READONLY").query_async::<()>(&mut connection).await?;
                }
            }
        }
        Ok(connection)
    }
}

/// One step of connecting, which may take so long.
async fn in_time<T>(time: Duration, step: impl Future<Output = Result<T, RedisError>>) -> Result<T, RedisError> {
    let late = (redis::ErrorKind::Io, "the server did not answer in time");
    timeout(time, step).await.unwrap_or_else(|_| Err(late.into()))
}

/// Whether the server knows us and does not let us in, or does not know us.
pub(super) fn is_refused_entry(error: &RedisError) -> bool {
    error.kind() == redis::ErrorKind::AuthenticationFailed
        || matches!(error.code(), Some("NOAUTH" | "WRONGPASS" | "NOPERM"))
}

/// Whether the server, or a proxy before it, lets us in but not load the script.
fn is_without_script(error: &RedisError) -> bool {
    let is_unknown = || error.detail().unwrap_or_default().contains("unknown command");
    error.code() == Some("NOPERM") || is_unknown()
}

/// What to do then. Counters of envoyproxy/ratelimit need no script; that the server is there, and how many instances are, is
/// found out by it.
const SCRIPT_NEEDED: &str = "nothing is counted there without the script, counters of `envoy_rules` neither: allow what \
                             docs/redis.md lists under least privilege, such as +script|load +evalsha +eval";

/// What went wrong, for whoever reads logs, and never a password: a server that does not know a command repeats what it was
/// told with it.
pub(super) fn in_words(error: &RedisError, password: Option<&str>) -> String {
    let words = error.to_string();
    let words = words.split(", with args").next().unwrap_or_default();
    match password {
        Some(password) if !password.is_empty() => words.replace(password, "..."),
        _ => words.to_owned(),
    }
}

/// Sentinels may name a server that is not the primary yet, or no more.
async fn is_primary(connection: &mut MultiplexedConnection) -> Result<(), RedisError> {
    let role: Vec<Value> = role_command().query_async(connection).await?;
    match role.first().map(text).as_deref() {
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
pub(super) fn is_linked(role: &Value) -> Result<(), RedisError> {
    let words: Vec<String> = match role {
        Value::Array(fields) => fields.iter().map(text).collect(),
        _ => Vec::new(),
    };
    match &*words {
        [role, _, _, state, ..] if role == "slave" && state == "connected" => Ok(()),
        _ => Err((
            redis::ErrorKind::Client,
            "the server is no replica that hears its primary",
        )
            .into()),
    }
}

pub(super) fn role_command() -> redis::Cmd {
    redis::cmd("ROLE")
}

/// Whoever dials. When it ends, however it ends, somebody else may.
struct Dialling(Weak<Link>);

impl Drop for Dialling {
    fn drop(&mut self) {
        if let Some(link) = self.0.upgrade() {
            link.is_dialling.store(false, Ordering::Release);
        }
    }
}

/// Dials until there is a connection, or nobody wants one any more.
async fn dial(dialling: Dialling) {
    let link = loop {
        let Some((pause, news)) = dialling.0.upgrade().map(|link| (link.pause(), Arc::clone(&link.news))) else {
            return;
        };
        if !pause.is_zero() {
            // Whether it was heard or the pause is over, it is time.
            let _ = timeout(pause, news.notified()).await;
        }
        let Some(link) = dialling.0.upgrade() else { return };
        if link.line.borrow().is_some() {
            break link;
        }
        link.attempts.fetch_add(1, Ordering::Relaxed);
        link.figures.dials.add(1);
        let dialled = match select(pin!(link.connect()), pin!(news.notified())).await {
            Either::Left((dialled, _)) => dialled,
            Either::Right(_) => Err("another server is the primary now".to_owned()),
        };
        *link.target() = None;
        match dialled {
            Ok(line) => {
                link.was_up.store(true, Ordering::Relaxed);
                link.line.send_replace(Some(line));
                link.leave_if_switched();
                break link;
            }
            Err(why) => link.note(&why),
        }
    };
    drop(dialling);
    // It may be gone again already, and whoever saw that saw us dial.
    if link.line.borrow().is_none() {
        link.dial();
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link")
            .field("fault", &self.fault())
            .finish_non_exhaustive()
    }
}
