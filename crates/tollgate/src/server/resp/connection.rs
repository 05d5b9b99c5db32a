//! One connection, from accepting to its end.
//!
//! What arrives is read into memory of the thread, decided and answered in one go; only what is left over, half a command
//! or replies that the client does not read, is kept with the connection.

use super::answers::{Desk, at_once, together};
use super::decode::{Arguments, Fault, decode};
use super::session::Session;
use super::watch::{Seen, Waits, Watch};
use super::write::Replies;
use super::{FREE, Front};
use crate::server::accept::{Wakeups, ShutdownStage, Wakeup, idle_grace, tls_handshake};
use crate::server::listen::Stream;
use crate::server::room::{Progress, Reservation};
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
pub(super) async fn serve(stream: Stream, front: Arc<Front>, stage: watch::Receiver<ShutdownStage>) {
    let settings = &front.settings;
    match &settings.tls {
        None => converse(stream, &front, stage).await,
        Some(tls) => {
            let within = settings.command_timeout;
            // Apart: what TLS needs would be kept for connections without it, too.
            let shaken = Box::pin(tls_handshake(stream, tls, within, stage.clone()));
            if let Some(stream) = shaken.await {
                Box::pin(converse(stream, &front, stage)).await;
            }
        }
    }
}

/// What reading and answering came to.
enum Came {
    /// The client is gone, or is let go.
    Ended,
    /// Commands wait for a store that is asked over a network.
    Decide,
}

async fn converse<T>(stream: T, front: &Front, stage: watch::Receiver<ShutdownStage>)
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let mut talk = Talk::new(stream, front);
    let mut watch = Watch::new(&front.settings, Instant::now());
    let mut look = pin!(sleep(watch.every()));
    let (mut changing, mut cutting) = (stage.clone(), stage.clone());
    let mut changed = pin!(changing.changed());
    let mut awaited = Wakeups::new();
    loop {
        let turn = poll_fn(|cx| {
            let talk = talk.poll(cx);
            awaited.poll(cx, talk, look.as_mut(), changed.as_mut(), &stage)
        });
        match turn.await {
            Wakeup::Ready(Came::Ended) => return,
            Wakeup::Ready(Came::Decide) => tokio::select! {
                goes_on = talk.decide() => if !goes_on {
                    return;
                },
                _ = cutting.wait_for(|stage| *stage == ShutdownStage::Aborting) => return,
            },
            Wakeup::IdleCheck => {
                let now = Instant::now();
                if watch.is_over(talk.seen(), &front.settings, now) {
                    tracing::debug!("a client was cut off: it was too slow, or silent for too long");
                    return;
                }
                look.as_mut().reset(now + watch.every());
                awaited.idle_check = true;
            }
            Wakeup::StageChanged => break,
        }
    }
    tokio::select! {
        () = part(&mut talk, front) => {}
        _ = cutting.wait_for(|stage| *stage == ShutdownStage::Aborting) => {}
    }
}

/// Goes on for a moment while the server stops, because commands may be under way already; then sends what was answered and
/// hangs up.
async fn part<T: AsyncRead + AsyncWrite + Unpin>(talk: &mut Talk<'_, T>, front: &Front) {
    let until = Instant::now() + idle_grace(front.settings.drain);
    while let Ok(came) = timeout_at(until, poll_fn(|cx| talk.poll(cx))).await {
        // What has come is decided and answered, however long the store takes: some of it may be charged already.
        if matches!(came, Came::Ended) || !talk.decide().await {
            return;
        }
        if Instant::now() >= until {
            break;
        }
    }
    let _ = poll_fn(|cx| talk.poll_close(cx)).await;
    // If what still comes were not read, the system would take back what was just sent.
    let _ = timeout(LINGER, poll_fn(|cx| talk.poll_ignore(cx))).await;
}

/// What a thread needs while it answers, whichever connection's turn it is.
struct Scratch {
    input: Box<[u8]>,
    desk: Desk,
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
        desk: Desk::default(),
    });
}

/// A conversation.
struct Talk<'f, T> {
    stream: T,
    front: &'f Front,
    session: Session,
    /// Received and not yet a whole command.
    held: Vec<u8>,
    /// Replies not yet sent, from `sent` on.
    out: Vec<u8>,
    sent: usize,
    share: Reservation<'f>,
    /// How much may still be received before it is hung up; nothing while commands are heard.
    linger: Option<usize>,
    is_shut: bool,
    commands: u64,
    bytes_sent: u64,
}

impl<'f, T: AsyncRead + AsyncWrite + Unpin> Talk<'f, T> {
    fn new(stream: T, front: &'f Front) -> Self {
        Self {
            stream,
            front,
            session: Session::new(front.number()),
            held: Vec::new(),
            out: Vec::new(),
            sent: 0,
            share: front.room.reservation(),
            linger: None,
            is_shut: false,
            commands: 0,
            bytes_sent: 0,
        }
    }

