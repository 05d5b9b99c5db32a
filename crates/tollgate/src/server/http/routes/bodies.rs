//! Bodies of requests: all of them, within a size and a time.

use crate::server::http::problem::Problem;
use crate::server::http::watch::Beat;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::body::{Body, Incoming};
use hyper::header::CONNECTION;
use std::time::Duration;

/// The whole body. How long it says it is only serves to refuse it early.
pub(super) async fn read(body: Incoming, bytes_max: usize, within: Duration, beat: &Beat) -> Result<Bytes, Problem> {
    if body.size_hint().lower() > bytes_max as u64 {
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

fn too_large(bytes_max: usize) -> Problem {
    let detail = format!("the body has more than {bytes_max} bytes; send less at a time");
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail).with(CONNECTION, CLOSE)
}

/// What is left of the body will not be read.
const CLOSE: &str = "close";
