//! A client of a gateway, which comes from an address of its own.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;
use tokio::net::TcpSocket;
use tokio::runtime::Runtime;

/// What came back.
#[derive(Debug)]
pub(crate) struct GatewayResponse {
    pub(crate) status: u16,
    /// Names in lower case.
    headers: Vec<(String, String)>,
    pub(crate) body: String,
}

/// Sends one request from an address of this machine, 127.0.0.`from`, and reads the answer. None if nobody answers.
/// `headers` are lines, each with its end.
pub(crate) fn send(
    runtime: &Runtime,
    from: u8,
    to: u16,
    line: &str,
    headers: &str,
    body: &str,
) -> Option<GatewayResponse> {
    let stream = runtime.block_on(async {
        let socket = TcpSocket::new_v4()?;
        socket.bind((Ipv4Addr::new(127, 0, 0, from), 0).into())?;
        socket.connect(SocketAddr::from((Ipv4Addr::LOCALHOST, to))).await
    });
    let mut stream = stream.and_then(tokio::net::TcpStream::into_std).ok()?;
    stream.set_nonblocking(false).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(30))).ok()?;
    let length = body.len();
    let close = if headers.to_ascii_lowercase().contains("connection:") {
        ""
    } else {
        "Connection: close\r\n"
    };
    let request =
        format!("{line} HTTP/1.1\r\nHost: shop.example\r\n{close}{headers}Content-Length: {length}\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).ok()?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).ok()?;
    GatewayResponse::read(&String::from_utf8_lossy(&bytes))
}

impl GatewayResponse {
    fn read(text: &str) -> Option<Self> {
        let (head, body) = text.split_once("\r\n\r\n")?;
        let mut lines = head.lines();
        let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let headers: Vec<(String, String)> = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        Some(Self {
            status,
            headers,
            body: body.to_owned(),
        })
    }

    /// The values of a header, joined as several lines of it are.
    pub(crate) fn header(&self, name: &str) -> Option<String> {
        let found: Vec<&str> = self
            .headers
            .iter()
            .filter(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
            .collect();
        (!found.is_empty()).then(|| found.join(", "))
    }
}
