//! Serves one connection of the Redis protocol.
//!
//! Bytes are read into a buffer of the thread, decided and answered in one poll. Only the rest stays with the connection: a
//! part of a command, or replies that the client does not read.

mod handle;

use self::handle::RespHandle;
use super::decode::{Arguments, DecodeError, decode};
use super::execute::{ReplyBatch, run_inline, run_pipelined};
use super::reply_writer::ReplyWriter;
use super::session::Session;
use super::settings::RespSettings;
use super::{FREE_BYTES, RespService};
use crate::server::net::accept::{ConnectionLimits, FrontEnd, Io};
use crate::server::net::idle::{IdleMonitor, IdleTimeouts, ProgressMark, WaitingFor};
use crate::server::net::memory_budget::{Progress, Reservation};
use crate::server::net::tls::Tls;
use crate::server::net::{StageReceiver, serve_connection};
use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

impl FrontEnd for RespService {
    fn limits(&self) -> ConnectionLimits {
        ConnectionLimits {
            connections: self.settings.connections,
            per_address: self.settings.connections_per_address,
            handshake_timeout: self.settings.command_timeout,
            drain: self.settings.drain,
        }
    }

    fn tls(&self) -> Option<&Tls> {
        self.settings.tls.as_deref()
    }

    async fn serve(self: Arc<Self>, stream: impl Io, _: Option<IpAddr>, stage: StageReceiver) {
        let mut monitor = IdleMonitor::new(timeouts(&self.settings), Instant::now());
        let handle = RespHandle::new();
        let served = pin!(RespConnection::new(stream, &self, &handle).serve());
        serve_connection(served, &handle, &mut monitor, self.settings.drain, stage).await;
    }
}

fn timeouts(settings: &RespSettings) -> IdleTimeouts {
    IdleTimeouts {
        first_request: settings.command_timeout,
        request: settings.command_timeout,
        unread: settings.unread_timeout,
        idle: settings.idle_timeout,
        ..IdleTimeouts::NONE
    }
}

/// The outcome of reading and answering.
enum ReadOutcome {
    /// The client is gone, or the connection is to be closed.
    Closed,
    /// Commands have arrived that a store has to decide over the network.
    Execute,
}

/// Buffers of a thread, used by the connection it polls.
struct Scratch {
    input: Box<[u8]>,
    batch: ReplyBatch,
}

/// Bytes per read.
const READ_BYTES: usize = 16 * 1024;
/// Reads per poll; then other connections of the thread are polled.
const ROUNDS: usize = 8;
/// The most bytes of replies a client may leave unread.
const UNREAD_MAX: usize = 256 * 1024;
/// Bytes per read while the memory budget is exhausted: enough for progress, and little enough that a thousand clients that
/// read no replies add only a few MiB.
const SHORT_READ_BYTES: usize = 1024;
/// Bytes a client may still send after its last reply. They are read and dropped: unread bytes at the close would reset the
/// connection, and the client would lose the reply.
const LINGER_BYTES: usize = 256 * 1024;
/// A reply buffer of the thread that grew beyond this is shrunk.
const KEPT_BYTES: usize = 64 * 1024;

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch {
        input: vec![0; READ_BYTES].into_boxed_slice(),
        batch: ReplyBatch::default(),
    });
}

/// One connection and its session.
struct RespConnection<'f, T> {
    stream: T,
    service: &'f RespService,
    handle: &'f RespHandle,
    session: Session,
    /// Bytes of a command that is not complete.
    unparsed: Vec<u8>,
    /// Replies not yet sent, from `sent` on.
    out: Vec<u8>,
    sent: usize,
    reservation: Reservation<'f>,
    /// Bytes that are still read and dropped before the connection closes; none while commands are executed.
    linger: Option<usize>,
    is_shut: bool,
    commands: u64,
    bytes_sent: u64,
}

impl<'f, T: AsyncRead + AsyncWrite + Unpin> RespConnection<'f, T> {
    fn new(stream: T, service: &'f RespService, handle: &'f RespHandle) -> Self {
        Self {
            stream,
            service,
            handle,
            session: Session::new(service.next_connection_id()),
            unparsed: Vec::new(),
            out: Vec::new(),
            sent: 0,
            reservation: service.budget.reservation(),
            linger: None,
            is_shut: false,
            commands: 0,
            bytes_sent: 0,
        }
    }

