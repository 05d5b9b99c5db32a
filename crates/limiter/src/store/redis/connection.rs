//! A connection to one server on which the script can be called.

pub(crate) mod clock_offset;
pub(crate) mod connector;
pub(crate) mod endpoint;
pub(crate) mod handshake;
pub(crate) mod keepalive;
pub(crate) mod round_trips;

use self::clock_offset::ClockOffset;
use self::endpoint::Endpoint;
use self::round_trips::RoundTrips;
use super::context::Functions;
use super::metrics::RedisMetrics;
use super::script::{FUNCTION, LIBRARY, PEEK_FUNCTION, SCRIPT};
use crate::clock::Clock;
use crate::store::{RedisErrorCode, StoreError};
use redis::aio::MultiplexedConnection;
use redis::{RedisError, ServerError, Value};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tollgate_core::Timestamp;

/// An open connection to a server that has the script.
#[derive(Clone)]
pub(crate) struct ScriptConnection {
    connection: MultiplexedConnection,
    script_ref: ScriptRef,
    access_mode: AccessMode,
    id: u64,
    /// `None` for a Unix socket.
    endpoint: Option<Endpoint>,
    /// The offset of this server's clock. Another connection may lead to another server.
    clock_offset: Arc<Mutex<ClockOffset>>,
}

/// A call of the script, encoded.
#[derive(Debug)]
pub(crate) struct ScriptCall<'c> {
    pub(crate) keys: &'c [Vec<u8>],
    pub(crate) arguments: [Vec<u8>; 2],
    /// True if the server is importing the slot.
    pub(crate) is_asking: bool,
}

/// The reason why a request failed.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) error: StoreError,
    /// The endpoint that the server redirects to.
    pub(crate) redirect: Option<Endpoint>,
}

/// The access that a connection has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessMode {
    /// To a primary.
    ReadWrite,
    /// To a replica, where the script may only read.
    ReadOnly,
}

/// The way the script is called.
#[derive(Clone)]
enum ScriptRef {
    /// By its digest.
    Script(Arc<str>),
    /// By its name.
    Function,
}

impl ScriptConnection {
    /// Loads the script, reads the server's time, and measures a round trip.
    pub(crate) async fn open(
        mut connection: MultiplexedConnection,
        endpoint: Option<Endpoint>,
        id: u64,
        functions: Functions,
        access_mode: AccessMode,
        (clock, round_trips): (&Clock, &RoundTrips),
    ) -> Result<Self, RedisError> {
        let script_ref = match functions {
            Functions::Off => load_script(&mut connection).await?,
            Functions::On => load_function(&mut connection, access_mode).await?,
            Functions::Auto => match load_function(&mut connection, access_mode).await {
                Ok(script_ref) => script_ref,
                Err(_) => load_script(&mut connection).await?,
            },
        };
        if access_mode == AccessMode::ReadOnly {
            check_read_only(&mut connection, &script_ref).await?;
        }
        Ok(Self {
            clock_offset: Arc::new(Mutex::new(fetch_time(&mut connection, clock, round_trips).await)),
            endpoint,
            connection,
            script_ref,
            access_mode,
            id,
        })
    }

    /// The endpoint. `None` for a Unix socket.
    pub(crate) const fn endpoint(&self) -> Option<&Endpoint> {
        self.endpoint.as_ref()
    }

    /// The underlying connection.
    pub(crate) fn multiplexed(&self) -> MultiplexedConnection {
        self.connection.clone()
    }

    /// The number of this connection.
    pub(crate) const fn id(&self) -> u64 {
        self.id
    }

    /// The earliest time that the server's clock may show at local time `local_now`. `None` if the server has not reported its
    /// time.
    pub(crate) fn server_time(&self, local_now: Timestamp) -> Option<Timestamp> {
        self.clock_offset().server_time(local_now)
    }

    /// Records the time in a reply.
    pub(crate) fn record_time(&self, sent: Timestamp, received: Timestamp, server: Timestamp) {
        self.clock_offset().record(sent, received, server);
    }

