//! Accepts connections, up to the limits of a front end, and ends them when the server stops.

use super::connection::StageReceiver;
use super::listen::{Listener, Stream};
use super::per_ip::{ConnectionsPerIp, limited_address};
use super::tls::Tls;
use crate::server::gate::{Gate, Phase};
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout};
use tokio_rustls::server::TlsStream;

/// A protocol: the way connections of one listener are served.
pub(in crate::server) trait FrontEnd: Send + Sync + 'static {
    /// The limits its connections share.
    fn limits(&self) -> ConnectionLimits;

    /// Certificates; none: connections are not encrypted.
    fn tls(&self) -> Option<&Tls>;

    /// Serves one connection until it ends. `peer` is `None` if the client has left already.
    fn serve(
        self: Arc<Self>,
        stream: impl Io,
        peer: Option<IpAddr>,
        stage: StageReceiver,
    ) -> impl Future<Output = ()> + Send;
}

/// A stream of bytes in both directions.
pub(in crate::server) trait Io: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Io for T {}

/// The stages of a shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum ShutdownStage {
    /// Connections are served.
    Running,
    /// Requests in flight are answered, and connections end.
    Draining,
    /// The drain time is over: connections are dropped.
    Aborting,
}

/// Limits on the connections of one listener.
#[derive(Clone, Copy, Debug)]
pub(in crate::server) struct ConnectionLimits {
    /// Connections at a time.
    pub(in crate::server) connections: usize,
    /// Connections at a time from one address of another machine.
    pub(in crate::server) per_address: usize,
    /// The time a TLS handshake may take.
    pub(in crate::server) handshake_timeout: Duration,
    /// The time requests in flight may take when the server stops.
    pub(in crate::server) drain: Duration,
}

/// Serves every connection of `listener` with `front_end` until `shutdown` completes, and then drains: connections that are
/// already established are still accepted, all are asked to end, and after the drain time they are dropped.
///
/// At the limit of connections further ones wait in the backlog of the listener until one ends, so a client that was accepted
/// is served. At the limit of one address its further connections are closed, so that they do not block others.
pub(in crate::server) async fn accept<F: FrontEnd>(
    listener: Listener,
    gate: &Arc<Gate>,
    front_end: Arc<F>,
    shutdown: impl Future<Output = ()>,
) {
    let limits = front_end.limits();
    let serve = |stream, peer, stage| serve_stream(Arc::clone(&front_end), stream, peer, stage);
    accept_by(limited_address, listener, gate, limits, shutdown, serve).await;
}

/// Spawns `serve` for every accepted connection, up to `limits`. `limit_key` is the address a connection counts for.
async fn accept_by<C>(
    limit_key: impl Fn(IpAddr) -> Option<IpAddr>,
    listener: Listener,
    gate: &Arc<Gate>,
    limits: ConnectionLimits,
    shutdown: impl Future<Output = ()>,
    serve: impl Fn(Stream, Option<IpAddr>, StageReceiver) -> C,
) where
    C: Future<Output = ()> + Send + 'static,
{
    let ConnectionLimits {
        connections,
        per_address,
        drain,
        ..
    } = limits;
    let per_ip = ConnectionsPerIp::new(per_address);
    let mut last_warned: Option<Instant> = None;
    let all = u32::try_from(connections.clamp(1, Semaphore::MAX_PERMITS)).unwrap_or(u32::MAX);
    let capacity = Arc::new(Semaphore::new(all as usize));
    let (stage_sender, stage) = watch::channel(ShutdownStage::Running);
    let accept = async {
        loop {
            // The permit comes first: a connection that cannot be served is not accepted.
            let Ok(permit) = Arc::clone(&capacity).acquire_owned().await else {
                return;
            };
            let stream = listener.accept().await;
            // A client that is gone already has no address; reading from the stream tells.
            let address = stream.peer().ok();
            let Some(ip_permit) = per_ip.acquire(address.and_then(&limit_key)) else {
                if last_warned.is_none_or(|warned_at| warned_at.elapsed() >= WARN_INTERVAL) {
                    last_warned = Some(Instant::now());
                    tracing::warn!(
                        ?address,
                        limit = per_address,
                        "per-address connection limit reached; closing new connections"
                    );
                }
                continue;
            };
            let connection = serve(stream, address, stage.clone());
            let gate = Arc::clone(gate);
            tokio::spawn(async move {
                let gauge = gate.metrics().open_connection();
                connection.await;
                drop((gauge, ip_permit, permit));
            });
        }
    };
    {
        let mut accept = pin!(accept);
        tokio::select! {
            () = shutdown => {}
            () = &mut accept => {}
        }
        gate.advance_phase(Phase::Draining);
        stage_sender.send_replace(ShutdownStage::Draining);
        // Connections in the backlog would be reset with the listener.
        let _ = timeout(ACCEPT_GRACE.min(drain / 2), accept).await;
    }
    drop(listener);
    if timeout(drain, capacity.acquire_many(all)).await.is_err() {
        tracing::warn!(?drain, "drain time over; dropping the remaining connections");
        stage_sender.send_replace(ShutdownStage::Aborting);
        if timeout(ABORT_TIMEOUT, capacity.acquire_many(all)).await.is_err() {
            tracing::error!("dropped connections did not end; stopping without them");
        }
    }
}

