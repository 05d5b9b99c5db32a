//! Bodies of requests: all of them, within a size, a time, and the room that all have together.

use crate::server::http::problem::Problem;
use crate::server::http::watch::Beat;
use crate::server::room::{Room, Share};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use hyper::header::{CONNECTION, EXPECT, RETRY_AFTER};
use hyper::{Request, StatusCode};
use std::mem::take;
use std::ops::Deref;
use std::time::Duration;

/// A body on its way, without the head of its request: what waits for it is moved about, and a head is large.
pub(in crate::server::http) struct Sent {
    body: Incoming,
    /// Whether the client sends it only if it is wanted.
    asks_first: bool,
}

impl From<Request<Incoming>> for Sent {
    fn from(request: Request<Incoming>) -> Self {
        Self {
            asks_first: request.headers().contains_key(EXPECT),
            body: request.into_body(),
        }
    }
}

/// A body that has come, and its share of the room for bodies.
pub(in crate::server::http) struct Whole<'r> {
    bytes: Bytes,
    _share: Share<'r>,
}

impl Deref for Whole<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The room for the bodies of all requests that are on their way to one front end.
pub(super) fn room() -> Room {
    Room::new(ROOM, FREE)
}

/// The whole body. How long it says it is only serves to refuse it early.
///
/// One that is too large is read to its end all the same, up to [`DISCARDED_MAX`], and thrown away: many clients hear an
/// answer only when they have sent all, and would see a broken connection instead.
pub(super) async fn read<'r>(
    sent: Sent,
    room: &'r Room,
    bytes_max: usize,
    within: Duration,
    beat: &Beat,
) -> Result<Whole<'r>, Problem> {
    let Sent { body, asks_first } = sent;
    let told = body.size_hint().lower();
    if told > bytes_max as u64 {
        if !asks_first && told <= DISCARDED_MAX as u64 {
            Box::pin(discard(body)).await;
        }
        return Err(too_large(bytes_max));
    }
    match beat.body(within, collect(body, room, bytes_max)).await {
        Some(read) => read,
        None => {
            let detail = format!("the body did not arrive within {} ms", within.as_millis());
            Err(Problem::new(StatusCode::REQUEST_TIMEOUT, detail).with(CONNECTION, CLOSE))
        }
    }
}

async fn collect(mut body: Incoming, room: &Room, bytes_max: usize) -> Result<Whole<'_>, Problem> {
    // Nearly always all of it comes at once, and is not copied.
    let mut first = Bytes::new();
    let mut pieces = BytesMut::new();
    let mut share = room.share();
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else {
            return Err(Problem::bad("the body ended before it was complete"));
        };
        let Ok(data) = frame.into_data() else { continue };
        let length = first.len() + pieces.len() + data.len();
        if length > bytes_max {
            // Hardly ever, so its room is not carried by every body.
            Box::pin(discard(body)).await;
            return Err(too_large(bytes_max));
        }
        if !share.hold(length) {
            drop((share, pieces));
            Box::pin(discard(body)).await;
            return Err(no_room());
        }
        if length == data.len() {
            first = data;
        } else {
            pieces.extend_from_slice(&take(&mut first));
            pieces.extend_from_slice(&data);
        }
        if body.is_end_stream() {
            break;
        }
    }
    Ok(Whole {
        bytes: if pieces.is_empty() { first } else { pieces.freeze() },
        _share: share,
    })
}

/// Reads what is left, within bounds of its own. Whatever comes of it, it is too large.
async fn discard(mut body: Incoming) {
    let read = async {
        let mut seen = 0;
        while let Some(Ok(frame)) = body.frame().await {
            seen += frame.data_ref().map_or(0, Bytes::len);
            if seen > DISCARDED_MAX {
                return;
            }
        }
    };
    let _ = tokio::time::timeout(DISCARDED_WITHIN, read).await;
}

fn too_large(bytes_max: usize) -> Problem {
    let detail = format!("the body has more than {bytes_max} bytes; send less at a time");
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail).with(CONNECTION, CLOSE)
}

fn no_room() -> Problem {
    let detail = "too many large bodies are on their way at the moment; send it again, or less at a time";
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail).with(RETRY_AFTER, "1")
}

/// The most bytes of bodies on their way, beyond what each has free.
const ROOM: usize = 64 << 20;
/// What every body has: more than a usual check.
const FREE: usize = 16 << 10;
/// The most that is read of a body that is too large.
const DISCARDED_MAX: usize = 8 << 20;
/// How long that may take.
const DISCARDED_WITHIN: Duration = Duration::from_secs(2);

/// What is left of the body will not be read.
const CLOSE: &str = "close";
