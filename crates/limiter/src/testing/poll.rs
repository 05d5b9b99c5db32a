//! Polling for conditions that no event announces.

use std::time::Duration;

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
