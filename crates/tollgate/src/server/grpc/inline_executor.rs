//! An executor for hyper that polls a future once in place before it spawns a task.

use hyper::rt::Executor;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// Polls each call once where it arrives. Over the memory store a call whose message has arrived completes in that poll, so
/// no task is spawned or woken.
#[derive(Clone, Copy, Debug)]
pub(super) struct InlineExecutor;

impl<F> Executor<F> for InlineExecutor
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, future: F) {
        let mut future = Box::pin(future);
        // The task polls it again, and registers its own waker.
        match Pin::new(&mut future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(()) => {}
            Poll::Pending => drop(tokio::spawn(future)),
        }
    }
}
