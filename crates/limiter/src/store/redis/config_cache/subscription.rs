//! The subscription to the channel of the cache: kept up until the cache is dropped.

use super::calls::CallServers;
use super::{CALL_DEADLINE, CacheState, MESSAGE_MAX};
use crate::store::redis::connection::endpoint::Endpoint;
use crate::store::redis::connection::handshake::error_text;
use crate::store::redis::supervise::{jittered, spawn_supervised};
use futures_util::StreamExt;
use redis::{ProtocolVersion, RedisError};
use std::future::Future;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::broadcast;
use tokio::time::{Instant, sleep, timeout};

/// The longest silence before the connection is checked: it may be lost unnoticed, or lead to a server that is left.
const SILENCE_MAX: Duration = Duration::from_secs(1);

/// The first backoff before the next attempt to subscribe, and the longest. It doubles with each attempt.
const BACKOFF: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// Subscribes in the background.
pub(super) fn spawn(state: &Arc<CacheState>, sender: &broadcast::Sender<String>) {
    let context = &state.servers().context;
    let (weak, sender) = (Arc::downgrade(state), sender.clone());
    let task = move || run(Weak::clone(&weak), sender.clone());
    spawn_supervised(&context.runtime, Arc::clone(&context.metrics), task);
}

async fn run(weak: Weak<CacheState>, sender: broadcast::Sender<String>) {
    let mut backoff = BACKOFF;
    loop {
        let (was_subscribed, reason) = match follow(&weak, &sender).await {
            Ok(()) => return,
            Err((was_subscribed, reason)) => (was_subscribed, reason),
        };
        let Some(state) = weak.upgrade() else { return };
        *state.subscription_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
        drop(state);
        if was_subscribed {
            backoff = BACKOFF;
        }
        sleep(backoff - jittered(backoff / 2)).await;
        backoff = (backoff * 2).min(BACKOFF_MAX);
    }
}

/// Passes messages on until the cache is dropped.
///
/// # Errors
/// The end of a subscription: true if there was one, and the reason.
async fn follow(weak: &Weak<CacheState>, sender: &broadcast::Sender<String>) -> Result<(), (bool, String)> {
    let Some(state) = weak.upgrade() else { return Ok(()) };
    let channel = state.channel();
    let endpoint = CallServers::of(&state).endpoint(Instant::now() + CALL_DEADLINE).await;
    let endpoint = endpoint.map_err(|error| (false, error.to_string()))?;
    // Messages are the same in either version, and with this one the connection is used for nothing else.
    let options = state
        .options
        .server_options()
        .clone()
        .with_protocol(ProtocolVersion::RESP2);
    let options = match &endpoint {
        Some(endpoint) => options.to(endpoint),
        None => options,
    };
    drop(state);
    let text = |error: RedisError| match error.code() {
        Some("NOPERM") => format!(
            "the user lacks +subscribe or the channel {channel}; allow what docs/redis.md lists for the control plane"
        ),
        _ => error_text(&error, options.password()),
    };
    let client = options.client().map_err(|error| (false, text(error)))?;
    let subscribing = within_deadline(async {
        let mut subscription = client.get_async_pubsub().await?;
        subscription.subscribe(&channel).await?;
        Ok(subscription)
    });
    let (mut sink, mut messages) = subscribing.await.map_err(|error| (false, text(error)))?.split();
    match weak.upgrade() {
        Some(state) => *state.subscription_error.lock().unwrap_or_else(PoisonError::into_inner) = None,
        None => return Ok(()),
    }
    loop {
        match timeout(SILENCE_MAX, messages.next()).await {
            Ok(Some(message)) => {
                let payload = message.get_payload_bytes();
                if payload.len() <= MESSAGE_MAX
                    && let Ok(message) = std::str::from_utf8(payload)
                {
                    // Without a receiver the hint is dropped.
                    let _ = sender.send(message.to_owned());
                }
            }
            Ok(None) => return Err((true, "the server closed the subscription".to_owned())),
            Err(_) => {
                let Some(state) = weak.upgrade() else { return Ok(()) };
                if left(&state, endpoint.as_ref()) {
                    return Err((true, "another server is the primary now".to_owned()));
                }
                drop(state);
                // Answered like the first time, and needs no other right.
                let again = within_deadline(sink.subscribe(&channel));
                again.await.map_err(|error| (true, text(error)))?;
            }
        }
    }
}

/// True if calls go to another server by now.
fn left(state: &Arc<CacheState>, endpoint: Option<&Endpoint>) -> bool {
    let current = CallServers::of(state).connected_endpoint();
    current.is_some_and(|current| current.as_ref() != endpoint)
}

async fn within_deadline<T>(step: impl Future<Output = Result<T, RedisError>>) -> Result<T, RedisError> {
    let timed_out = (redis::ErrorKind::Io, "the server did not answer in time");
    timeout(CALL_DEADLINE, step)
        .await
        .unwrap_or_else(|_| Err(timed_out.into()))
}
