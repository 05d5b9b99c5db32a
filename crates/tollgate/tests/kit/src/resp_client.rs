//! A client that writes and reads bytes.

use crate::server::connect;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

pub struct Client {
    pub stream: TcpStream,
}

impl Client {
    pub fn connect(address: SocketAddr) -> Self {
        Self {
            stream: connect(address),
        }
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).unwrap();
    }

    /// Sends a line, and reads as many bytes as are expected.
    #[track_caller]
    pub fn expect(&mut self, line: &str, expected: &str) {
        self.send(format!("{line}\r\n"));
        assert_eq!(self.read(expected.len()), expected, "{line}");
    }

    /// Sends a line, and reads the line of the reply.
    pub fn request(&mut self, line: &str) -> String {
        self.send(format!("{line}\r\n"));
        self.line()
    }

    pub fn read(&mut self, length: usize) -> String {
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    pub fn line(&mut self) -> String {
        let mut line = String::new();
        while !line.ends_with("\r\n") {
            line.push_str(&self.read(1));
        }
        line.truncate(line.len() - 2);
        line
    }

    /// A reply of integers, as an array of five or six with a name.
    pub fn integers(&mut self) -> Vec<i64> {
        let head = self.line();
        let Some(count) = head.strip_prefix('*') else {
            panic!("no array: {head}")
        };
        let numbers = (0..count.parse().unwrap()).map(|_| {
            let line = self.line();
            line.strip_prefix(':')
                .unwrap_or_else(|| panic!("no integer: {line}"))
                .parse()
                .unwrap()
        });
        numbers.collect()
    }

    /// All that comes until the server hangs up.
    pub fn rest(&mut self) -> String {
        let mut bytes = Vec::new();
        let mut part = [0; 4096];
        loop {
            match self.stream.read(&mut part) {
                Ok(0) => break,
                Ok(length) => bytes.extend(&part[..length]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
                Err(error) => panic!("{error}"),
            }
        }
        String::from_utf8(bytes).unwrap()
    }
}

/// A command as clients send it.
pub fn command(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n{word}\r\n", word.len()).bytes());
    }
    bytes
}
