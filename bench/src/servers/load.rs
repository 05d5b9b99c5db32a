//! The load: many keep-alive connections from one thread, with one request in flight each.

use super::process::Server;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The requests to a server.
pub(crate) struct Load {
    pub(crate) address: SocketAddr,
    pub(crate) path: &'static str,
    pub(crate) body: fn(u64) -> String,
    pub(crate) connections: u64,
    pub(crate) keys: u64,
    pub(crate) seed: u64,
}

/// The result of one load on a server.
#[derive(Clone, Copy)]
pub(crate) struct Measurement {
    pub(crate) answers: u64,
    /// Responses other than 200.
    pub(crate) errors: u64,
    pub(crate) seconds: f64,
    pub(crate) cpu_seconds: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
}

/// The responses of one connection.
#[derive(Default)]
pub(crate) struct RequestLog {
    answers: u64,
    errors: u64,
    /// In nanoseconds.
    latencies: Vec<u32>,
}

/// The time a server has to start.
const START_UP: Duration = Duration::from_secs(10);

/// Not measured: connections are opened, tables grow.
const WARM_UP: Duration = Duration::from_secs(1);

impl Load {
    /// Loads a server that has just been started.
    pub(crate) fn run(&self, server: &Server, seconds: u64) -> Result<Measurement, String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| format!("no runtime: {error}"))?;
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime, async {
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

    async fn wait(&self) -> Result<(), String> {
        let connected = async {
            while TcpStream::connect(self.address).await.is_err() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let waited = tokio::time::timeout(START_UP, connected).await;
        waited.map_err(|_| format!("no server at {} after {START_UP:?}", self.address))
    }

    async fn turn(&self, length: Duration) -> Result<RequestLog, String> {
        let until = Instant::now() + length;
        let requests = Rc::new(Requests {
            head: format!(
                "POST {} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n",
                self.path
            ),
            body: self.body,
            keys: self.keys,
        });
        let tasks: Vec<_> = (0..self.connections)
            .map(|number| {
                let random = Random(self.seed * 1_000_003 + number);
                tokio::task::spawn_local(exchange(self.address, Rc::clone(&requests), random, until))
            })
            .collect();
        let mut all = RequestLog::default();
        for task in tasks {
            let seen = task.await.map_err(|error| format!("a connection was lost: {error}"))?;
            let seen = seen.map_err(|error| format!("a connection was lost: {error}"))?;
            all.add(seen);
        }
        Ok(all)
    }
}

struct Requests {
    head: String,
    body: fn(u64) -> String,
    keys: u64,
}

async fn exchange(
    address: SocketAddr,
    requests: Rc<Requests>,
    mut random: Random,
    until: Instant,
) -> std::io::Result<RequestLog> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let mut seen = RequestLog::default();
    let mut buffer = Vec::with_capacity(8 << 10);
    loop {
        let body = (requests.body)(random.next() % requests.keys);
        let request = format!("{}content-length: {}\r\n\r\n{body}", requests.head, body.len());
        let sent = Instant::now();
        if sent >= until {
            return Ok(seen);
        }
        stream.write_all(request.as_bytes()).await?;
        buffer.clear();
        while !is_whole(&buffer) {
            if stream.read_buf(&mut buffer).await? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
        }
        seen.answered(1, sent.elapsed(), !buffer.starts_with(b"HTTP/1.1 200"));
    }
}

/// True if the response is complete. All servers here send its length. One pass, because the time of the load for a
/// response is part of the next one's latency.
fn is_whole(buffer: &[u8]) -> bool {
    let mut rest = buffer;
    let mut length = None;
    while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
        let (line, after) = rest.split_at(end + 1);
        if line == b"\r\n" {
            return length.is_some_and(|length| after.len() >= length);
        }
        if let Some((name, value)) = line.split_at_checked(LENGTH.len())
            && name.eq_ignore_ascii_case(LENGTH)
        {
            length = std::str::from_utf8(value)
                .ok()
                .and_then(|value| value.trim().parse::<usize>().ok());
        }
        rest = after;
    }
    false
}

const LENGTH: &[u8] = b"content-length:";

impl Measurement {
    pub(crate) fn per_cpu_second(&self) -> f64 {
        self.answers as f64 / self.cpu_seconds
    }

    /// The part of its core that the server used: below one, the load was the bottleneck.
    pub(crate) fn busy(&self) -> f64 {
        self.cpu_seconds / self.seconds
    }

    pub(crate) fn per_second(&self) -> f64 {
        self.answers as f64 / self.seconds
    }
}

impl RequestLog {
    /// Records responses that arrived at once, after the given time.
    pub(crate) fn answered(&mut self, answers: u64, after: Duration, is_error: bool) {
        self.latencies.push(u32::try_from(after.as_nanos()).unwrap_or(u32::MAX));
        self.answers += answers;
        self.errors += u64::from(is_error);
    }

    /// Adds the responses of another connection.
    pub(crate) fn add(&mut self, other: Self) {
        self.answers += other.answers;
        self.errors += other.errors;
        self.latencies.extend(other.latencies);
    }

    pub(crate) fn measurement(&mut self, seconds: f64, cpu_seconds: f64) -> Measurement {
        self.latencies.sort_unstable();
        Measurement {
            answers: self.answers,
            errors: self.errors,
            seconds,
            cpu_seconds,
            p50_us: self.percentile(50),
            p99_us: self.percentile(99),
        }
    }

    fn percentile(&self, percent: usize) -> f64 {
        let index = self.latencies.len() * percent / 100;
        f64::from(self.latencies.get(index).copied().unwrap_or(0)) / 1_000.0
    }
}

/// Splitmix64: seeded, so that every server gets the same keys.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
