//! Reads request bodies, within a size, a time and the memory budget that all bodies share.

use crate::server::http::problem_details::ProblemDetails;
use crate::server::net::idle::RequestGuard;
use crate::server::net::memory_budget::{MemoryBudget, Reservation};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use hyper::header::{CONNECTION, EXPECT, RETRY_AFTER};
use hyper::{Request, StatusCode};
use std::mem::take;
use std::ops::Deref;
use std::time::Duration;

/// A body that is not read yet, without the head of its request: futures are moved, and a head is large.
pub(in crate::server::http) struct IncomingBody {
    body: Incoming,
    /// True if the client waits for `100 Continue`.
    expects_continue: bool,
}

impl From<Request<Incoming>> for IncomingBody {
    fn from(request: Request<Incoming>) -> Self {
        Self {
            expects_continue: request.headers().contains_key(EXPECT),
            body: request.into_body(),
        }
    }
}

/// A complete body, and its reservation in the memory budget.
pub(in crate::server::http) struct BodyBytes<'r> {
    bytes: Bytes,
    _reservation: Reservation<'r>,
}

impl Deref for BodyBytes<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The memory budget for the bodies of all requests of one front end.
pub(super) fn body_budget() -> MemoryBudget {
    MemoryBudget::new(BUDGET_BYTES, FREE_BYTES)
}

/// Reads the whole body. Its declared length only serves to reject it early.
///
/// A body that is too large is still read, up to [`DISCARD_BYTES_MAX`], and dropped: many clients read a response only after
/// they have sent everything, and would see a reset connection instead.
pub(super) async fn read<'r>(
    incoming: IncomingBody,
    budget: &'r MemoryBudget,
    bytes_max: usize,
    timeout: Duration,
    guard: &RequestGuard,
) -> Result<BodyBytes<'r>, ProblemDetails> {
    let IncomingBody {
        body,
        expects_continue: asks_first,
    } = incoming;
    let declared = body.size_hint().lower();
    if declared > bytes_max as u64 {
        if !asks_first && declared <= DISCARD_BYTES_MAX as u64 {
            Box::pin(discard(body)).await;
        }
        return Err(too_large(bytes_max));
    }
    match guard.read_body(timeout, collect(body, budget, bytes_max)).await {
        Some(read) => read,
        None => {
            let detail = format!("the body did not arrive within {} ms", timeout.as_millis());
            Err(ProblemDetails::new(StatusCode::REQUEST_TIMEOUT, detail).with_header(CONNECTION, CLOSE))
        }
    }
}

async fn collect(mut body: Incoming, budget: &MemoryBudget, bytes_max: usize) -> Result<BodyBytes<'_>, ProblemDetails> {
    // Nearly always the body is one frame, and is not copied.
    let mut first = Bytes::new();
    let mut pieces = BytesMut::new();
    let mut reservation = budget.reservation();
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else {
            return Err(ProblemDetails::bad_request("the body ended before it was complete"));
        };
        let Ok(data) = frame.into_data() else { continue };
        let length = first.len() + pieces.len() + data.len();
        if length > bytes_max {
            // In a box: it is rare, and every future would reserve its memory.
            Box::pin(discard(body)).await;
            return Err(too_large(bytes_max));
        }
        if !reservation.resize(length) {
            drop((reservation, pieces));
            Box::pin(discard(body)).await;
            return Err(budget_exhausted());
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
    Ok(BodyBytes {
        bytes: if pieces.is_empty() { first } else { pieces.freeze() },
        _reservation: reservation,
    })
}

/// Reads and drops the rest, within limits of its own.
async fn discard(mut body: Incoming) {
    let read = async {
        let mut discarded = 0;
        while let Some(Ok(frame)) = body.frame().await {
            discarded += frame.data_ref().map_or(0, Bytes::len);
            if discarded > DISCARD_BYTES_MAX {
                return;
            }
        }
    };
    let _ = tokio::time::timeout(DISCARD_TIMEOUT, read).await;
}

fn too_large(bytes_max: usize) -> ProblemDetails {
    let detail = format!("the body has more than {bytes_max} bytes; send less at a time");
    ProblemDetails::new(StatusCode::PAYLOAD_TOO_LARGE, detail).with_header(CONNECTION, CLOSE)
}

fn budget_exhausted() -> ProblemDetails {
    let detail = "memory budget for large bodies exhausted; retry, or send less at a time";
    ProblemDetails::new(StatusCode::SERVICE_UNAVAILABLE, detail).with_header(RETRY_AFTER, "1")
}

/// The most bytes of bodies in flight, beyond what each has free.
const BUDGET_BYTES: usize = 64 << 20;
/// The free bytes of every body: more than a usual check.
const FREE_BYTES: usize = 16 << 10;
/// The most bytes read of a body that is too large.
const DISCARD_BYTES_MAX: usize = 8 << 20;
/// The time that may take.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(2);

/// The rest of the body will not be read.
const CLOSE: &str = "close";