    /// Serves until the client leaves or is made to.
    async fn serve(mut self) {
        loop {
            let outcome = poll_fn(|cx| {
                let polled = self.poll(cx);
                self.handle.set_progress(self.progress(), !self.out.is_empty());
                polled
            });
            match outcome.await {
                ReadOutcome::Closed => return,
                ReadOutcome::Execute => {
                    self.handle.set_executing();
                    if !self.execute().await {
                        return;
                    }
                }
            }
        }
    }

    /// Receives, answers and sends as far as that is possible now.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ReadOutcome> {
        let is_closing = self.handle.is_closing();
        if is_closing {
            self.linger.get_or_insert(LINGER_BYTES);
        }
        for _ in 0..ROUNDS {
            if let Poll::Ready(Err(_)) = self.poll_send(cx) {
                return Poll::Ready(ReadOutcome::Closed);
            }
            if self.linger.is_some() && self.out.is_empty() {
                // The last reply is sent: no more commands are executed.
                if !self.is_shut {
                    let _ = ready!(Pin::new(&mut self.stream).poll_shutdown(cx));
                    self.is_shut = true;
                }
            } else if is_closing {
                // Commands that were executed are answered before anything else is read.
                return Poll::Pending;
            }
            match ready!(self.poll_receive(cx)) {
                Ok(None) => {}
                Ok(Some(outcome)) => return Poll::Ready(outcome),
                Err(error) => {
                    tracing::debug!(%error, "connection error");
                    return Poll::Ready(ReadOutcome::Closed);
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Sends the replies and shuts the stream down.
    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send(cx))?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(rest) = self.out.get(self.sent..)
            && !rest.is_empty()
        {
            match ready!(Pin::new(&mut self.stream).poll_write(cx, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                bytes => {
                    self.sent += bytes;
                    self.bytes_sent += bytes as u64;
                }
            }
        }
        if !self.out.is_empty() {
            (self.out, self.sent) = (Vec::new(), 0);
            self.update_reservation();
        }
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<ReadOutcome>>> {
        SCRATCH.with_borrow_mut(|Scratch { input, batch }| {
            // Replies of a poll that failed belong to no other connection.
            batch.clear();
            let mut read_max = READ_BYTES;
            if self.service.budget.is_exhausted() && self.linger.is_none() {
                // A client above its free share is read again when there is capacity, or when it is its turn to finish a
                // command; the others are read in smaller steps.
                if self.reservation.exceeds_free() {
                    let progress = if self.out.is_empty() {
                        Progress::Partial
                    } else {
                        Progress::Complete
                    };
                    ready!(self.reservation.poll_capacity(cx, progress));
                }
                read_max = SHORT_READ_BYTES;
            }
            let mut buffer = ReadBuf::new(input.get_mut(..read_max).unwrap_or_default());
            ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer))?;
            let bytes = buffer.filled();
            if bytes.is_empty() {
                // The client sends no more, and may still read.
                return match self.out.is_empty() {
                    true => Poll::Ready(Ok(Some(ReadOutcome::Closed))),
                    false => self.poll_close(cx).map_ok(|()| Some(ReadOutcome::Closed)),
                };
            }
            if let Some(linger) = &mut self.linger {
                *linger = linger.saturating_sub(bytes.len());
                let outcome = (*linger == 0).then_some(ReadOutcome::Closed);
                return Poll::Ready(Ok(outcome));
            }
            self.session.refresh_rights(&self.service.settings);
            let Some(throttle) = self.service.gate.throttles().inline() else {
                self.unparsed.extend_from_slice(bytes);
                if self.has_command() {
                    // Commands in flight do not count as left by the client.
                    self.reservation
                        .resize(self.out.capacity() + self.session.transaction_bytes());
                    return Poll::Ready(Ok(Some(ReadOutcome::Execute)));
                }
                self.update_reservation();
                self.check_unauthenticated_bound()?;
                return Poll::Ready(Ok(None));
            };
            if self.unparsed.is_empty() {
                let end = run_inline(self.service, throttle, &mut self.session, bytes, batch);
                let used = self.finish_commands(end, &mut batch.out);
                self.unparsed.extend_from_slice(bytes.get(used..).unwrap_or_default());
            } else {
                self.unparsed.extend_from_slice(bytes);
                let end = run_inline(self.service, throttle, &mut self.session, &self.unparsed, batch);
                let used = self.finish_commands(end, &mut batch.out);
                self.consume(used);
            }
            let sent = self.send(&batch.out, cx);
            batch.out.shrink_to(KEPT_BYTES);
            sent?;
            self.update_reservation();
            self.check_unauthenticated_bound()?;
            Poll::Ready(Ok(None))
        })
    }

    /// Counts the commands, closes after the last one, and returns the bytes that are used up.
    fn finish_commands(&mut self, decoded: Result<usize, DecodeError>, out: &mut Vec<u8>) -> usize {
        self.commands += u64::from(decoded != Ok(0));
        let is_authenticated = self.session.is_authenticated();
        match decoded {
            Ok(used) if !self.session.is_closing => return used,
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(%error, is_authenticated, "protocol error; closing connection");
                ReplyWriter(out).error(&format!("ERR Protocol error: {error}"));
            }
        }
        self.linger = Some(LINGER_BYTES);
        usize::MAX
    }

