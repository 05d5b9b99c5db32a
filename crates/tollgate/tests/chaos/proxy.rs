//! A link to a server that can be made bad. It knows where commands and replies begin and end, and which reply belongs to
//! which command, so that it can spoil one of them and count.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tollgate_core::testing::random::Random;

/// What is wrong with a link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    None,
    /// Replies come so much later, and up to so much more.
    Slow(Duration, Duration),
    /// Nothing passes in either direction; connections stay, and new ones are taken.
    Silent,
    /// Connections are reset, new ones too.
    Reset,
    /// Of so many in a thousand calls of the script, the reply is spoiled.
    Reply(Corruption, u64),
    /// So many in a thousand calls of the script are not passed on but refused in these words.
    Refused(&'static str, u64),
}

/// What becomes of a reply.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Corruption {
    /// Half of it, and the end of the connection.
    Cut,
    /// Another type than it has.
    Type,
    /// Its length is said to be ten thousand million bytes.
    Giant,
    /// It never comes.
    Drop,
    /// It comes when nobody waits for it any more, in front of whatever is asked for next.
    Late,
}

pub(crate) struct Proxy {
    port: u16,
    state: Arc<ProxyState>,
}

struct ProxyState {
    server: u16,
    fault: watch::Sender<Fault>,
    commands: AtomicU64,
    injected: AtomicU64,
    replays: AtomicU64,
    random: Mutex<Random>,
    /// Calls whose outcome was not told. The same bytes again are a replay: a call carries the time.
    unanswered: Mutex<HashSet<u64>>,
}

/// What follows on a connection: a reply of the server to a command, or one of our own.
enum Next {
    Reply {
        is_call: bool,
        call: u64,
        received_at: Instant,
    },
    Injected(Vec<u8>),
}

impl Proxy {
    pub(crate) fn start(runtime: &Handle, server: u16, seed: u64) -> Self {
        let listener = runtime.block_on(TcpListener::bind(("127.0.0.1", 0))).unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(ProxyState {
            server,
            fault: watch::Sender::new(Fault::None),
            commands: AtomicU64::new(0),
            injected: AtomicU64::new(0),
            replays: AtomicU64::new(0),
            random: Mutex::new(Random::new(seed)),
            unanswered: Mutex::default(),
        });
        let accepting = Arc::clone(&state);
        runtime.spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(Arc::clone(&accepting).connect(client));
            }
        });
        Self { port, state }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    pub(crate) fn set(&self, fault: Fault) {
        self.state.fault.send_replace(fault);
    }

    /// Commands that were passed on.
    pub(crate) fn commands(&self) -> u64 {
        self.state.commands.load(Ordering::Relaxed)
    }

    /// Calls that were spoiled or refused.
    pub(crate) fn injected(&self) -> u64 {
        self.state.injected.load(Ordering::Relaxed)
    }

    /// Calls without a known outcome that were sent again all the same.
    pub(crate) fn replays(&self) -> u64 {
        self.state.replays.load(Ordering::Relaxed)
    }
}

