//! Requests at the times they are due, whatever becomes of those before them.
//!
//! Each connection has times of its own. If an answer comes so late that the next request is overdue, that one is counted
//! from when it was due: a server that stands still is not spared the requests it would have met.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};
use tollgate_core::testing::random::Random;

/// Makes requests: whose each is, and its body.
pub(crate) type Next = Arc<dyn Fn(&mut Random) -> (u16, String) + Send + Sync>;

/// What is asked, and how often.
#[derive(Clone)]
pub(crate) struct Traffic {
    pub(crate) per_second: u32,
    pub(crate) next: Next,
}

/// One request and what came of it. Times are from the start of the load.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) node: usize,
    /// As [`Traffic::next`] said it.
    pub(crate) subject: u16,
    pub(crate) sent_us: u64,
    pub(crate) received_us: u64,
    /// From when it was due.
    pub(crate) latency_us: u64,
    pub(crate) response: Option<NodeResponse>,
    /// Its connection ended without a byte of an answer, and it was sent again on another.
    pub(crate) is_resent: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeResponse {
    pub(crate) status: u16,
    pub(crate) source: Source,
    pub(crate) remaining: Option<u64>,
    pub(crate) retry_after_ms: Option<u64>,
}

/// Who decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The store, or what it was last known to hold.
    Shared,
    Memory,
    Local,
    Open,
    Closed,
    Unknown,
}

impl Sample {
    pub(crate) fn is_admitted(&self) -> bool {
        self.response.is_some_and(|response| response.status == 200)
    }

    /// No answer, or none that is a verdict.
    pub(crate) fn is_failed(&self) -> bool {
        self.response
            .is_none_or(|response| !matches!(response.status, 200 | 429) || response.source == Source::Unknown)
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.response.is_some_and(|response| response.source == Source::Shared)
    }

    pub(crate) fn is_fallback(&self) -> bool {
        self.response
            .is_some_and(|response| matches!(response.source, Source::Local | Source::Open | Source::Closed))
    }
}

/// A load under way.
pub(crate) struct Load {
    from: Instant,
    is_over: Arc<AtomicBool>,
    connections: Vec<JoinHandle<Vec<Sample>>>,
}

/// Connections to each node.
pub(crate) const CONNECTIONS: usize = 24;

impl Load {
    pub(crate) fn start(runtime: &tokio::runtime::Handle, nodes: &[SocketAddr], traffic: &Traffic, seed: u64) -> Self {
        let from = Instant::now() + Duration::from_millis(20);
        let is_over = Arc::new(AtomicBool::new(false));
        let all = nodes.len() * CONNECTIONS;
        let interval = Duration::from_secs_f64(all as f64 / f64::from(traffic.per_second));
        let connections = (0..all)
            .map(|number| {
                let connection = Connection {
                    nodes: nodes.to_vec(),
                    node: number % nodes.len(),
                    stream: None,
                    has_ended: false,
                    from,
                };
                let mut random = Random::new(seed ^ (number as u64) << 32);
                let (traffic, is_over) = (traffic.clone(), Arc::clone(&is_over));
                runtime.spawn(async move {
                    let first = from + interval.mul_f64(random.below(1 << 20) as f64 / f64::from(1 << 20));
                    connection.run(traffic, random, (first, interval), &is_over).await
                })
            })
            .collect();
        Self {
            from,
            is_over,
            connections,
        }
    }

    /// Microseconds since its start.
    pub(crate) fn now_us(&self) -> u64 {
        since(self.from)
    }