    /// Reserves the memory the client makes us keep.
    fn update_reservation(&mut self) {
        let queued = self.session.transaction_bytes();
        self.reservation
            .resize(self.unparsed.capacity() + self.out.capacity() + queued);
    }

    /// Fails if an unauthenticated client keeps more than its free share: it takes no memory from authenticated ones.
    fn check_unauthenticated_bound(&self) -> io::Result<()> {
        let left = self.unparsed.len() + self.out.len() - self.sent;
        match self.session.is_authenticated() || left <= FREE_BYTES {
            true => Ok(()),
            false => Err(io::Error::other(
                "an unauthenticated client leaves too many bytes buffered",
            )),
        }
    }

    /// Drops the first `used` bytes of what is buffered.
    fn consume(&mut self, used: usize) {
        if used >= self.unparsed.len() {
            self.unparsed = Vec::new();
        } else {
            self.unparsed = self.unparsed.split_off(used);
        }
    }

    /// Sends replies, and queues those that the client does not take now.
    fn send(&mut self, mut replies: &[u8], cx: &mut Context<'_>) -> io::Result<()> {
        while self.out.is_empty() && !replies.is_empty() {
            match Pin::new(&mut self.stream).poll_write(cx, replies)? {
                Poll::Ready(0) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(bytes) => replies = replies.get(bytes..).unwrap_or_default(),
                Poll::Pending => break,
            }
        }
        self.queue_replies(replies)
    }

    fn queue_replies(&mut self, replies: &[u8]) -> io::Result<()> {
        if replies.is_empty() {
            return Ok(());
        }
        // A client that reads as fast as it sends never empties the buffer, so the sent part is dropped in between.
        if self.sent > self.out.len() / 2 {
            self.out.drain(..self.sent);
            self.sent = 0;
        }
        self.out.extend_from_slice(replies);
        match self.out.len() - self.sent > UNREAD_MAX {
            false => Ok(()),
            true => Err(io::Error::other("the client leaves too many replies unread")),
        }
    }

    /// True if a complete command is buffered, or bytes that can be none.
    fn has_command(&self) -> bool {
        !matches!(decode(&self.unparsed, &mut Arguments::new()), Ok(None))
    }

    /// Executes the buffered commands by a store on the network. Their replies are sent in the next poll. False if they
    /// are too many.
    async fn execute(&mut self) -> bool {
        let unparsed = std::mem::take(&mut self.unparsed);
        let (mut replies, end) = run_pipelined(self.service, &mut self.session, &unparsed).await;
        let used = self.finish_commands(end, &mut replies);
        self.unparsed = unparsed;
        self.consume(used);
        let kept = self.queue_replies(&replies);
        self.update_reservation();
        kept.and_then(|()| self.check_unauthenticated_bound())
            .inspect_err(|error| tracing::debug!(%error, "connection error"))
            .is_ok()
    }

    fn progress(&self) -> ProgressMark {
        if self.service.settings.requires_auth() && !self.session.is_authenticated() {
            // Whatever else it sends is no progress.
            return ProgressMark {
                waiting_for: WaitingFor::Authentication,
                progress: 0,
            };
        }
        if self.out.is_empty() && self.session.transaction_bytes() > FREE_BYTES {
            // A transaction of more than the free bytes is one request: another queued command is no progress.
            return ProgressMark {
                waiting_for: WaitingFor::RestOfRequest,
                progress: self.session.transactions(),
            };
        }
        let (waiting_for, progress) = match (self.out.is_empty(), self.unparsed.is_empty() && self.linger.is_none()) {
            (false, _) => (WaitingFor::ClientRead, self.bytes_sent),
            (true, false) => (WaitingFor::RestOfRequest, self.commands),
            (true, true) => (WaitingFor::NextRequest, self.commands),
        };
        ProgressMark { waiting_for, progress }
    }
}