impl ProxyState {
    async fn connect(self: Arc<Self>, client: TcpStream) {
        let mut fault = self.fault.subscribe();
        if *fault.borrow() == Fault::Reset {
            reset(&client);
            return;
        }
        let Ok(server) = TcpStream::connect(("127.0.0.1", self.server)).await else {
            return;
        };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let (next, pending) = mpsc::channel(WAITING);
        let (from_client, mut to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        tokio::select! {
            _ = self.commands_of(from_client, to_server, next) => {}
            _ = self.replies_to(from_server, &mut to_client, pending) => {}
            _ = fault.wait_for(|fault| *fault == Fault::Reset) => reset(to_client.as_ref()),
        }
    }

    async fn commands_of(
        &self,
        mut client: OwnedReadHalf,
        mut server: OwnedWriteHalf,
        next: mpsc::Sender<Next>,
    ) -> Option<()> {
        let mut fault = self.fault.subscribe();
        let mut bytes = Vec::new();
        loop {
            let command = frame(&mut client, &mut bytes).await?;
            fault.wait_for(|fault| *fault != Fault::Silent).await.ok()?;
            let is_call = CALLS.iter().any(|name| contains_name(&command, name));
            let call = hash(&command);
            if is_call && self.unanswered().contains(&call) {
                self.replays.fetch_add(1, Ordering::Relaxed);
            }
            let now = *fault.borrow();
            match now {
                Fault::Refused(text, per_mille) if is_call && self.should_inject(per_mille) => {
                    next.send(Next::Injected(format!("-{text}\r\n").into_bytes()))
                        .await
                        .ok()?;
                }
                _ => {
                    self.commands.fetch_add(1, Ordering::Relaxed);
                    let received_at = Instant::now();
                    next.send(Next::Reply {
                        is_call,
                        call,
                        received_at,
                    })
                    .await
                    .ok()?;
                    server.write_all(&command).await.ok()?;
                }
            }
        }
    }

    async fn replies_to(
        &self,
        mut server: OwnedReadHalf,
        client: &mut OwnedWriteHalf,
        mut pending: mpsc::Receiver<Next>,
    ) -> Option<()> {
        let mut fault = self.fault.subscribe();
        let mut bytes = Vec::new();
        loop {
            let (is_call, call, received_at) = match pending.recv().await? {
                Next::Injected(reply) => {
                    client.write_all(&reply).await.ok()?;
                    continue;
                }
                Next::Reply {
                    is_call,
                    call,
                    received_at,
                } => (is_call, call, received_at),
            };
            let mut reply = frame(&mut server, &mut bytes).await?;
            fault.wait_for(|fault| *fault != Fault::Silent).await.ok()?;
            let now = *fault.borrow();
            match now {
                Fault::Slow(by, more) => {
                    let more_us = u64::try_from(more.as_micros()).unwrap_or(0);
                    let more_us = self.random().below(more_us + 1);
                    sleep_until(received_at + by + Duration::from_micros(more_us)).await;
                }
                Fault::Reply(corruption, per_mille) if is_call && self.should_inject(per_mille) => {
                    self.unanswered().insert(call);
                    match corruption {
                        Corruption::Cut => {
                            client.write_all(&reply[..reply.len() / 2]).await.ok()?;
                            return None;
                        }
                        Corruption::Drop => continue,
                        Corruption::Late => sleep_until(received_at + LATE).await,
                        Corruption::Type => reply[0] = if reply[0] == b'$' { b':' } else { b'$' },
                        Corruption::Giant => reply.splice(..0, *b"$10000000000\r\n").for_each(drop),
                    }
                }
                _ => {}
            }
            client.write_all(&reply).await.ok()?;
        }
    }

    fn should_inject(&self, per_mille: u64) -> bool {
        let inject = self.random().below(1_000) < per_mille;
        self.injected.fetch_add(u64::from(inject), Ordering::Relaxed);
        inject
    }

    fn random(&self) -> std::sync::MutexGuard<'_, Random> {
        self.random.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unanswered(&self) -> std::sync::MutexGuard<'_, HashSet<u64>> {
        self.unanswered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends a connection with a reset instead of a farewell.
fn reset(stream: &TcpStream) {
    let _ = stream.set_zero_linger();
}

/// Reads on until a whole command or reply is there, and takes it.
async fn frame(stream: &mut OwnedReadHalf, bytes: &mut Vec<u8>) -> Option<Vec<u8>> {
    loop {
        if let Some(end) = end_of(bytes) {
            let rest = bytes.split_off(end);
            return Some(std::mem::replace(bytes, rest));
        }
        if stream.read_buf(bytes).await.ok()? == 0 {
            return None;
        }
    }
}

/// Where the first command or reply ends, if it is all there.
fn end_of(bytes: &[u8]) -> Option<usize> {
    let line_end = bytes.windows(2).position(|two| two == b"\r\n")? + 2;
    let number = || {
        let text = std::str::from_utf8(&bytes[1..line_end - 2]).ok()?;
        text.parse::<i64>().ok()
    };
    match bytes[0] {
        b'$' | b'!' | b'=' => {
            let end = match usize::try_from(number()?) {
                Ok(length) => line_end + length + 2,
                Err(_) => line_end,
            };
            (bytes.len() >= end).then_some(end)
        }
        kind @ (b'*' | b'%' | b'~' | b'>') => {
            let parts = if kind == b'%' { number()? * 2 } else { number()? };
            let mut end = line_end;
            for _ in 0..parts {
                end += end_of(&bytes[end..])?;
            }
            Some(end)
        }
        _ => Some(line_end),
    }
}

/// Whether a command has this name: its first word, behind its length.
fn contains_name(command: &[u8], name: &str) -> bool {
    let word = format!("\r\n${}\r\n{name}\r\n", name.len());
    let at = command.windows(2).position(|two| two == b"\r\n");
    at.is_some_and(|at| command[at..].starts_with(word.as_bytes()))
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

/// How the script is called.
const CALLS: [&str; 3] = ["EVALSHA", "FCALL", "EVAL"];

/// When the caller has long given up.
const LATE: Duration = Duration::from_millis(80);

/// Commands of a connection that may wait for their replies.
const WAITING: usize = 1_024;
