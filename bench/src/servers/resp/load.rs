//! The load: many connections from one thread, with one pipelined write in flight each.

use crate::servers::load::{Measurement, Random, RequestLog};
use crate::servers::process::Server;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The requests to a server.
pub(super) struct Load {
    pub(super) address: SocketAddr,
    /// One command.
    pub(super) command: Vec<u8>,
    /// The offset of the digits of its key, if it has one.
    pub(super) digits: Option<usize>,
    pub(super) reply_lines: usize,
    pub(super) pipeline: usize,
    pub(super) connections: u64,
    pub(super) keys: u64,
    pub(super) seed: u64,
}

/// Digits of a key.
pub(super) const DIGITS: usize = 16;

/// The time a server has to start.
const START_UP: Duration = Duration::from_secs(10);
/// Not measured: connections are opened, tables grow.
const WARM_UP: Duration = Duration::from_secs(1);

/// The commands of one write.
struct Batch {
    bytes: Vec<u8>,
    /// The offset of the digits of each key.
    digits: Vec<usize>,
    reply_lines: usize,
    commands: u64,
}

impl Load {
    /// Loads a server that has just been started.
    pub(super) fn run(&self, server: &Server, seconds: u64) -> Result<Measurement, String> {
        self.block_on(async {
            self.wait().await?;
            self.turn(WARM_UP).await?;
            let cpu = server.cpu()?;
            let begun = Instant::now();
            let mut seen = self.turn(Duration::from_secs(seconds)).await?;
            let seconds = begun.elapsed().as_secs_f64();
            let cpu_seconds = (server.cpu()? - cpu).as_secs_f64();
            Ok(seen.measurement(seconds, cpu_seconds))
        })
    }

    /// Sends one command for every key, and returns the growth of the server in bytes.
    pub(super) fn fill(&self, server: &Server) -> Result<u64, String> {
        self.block_on(async {
            self.wait().await?;
            // The memory of connections existed before and is not that of keys.
            self.turn(Duration::from_millis(200)).await?;
            let before = server.resident()?;
            self.all_keys().await?;
            Ok(server.resident()?.saturating_sub(before))
        })
    }

    fn block_on<T>(&self, work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| format!("no runtime: {error}"))?;
        tokio::task::LocalSet::new().block_on(&runtime, work)
    }

    async fn wait(&self) -> Result<(), String> {
        let connected = async {
            while TcpStream::connect(self.address).await.is_err() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let waited = tokio::time::timeout(START_UP, connected).await;
        waited.map_err(|_| format!("no server at {} after {START_UP:?}", self.address))
    }

    /// Sends commands for random keys on every connection.
    async fn turn(&self, length: Duration) -> Result<RequestLog, String> {
        let until = Instant::now() + length;
        let keys = Rc::new(self.keys);
        let tasks = (0..self.connections).map(|number| {
            let mut random = Random(self.seed * 1_000_003 + number);
            let keys = Rc::clone(&keys);
            let next = move || Some(random.next() % *keys);
            tokio::task::spawn_local(exchange(self.address, self.batch(self.pipeline), next, Some(until)))
        });
        join(tasks.collect()).await
    }

    /// Sends commands for all keys on one connection.
    async fn all_keys(&self) -> Result<(), String> {
        if self.digits.is_none() {
            return Ok(());
        }
        let mut keys = 0..self.keys;
        let next = move || keys.next();
        let task = tokio::task::spawn_local(exchange(self.address, self.batch(FILL_PIPELINE), next, None));
        join(vec![task]).await.map(drop)
    }

    fn batch(&self, pipeline: usize) -> Batch {
        let offset = |number: usize| self.digits.map(|digits| number * self.command.len() + digits);
        Batch {
            bytes: self.command.repeat(pipeline),
            digits: (0..pipeline).filter_map(offset).collect(),
            reply_lines: self.reply_lines * pipeline,
            commands: pipeline as u64,
        }
    }
}

/// Few enough for a server that sends each reply in its own write.
const FILL_PIPELINE: usize = 100;

async fn join(tasks: Vec<tokio::task::JoinHandle<std::io::Result<RequestLog>>>) -> Result<RequestLog, String> {
    let mut all = RequestLog::default();
    for task in tasks {
        let seen = task.await.map_err(|error| format!("a connection was lost: {error}"))?;
        all.add(seen.map_err(|error| format!("a connection was lost: {error}"))?);
    }
    Ok(all)
}

async fn exchange(
    address: SocketAddr,
    mut batch: Batch,
    mut next: impl FnMut() -> Option<u64>,
    until: Option<Instant>,
) -> std::io::Result<RequestLog> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let mut seen = RequestLog::default();
    let mut buffer = Vec::with_capacity(64 << 10);
    loop {
        for index in 0..batch.digits.len() {
            let Some(key) = next() else { return Ok(seen) };
            batch.put(index, key);
        }
        let sent = Instant::now();
        if until.is_some_and(|until| sent >= until) {
            return Ok(seen);
        }
        stream.write_all(&batch.bytes).await?;
        buffer.clear();
        let mut lines = 0;
        while lines < batch.reply_lines {
            let before = buffer.len();
            if stream.read_buf(&mut buffer).await? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            let more = buffer.get(before..).unwrap_or_default();
            lines += more.iter().filter(|byte| **byte == b'\n').count();
        }
        seen.answered(batch.commands, sent.elapsed(), buffer.first() == Some(&b'-'));
    }
}

impl Batch {
    fn put(&mut self, index: usize, key: u64) {
        let Some(start) = self.digits.get(index) else { return };
        let mut rest = key;
        let digits = self.bytes.get_mut(*start..*start + DIGITS);
        for digit in digits.into_iter().flatten().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
    }
}
