//! A stream that coalesces the writes of one poll.
//!
//! hyper flushes every response before it polls for the next call. Ten calls that arrive together would cause ten `write`
//! system calls, which cost more than everything else. So writes are buffered until the connection has nothing more to do,
//! and then sent at once.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The half that the connection reads and writes.
#[derive(Debug)]
pub(super) struct CoalescedIo<T>(Arc<Mutex<Inner<T>>>);

/// The half that sends the buffer.
#[derive(Debug)]
pub(super) struct CoalescedWriter<T>(Arc<Mutex<Inner<T>>>);

#[derive(Debug)]
struct Inner<T> {
    stream: T,
    /// Written bytes, of which the first `sent` are sent.
    buffer: Vec<u8>,
    sent: usize,
    is_flushed: bool,
}

/// Wraps a stream, and returns it with the half that sends.
pub(super) fn coalesce<T>(stream: T) -> (CoalescedIo<T>, CoalescedWriter<T>) {
    let inner = Arc::new(Mutex::new(Inner {
        stream,
        buffer: Vec::new(),
        sent: 0,
        is_flushed: true,
    }));
    (CoalescedIo(Arc::clone(&inner)), CoalescedWriter(inner))
}

impl<T: AsyncWrite + Unpin> CoalescedWriter<T> {
    /// Polls a connection, and sends what it wrote as far as possible. The task is woken to send the rest.
    pub(super) fn poll<C: Future>(&self, connection: Pin<&mut C>, cx: &mut Context<'_>) -> Poll<C::Output> {
        let polled = connection.poll(cx);
        // The connection sees an error of the stream at its next read or write.
        let _ = lock(&self.0).poll_send(cx);
        polled
    }
}

impl<T: AsyncWrite + Unpin> Inner<T> {
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(rest) = self.buffer.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match ready!(Pin::new(&mut self.stream).poll_write(cx, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                sent => self.sent += sent,
            }
        }
        if !self.is_flushed {
            self.sent = 0;
            self.buffer.clear();
            self.buffer.shrink_to(BUFFER_KEPT);
            ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
            self.is_flushed = true;
        }
        Poll::Ready(Ok(()))
    }

    /// Buffers bytes, unless the buffer is full and cannot be sent now.
    fn poll_buffer(&mut self, cx: &mut Context<'_>, parts: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if self.buffer.len() - self.sent >= BUFFER_MAX {
            ready!(self.poll_send(cx))?;
        }
        let before = self.buffer.len();
        parts.iter().for_each(|part| self.buffer.extend_from_slice(part));
        self.is_flushed = false;
        Poll::Ready(Ok(self.buffer.len() - before))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for CoalescedIo<T> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut lock(&self.0).stream).poll_read(cx, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for CoalescedIo<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        lock(&self.0).poll_buffer(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        lock(&self.0).poll_buffer(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// The buffer is sent at the end of the poll.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut inner = lock(&self.0);
        ready!(inner.poll_send(cx))?;
        Pin::new(&mut inner.stream).poll_shutdown(cx)
    }
}

/// Never contended: the connection and its poller are one task.
fn lock<T>(inner: &Mutex<Inner<T>>) -> MutexGuard<'_, Inner<T>> {
    inner.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The most buffered bytes.
const BUFFER_MAX: usize = 64 << 10;
/// The capacity that an empty buffer keeps.
const BUFFER_KEPT: usize = 4 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn what_is_written_in_one_turn_is_sent_at_its_end() {
        let (mut client, server) = tokio::io::duplex(1 << 20);
        let (mut stream, sender) = coalesce(server);
        let mut turn = Box::pin(async {
            for part in [&b"one "[..], b"two ", b"three"] {
                stream.write_all(part).await.unwrap();
                stream.flush().await.unwrap();
                assert_eq!(lock(&stream.0).sent, 0);
            }
            std::future::pending::<()>().await;
        });
        let mut cx = Context::from_waker(Waker::noop());
        assert!(sender.poll(turn.as_mut(), &mut cx).is_pending());
        let mut received = [0; 13];
        client.read_exact(&mut received).await.unwrap();
        assert_eq!(&received, b"one two three");
    }

    #[tokio::test]
    async fn who_does_not_read_is_not_written_to_without_end() {
        let (mut client, server) = tokio::io::duplex(1 << 10);
        let (mut stream, sender) = coalesce(server);
        let mut cx = Context::from_waker(Waker::noop());
        let mut taken = 0;
        while let Poll::Ready(more) = Pin::new(&mut stream).poll_write(&mut cx, &[7; 8 << 10]) {
            taken += more.unwrap();
            let mut turn = Box::pin(std::future::pending::<()>());
            assert!(sender.poll(turn.as_mut(), &mut cx).is_pending());
        }
        assert!((BUFFER_MAX..BUFFER_MAX + (16 << 10)).contains(&taken), "{taken}");
        // All of it comes, in order, when it is read, and before the stream is shut.
        let reading = tokio::spawn(async move {
            let mut all = Vec::new();
            client.read_to_end(&mut all).await.unwrap();
            all
        });
        stream.shutdown().await.unwrap();
        assert_eq!(reading.await.unwrap(), vec![7; taken]);
    }
}
