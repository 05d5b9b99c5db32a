//! The load: concurrent calls over HTTP/2 from one thread, on several connections.

use super::super::load::{Measurement, Random};
use super::super::process::Server;
use bytes::{BufMut, Bytes, BytesMut};
use h2::client::{self, SendRequest};
use hyper::{HeaderMap, Request};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::task::LocalSet;

pub(super) const CONNECTIONS: u64 = 20;
pub(super) const STREAMS: u64 = 10;

/// The method and its message.
#[derive(Clone, Copy)]
pub(super) struct Call {
    pub(super) path: &'static str,
    /// The message for a key.
    pub(super) message: fn(u64) -> Vec<u8>,
}

/// The requests to a server.
pub(super) struct Load {
    pub(super) address: SocketAddr,
    pub(super) call: Call,
    pub(super) keys: u64,
    pub(super) seed: u64,
}

/// The responses of one stream of calls.
#[derive(Default)]
struct CallLog {
    errors: u64,
    /// In nanoseconds.
    latencies: Vec<u32>,
}

const START_UP: Duration = Duration::from_secs(10);
/// Not measured: connections are opened, tables grow.
const WARM_UP: Duration = Duration::from_secs(1);

impl Load {
    /// Loads a server that has just been started.
    pub(super) fn run(&self, server: &Server, seconds: u64) -> Result<Measurement, String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| format!("no runtime: {error}"))?;
        LocalSet::new().block_on(&runtime, async {
            self.wait().await?;
            let mut connections = Vec::new();
            for _ in 0..CONNECTIONS {
                connections.push(
                    connect(self.address)
                        .await
                        .map_err(|error| format!("no connection: {error}"))?,
                );
            }
            self.turn(&connections, WARM_UP).await?;
            let cpu = server.cpu()?;
            let begun = Instant::now();
            let mut seen = self.turn(&connections, Duration::from_secs(seconds)).await?;
            let seconds = begun.elapsed().as_secs_f64();
            let cpu_seconds = (server.cpu()? - cpu).as_secs_f64();
            seen.latencies.sort_unstable();
            Ok(Measurement {
                answers: seen.latencies.len() as u64,
                errors: seen.errors,
                seconds,
                cpu_seconds,
                p50_us: seen.percentile(50),
                p99_us: seen.percentile(99),
            })
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

    async fn turn(&self, connections: &[SendRequest<Bytes>], length: Duration) -> Result<CallLog, String> {
        let until = Instant::now() + length;
        let streams = (0..STREAMS).flat_map(|stream| {
            connections
                .iter()
                .zip(0..)
                .map(move |(sender, at)| (sender, at * STREAMS + stream))
        });
        let tasks: Vec<_> = streams
            .map(|(sender, number)| {
                let random = Random(self.seed * 1_000_003 + number);
                tokio::task::spawn_local(calls(sender.clone(), self.call, (random, self.keys), until))
            })
            .collect();
        let mut all = CallLog::default();
        for task in tasks {
            let seen = task.await.map_err(|error| format!("a connection was lost: {error}"))?;
            let seen = seen.map_err(|error| format!("a connection was lost: {error}"))?;
            all.errors += seen.errors;
            all.latencies.extend(seen.latencies);
        }
        Ok(all)
    }
}

async fn connect(address: SocketAddr) -> Result<SendRequest<Bytes>, Box<dyn std::error::Error>> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = client::handshake(stream).await?;
    // Ends with the server.
    tokio::task::spawn_local(async { drop(connection.await) });
    Ok(sender)
}

/// Sequential calls.
async fn calls(
    mut sender: SendRequest<Bytes>,
    call: Call,
    (mut random, keys): (Random, u64),
    until: Instant,
) -> Result<CallLog, h2::Error> {
    let mut seen = CallLog::default();
    while Instant::now() < until {
        let message = (call.message)(random.next() % keys);
        let mut framed = BytesMut::with_capacity(5 + message.len());
        framed.put_u8(0);
        framed.put_u32(message.len() as u32);
        framed.put_slice(&message);
        let mut head = Request::new(());
        *head.method_mut() = hyper::Method::POST;
        *head.uri_mut() = format!("http://bench{}", call.path).parse().unwrap_or_default();
        let headers = head.headers_mut();
        headers.insert("te", hyper::header::HeaderValue::from_static("trailers"));
        headers.insert(
            "content-type",
            hyper::header::HeaderValue::from_static("application/grpc"),
        );
        headers.insert("grpc-timeout", hyper::header::HeaderValue::from_static("250m"));
        let begun = Instant::now();
        sender = sender.ready().await?;
        let (response, mut stream) = sender.send_request(head, false)?;
        stream.send_data(framed.freeze(), true)?;
        let response = response.await?;
        let is_error = status(response.headers()).is_some_and(|status| status != b"0");
        let mut body = response.into_body();
        while let Some(data) = body.data().await {
            let _ = body.flow_control().release_capacity(data?.len());
        }
        let trailers = body.trailers().await?.unwrap_or_default();
        let nanos = begun.elapsed().as_nanos();
        seen.latencies.push(u32::try_from(nanos).unwrap_or(u32::MAX));
        seen.errors += u64::from(is_error || status(&trailers).is_some_and(|status| status != b"0"));
    }
    Ok(seen)
}

fn status(headers: &HeaderMap) -> Option<&[u8]> {
    headers.get("grpc-status").map(|status| status.as_bytes())
}

impl CallLog {
    fn percentile(&self, percent: usize) -> f64 {
        let index = self.latencies.len() * percent / 100;
        f64::from(self.latencies.get(index).copied().unwrap_or(0)) / 1_000.0
    }
}
