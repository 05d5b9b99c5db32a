//! One connection, from accepting to its end.
//!
//! What arrives is read into memory of the thread, decided and answered in one go; only what is left over, half a command
//! or replies that the client does not read, is kept with the connection.

use super::decode::{Arguments, DecodeError, decode};
use super::execute::{ReplyBatch, run_inline, run_pipelined};
use super::reply_writer::ReplyWriter;
use super::session::Session;
use super::watch::{IdleMonitor, ProgressMark, WaitingFor};
use super::{FREE_BYTES, RespService};
use crate::server::net::accept::{ShutdownStage, Wakeup, Wakeups, idle_grace, tls_handshake};
use crate::server::net::listen::Stream;
use crate::server::net::memory_budget::{Progress, Reservation};
use crate::server::store::AnyThrottle;
use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// Serves one connection until its client, its time or the server ends it.
pub(super) async fn serve(stream: Stream, service: Arc<RespService>, stage: watch::Receiver<ShutdownStage>) {
    let settings = &service.settings;
    match &settings.tls {
        None => serve_connection(stream, &service, stage).await,
        Some(tls) => {
            let within = settings.command_timeout;
            // Apart: what TLS needs would be kept for connections without it, too.
            let handshake = Box::pin(tls_handshake(stream, tls, within, stage.clone()));
            if let Some(stream) = handshake.await {
                Box::pin(serve_connection(stream, &service, stage)).await;
            }
        }
    }
}

/// What reading and answering came to.
enum ReadOutcome {
    /// The client is gone, or is let go.
    Closed,
    /// Commands wait for a store that is asked over a network.
    Execute,
}

async fn serve_connection<T>(stream: T, service: &RespService, stage: watch::Receiver<ShutdownStage>)
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let mut connection = RespConnection::new(stream, service);
    let mut monitor = IdleMonitor::new(&service.settings, Instant::now());
    let mut idle_timer = pin!(sleep(monitor.check_interval()));
    let (mut changing, mut aborting) = (stage.clone(), stage.clone());
    let mut changed = pin!(changing.changed());
    let mut wakeups = Wakeups::new();
    loop {
        let wakeup = poll_fn(|cx| {
            let polled = connection.poll(cx);
            wakeups.poll(cx, polled, idle_timer.as_mut(), changed.as_mut(), &stage)
        });
        match wakeup.await {
            Wakeup::Ready(ReadOutcome::Closed) => return,
            Wakeup::Ready(ReadOutcome::Execute) => tokio::select! {
                may_proceed = connection.execute() => if !may_proceed {
                    return;
                },
                _ = aborting.wait_for(|stage| *stage == ShutdownStage::Aborting) => return,
            },
            Wakeup::IdleCheck => {
                let now = Instant::now();
                if monitor.is_expired(connection.progress_mark(), &service.settings, now) {
                    tracing::debug!("closing idle or slow connection");
                    return;
                }
                idle_timer.as_mut().reset(now + monitor.check_interval());
                wakeups.idle_check = true;
            }
            Wakeup::StageChanged => break,
        }
    }
    tokio::select! {
        () = drain_connection(&mut connection, service) => {}
        _ = aborting.wait_for(|stage| *stage == ShutdownStage::Aborting) => {}
    }
}

/// Goes on for a moment while the server stops, because commands may be under way already; then sends what was answered and
/// hangs up.
async fn drain_connection<T: AsyncRead + AsyncWrite + Unpin>(
    connection: &mut RespConnection<'_, T>,
    service: &RespService,
) {
    let until = Instant::now() + idle_grace(service.settings.drain);
    while let Ok(outcome) = timeout_at(until, poll_fn(|cx| connection.poll(cx))).await {
        // What has come is decided and answered, however long the store takes: some of it may be charged already.
        if matches!(outcome, ReadOutcome::Closed) || !connection.execute().await {
            return;
        }
        if Instant::now() >= until {
            break;
        }
    }
    let _ = poll_fn(|cx| connection.poll_close(cx)).await;
    // If what still comes were not read, the system would take back what was just sent.
    let _ = timeout(LINGER, poll_fn(|cx| connection.poll_discard(cx))).await;
}

