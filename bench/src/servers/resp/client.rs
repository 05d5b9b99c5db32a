//! Commands of the Redis protocol, with one pipelined write in flight on each connection.

use crate::servers::load::{Client, Requests, open};
use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The commands of one write.
#[derive(Clone)]
pub(in crate::servers) struct Commands {
    /// One command, with a placeholder for the key.
    command: Vec<u8>,
    /// The offset of the digits of its key, if it has one.
    digits: Option<usize>,
    /// The number of lines of its reply.
    reply_lines: usize,
    pub(super) pipeline: usize,
}

pub(in crate::servers) struct RespClient {
    stream: TcpStream,
    commands: Commands,
    request: Vec<u8>,
    replies: Vec<u8>,
}

/// The placeholder for the key.
pub(super) const KEY: &str = "user:0000000000000000";

/// Digits of a key.
const DIGITS: usize = 16;

impl Commands {
    pub(super) fn new(words: &[&str], reply_lines: usize, pipeline: usize) -> Self {
        let mut command = format!("*{}\r\n", words.len());
        for word in words {
            let _ = write!(command, "${}\r\n{word}\r\n", word.len());
        }
        Self {
            digits: command.find(KEY).map(|index| index + KEY.len() - DIGITS),
            command: command.into_bytes(),
            reply_lines,
            pipeline,
        }
    }

    pub(super) fn with_pipeline(&self, pipeline: usize) -> Self {
        Self {
            pipeline,
            ..self.clone()
        }
    }
}

impl Requests for Commands {
    type Client = RespClient;

    async fn connect(&self, address: SocketAddr) -> io::Result<Vec<RespClient>> {
        Ok(vec![RespClient {
            stream: open(address).await?,
            commands: self.clone(),
            request: self.command.repeat(self.pipeline),
            replies: Vec::with_capacity(64 << 10),
        }])
    }
}

impl Client for RespClient {
    fn prepare(&mut self, keys: &mut impl Iterator<Item = u64>) -> Option<u64> {
        let Commands {
            command,
            digits,
            pipeline,
            ..
        } = &self.commands;
        if let Some(digits) = digits {
            for command in self.request.chunks_exact_mut(command.len()) {
                let mut rest = keys.next()?;
                let digits = command.get_mut(*digits..*digits + DIGITS);
                for digit in digits.into_iter().flatten().rev() {
                    *digit = b'0' + (rest % 10) as u8;
                    rest /= 10;
                }
            }
        }
        Some(*pipeline as u64)
    }

    async fn exchange(&mut self) -> io::Result<bool> {
        self.stream.write_all(&self.request).await?;
        self.replies.clear();
        let mut lines = self.commands.reply_lines * self.commands.pipeline;
        while lines > 0 {
            let before = self.replies.len();
            if self.stream.read_buf(&mut self.replies).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let more = self.replies.get(before..).unwrap_or_default();
            lines = lines.saturating_sub(more.iter().filter(|byte| **byte == b'\n').count());
        }
        Ok(self.replies.first() == Some(&b'-'))
    }
}
