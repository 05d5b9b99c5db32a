//! The connection to one server: dialled, the script loaded, and dialled again whenever it breaks.

use super::offset::Offset;
use super::script::{FUNCTION, LIBRARY, SCRIPT};
use super::sentinel::Sentinels;
use super::servers::{Access, Host};
use super::{Figures, Functions};
use crate::clock::Clock;
use crate::store::{Refusal, StoreError};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, PushInfo, PushKind, RedisError, Value};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tollgate_core::Timestamp;

/// How long one attempt to connect may take, the script's loading included.
const DIAL: Duration = Duration::from_secs(1);

/// The first pause between two attempts, and the longest: each is twice the one before, less up to half of it at random.
/// Connections whose first call fails are attempts too, or a server that takes them and is too slow, or takes no writes,
/// would have to take one for each call.
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MOST: Duration = Duration::from_secs(1);

/// The way to one server.
pub(super) struct Link {
    finder: Finder,
    functions: Functions,
    clock: Clock,
    line: watch::Sender<Option<Line>>,
    is_dialling: AtomicBool,
    /// Attempts to connect since the script last answered.
    attempts: AtomicU32,
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
    Fixed(Box<Access>),
    /// Sentinels know.
    Sentinel(Arc<Sentinels>),
}

/// An open connection with the script at its other end.
#[derive(Clone)]
pub(super) struct Line {
    connection: MultiplexedConnection,
    way: Way,
    number: u64,
    /// Whom it leads to. Nothing if that is a socket.
    host: Option<Host>,
    /// What its server's clock shows. Another connection may lead to another server.
    offset: Arc<Mutex<Offset>>,
}

/// How the script is called.
#[derive(Clone)]
enum Way {
    /// By its digest.
    Script(Arc<str>),
    /// By its name.
    Function,
}

impl Link {
    /// Begins to dial at once.
    pub(super) fn new(
        finder: Finder,
        functions: Functions,
        clock: Clock,
        figures: Arc<Figures>,
        runtime: Handle,
    ) -> Arc<Self> {
        let link = Arc::new(Self {
            finder,
            functions,
            clock,
            line: watch::Sender::new(None),
            is_dialling: AtomicBool::new(false),
            attempts: AtomicU32::new(0),
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
            let is_this = line.as_ref().is_some_and(|line| line.number == number);
            if is_this {
                *line = None;
            }
            is_this
        });
        if gave_up {
            self.note(why);
            self.dial();
        }
    }

    /// Leaves whatever server there is a connection to, unless it is this one.
    pub(super) fn leave_unless(self: &Arc<Self>, host: &Host) {
        let other = match &*self.line.borrow() {
            Some(line) if line.host.as_ref() != Some(host) => Some(line.number),
            _ => None,
        };
        if let Some(number) = other {
            // The new one is worth trying at once, however the old one was.
            self.attempts.store(0, Ordering::Relaxed);
            self.hang_up(number, "another server is the primary now");
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
        let pause = (PAUSE * (1 << doublings.min(8))).min(PAUSE_MOST);
        let random = u32::from(crate::lease::fresh().0 as u16);
        pause - pause / 2 * random / (1 << 16)
    }

    fn note(&self, why: &str) {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(why.to_owned());
    }

    async fn connect(self: &Arc<Self>) -> Result<Line, String> {
        let access = match &self.finder {
            Finder::Fixed(access) => Access::clone(access),
            Finder::Sentinel(sentinels) => sentinels.primary().await?,
        };
        let connected = self.connect_to(&access).await;
        connected.map_err(|error| in_words(&error, access.password()))
    }

    async fn connect_to(self: &Arc<Self>, access: &Access) -> Result<Line, RedisError> {
        let number = self.lines.fetch_add(1, Ordering::Relaxed);
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
        if let Finder::Sentinel(_) = &self.finder {
            is_primary(&mut connection).await?;
        }
        let way = match self.functions {
            Functions::Off => load_script(&mut connection).await?,
            Functions::On => load_function(&mut connection).await?,
            Functions::Auto => match load_function(&mut connection).await {
                Ok(way) => way,
                Err(_) => load_script(&mut connection).await?,
            },
        };
        Ok(Line {
            offset: Arc::new(Mutex::new(self.ask_time(&mut connection).await)),
            host: access.host(),
            connection,
            way,
            number,
        })
    }

    /// What the server's clock shows, so that not even the first call is run after its caller has given up. A server that
    /// does not tell refuses the script too.
    async fn ask_time(&self, connection: &mut MultiplexedConnection) -> Offset {
        let mut offset = Offset::default();
        let sent = self.clock.now();
        let time: Result<(u64, u64), RedisError> = redis::cmd("TIME").query_async(connection).await;
        if let Ok((secs, micros)) = time {
            let server = Timestamp::from_micros(secs.saturating_mul(1_000_000).saturating_add(micros));
            offset.learn(sent, self.clock.now(), server);
        }
        offset
    }
}

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
    let role: Vec<Value> = redis::cmd("ROLE").query_async(connection).await?;
    match role.first() {
        Some(Value::BulkString(role)) if role == b"master" => Ok(()),
        _ => Err(RedisError::from((
            redis::ErrorKind::Client,
            "the server that the sentinels name is not the primary",
        ))),
    }
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
        let Some(pause) = dialling.0.upgrade().map(|link| link.pause()) else {
            return;
        };
        if !pause.is_zero() {
            sleep(pause).await;
        }
        let Some(link) = dialling.0.upgrade() else { return };
        if link.line.borrow().is_some() {
            break link;
        }
        link.attempts.fetch_add(1, Ordering::Relaxed);
        link.figures.dials.add(1);
        match timeout(DIAL, link.connect()).await {
            Ok(Ok(line)) => {
                link.line.send_replace(Some(line));
                break link;
            }
            Ok(Err(why)) => link.note(&why),
            Err(_) => link.note("the server did not answer within a second"),
        }
    };
    drop(dialling);
    // It may be gone again already, and whoever saw that saw us dial.
    if link.line.borrow().is_none() {
        link.dial();
    }
}