async fn serve_stream<F: FrontEnd>(front_end: Arc<F>, stream: Stream, peer: Option<IpAddr>, stage: StageReceiver) {
    let Some(tls) = front_end.tls() else {
        return front_end.serve(stream, peer, stage).await;
    };
    // In boxes: otherwise connections without TLS would reserve the memory that TLS needs.
    let handshake_timeout = front_end.limits().handshake_timeout;
    let handshake = Box::pin(tls_handshake(stream, tls, handshake_timeout, stage.clone()));
    if let Some(stream) = handshake.await {
        Box::pin(front_end.serve(stream, peer, stage)).await;
    }
}

/// The TLS stream of a client; none if the handshake fails, takes too long, or the server has stopped.
async fn tls_handshake(
    stream: Stream,
    tls: &Tls,
    handshake_timeout: Duration,
    mut stage: StageReceiver,
) -> Option<TlsStream<Stream>> {
    let handshake = timeout(handshake_timeout, tls.acceptor().accept(stream));
    tokio::select! {
        result = handshake => match result {
            Ok(Ok(stream)) => Some(stream),
            Ok(Err(error)) => {
                tracing::debug!(%error, "TLS handshake failed");
                None
            }
            Err(_) => {
                tracing::debug!(timeout = ?handshake_timeout, "TLS handshake timed out");
                None
            }
        },
        _ = stage.wait_for(|stage| *stage == ShutdownStage::Aborting) => None,
    }
}

/// The time dropped connections have to end.
const ABORT_TIMEOUT: Duration = Duration::from_secs(5);

/// The least time between two warnings about an address at its limit.
const WARN_INTERVAL: Duration = Duration::from_secs(60);

/// The time in which the backlog is still accepted when the server stops.
const ACCEPT_GRACE: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::net::listen::Address;
    use std::future::pending;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tollgate_limiter::core::rules::{ParserOptions, RulesParser};
    use tollgate_limiter::store::memory::Memory;

    const WAIT: Duration = Duration::from_millis(20);

    /// A connection that echoed one letter; none if it was closed.
    async fn echo(address: std::net::SocketAddr) -> Option<TcpStream> {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let echoed = stream.write_all(b"a").await.is_ok() && stream.read_u8().await.is_ok();
        echoed.then_some(stream)
    }

    #[tokio::test]
    async fn one_address_gets_no_more_connections_than_it_may() {
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
        let Ok(Address::Tcp(address)) = listener.address() else {
            panic!("a TCP listener has a TCP address")
        };
        let serve = async move {
            let rules = RulesParser::new(ParserOptions::default()).finish().unwrap().rules;
            let gate = Arc::new(Gate::new(rules, Arc::new(Memory::options().build())));
            let limits = ConnectionLimits {
                connections: 9,
                per_address: 2,
                drain: WAIT,
                handshake_timeout: WAIT,
            };
            accept_by(
                Some,
                listener,
                &gate,
                limits,
                pending(),
                |mut stream, _, _| async move {
                    while let Ok(letter) = stream.read_u8().await {
                        stream.write_u8(letter).await.unwrap();
                    }
                },
            )
            .await;
        };
        let serving = tokio::spawn(serve);
        let (first, second) = (echo(address).await, echo(address).await);
        assert!(first.is_some() && second.is_some());
        assert!(echo(address).await.is_none());
        drop(first);
        while echo(address).await.is_none() {}
        serving.abort();
    }
}
