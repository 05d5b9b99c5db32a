//! A client that knows nothing of HTTP but where an answer ends.

use crate::server::connect;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

pub struct Client {
    stream: TcpStream,
    /// What was read beyond the last answer.
    rest: Vec<u8>,
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// Names in lower case, sorted, without `date`.
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Client {
    pub fn connect(address: SocketAddr) -> Self {
        Self {
            stream: connect(address),
            rest: Vec::new(),
        }
    }

    /// Writes bytes. Whether the server still wants them is seen when its answer is read.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = self.stream.write_all(bytes.as_ref());
    }

    /// Whether something came back already.
    pub fn has_answer(&self) -> bool {
        self.stream.set_nonblocking(true).unwrap();
        let came = self.stream.peek(&mut [0]);
        self.stream.set_nonblocking(false).unwrap();
        came.is_ok()
    }

    /// The next answer.
    pub fn answer(&mut self) -> Answer {
        let head = loop {
            if let Some(end) = self.rest.windows(4).position(|window| window == b"\r\n\r\n") {
                break self.rest.drain(..end + 4).collect::<Vec<u8>>();
            }
            assert!(
                self.more(),
                "the connection ended after {:?}",
                String::from_utf8_lossy(&self.rest)
            );
        };
        let head = String::from_utf8(head).unwrap();
        let mut lines = head.trim_end().split("\r\n");
        let status_line = lines.next().unwrap();
        let status = status_line.split(' ').nth(1).unwrap().parse().unwrap();
        let mut headers: Vec<(String, String)> = lines
            .map(|line| line.split_once(": ").unwrap_or_else(|| panic!("{line}")))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .filter(|(name, _)| name != "date")
            .collect();
        headers.sort();
        for (name, value) in &headers {
            assert!(is_structured(name, value), "{name}: {value}");
        }
        let length = headers.iter().find(|(name, _)| name == "content-length");
        let length: usize = length.map_or(0, |(_, value)| value.parse().unwrap());
        while self.rest.len() < length {
            assert!(self.more(), "the connection ended in the middle of a body");
        }
        let body = String::from_utf8(self.rest.drain(..length).collect()).unwrap();
        Answer { status, headers, body }
    }

    /// Whether the server has ended the connection, without another byte.
    pub fn is_closed(&mut self) -> bool {
        self.rest.is_empty() && !self.more()
    }

    /// Everything until the end of the connection.
    pub fn rest(&mut self) -> String {
        while self.more() {}
        String::from_utf8_lossy(&std::mem::take(&mut self.rest)).into_owned()
    }

    fn more(&mut self) -> bool {
        let mut buffer = [0; 4096];
        let read = loop {
            match self.stream.read(&mut buffer) {
                // A signal, such as that of a child that was stopped.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => break read,
            }
        };
        match read {
            Ok(0) => false,
            Ok(read) => {
                self.rest.extend_from_slice(&buffer[..read]);
                true
            }
            // A server that does not read what is on its way resets the connection.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => false,
            Err(error) => panic!("nothing came: {error}"),
        }
    }

    pub fn post(&mut self, path: &str, body: impl AsRef<[u8]>) -> Answer {
        self.send(post(path, body.as_ref()));
        self.answer()
    }

    /// A check of these attributes, given as the inside of a JSON object.
    pub fn check(&mut self, attributes: &str) -> Answer {
        self.post("/v1/check", format!("{{\"attributes\":{{{attributes}}}}}"))
    }

    pub fn check_cost(&mut self, attributes: &str, cost: u64) -> Answer {
        self.post(
            "/v1/check",
            format!("{{\"attributes\":{{{attributes}}},\"cost\":{cost}}}"),
        )
    }

    pub fn get(&mut self, path: &str) -> Answer {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n"));
        self.answer()
    }
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        let (_, value) = self.headers.iter().find(|(known, _)| known == name)?;
        Some(value)
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

pub fn post(path: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let mut request = format!("POST {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {length}\r\n\r\n").into_bytes();
    request.extend_from_slice(body);
    request
}

/// True if a strict parser of structured fields accepts a rate limit header as the type of its dialect.
pub fn is_structured(name: &str, value: &str) -> bool {
    let parser = sfv::Parser::new(value);
    match name {
        "ratelimit" if value.starts_with("limit=") => parser.parse::<sfv::Dictionary>().is_ok(),
        "ratelimit" | "ratelimit-policy" | "ratelimit-limit" | "x-ratelimit-limit" => {
            parser.parse::<sfv::List>().is_ok()
        }
        _ if name.contains("ratelimit") => parser
            .parse::<sfv::Item>()
            .is_ok_and(|item| item.bare_item.as_integer().is_some()),
        _ => true,
    }
}

#[track_caller]
pub fn assert_starts_with(text: &str, with: &str) {
    assert!(text.starts_with(with), "{text:?} does not start with {with:?}");
}