impl Line {
    /// Which connection this is.
    pub(super) const fn number(&self) -> u64 {
        self.number
    }

    /// The earliest that the server's clock may show when ours shows `ours`. Nothing if it has told nothing.
    pub(super) fn server_time(&self, ours: Timestamp) -> Option<Timestamp> {
        self.offset().server_time(ours)
    }

    /// Learns from a reply what its server's clock showed.
    pub(super) fn learn(&self, sent: Timestamp, received: Timestamp, server: Timestamp) {
        self.offset().learn(sent, received, server);
    }

    fn offset(&self) -> MutexGuard<'_, Offset> {
        self.offset.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the script once. If the server does not know it any more, it is sent along.
    pub(super) async fn run(
        &mut self,
        keys: &[Vec<u8>],
        arguments: &[Vec<u8>; 2],
        figures: &Figures,
    ) -> Result<Vec<u8>, StoreError> {
        figures.calls.add(1);
        let called = match self.way.clone() {
            Way::Script(digest) => self.call("EVALSHA", &digest, keys, arguments).await,
            Way::Function => self.call("FCALL", FUNCTION, keys, arguments).await,
        };
        match called {
            Err(StoreError::Refused(Refusal::NoScript | Refusal::NoFunction)) => {
                figures.loads.add(1);
                // For the calls to come. If it fails, they bring the script themselves, as this one does.
                let _ = match &self.way {
                    Way::Script(_) => load_script(&mut self.connection).await,
                    Way::Function => load_function(&mut self.connection).await,
                };
                self.call("EVAL", SCRIPT, keys, arguments).await
            }
            done => done,
        }
    }

    async fn call(
        &mut self,
        name: &str,
        script: &str,
        keys: &[Vec<u8>],
        arguments: &[Vec<u8>; 2],
    ) -> Result<Vec<u8>, StoreError> {
        let mut command = redis::cmd(name);
        command.arg(script).arg(keys.len());
        for key in keys {
            command.arg(key.as_slice());
        }
        for argument in arguments {
            command.arg(argument.as_slice());
        }
        match self.connection.send_packed_command(&command).await {
            Ok(Value::BulkString(answer)) => Ok(answer),
            Ok(Value::ServerError(error)) => Err(StoreError::Refused(Refusal::of(
                error.code(),
                error.details().unwrap_or_default(),
            ))),
            Ok(_) => Err(StoreError::Nonsense),
            Err(error) => Err(classify(&error)),
        }
    }

    /// Asks something else than the script.
    pub(super) async fn ask(&mut self, command: &redis::Cmd) -> Result<Value, StoreError> {
        match self.connection.send_packed_command(command).await {
            Ok(Value::ServerError(error)) => Err(StoreError::Refused(Refusal::of(
                error.code(),
                error.details().unwrap_or_default(),
            ))),
            Ok(value) => Ok(value),
            Err(error) => Err(classify(&error)),
        }
    }

    /// Whether the script is called as a function.
    pub(super) const fn is_function(&self) -> bool {
        matches!(self.way, Way::Function)
    }
}

async fn load_script(connection: &mut MultiplexedConnection) -> Result<Way, RedisError> {
    let mut load = redis::cmd("SCRIPT");
    load.arg("LOAD").arg(SCRIPT);
    let digest: String = load.query_async(connection).await?;
    Ok(Way::Script(digest.into()))
}

async fn load_function(connection: &mut MultiplexedConnection) -> Result<Way, RedisError> {
    let mut list = redis::cmd("FUNCTION");
    list.arg("LIST").arg("LIBRARYNAME").arg(FUNCTION);
    let known: Vec<Value> = list.query_async(connection).await?;
    if known.is_empty() {
        let mut load = redis::cmd("FUNCTION");
        load.arg("LOAD").arg(LIBRARY);
        let loaded: Result<Value, RedisError> = load.query_async(connection).await;
        // Another instance may have been quicker; its library is the same, or its name would not be.
        if let Err(error) = loaded
            && !error.detail().unwrap_or_default().contains("already exists")
        {
            return Err(error);
        }
    }
    Ok(Way::Function)
}

fn classify(error: &RedisError) -> StoreError {
    match error.code() {
        Some(code) => StoreError::Refused(Refusal::of(code, error.detail().unwrap_or_default())),
        None if error.kind() == redis::ErrorKind::Io => StoreError::Lost,
        None => StoreError::Nonsense,
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link")
            .field("fault", &self.fault())
            .finish_non_exhaustive()
    }
}
