//! What goes on in the background for as long as it is wanted, whatever goes wrong in it.

use super::Figures;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::sleep;

/// The pause before something that panicked is begun again, so that what always does costs little.
const PAUSE: Duration = Duration::from_millis(200);

/// Does a task until it ends by itself. One that panics is counted, and begun again.
pub(super) fn begin<T>(runtime: &Handle, figures: Arc<Figures>, task: impl Fn() -> T + Send + 'static)
where
    T: Future<Output = ()> + Send + 'static,
{
    runtime.spawn(async move {
        while let Err(error) = tokio::spawn(task()).await {
            if !error.is_panic() {
                // The runtime ends.
                return;
            }
            figures.restarts.add(1);
            sleep(PAUSE).await;
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use tokio::sync::Notify;

    #[tokio::test(start_paused = true)]
    async fn a_task_that_panics_is_begun_again_and_told() {
        let (begun, ended) = (Arc::new(AtomicU32::new(0)), Arc::new(Notify::new()));
        let figures = Arc::new(Figures::default());
        let task = {
            let (begun, ended) = (Arc::clone(&begun), Arc::clone(&ended));
            move || {
                let (begun, ended) = (Arc::clone(&begun), Arc::clone(&ended));
                async move {
                    let turn = begun.fetch_add(1, Ordering::Relaxed);
                    assert!(turn >= 2, "the first two go wrong");
                    ended.notify_one();
                }
            }
        };
        begin(&Handle::current(), Arc::clone(&figures), task);
        ended.notified().await;
        sleep(PAUSE * 10).await;
        assert_eq!((begun.load(Ordering::Relaxed), figures.restarts.get()), (3, 2));
    }
}
