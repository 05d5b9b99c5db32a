//! Polling for conditions that no event announces.

use crate::store::redis::ConfigCache;
use std::time::Duration;
use tokio::sync::broadcast::Receiver;

/// The interval of polls, and their largest number: 75 seconds, since sentinels that were stopped for two seconds do nothing
/// for the next thirty.
const INTERVAL: Duration = Duration::from_millis(10);
const POLLS_MAX: usize = 7_500;

/// Polls until a condition holds.
///
/// # Panics
/// If it never does.
pub async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    for _ in 0..POLLS_MAX {
        if condition().await {
            return;
        }
        tokio::time::sleep(INTERVAL).await;
    }
    panic!("never happened: {what}");
}

/// Publishes a hint again and again until it arrives.
///
/// # Panics
/// If it never does.
pub async fn receive_hint(cache: &ConfigCache, messages: &mut Receiver<String>, hint: &str) {
    eventually("a message", async || {
        let _ = cache.publish(hint).await;
        while let Ok(message) = messages.try_recv() {
            if message == hint {
                return true;
            }
        }
        false
    })
    .await;
}
