//! A stream whose bytes are heard by whoever watches it, and into which bytes can be handed back.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Tells `note` how many bytes came, each time that some do.
#[derive(Debug)]
pub(in crate::server) struct SensorIo<T, N> {
    stream: T,
    on_read: N,
    /// What was read and is to be read again.
    prefix: Vec<u8>,
}

impl<T, N: Fn(usize)> SensorIo<T, N> {
    pub(in crate::server) fn new(stream: T, on_read: N) -> Self {
        Self {
            stream,
            on_read,
            prefix: Vec::new(),
        }
    }

    /// Lets these bytes be read before all others.
    pub(in crate::server) fn push_back(&mut self, bytes: Vec<u8>) {
        self.prefix = bytes;
    }
}

impl<T: AsyncRead + Unpin, N: Fn(usize) + Unpin> AsyncRead for SensorIo<T, N> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self {
            stream,
            on_read: note,
            prefix: again,
        } = self.get_mut();
        if !again.is_empty() {
            let (head, rest) = again.split_at(again.len().min(buffer.remaining()));
            buffer.put_slice(head);
            *again = rest.to_vec();
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        let read = Pin::new(stream).poll_read(cx, buffer);
        let read_bytes = buffer.filled().len() - before;
        if read_bytes > 0 {
            note(read_bytes);
        }
        read
    }
}

impl<T: AsyncWrite + Unpin, N: Unpin> AsyncWrite for SensorIo<T, N> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
