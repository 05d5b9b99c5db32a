//! Bodies of requests: all of them, within a size and a time.

use crate::server::http::problem::Problem;
use crate::server::http::watch::Beat;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use hyper::header::{CONNECTION, EXPECT};
use hyper::{Request, StatusCode};
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

/// The whole body. How long it says it is only serves to refuse it early.
///
/// One that is too large is read to its end all the same, up to [`DISCARDED_MAX`], and thrown away: many clients hear an
/// answer only when they have sent all, and would see a broken connection instead.
pub(super) async fn read(sent: Sent, bytes_max: usize, within: Duration, beat: &Beat) -> Result<Bytes, Problem> {
    let Sent { body, asks_first } = sent;
    let told = body.size_hint().lower();
    if told > bytes_max as u64 {
        if !asks_first && told <= DISCARDED_MAX as u64 {
            Box::pin(discard(body)).await;
        }
        return Err(too_large(bytes_max));
    }
    match beat.body(within, collect(body, bytes_max)).await {
        Some(read) => read,
        None => {
            let detail = format!("the body did not arrive within {} ms", within.as_millis());
            Err(Problem::new(StatusCode::REQUEST_TIMEOUT, detail).with(CONNECTION, CLOSE))
        }
    }
}

async fn collect(mut body: Incoming, bytes_max: usize) -> Result<Bytes, Problem> {
    // Nearly always all of it comes at once, and is not copied.
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else {
            return Err(Problem::bad("the body ended before it was complete"));
        };
        let Ok(data) = frame.into_data() else { continue };
        if first.len() + rest.len() + data.len() > bytes_max {
            // Hardly ever, so its room is not carried by every body.
            Box::pin(discard(body)).await;
            return Err(too_large(bytes_max));
        }
        if first.is_empty() {
            first = data;
        } else {
            rest.extend_from_slice(&data);
        }
        if body.is_end_stream() {
            break;
        }
    }
    if rest.is_empty() {
        return Ok(first);
    }
    let mut whole = BytesMut::with_capacity(first.len() + rest.len());
    whole.extend_from_slice(&first);
    whole.extend_from_slice(&rest);
    Ok(whole.freeze())
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

/// The most that is read of a body that is too large.
const DISCARDED_MAX: usize = 8 << 20;
/// How long that may take.
const DISCARDED_WITHIN: Duration = Duration::from_secs(2);

/// What is left of the body will not be read.
const CLOSE: &str = "close";