    fn clock_offset(&self) -> MutexGuard<'_, ClockOffset> {
        self.clock_offset.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the script once for each call, all in one write. If the server does not know the script, it is sent along.
    pub(crate) async fn run(
        &mut self,
        calls: &[ScriptCall<'_>],
        metrics: &RedisMetrics,
    ) -> Vec<Result<Vec<u8>, Failure>> {
        metrics.calls.add(calls.len() as u64);
        let all: Vec<&ScriptCall<'_>> = calls.iter().collect();
        let script_ref = self.script_ref.clone();
        let (command, script) = script_ref.call(self.access_mode);
        let mut results = self.send(command, script, &all).await;
        let unknown =
            |result: &Result<Vec<u8>, Failure>| result.as_ref().is_err_and(|failure| is_unknown(failure.error));
        if results.iter().any(unknown) {
            metrics.script_loads.add(1);
            // For later calls. If it fails, they send the script themselves, as these do.
            let _ = match &self.script_ref {
                ScriptRef::Script(_) => load_script(&mut self.connection).await,
                ScriptRef::Function => load_function(&mut self.connection, self.access_mode).await,
            };
            let resend = results.iter().zip(&all).filter(|(result, _)| unknown(result));
            let resend: Vec<&ScriptCall<'_>> = resend.map(|(_, call)| *call).collect();
            let command = match self.access_mode {
                AccessMode::ReadWrite => "EVAL",
                AccessMode::ReadOnly => "EVAL_RO",
            };
            let replies = self.send(command, SCRIPT, &resend).await;
            for (result, reply) in results.iter_mut().filter(|result| unknown(result)).zip(replies) {
                *result = reply;
            }
        }
        results
    }

    /// Calls the script by this command and name, for each call.
    async fn send(&mut self, command: &str, script: &str, calls: &[&ScriptCall<'_>]) -> Vec<Result<Vec<u8>, Failure>> {
        let encode = |call: &ScriptCall<'_>| {
            let mut cmd = redis::cmd(command);
            cmd.arg(script).arg(call.keys.len());
            for key in call.keys {
                cmd.arg(key.as_slice());
            }
            for argument in &call.arguments {
                cmd.arg(argument.as_slice());
            }
            cmd
        };
        if let [call] = calls
            && !call.is_asking
        {
            let reply = self.connection.send_packed_command(&encode(call)).await;
            return vec![
                reply
                    .map_err(|error| classify(&error).into())
                    .and_then(|value| self.read_bytes(value)),
            ];
        }
        let mut pipe = redis::pipe();
        for call in calls {
            if call.is_asking {
                pipe.cmd("ASKING");
            }
            pipe.add_command(encode(call));
        }
        let count = calls.len() + calls.iter().filter(|call| call.is_asking).count();
        let mut replies = match self.connection.send_packed_commands(&pipe, 0, count).await {
            Ok(replies) => replies.into_iter(),
            Err(error) => return vec![Err(classify(&error).into()); calls.len()],
        };
        let read_next = |call: &&ScriptCall<'_>| {
            // Its effect shows in the reply to the call itself.
            let _ = call.is_asking.then(|| replies.next());
            self.read_bytes(replies.next().unwrap_or(Value::Nil))
        };
        calls.iter().map(read_next).collect()
    }

    /// Sends commands other than the script, in one write, and returns their replies.
    pub(crate) async fn send_all(&mut self, commands: &[&redis::Cmd]) -> Vec<Result<Value, Failure>> {
        let mut pipe = redis::Pipeline::with_capacity(commands.len());
        for &command in commands {
            pipe.add_command(command.clone());
        }
        match self.connection.send_packed_commands(&pipe, 0, commands.len()).await {
            Ok(replies) => replies.into_iter().map(|reply| self.check_reply(reply)).collect(),
            Err(error) => vec![Err(classify(&error).into()); commands.len()],
        }
    }

    fn read_bytes(&self, reply: Value) -> Result<Vec<u8>, Failure> {
        match self.check_reply(reply)? {
            Value::BulkString(bytes) => Ok(bytes),
            _ => Err(StoreError::InvalidReply.into()),
        }
    }

    fn check_reply(&self, reply: Value) -> Result<Value, Failure> {
        match reply {
            Value::ServerError(error) => {
                let (code, details) = (error_code(&error), error.details().unwrap_or_default());
                let not_an_integer =
                    details.starts_with("value is not an integer") || details.contains("would overflow");
                Err(Failure {
                    error: match code {
                        RedisErrorCode::Other if not_an_integer => StoreError::ForeignValue,
                        code => StoreError::Server(code),
                    },
                    redirect: match code {
                        // The slot, and its owner.
                        RedisErrorCode::Moved | RedisErrorCode::Ask => details
                            .split_once(' ')
                            .and_then(|(_, endpoint)| Endpoint::parse(endpoint, self.endpoint.as_ref())),
                        _ => None,
                    },
                })
            }
            reply => Ok(reply),
        }
    }

    /// Sends one command other than the script.
    pub(crate) async fn query(&mut self, command: &redis::Cmd) -> Result<Value, StoreError> {
        match self.connection.send_packed_command(command).await {
            Ok(Value::ServerError(error)) => Err(StoreError::Server(error_code(&error))),
            Ok(value) => Ok(value),
            Err(error) => Err(classify(&error)),
        }
    }

    /// True if the script is called as a function.
    pub(crate) const fn is_function(&self) -> bool {
        matches!(self.script_ref, ScriptRef::Function)
    }
}