    /// Receives, answers and sends as long as that goes on.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Came> {
        for _ in 0..ROUNDS {
            if let Poll::Ready(Err(_)) = self.poll_send(cx) {
                return Poll::Ready(Came::Ended);
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
                    return Poll::Ready(Came::Ended);
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
    fn poll_ignore(&mut self, cx: &mut Context<'_>) -> Poll<()> {
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
            self.count();
        }
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Came>>> {
        SCRATCH.with_borrow_mut(|Scratch { input, desk }| {
            // Whatever ended a turn before its replies were sent: they are nobody else's.
            desk.clear();
            let mut most = READ_BYTES;
            if self.front.room.is_exhausted() && self.linger.is_none() {
                // Who leaves much with us is heard again when there is room, or when it is its turn to finish a command; the others
                // go on, in smaller steps.
                if self.share.exceeds_free() {
                    let half = if self.out.is_empty() { Progress::Partial } else { Progress::Complete };
                    ready!(self.share.poll_capacity(cx, half));
                }
                most = SHORT_READ_BYTES;
            }
            let mut buffer = ReadBuf::new(input.get_mut(..most).unwrap_or_default());
            ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer))?;
            let bytes = buffer.filled();
            if bytes.is_empty() {
                // Nobody sends any more; what was answered may still be read.
                return match self.out.is_empty() {
                    true => Poll::Ready(Ok(Some(Came::Ended))),
                    false => self.poll_close(cx).map_ok(|()| Some(Came::Ended)),
                };
            }
            if let Some(linger) = &mut self.linger {
                *linger = linger.saturating_sub(bytes.len());
                let turn = (*linger == 0).then_some(Came::Ended);
                return Poll::Ready(Ok(turn));
            }
            self.session.look_up(&self.front.settings);
            let AnyThrottle::Memory(throttles) = self.front.gate.throttles() else {
                self.held.extend_from_slice(bytes);
                if self.is_whole() {
                    // What is being decided is nothing that the client leaves with us.
                    self.share.resize(self.out.capacity());
                    return Poll::Ready(Ok(Some(Came::Decide)));
                }
                self.count();
                self.is_bounded()?;
                return Poll::Ready(Ok(None));
            };
            if self.held.is_empty() {
                let end = at_once(self.front, throttles, &mut self.session, bytes, desk);
                let used = self.end(end, &mut desk.out);
                self.held.extend_from_slice(bytes.get(used..).unwrap_or_default());
            } else {
                self.held.extend_from_slice(bytes);
                let end = at_once(self.front, throttles, &mut self.session, &self.held, desk);
                let used = self.end(end, &mut desk.out);
                self.release(used);
            }
            let sent = self.send(&desk.out, cx);
            desk.out.shrink_to(KEPT_BYTES);
            sent?;
            self.count();
            self.is_bounded()?;
            Poll::Ready(Ok(None))
        })
    }

    /// What follows from the last command that was heard: how many bytes are done with.
    fn end(&mut self, end: Result<usize, Fault>, out: &mut Vec<u8>) -> usize {
        self.commands += u64::from(end != Ok(0));
        let is_known = self.session.is_known();
        match end {
            Ok(used) if !self.session.is_leaving => return used,
            Ok(_) => {}
            Err(fault) => {
                tracing::debug!(%fault, is_known, "a client sent what is no command");
                Replies(out).error(&format!("ERR Protocol error: {fault}"));
            }
        }
        self.linger = Some(LINGER_BYTES);
        usize::MAX
    }

    /// Notes what the client leaves with us.
    fn count(&mut self) {
        self.share.resize(self.held.capacity() + self.out.capacity());
    }

    /// Whether a client that has not shown who it is leaves no more than what is free, now that what is whole is answered: it
    /// takes no room from those who have.
    fn is_bounded(&self) -> io::Result<()> {
        let left = self.held.len() + self.out.len() - self.sent;
        match self.session.is_known() || left <= FREE {
            true => Ok(()),
            false => Err(io::Error::other(
                "a client that nobody knows leaves too much with the server",
            )),
        }
    }

    /// Done with the first `used` bytes of what is held.
    fn release(&mut self, used: usize) {
        if used >= self.held.len() {
            self.held = Vec::new();
        } else {
            self.held = self.held.split_off(used);
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
        self.keep(replies)
    }

    fn keep(&mut self, replies: &[u8]) -> io::Result<()> {
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
    fn is_whole(&self) -> bool {
        !matches!(decode(&self.held, &mut Arguments::new()), Ok(None))
    }

    /// Answers what is held, by a store that is asked over a network. The replies are sent in the next turn. False if they
    /// are too many.
    async fn decide(&mut self) -> bool {
        let held = std::mem::take(&mut self.held);
        let (mut replies, end) = together(self.front, &mut self.session, &held).await;
        let used = self.end(end, &mut replies);
        self.held = held;
        self.release(used);
        let kept = self.keep(&replies);
        self.count();
        kept.and_then(|()| self.is_bounded())
            .inspect_err(|error| tracing::debug!(%error, "a connection ended"))
            .is_ok()
    }

    fn seen(&self) -> Seen {
        if self.front.settings.asks() && !self.session.is_known() {
            // Whatever it says: what it is to say is who it is.
            return Seen {
                waits: Waits::Unknown,
                moved: 0,
            };
        }
        let (waits, moved) = match (self.out.is_empty(), self.held.is_empty() && self.linger.is_none()) {
            (false, _) => (Waits::Unread, self.bytes_sent),
            (true, false) => (Waits::Half, self.commands),
            (true, true) => (Waits::Idle, self.commands),
        };
        Seen { waits, moved }
    }
}
