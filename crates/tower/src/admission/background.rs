//! Work after a request has ended.

use std::task::{Context, Poll, Waker};
use tokio::runtime::Handle;
use tollgate_limiter::store::Store;

/// Runs a future over this store: at once if the store never waits, else in the background. Outside a tokio runtime a
/// future that waits is dropped: what it would have returned stays charged.
pub(crate) fn run<S: Store>(future: impl Future<Output = ()> + Send + 'static) {
    if S::IS_IMMEDIATE {
        let _: Poll<()> = std::pin::pin!(future).poll(&mut Context::from_waker(Waker::noop()));
        return;
    }
    if let Ok(runtime) = Handle::try_current() {
        runtime.spawn(future);
    }
}