impl ScriptRef {
    /// The command that calls the script, and its name there.
    fn call(&self, access_mode: AccessMode) -> (&'static str, &str) {
        match (self, access_mode) {
            (Self::Script(digest), AccessMode::ReadWrite) => ("EVALSHA", digest),
            (Self::Script(digest), AccessMode::ReadOnly) => ("EVALSHA_RO", digest),
            (Self::Function, AccessMode::ReadWrite) => ("FCALL", FUNCTION),
            (Self::Function, AccessMode::ReadOnly) => ("FCALL_RO", PEEK_FUNCTION),
        }
    }
}

/// Checks that the script can be called read-only: the oldest servers have no commands for it, and a user may lack the
/// permission. An unknown script is called, because the error of an unknown command repeats all its arguments.
async fn check_read_only(connection: &mut MultiplexedConnection, script_ref: &ScriptRef) -> Result<(), RedisError> {
    let (command, _) = script_ref.call(AccessMode::ReadOnly);
    let mut call = redis::cmd(command);
    let reply: Result<Value, RedisError> = call.arg("unknown").arg(0).query_async(connection).await;
    match reply {
        Err(error) if !is_unknown(classify(&error)) => Err(error),
        _ => Ok(()),
    }
}

/// Reads the server's time, so that even the first call cannot start after its deadline. A server that rejects `TIME`
/// rejects the script too.
async fn fetch_time(connection: &mut MultiplexedConnection, clock: &Clock, round_trips: &RoundTrips) -> ClockOffset {
    let mut clock_offset = ClockOffset::default();
    let sent = clock.now();
    let time: Result<(u64, u64), RedisError> = redis::cmd("TIME").query_async(connection).await;
    if let Ok((secs, micros)) = time {
        let server = Timestamp::from_micros(secs.saturating_mul(1_000_000).saturating_add(micros));
        let received = clock.now();
        clock_offset.record(sent, received, server);
        round_trips.record(sent, received);
    }
    clock_offset
}

async fn load_script(connection: &mut MultiplexedConnection) -> Result<ScriptRef, RedisError> {
    let mut load = redis::cmd("SCRIPT");
    load.arg("LOAD").arg(SCRIPT);
    let digest: String = load.query_async(connection).await?;
    Ok(ScriptRef::Script(digest.into()))
}

/// Loads the library. A replica has the functions of its primary, and nothing can be loaded there.
async fn load_function(
    connection: &mut MultiplexedConnection,
    access_mode: AccessMode,
) -> Result<ScriptRef, RedisError> {
    let mut list = redis::cmd("FUNCTION");
    list.arg("LIST").arg("LIBRARYNAME").arg(FUNCTION);
    let known: Vec<Value> = list.query_async(connection).await?;
    if known.is_empty() && access_mode == AccessMode::ReadOnly {
        return Err((redis::ErrorKind::Client, "the replica does not have the function yet").into());
    }
    if known.is_empty() {
        let mut load = redis::cmd("FUNCTION");
        load.arg("LOAD").arg(LIBRARY);
        let loaded: Result<Value, RedisError> = load.query_async(connection).await;
        // Another instance may have loaded it first; its library is the same, or its name would differ.
        if let Err(error) = loaded
            && !error.detail().unwrap_or_default().contains("already exists")
        {
            return Err(error);
        }
    }
    Ok(ScriptRef::Function)
}

/// Loads the library of functions if the server lacks it. True if it did.
pub(crate) async fn ensure_function(connection: &mut MultiplexedConnection) -> Result<bool, RedisError> {
    let mut list = redis::cmd("FUNCTION");
    list.arg("LIST").arg("LIBRARYNAME").arg(FUNCTION);
    let known: Vec<Value> = list.query_async(connection).await?;
    if known.is_empty() {
        load_function(connection, AccessMode::ReadWrite).await?;
    }
    Ok(known.is_empty())
}

/// The text of a reply.
pub(crate) fn value_text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => text.clone(),
        _ => String::new(),
    }
}

/// The code of a server's error.
fn error_code(error: &ServerError) -> RedisErrorCode {
    RedisErrorCode::from_error(error.code(), error.details().unwrap_or_default())
}

impl std::fmt::Debug for ScriptConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScriptConnection")
            .field("endpoint", &self.endpoint)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self { error, redirect: None }
    }
}

/// True if the server does not know the script.
const fn is_unknown(error: StoreError) -> bool {
    matches!(
        error,
        StoreError::Server(RedisErrorCode::NoScript | RedisErrorCode::NoFunction)
    )
}

fn classify(error: &RedisError) -> StoreError {
    match error.code() {
        Some(code) => StoreError::Server(RedisErrorCode::from_error(code, error.detail().unwrap_or_default())),
        None if error.kind() == redis::ErrorKind::Io => StoreError::ConnectionLost,
        None => StoreError::InvalidReply,
    }
}
