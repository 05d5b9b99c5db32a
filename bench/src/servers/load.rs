//! The load: many connections from one thread, with a fixed number of requests in flight on each.

use super::process::Server;
use crate::measurement::{Measurement, ResponseLog};
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, spawn_local};
use tollgate_core::testing::random::Random;

/// The requests to a server.
pub(super) struct Load<'a, R> {
    pub(super) address: SocketAddr,
    pub(super) requests: &'a R,
    pub(super) connections: u64,
    pub(super) keys: u64,
    pub(super) seed: u64,
}

/// The requests of one protocol.
pub(super) trait Requests {
    type Client: Client + 'static;

    /// Opens a connection, with a client for each request in flight on it.
    async fn connect(&self, address: SocketAddr) -> io::Result<Vec<Self::Client>>;
}

/// A sender of sequential requests.
pub(super) trait Client {
    /// Writes the next request, or a pipeline of them, and returns their number. None after the last key.
    fn prepare(&mut self, keys: &mut impl Iterator<Item = u64>) -> Option<u64>;

    /// Sends the request and waits for the response. Returns true if it is an error.
    async fn exchange(&mut self) -> io::Result<bool>;
}

/// The time a server has to start.
const START_UP: Duration = Duration::from_secs(10);

/// Not measured: tables grow.
const WARM_UP: Duration = Duration::from_secs(1);

impl<R: Requests> Load<'_, R> {
    /// Loads a server that has just been started.
    pub(super) fn run(&self, server: &Server, seconds: u64) -> Result<Measurement, String> {
        crate::block_on(async {
            let mut clients = self.connect().await?;
            self.send_for(&mut clients, WARM_UP).await?;
            let (cpu, started) = (server.cpu()?, Instant::now());
            let log = self.send_for(&mut clients, Duration::from_secs(seconds)).await?;
            let seconds = started.elapsed().as_secs_f64();
            Ok(log.measurement(seconds, (server.cpu()? - cpu).as_secs_f64()))
        })
    }

    /// Loads two servers that have just been started, both at the same time.
    pub(super) fn run_both(both: [(&Self, &Server); 2], seconds: u64) -> Result<[Measurement; 2], String> {
        crate::block_on(async {
            let [(first, _), (second, _)] = both;
            let mut clients = [first.connect().await?, second.connect().await?];
            let mut send = async |length| {
                let [one, other] = &mut clients;
                tokio::try_join!(first.send_for(one, length), second.send_for(other, length))
            };
            send(WARM_UP).await?;
            let (before, started) = (both.map(|(_, server)| server.cpu()), Instant::now());
            let (log, other_log) = send(Duration::from_secs(seconds)).await?;
            let seconds = started.elapsed().as_secs_f64();
            let [after, other_after] = both.map(|(_, server)| server.cpu());
            let [before, other_before] = before;
            Ok([
                log.measurement(seconds, (after? - before?).as_secs_f64()),
                other_log.measurement(seconds, (other_after? - other_before?).as_secs_f64()),
            ])
        })
    }

    /// Sends one request for every key, `fill` at a time, and returns the growth of the server in bytes.
    pub(super) fn fill(&self, fill: &R, server: &Server) -> Result<u64, String> {
        crate::block_on(async {
            // The memory of connections existed before and is not that of keys.
            let mut clients = self.connect().await?;
            self.send_for(&mut clients, Duration::from_millis(200)).await?;
            let before = server.resident()?;
            let filling = fill.connect(self.address).await.map_err(lost)?;
            let filling = filling.into_iter().next().ok_or("a connection has a client")?;
            send(filling, 0..self.keys, None).await.map_err(lost)?;
            Ok(server.resident()?.saturating_sub(before))
        })
    }

    /// Waits for the server and opens all connections.
    async fn connect(&self) -> Result<Vec<R::Client>, String> {
        let listening = async {
            while TcpStream::connect(self.address).await.is_err() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let waited = tokio::time::timeout(START_UP, listening).await;
        waited.map_err(|_| format!("no server at {} after {START_UP:?}", self.address))?;
        let mut clients = Vec::new();
        for _ in 0..self.connections {
            clients.extend(self.requests.connect(self.address).await.map_err(lost)?);
        }
        Ok(clients)
    }

    /// Sends requests for random keys with every client.
    async fn send_for(&self, clients: &mut Vec<R::Client>, length: Duration) -> Result<ResponseLog, String> {
        let until = Instant::now() + length;
        let start = |(client, number)| -> JoinHandle<io::Result<_>> {
            let (mut random, keys) = (Random::new(self.seed * 1_000_003 + number), self.keys);
            let keys = std::iter::repeat_with(move || random.next() % keys);
            spawn_local(send(client, keys, Some(until)))
        };
        let tasks: Vec<_> = clients.drain(..).zip(0..).map(start).collect();
        let mut all = ResponseLog::default();
        for task in tasks {
            let (client, log) = task.await.map_err(lost)?.map_err(lost)?;
            clients.push(client);
            all.add(log);
        }
        Ok(all)
    }
}

fn lost(error: impl std::fmt::Display) -> String {
    format!("a connection was lost: {error}")
}

async fn send<C: Client>(
    mut client: C,
    mut keys: impl Iterator<Item = u64>,
    until: Option<Instant>,
) -> io::Result<(C, ResponseLog)> {
    let mut log = ResponseLog::default();
    while let Some(requests) = client.prepare(&mut keys) {
        let sent = Instant::now();
        if until.is_some_and(|until| sent >= until) {
            break;
        }
        let is_error = client.exchange().await?;
        log.record(requests, sent.elapsed(), is_error);
    }
    Ok((client, log))
}

/// A connection without Nagle's algorithm.
pub(super) async fn open(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::super::http::Checks;
    use super::super::{BaselineAnswer, process, serve_baseline};
    use super::*;

    #[test]
    fn every_connection_of_a_load_is_answered() {
        let address = process::free_address().expect("a free port");
        std::thread::spawn(move || serve_baseline(address, BaselineAnswer::Ready));
        let requests = Checks {
            path: "/",
            body: |key| key.to_string(),
        };
        let load = Load {
            address,
            requests: &requests,
            connections: 3,
            keys: 10,
            seed: 1,
        };
        let measured = crate::block_on(async {
            let mut clients = load.connect().await?;
            load.send_for(&mut clients, Duration::from_millis(20)).await?;
            assert_eq!(clients.len(), 3);
            let log = load.send_for(&mut clients, Duration::from_millis(50)).await?;
            Ok(log.measurement(0.05, 0.01))
        });
        let measured = measured.expect("a load without lost connections");
        assert!(
            measured.answers >= 3 && measured.errors == 0,
            "{} answers",
            measured.answers
        );
    }
}
