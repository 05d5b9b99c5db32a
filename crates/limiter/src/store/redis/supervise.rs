//! Background tasks: restarted after a panic, and spread over time by jitter.

use super::metrics::RedisMetrics;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::sleep;

/// The backoff before a task that panicked is restarted, so that one that always panics costs little.
const RESTART_BACKOFF: Duration = Duration::from_millis(200);

/// Runs a task until it returns. A panic is counted, and the task restarted.
pub(crate) fn spawn_supervised<T>(runtime: &Handle, metrics: Arc<RedisMetrics>, task: impl Fn() -> T + Send + 'static)
where
    T: Future<Output = ()> + Send + 'static,
{
    runtime.spawn(async move {
        while let Err(error) = tokio::spawn(task()).await {
            if !error.is_panic() {
                // The runtime shuts down.
                return;
            }
            metrics.task_restarts.add(1);
            sleep(RESTART_BACKOFF).await;
        }
    });
}

/// A random duration up to `max`.
pub(crate) fn jittered(max: Duration) -> Duration {
    let max = u64::try_from(max.as_nanos()).unwrap_or(u64::MAX);
    Duration::from_nanos(fastrand::u64(..=max))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use tokio::sync::Notify;

    #[tokio::test(start_paused = true)]
    async fn a_task_that_panics_is_begun_again_and_told() {
        let (started, ended) = (Arc::new(AtomicU32::new(0)), Arc::new(Notify::new()));
        let metrics = Arc::new(RedisMetrics::default());
        let task = {
            let (started, ended) = (Arc::clone(&started), Arc::clone(&ended));
            move || {
                let (started, ended) = (Arc::clone(&started), Arc::clone(&ended));
                async move {
                    let attempt = started.fetch_add(1, Ordering::Relaxed);
                    assert!(attempt >= 2, "the first two go wrong");
                    ended.notify_one();
                }
            }
        };
        spawn_supervised(&Handle::current(), Arc::clone(&metrics), task);
        ended.notified().await;
        sleep(RESTART_BACKOFF * 10).await;
        assert_eq!((started.load(Ordering::Relaxed), metrics.task_restarts.get()), (3, 2));
    }
}
