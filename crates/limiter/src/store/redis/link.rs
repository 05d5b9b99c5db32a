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
    Fixed(Access),
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

/// A call of the script, ready to be sent.
#[derive(Debug)]
pub(super) struct Ready<'c> {
    pub(super) keys: &'c [Vec<u8>],
    pub(super) arguments: [Vec<u8>; 2],
    /// Whether it is for a server that is only about to have the slot.
    pub(super) is_asking: bool,
}

/// Why something was not done.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) error: StoreError,
    /// Who is to be asked instead, as the server says.
    pub(super) elsewhere: Option<Host>,
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

    /// The connection, if there is one.
    pub(super) fn line_now(&self) -> Option<Line> {
        self.line.borrow().clone()
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
            Finder::Fixed(access) => access.clone(),
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

    /// Runs the script once for each call, all in one write. Where the server does not know it any more, it is sent along.
    pub(super) async fn run(&mut self, calls: &[Ready<'_>], figures: &Figures) -> Vec<Result<Vec<u8>, Failure>> {
        figures.calls.add(calls.len() as u64);
        let all: Vec<&Ready<'_>> = calls.iter().collect();
        let mut done = match self.way.clone() {
            Way::Script(digest) => self.send("EVALSHA", &digest, &all).await,
            Way::Function => self.send("FCALL", FUNCTION, &all).await,
        };
        let unknown = |done: &Result<Vec<u8>, Failure>| {
            let error = done.as_ref().err().map(|failure| failure.error);
            matches!(
                error,
                Some(StoreError::Refused(Refusal::NoScript | Refusal::NoFunction))
            )
        };
        if done.iter().any(unknown) {
            figures.loads.add(1);
            // For the calls to come. If it fails, they bring the script themselves, as these do.
            let _ = match &self.way {
                Way::Script(_) => load_script(&mut self.connection).await,
                Way::Function => load_function(&mut self.connection).await,
            };
            let again = done.iter().zip(&all).filter(|(done, _)| unknown(done));
            let again: Vec<&Ready<'_>> = again.map(|(_, call)| *call).collect();
            let answers = self.send("EVAL", SCRIPT, &again).await;
            for (done, answer) in done.iter_mut().filter(|done| unknown(done)).zip(answers) {
                *done = answer;
            }
        }
        done
    }

    /// Calls the script by this command and name, for each call.
    async fn send(&mut self, command: &str, script: &str, calls: &[&Ready<'_>]) -> Vec<Result<Vec<u8>, Failure>> {
        let words = |call: &Ready<'_>| {
            let mut words = redis::cmd(command);
            words.arg(script).arg(call.keys.len());
            for key in call.keys {
                words.arg(key.as_slice());
            }
            for argument in &call.arguments {
                words.arg(argument.as_slice());
            }
            words
        };
        if let [call] = calls
            && !call.is_asking
        {
            let answer = self.connection.send_packed_command(&words(call)).await;
            return vec![
                answer
                    .map_err(|error| classify(&error).into())
                    .and_then(|value| self.read(value)),
            ];
        }
        let mut pipe = redis::pipe();
        for call in calls {
            if call.is_asking {
                pipe.cmd("ASKING");
            }
            pipe.add_command(words(call));
        }
        let count = calls.len() + calls.iter().filter(|call| call.is_asking).count();
        let mut answers = match self.connection.send_packed_commands(&pipe, 0, count).await {
            Ok(answers) => answers.into_iter(),
            Err(error) => return vec![Err(classify(&error).into()); calls.len()],
        };
        let answer = |call: &&Ready<'_>| {
            // Whether that was heard shows in the answer to the call itself.
            let _ = call.is_asking.then(|| answers.next());
            self.read(answers.next().unwrap_or(Value::Nil))
        };
        calls.iter().map(answer).collect()
    }

    fn read(&self, answer: Value) -> Result<Vec<u8>, Failure> {
        match answer {
            Value::BulkString(answer) => Ok(answer),
            Value::ServerError(error) => {
                let words = error.details().unwrap_or_default();
                let refusal = Refusal::of(error.code(), words);
                Err(Failure {
                    error: StoreError::Refused(refusal),
                    elsewhere: match refusal {
                        // The slot, and who has it.
                        Refusal::Moved | Refusal::Ask => words
                            .split_once(' ')
                            .and_then(|(_, host)| Host::read(host, self.host.as_ref())),
                        _ => None,
                    },
                })
            }
            _ => Err(StoreError::Nonsense.into()),
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

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self { error, elsewhere: None }
    }
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
