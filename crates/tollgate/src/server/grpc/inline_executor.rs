//! Runs what hyper wants to have run: at once if it can be finished at once, else as a task.

use hyper::rt::Executor;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// Polls each call once where it arrives. Over the embedded store a call whose message is there needs no more, so no task is
/// made for it and nobody is woken.
#[derive(Clone, Copy, Debug)]
pub(super) struct InlineExecutor;

impl<F> Executor<F> for InlineExecutor
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, future: F) {
        let mut future = Box::pin(future);
        // Who is not done is polled again by its task, which leaves its own waker.
        match Pin::new(&mut future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(()) => {}
            Poll::Pending => drop(tokio::spawn(future)),
        }
    }
}
