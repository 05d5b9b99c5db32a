//! A well-behaved client on its own connections, over HTTP and the Redis protocol.

use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub(super) struct Bystander {
    http: TcpStream,
    resp: TcpStream,
}

/// The service the client got.
#[derive(Default)]
pub(super) struct BystanderResult {
    pub(super) answers: u64,
    pub(super) errors: u64,
    pub(super) slowest: Duration,
}

const CHECK: &[u8] = b"POST /v1/check HTTP/1.1\r\nhost: bench\r\ncontent-length: 17\r\n\r\n{\"attributes\":{}}";
const CALL: &[u8] = b"CL.THROTTLE bystander 1000 1000 1\r\n";
/// A response that takes longer counts as an error.
const TIMEOUT: Duration = Duration::from_secs(2);
const INTERVAL: Duration = Duration::from_millis(5);
const STARTUP_TIMEOUT: Duration = Duration::from_secs(10);

impl Bystander {
    pub(super) async fn connect(http: SocketAddr, resp: SocketAddr) -> Result<Self, String> {
        let connected = async {
            loop {
                if let (Ok(http), Ok(resp)) = (TcpStream::connect(http).await, TcpStream::connect(resp).await) {
                    return Self { http, resp };
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let waited = tokio::time::timeout(STARTUP_TIMEOUT, connected).await;
        waited.map_err(|_| "the server did not come up".to_owned())
    }

    /// Sends requests for the given time.
    pub(super) async fn run(mut self, length: Duration) -> BystanderResult {
        let mut seen = BystanderResult::default();
        let until = Instant::now() + length;
        while Instant::now() < until {
            for (stream, question, wanted) in [
                (&mut self.http, CHECK, &b"HTTP/1.1 200"[..]),
                (&mut self.resp, CALL, b"*5\r\n:0\r\n"),
            ] {
                let sent_at = Instant::now();
                let mut answer = [0; 4096];
                let exchange = async {
                    stream.write_all(question).await?;
                    stream.read(&mut answer).await
                };
                match tokio::time::timeout(TIMEOUT, exchange).await {
                    Ok(Ok(_)) if answer.starts_with(wanted) => seen.answers += 1,
                    _ => seen.errors += 1,
                }
                seen.slowest = seen.slowest.max(sent_at.elapsed());
            }
            tokio::time::sleep(INTERVAL).await;
        }
        seen
    }
}
