//! A stream into which bytes that were read can be put back.

use super::write_through;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Returns the bytes of [`PrefixedIo::push_back`] before it reads from the stream again.
#[derive(Debug)]
pub(in crate::server) struct PrefixedIo<T> {
    stream: T,
    prefix: Vec<u8>,
}

impl<T> PrefixedIo<T> {
    pub(in crate::server) fn new(stream: T) -> Self {
        Self {
            stream,
            prefix: Vec::new(),
        }
    }

    /// Lets these bytes be read before all others.
    pub(in crate::server) fn push_back(&mut self, bytes: Vec<u8>) {
        self.prefix = bytes;
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for PrefixedIo<T> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { stream, prefix } = self.get_mut();
        if prefix.is_empty() {
            return Pin::new(stream).poll_read(cx, buffer);
        }
        let (head, rest) = prefix.split_at(prefix.len().min(buffer.remaining()));
        buffer.put_slice(head);
        *prefix = rest.to_vec();
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for PrefixedIo<T> {
    write_through!();
}
