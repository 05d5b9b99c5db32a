//! `Retry-After`, and the time by the clock of the server.

use http::HeaderMap;
use http::header::{DATE, RETRY_AFTER};
use std::time::UNIX_EPOCH;
use tollgate_limiter::core::{Micros, Timestamp};

/// The time of the response by its `Date`, so that times in it are relative to the clock of the same server.
pub(super) fn server_time(headers: &HeaderMap, wall: Timestamp) -> Timestamp {
    let date = headers.get(DATE).and_then(|value| value.to_str().ok());
    date.and_then(parse_date).unwrap_or(wall)
}

pub(super) fn parse(headers: &HeaderMap, now: Timestamp) -> Option<Micros> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        // More digits than a number has are a long time too.
        return Some(text.parse().map_or(Micros::MAX, Micros::from_secs));
    }
    Some(parse_date(text)?.since(now))
}

fn parse_date(text: &str) -> Option<Timestamp> {
    let since = httpdate::parse_http_date(text).ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some(Timestamp::EPOCH + Micros::from(since))
}
