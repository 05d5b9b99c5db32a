//! One connection with the script at its other end.

use super::offset::Offset;
use super::script::{FUNCTION, LIBRARY, LOOK, SCRIPT};
use super::servers::Host;
use super::{Figures, Functions};
use crate::clock::Clock;
use crate::store::{Refusal, StoreError};
use redis::aio::MultiplexedConnection;
use redis::{RedisError, ServerError, Value};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tollgate_core::Timestamp;

/// An open connection with the script at its other end.
#[derive(Clone)]
pub(super) struct Line {
    connection: MultiplexedConnection,
    way: Way,
    purpose: Purpose,
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

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Everything: it leads to a server that takes writes.
    All,
    /// Only to look: it leads to a replica, and the server lets nothing else be done.
    Looks,
}

/// How the script is called.
#[derive(Clone)]
enum Way {
    /// By its digest.
    Script(Arc<str>),
    /// By its name.
    Function,
}

impl Line {
    /// A connection as it should be: the script is there, and the server has told its time.
    pub(super) async fn open(
        mut connection: MultiplexedConnection,
        host: Option<Host>,
        number: u64,
        functions: Functions,
        purpose: Purpose,
        clock: &Clock,
    ) -> Result<Self, RedisError> {
        let way = match functions {
            Functions::Off => load_script(&mut connection).await?,
            Functions::On => load_function(&mut connection, purpose).await?,
            Functions::Auto => match load_function(&mut connection, purpose).await {
                Ok(way) => way,
                Err(_) => load_script(&mut connection).await?,
            },
        };
        if purpose == Purpose::Looks {
            can_look(&mut connection, &way).await?;
        }
        Ok(Self {
            offset: Arc::new(Mutex::new(ask_time(&mut connection, clock).await)),
            host,
            connection,
            way,
            purpose,
            number,
        })
    }

    /// Whom it leads to. Nothing if that is a socket.
    pub(super) const fn host(&self) -> Option<&Host> {
        self.host.as_ref()
    }

