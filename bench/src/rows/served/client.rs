//! A client of a server's HTTP and admin APIs: one keep-alive connection that blocks, so that the time of a call is that of the server.

use serde_json::Value;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The token of the measurement, and what the settings have of it.
pub(super) const TOKEN: &str = "tgt_bench_0123456789abcdef0123456789abcdef";
pub(super) const TOKEN_SHA256: &str = "ac7080161b8d978b81357aad999413abcd2ee88c7d641cd288c9ba2c94c73e8a";

/// One connection.
pub(super) struct Client {
    connection: BufReader<TcpStream>,
}

/// A response with its body.
pub(super) struct Response {
    pub(super) status: u16,
    pub(super) body: Vec<u8>,
}

impl Client {
    pub(super) fn connect(address: SocketAddr) -> Result<Self, String> {
        let stream = TcpStream::connect(address).map_err(|error| format!("{address}: {error}"))?;
        let prepared = stream
            .set_nodelay(true)
            .and_then(|()| stream.set_read_timeout(Some(TIMEOUT)));
        prepared.map_err(|error| format!("{address}: {error}"))?;
        Ok(Self {
            connection: BufReader::new(stream),
        })
    }

    /// Sends a request and reads its response.
    pub(super) fn call(&mut self, method: &str, path: &str, headers: &str, body: &[u8]) -> Result<Response, String> {
        let exchanged = self.exchange(method, path, headers, body);
        exchanged.map_err(|error| format!("{method} {path}: {error}"))
    }

    /// The same, which must succeed, with a JSON body.
    pub(super) fn expect(&mut self, method: &str, path: &str, headers: &str, body: &[u8]) -> Result<Value, String> {
        let response = self.call(method, path, headers, body)?;
        match response.status {
            200 | 201 => serde_json::from_slice(&response.body).map_err(|error| format!("{method} {path}: {error}")),
            status => Err(format!(
                "{method} {path}: {status}: {}",
                String::from_utf8_lossy(&response.body)
            )),
        }
    }

    fn exchange(&mut self, method: &str, path: &str, headers: &str, body: &[u8]) -> io::Result<Response> {
        let mut request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {TOKEN}\r\n{headers}content-length: {}\r\n\r\n",
            self.connection.get_ref().peer_addr()?,
            body.len()
        )
        .into_bytes();
        request.extend_from_slice(body);
        self.connection.get_mut().write_all(&request)?;
        let mut line = String::new();
        self.connection.read_line(&mut line)?;
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or(io::ErrorKind::InvalidData)?;
        let mut length = 0;
        loop {
            line.clear();
            if self.connection.read_line(&mut line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let Some((name, value)) = line.split_once(':') else {
                break;
            };
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().map_err(|_| io::ErrorKind::InvalidData)?;
            }
        }
        let mut body = vec![0; length];
        self.connection.read_exact(&mut body)?;
        Ok(Response { status, body })
    }
}

/// More than a request may take.
const TIMEOUT: Duration = Duration::from_secs(120);
