//! Futures and threads without a runtime: a store that needs one brings its own.

use super::ThreadWrapper;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

/// Runs a future to completion on this thread, which is parked while the future is pending.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        thread::park();
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The interval at which threads are polled, and the polls without progress that count as a deadlock.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
const IDLE_POLLS_MAX: u32 = 6_000;

/// Runs `count` threads to completion without blocking this one, and collects their results.
///
/// `work` gets the number of its thread and a counter to increment with each settlement; if no thread does so for about
/// half a minute, they count as deadlocked.
pub(super) async fn threads<T: Send + 'static>(
    count: usize,
    thread_wrapper: &ThreadWrapper,
    work: impl Fn(usize, &AtomicU64) -> Result<T, String> + Send + Sync + 'static,
) -> Result<Vec<T>, String> {
    let progress = Arc::new(AtomicU64::new(0));
    let work = Arc::new(work);
    let spawn = |number| -> JoinHandle<Result<T, String>> {
        let (progress, work, thread_wrapper) = (Arc::clone(&progress), Arc::clone(&work), Arc::clone(thread_wrapper));
        thread::spawn(move || {
            let mut returned = None;
            thread_wrapper(&mut || returned = Some(work(number, &progress)));
            returned.unwrap_or_else(|| Err("the work of a thread was not run".to_owned()))
        })
    };
    let running: Vec<JoinHandle<Result<T, String>>> = (0..count).map(spawn).collect();
    let (mut seen, mut idle) = (0, 0);
    while !running.iter().all(JoinHandle::is_finished) {
        let now = progress.load(Ordering::Relaxed);
        idle = if now == seen { idle + 1 } else { 0 };
        seen = now;
        if idle > IDLE_POLLS_MAX {
            return Err(format!("the threads are deadlocked after {now} settlements"));
        }
        sleep(POLL_INTERVAL).await;
    }
    let join = |thread: JoinHandle<Result<T, String>>| thread.join().map_err(|_| "a thread panicked".to_owned())?;
    running.into_iter().map(join).collect()
}

/// Waits in real time without blocking the thread.
pub(super) async fn sleep(span: Duration) {
    let alarm = Arc::new(Alarm::default());
    let mut started = false;
    poll_fn(|context| {
        *alarm.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(context.waker().clone());
        if !started {
            started = true;
            let alarm = Arc::clone(&alarm);
            thread::spawn(move || alarm.ring_after(span));
        }
        if alarm.rung.load(Ordering::SeqCst) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}

#[derive(Default)]
struct Alarm {
    rung: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Alarm {
    fn ring_after(&self, span: Duration) {
        // Nothing unparks this thread. If it wakes early, the caller reads the clock and waits again.
        thread::park_timeout(span);
        self.rung.store(true, Ordering::SeqCst);
        if let Some(waker) = self.waker.lock().unwrap_or_else(PoisonError::into_inner).take() {
            waker.wake();
        }
    }
}