    /// Lets nobody ask any more.
    pub(crate) fn stop(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Ends it, with all that was asked, in the order of the answers.
    pub(crate) fn end(self, runtime: &tokio::runtime::Handle) -> Vec<Sample> {
        self.stop();
        let mut samples = Vec::new();
        for connection in self.connections {
            samples.extend(runtime.block_on(connection).unwrap());
        }
        samples.sort_unstable_by_key(|sample| sample.received_us);
        samples
    }
}

struct Connection {
    nodes: Vec<SocketAddr>,
    node: usize,
    stream: Option<TcpStream>,
    /// Whether it ended before a byte of an answer came.
    has_ended: bool,
    from: Instant,
}

impl Connection {
    async fn run(
        mut self,
        traffic: Traffic,
        mut random: Random,
        (first, interval): (Instant, Duration),
        is_over: &AtomicBool,
    ) -> Vec<Sample> {
        let mut samples = Vec::new();
        let mut due = first;
        while !is_over.load(Ordering::Relaxed) {
            let was_free = Instant::now() <= due;
            sleep_until(due).await;
            let (subject, body) = (traffic.next)(&mut random);
            // The timer's own lateness is not the server's.
            let counted_from = if was_free { Instant::now() } else { due };
            let request = request(&body);
            if self.is_closed() {
                self.connect().await;
            }
            let sent_us = since(self.from);
            let was_used = self.stream.is_some();
            let mut response = timeout(TIMEOUT, self.exchange(&request)).await.ok().flatten();
            let is_resent = response.is_none() && was_used && self.has_ended;
            if is_resent {
                self.connect().await;
                response = timeout(TIMEOUT, self.exchange(&request)).await.ok().flatten();
            }
            if response.is_none() {
                self.stream = None;
            }
            samples.push(Sample {
                node: self.node,
                subject,
                sent_us,
                received_us: since(self.from),
                latency_us: since(counted_from),
                response,
                is_resent,
            });
            due += interval;
        }
        samples
    }

    /// Whether there is no connection, or the other side has ended it since the last answer.
    fn is_closed(&self) -> bool {
        self.stream
            .as_ref()
            .is_none_or(|stream| stream.try_read(&mut [0]).is_ok())
    }

    /// Goes to another node if one takes no connections, as a balancer would.
    async fn connect(&mut self) {
        for _ in 0..self.nodes.len() {
            if let Ok(stream) = TcpStream::connect(self.nodes[self.node]).await {
                let _ = stream.set_nodelay(true);
                self.stream = Some(stream);
                return;
            }
            self.node = (self.node + 1) % self.nodes.len();
        }
    }

    async fn exchange(&mut self, request: &[u8]) -> Option<NodeResponse> {
        let stream = self.stream.as_mut()?;
        self.has_ended = true;
        stream.write_all(request).await.ok()?;
        let mut bytes = Vec::with_capacity(2048);
        let (head, length) = loop {
            if stream.read_buf(&mut bytes).await.ok()? == 0 {
                return None;
            }
            self.has_ended = false;
            if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
                let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
                let length = field(&head, "content-length: ")?.parse::<usize>().ok()?;
                break (head, end + 4 + length);
            }
        };
        while bytes.len() < length {
            if stream.read_buf(&mut bytes).await.ok()? == 0 {
                return None;
            }
        }
        if field(&head, "connection: ") == Some("close") {
            self.stream = None;
        }
        let body = String::from_utf8_lossy(&bytes[length.min(head.len() + 4)..]).into_owned();
        Some(NodeResponse {
            status: head.split(' ').nth(1)?.parse().ok()?,
            source: source(&body),
            remaining: number(&body, "\"remaining\":"),
            retry_after_ms: number(&body, "\"retry_after_ms\":"),
        })
    }
}

fn request(body: &str) -> Vec<u8> {
    let length = body.len();
    format!("POST /v1/check HTTP/1.1\r\nhost: chaos\r\ncontent-length: {length}\r\n\r\n{body}").into_bytes()
}

fn field<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    head.lines().find_map(|line| line.strip_prefix(name))
}

/// The number behind the first of these names: the verdict's, which stands before those of its limits.
fn number(body: &str, name: &str) -> Option<u64> {
    let (_, rest) = body.split_once(name)?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

fn source(body: &str) -> Source {
    let word = body
        .split_once("\"source\":\"")
        .and_then(|(_, rest)| rest.split('"').next());
    match word {
        Some("shared" | "near") => Source::Shared,
        Some("memory" | "overflow") => Source::Memory,
        Some("local") => Source::Local,
        Some("open") => Source::Open,
        Some("closed") => Source::Closed,
        _ => Source::Unknown,
    }
}

fn since(from: Instant) -> u64 {
    u64::try_from(Instant::now().saturating_duration_since(from).as_micros()).unwrap_or(u64::MAX)
}

/// A request that takes so long has failed.
const TIMEOUT: Duration = Duration::from_secs(5);
