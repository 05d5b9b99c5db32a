//! A stream that reports how many bytes arrive.

use super::write_through;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Calls `on_read` with the number of bytes of every read that returned some.
#[derive(Debug)]
pub(in crate::server) struct SensorIo<T, N> {
    stream: T,
    on_read: N,
}

impl<T, N: Fn(usize)> SensorIo<T, N> {
    pub(in crate::server) fn new(stream: T, on_read: N) -> Self {
        Self { stream, on_read }
    }
}

impl<T: AsyncRead + Unpin, N: Fn(usize) + Unpin> AsyncRead for SensorIo<T, N> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { stream, on_read } = self.get_mut();
        let before = buffer.filled().len();
        let polled = Pin::new(stream).poll_read(cx, buffer);
        let bytes = buffer.filled().len() - before;
        if bytes > 0 {
            on_read(bytes);
        }
        polled
    }
}

impl<T: AsyncWrite + Unpin, N: Unpin> AsyncWrite for SensorIo<T, N> {
    write_through!();
}
