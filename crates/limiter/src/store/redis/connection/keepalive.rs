//! Keepalives: commands sent behind a call whose reply is late.
//!
//! A lost tail segment waits for the 200 ms minimum RTO; a later segment triggers fast retransmit. So while a reply is late,
//! `TIME` is sent.

use futures_util::future::{Either, select};
use redis::aio::MultiplexedConnection;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// The keepalives in one deadline, and how many are left out at its start: a reply within two fifths of it is not late.
const KEEPALIVES: u32 = 5;
const KEEPALIVE_AFTER: u32 = 2;

/// Waits for a reply until `until`, with keepalives on `connection` if there is one. `None` is a timeout.
pub(crate) async fn with_keepalives<T>(
    connection: Option<MultiplexedConnection>,
    deadline: Duration,
    until: Instant,
    reply: impl Future<Output = T>,
) -> Option<T> {
    let Some(connection) = connection else {
        return timeout_at(until, reply).await.ok();
    };
    let interval = deadline / KEEPALIVES;
    let mut reply = pin!(reply);
    let first = until.min(Instant::now() + interval * KEEPALIVE_AFTER);
    if let Ok(reply) = timeout_at(first, reply.as_mut()).await {
        return Some(reply);
    }
    let keepalives = pin!(send_keepalives(connection, interval));
    match timeout_at(until, select(reply, keepalives)).await {
        Ok(Either::Left((reply, _))) => Some(reply),
        Ok(Either::Right(_)) | Err(_) => None,
    }
}

/// Sends a command at each interval. Its replies are ignored.
async fn send_keepalives(mut connection: MultiplexedConnection, interval: Duration) {
    loop {
        let interval_end = sleep(interval);
        let _ = timeout(interval, connection.send_packed_command(&redis::cmd("TIME"))).await;
        interval_end.await;
    }
}