    /// The connection alone.
    pub(super) fn connection(&self) -> MultiplexedConnection {
        self.connection.clone()
    }

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
        let way = self.way.clone();
        let (command, script) = way.call(self.purpose);
        let mut done = self.send(command, script, &all).await;
        let unknown = |done: &Result<Vec<u8>, Failure>| done.as_ref().is_err_and(|failure| is_unknown(failure.error));
        if done.iter().any(unknown) {
            figures.loads.add(1);
            // For the calls to come. If it fails, they bring the script themselves, as these do.
            let _ = match &self.way {
                Way::Script(_) => load_script(&mut self.connection).await,
                Way::Function => load_function(&mut self.connection, self.purpose).await,
            };
            let again = done.iter().zip(&all).filter(|(done, _)| unknown(done));
            let again: Vec<&Ready<'_>> = again.map(|(_, call)| *call).collect();
            let command = match self.purpose {
                Purpose::All => "EVAL",
                Purpose::Looks => "EVAL_RO",
            };
            let answers = self.send(command, SCRIPT, &again).await;
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

    /// Sends commands other than the script, in one write, and gives what is answered to each.
    pub(super) async fn send_all(&mut self, commands: &[&redis::Cmd]) -> Vec<Result<Value, Failure>> {
        let mut pipe = redis::Pipeline::with_capacity(commands.len());
        for &command in commands {
            pipe.add_command(command.clone());
        }
        match self.connection.send_packed_commands(&pipe, 0, commands.len()).await {
            Ok(answers) => answers.into_iter().map(|answer| self.answer(answer)).collect(),
            Err(error) => vec![Err(classify(&error).into()); commands.len()],
        }
    }

    fn read(&self, answer: Value) -> Result<Vec<u8>, Failure> {
        match self.answer(answer)? {
            Value::BulkString(answer) => Ok(answer),
            _ => Err(StoreError::Nonsense.into()),
        }
    }

    fn answer(&self, answer: Value) -> Result<Value, Failure> {
        match answer {
            Value::ServerError(error) => {
                let (refusal, words) = (refusal(&error), error.details().unwrap_or_default());
                let is_no_number = words.starts_with("value is not an integer") || words.contains("would overflow");
                Err(Failure {
                    error: match refusal {
                        Refusal::Other if is_no_number => StoreError::Foreign,
                        refusal => StoreError::Refused(refusal),
                    },
                    elsewhere: match refusal {
                        // The slot, and who has it.
                        Refusal::Moved | Refusal::Ask => words
                            .split_once(' ')
                            .and_then(|(_, host)| Host::read(host, self.host.as_ref())),
                        _ => None,
                    },
                })
            }
            answer => Ok(answer),
        }
    }

    /// Asks something else than the script.
    pub(super) async fn ask(&mut self, command: &redis::Cmd) -> Result<Value, StoreError> {
        match self.connection.send_packed_command(command).await {
            Ok(Value::ServerError(error)) => Err(StoreError::Refused(refusal(&error))),
            Ok(value) => Ok(value),
            Err(error) => Err(classify(&error)),
        }
    }

    /// Whether the script is called as a function.
    pub(super) const fn is_function(&self) -> bool {
        matches!(self.way, Way::Function)
    }
}

impl Way {
    /// The command that calls the script, and what that calls it.
    fn call(&self, purpose: Purpose) -> (&'static str, &str) {
        match (self, purpose) {
            (Self::Script(digest), Purpose::All) => ("EVALSHA", digest),
            (Self::Script(digest), Purpose::Looks) => ("EVALSHA_RO", digest),
            (Self::Function, Purpose::All) => ("FCALL", FUNCTION),
            (Self::Function, Purpose::Looks) => ("FCALL_RO", LOOK),
        }
    }
}

/// Whether the script can be called without being able to write: the oldest servers have no commands for that, and a user
/// may not be allowed to. What nobody has is called for, since an unknown command is answered with all that came with it.
async fn can_look(connection: &mut MultiplexedConnection, way: &Way) -> Result<(), RedisError> {
    let (command, _) = way.call(Purpose::Looks);
    let mut call = redis::cmd(command);
    let answer: Result<Value, RedisError> = call.arg("nobody").arg(0).query_async(connection).await;
    match answer {
        Err(error) if !is_unknown(classify(&error)) => Err(error),
        _ => Ok(()),
    }
}

/// What the server's clock shows, so that not even the first call is run after its caller has given up. A server that does
/// not tell refuses the script too.
async fn ask_time(connection: &mut MultiplexedConnection, clock: &Clock) -> Offset {
    let mut offset = Offset::default();
    let sent = clock.now();
    let time: Result<(u64, u64), RedisError> = redis::cmd("TIME").query_async(connection).await;
    if let Ok((secs, micros)) = time {
        let server = Timestamp::from_micros(secs.saturating_mul(1_000_000).saturating_add(micros));
        offset.learn(sent, clock.now(), server);
    }
    offset
}

async fn load_script(connection: &mut MultiplexedConnection) -> Result<Way, RedisError> {
    let mut load = redis::cmd("SCRIPT");
    load.arg("LOAD").arg(SCRIPT);
    let digest: String = load.query_async(connection).await?;
    Ok(Way::Script(digest.into()))
}

/// A replica has the functions of its primary, and nothing can be loaded there.
async fn load_function(connection: &mut MultiplexedConnection, purpose: Purpose) -> Result<Way, RedisError> {
    let mut list = redis::cmd("FUNCTION");
    list.arg("LIST").arg("LIBRARYNAME").arg(FUNCTION);
    let known: Vec<Value> = list.query_async(connection).await?;
    if known.is_empty() && purpose == Purpose::Looks {
        return Err((redis::ErrorKind::Client, "the replica has not got the function yet").into());
    }
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

/// What a server says in words.
pub(super) fn text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => text.clone(),
        _ => String::new(),
    }
}

/// What a server's error says.
fn refusal(error: &ServerError) -> Refusal {
    Refusal::of(error.code(), error.details().unwrap_or_default())
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self { error, elsewhere: None }
    }
}

/// Whether the server does not know the script.
const fn is_unknown(error: StoreError) -> bool {
    matches!(error, StoreError::Refused(Refusal::NoScript | Refusal::NoFunction))
}

fn classify(error: &RedisError) -> StoreError {
    match error.code() {
        Some(code) => StoreError::Refused(Refusal::of(code, error.detail().unwrap_or_default())),
        None if error.kind() == redis::ErrorKind::Io => StoreError::Lost,
        None => StoreError::Nonsense,
    }
}
