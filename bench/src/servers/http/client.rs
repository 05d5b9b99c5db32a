//! HTTP/1.1 requests over keep-alive connections, with one in flight each.

use crate::servers::load::{Client, Requests, open};
use std::io;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The path, and the body of a request for a key.
#[derive(Clone, Copy)]
pub(in crate::servers) struct Checks {
    pub(in crate::servers) path: &'static str,
    pub(in crate::servers) body: fn(u64) -> String,
}

pub(in crate::servers) struct HttpClient {
    stream: TcpStream,
    checks: Checks,
    request: String,
    response: Vec<u8>,
}

impl Requests for Checks {
    type Client = HttpClient;

    async fn connect(&self, address: SocketAddr) -> io::Result<Vec<HttpClient>> {
        Ok(vec![HttpClient {
            stream: open(address).await?,
            checks: *self,
            request: String::new(),
            response: Vec::with_capacity(8 << 10),
        }])
    }
}

impl Client for HttpClient {
    fn prepare(&mut self, keys: &mut impl Iterator<Item = u64>) -> Option<u64> {
        let body = (self.checks.body)(keys.next()?);
        self.request = format!(
            "POST {} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            self.checks.path,
            body.len()
        );
        Some(1)
    }

    async fn exchange(&mut self) -> io::Result<bool> {
        self.stream.write_all(self.request.as_bytes()).await?;
        self.response.clear();
        while !is_whole(&self.response) {
            if self.stream.read_buf(&mut self.response).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(!self.response.starts_with(b"HTTP/1.1 200"))
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