/// What a thread needs while it answers, whichever connection's turn it is.
struct Scratch {
    input: Box<[u8]>,
    batch: ReplyBatch,
}

/// How much is read at a time.
const READ_BYTES: usize = 16 * 1024;
/// How often a connection reads before others get their turn.
const ROUNDS: usize = 8;
/// The most replies that a client leaves unread.
const UNREAD_MAX: usize = 256 * 1024;
/// How much is read at a time when clients leave as much with the server as they may: little enough that a thousand who read no
/// replies leave a few MiB more, and enough to go on.
const SHORT_READ_BYTES: usize = 1024;
/// How much a client may still send after a reply that says why it is not listened to any more: if nobody read it, it would
/// not get the reply.
const LINGER_BYTES: usize = 256 * 1024;
/// How long that is waited for when the server stops.
const LINGER: Duration = Duration::from_millis(100);
/// A buffer that grew larger than this is not kept.
const KEPT_BYTES: usize = 64 * 1024;

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch {
        input: vec![0; READ_BYTES].into_boxed_slice(),
        batch: ReplyBatch::default(),
    });
}

/// A conversation.
struct RespConnection<'f, T> {
    stream: T,
    service: &'f RespService,
    session: Session,
    /// Received and not yet a whole command.
    unparsed: Vec<u8>,
    /// Replies not yet sent, from `sent` on.
    out: Vec<u8>,
    sent: usize,
    reservation: Reservation<'f>,
    /// How much may still be received before it is hung up; nothing while commands are heard.
    linger: Option<usize>,
    is_shut: bool,
    commands: u64,
    bytes_sent: u64,
}

impl<'f, T: AsyncRead + AsyncWrite + Unpin> RespConnection<'f, T> {
    fn new(stream: T, service: &'f RespService) -> Self {
        Self {
            stream,
            service,
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

    /// Receives, answers and sends as long as that goes on.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ReadOutcome> {
        for _ in 0..ROUNDS {
            if let Poll::Ready(Err(_)) = self.poll_send(cx) {
                return Poll::Ready(ReadOutcome::Closed);
            }
            if self.linger.is_some() && self.out.is_empty() {
                // Whoever said goodbye, or something that is no command, is told so and heard no more.
                if !self.is_shut {
                    let _ = ready!(Pin::new(&mut self.stream).poll_shutdown(cx));
                    self.is_shut = true;
                }
            }
            match ready!(self.poll_receive(cx)) {
                Ok(None) => {}
                Ok(Some(turn)) => return Poll::Ready(turn),
                Err(error) => {
                    tracing::debug!(%error, "a connection ended");
                    return Poll::Ready(ReadOutcome::Closed);
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Sends what was answered, hears no more, and comes to an end.
    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send(cx))?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    /// Reads what still comes, for nothing.
    fn poll_discard(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut left = LINGER_BYTES;
        SCRATCH.with_borrow_mut(|Scratch { input, .. }| {
            while left > 0 {
                let mut buffer = ReadBuf::new(input);
                match ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer)) {
                    Ok(()) if !buffer.filled().is_empty() => left = left.saturating_sub(buffer.filled().len()),
                    Ok(()) | Err(_) => break,
                }
            }
            Poll::Ready(())
        })
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
        SCRATCH.with_borrow_mut(|Scratch { input, batch: desk }| {
            // Whatever ended a turn before its replies were sent: they are nobody else's.
            desk.clear();
            let mut read_max = READ_BYTES;
            if self.service.budget.is_exhausted() && self.linger.is_none() {
                // Who leaves much with us is heard again when there is room, or when it is its turn to finish a command; the others
                // go on, in smaller steps.
                if self.reservation.exceeds_free() {
                    let half = if self.out.is_empty() {
                        Progress::Partial
                    } else {
                        Progress::Complete
                    };
                    ready!(self.reservation.poll_capacity(cx, half));
                }
                read_max = SHORT_READ_BYTES;
            }
            let mut buffer = ReadBuf::new(input.get_mut(..read_max).unwrap_or_default());
            ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer))?;
            let bytes = buffer.filled();
            if bytes.is_empty() {
                // Nobody sends any more; what was answered may still be read.
                return match self.out.is_empty() {
                    true => Poll::Ready(Ok(Some(ReadOutcome::Closed))),
                    false => self.poll_close(cx).map_ok(|()| Some(ReadOutcome::Closed)),
                };
            }
            if let Some(linger) = &mut self.linger {
                *linger = linger.saturating_sub(bytes.len());
                let turn = (*linger == 0).then_some(ReadOutcome::Closed);
                return Poll::Ready(Ok(turn));
            }
            self.session.refresh_rights(&self.service.settings);
            let AnyThrottle::Memory(throttles) = self.service.gate.throttles() else {
                self.unparsed.extend_from_slice(bytes);
                if self.has_command() {
                    // What is being decided is nothing that the client leaves with us.
                    self.reservation.resize(self.out.capacity());
                    return Poll::Ready(Ok(Some(ReadOutcome::Execute)));
                }
                self.update_reservation();
                self.check_unauthenticated_bound()?;
                return Poll::Ready(Ok(None));
            };
            if self.unparsed.is_empty() {
                let end = run_inline(self.service, throttles, &mut self.session, bytes, desk);
                let used = self.finish_commands(end, &mut desk.out);
                self.unparsed.extend_from_slice(bytes.get(used..).unwrap_or_default());
            } else {
                self.unparsed.extend_from_slice(bytes);
                let end = run_inline(self.service, throttles, &mut self.session, &self.unparsed, desk);
                let used = self.finish_commands(end, &mut desk.out);
                self.consume(used);
            }
            let sent = self.send(&desk.out, cx);
            desk.out.shrink_to(KEPT_BYTES);
            sent?;
            self.update_reservation();
            self.check_unauthenticated_bound()?;
            Poll::Ready(Ok(None))
        })
    }

