//! Waiting for several things at once, without a runtime: together they take as long as the slowest of them.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

/// What comes of each, in their order. They are begun in that order, too.
pub(crate) async fn all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut running: Vec<Running<F>> = futures
        .into_iter()
        .map(|future| Running::Yet(Box::pin(future)))
        .collect();
    poll_fn(|context| {
        let mut is_over = true;
        for running in &mut running {
            if let Running::Yet(future) = running {
                match future.as_mut().poll(context) {
                    Poll::Ready(output) => *running = Running::Over(output),
                    Poll::Pending => is_over = false,
                }
            }
        }
        if is_over { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    let outputs = running.into_iter().filter_map(|running| match running {
        Running::Over(output) => Some(output),
        Running::Yet(_) => None,
    });
    outputs.collect()
}

enum Running<F: Future> {
    Yet(Pin<Box<F>>),
    Over(F::Output),
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::{Instant, sleep};

    #[tokio::test(start_paused = true)]
    async fn several_take_as_long_as_the_slowest_and_keep_their_order() {
        let from = Instant::now();
        let waits = [30, 10, 0, 20].map(|ms| async move {
            sleep(Duration::from_millis(ms)).await;
            ms
        });
        assert_eq!(all(waits).await, [30, 10, 0, 20]);
        assert_eq!(from.elapsed(), Duration::from_millis(30));
        assert_eq!(all(Vec::<std::future::Ready<u8>>::new()).await, []);
    }
}
