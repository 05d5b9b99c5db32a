//! A stream whose bytes are heard by whoever watches it, and into which bytes can be handed back.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Tells `note` how many bytes came, each time that some do.
#[derive(Debug)]
pub(super) struct Heard<T, N> {
    stream: T,
    note: N,
    /// What was read and is to be read again.
    again: Vec<u8>,
}

impl<T, N: Fn(usize)> Heard<T, N> {
    pub(super) fn new(stream: T, note: N) -> Self {
        Self {
            stream,
            note,
            again: Vec::new(),
        }
    }

    /// Lets these bytes be read before all others.
    pub(super) fn hand_back(&mut self, bytes: Vec<u8>) {
        self.again = bytes;
    }
}

impl<T: AsyncRead + Unpin, N: Fn(usize) + Unpin> AsyncRead for Heard<T, N> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { stream, note, again } = self.get_mut();
        if !again.is_empty() {
            let (now, later) = again.split_at(again.len().min(buffer.remaining()));
            buffer.put_slice(now);
            *again = later.to_vec();
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        let read = Pin::new(stream).poll_read(cx, buffer);
        let came = buffer.filled().len() - before;
        if came > 0 {
            note(came);
        }
        read
    }
}

impl<T: AsyncWrite + Unpin, N: Unpin> AsyncWrite for Heard<T, N> {
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