    /// What follows from the last command that was heard: how many bytes are done with.
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

    /// Notes what the client leaves with us.
    fn update_reservation(&mut self) {
        self.reservation.resize(self.unparsed.capacity() + self.out.capacity());
    }

    /// Whether a client that has not shown who it is leaves no more than what is free, now that what is whole is answered: it
    /// takes no room from those who have.
    fn check_unauthenticated_bound(&self) -> io::Result<()> {
        let left = self.unparsed.len() + self.out.len() - self.sent;
        match self.session.is_authenticated() || left <= FREE_BYTES {
            true => Ok(()),
            false => Err(io::Error::other(
                "a client that nobody knows leaves too much with the server",
            )),
        }
    }

    /// Done with the first `used` bytes of what is held.
    fn consume(&mut self, used: usize) {
        if used >= self.unparsed.len() {
            self.unparsed = Vec::new();
        } else {
            self.unparsed = self.unparsed.split_off(used);
        }
    }

    /// Sends replies; those that do not go are kept.
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
        // Who reads as slowly as it sends never reads all, and what it has read would pile up.
        if self.sent > self.out.len() / 2 {
            self.out.drain(..self.sent);
            self.sent = 0;
        }
        self.out.extend_from_slice(replies);
        match self.out.len() - self.sent > UNREAD_MAX {
            false => Ok(()),
            true => Err(io::Error::other("a client leaves too many replies unread")),
        }
    }

    /// Whether there is something to answer in what is held.
    fn has_command(&self) -> bool {
        !matches!(decode(&self.unparsed, &mut Arguments::new()), Ok(None))
    }

    /// Answers what is held, by a store that is asked over a network. The replies are sent in the next turn. False if they
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
            .inspect_err(|error| tracing::debug!(%error, "a connection ended"))
            .is_ok()
    }

    fn progress_mark(&self) -> ProgressMark {
        if self.service.settings.requires_auth() && !self.session.is_authenticated() {
            // Whatever it says: what it is to say is who it is.
            return ProgressMark {
                waiting_for: WaitingFor::Authentication,
                progress: 0,
            };
        }
        let (waiting_for, progress) = match (self.out.is_empty(), self.unparsed.is_empty() && self.linger.is_none()) {
            (false, _) => (WaitingFor::ClientRead, self.bytes_sent),
            (true, false) => (WaitingFor::RestOfCommand, self.commands),
            (true, true) => (WaitingFor::NextCommand, self.commands),
        };
        ProgressMark { waiting_for, progress }
    }
}
