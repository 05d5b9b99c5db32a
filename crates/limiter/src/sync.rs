//! The lock of a shard, replaceable by one that the interleaving tests control.
//!
//! A spin lock, because what it guards takes tens of nanoseconds: a lock that parks threads must check for waiters on
//! unlock, which costs as much again as locking, and there almost never is one. A thread that spins in vain yields the
//! processor, and after that sleeps.

#[cfg(feature = "shuttle")]
pub(crate) use shuttle::sync::MutexGuard as Guard;
#[cfg(not(feature = "shuttle"))]
pub(crate) use spin::mutex::SpinMutexGuard as Guard;

#[cfg(not(feature = "shuttle"))]
#[derive(Debug)]
pub(crate) struct Lock<T>(spin::mutex::SpinMutex<T>);

#[cfg(feature = "shuttle")]
#[derive(Debug)]
pub(crate) struct Lock<T>(shuttle::sync::Mutex<T>);

/// Spin hints between two attempts: far enough apart not to disturb the owner's cache line.
#[cfg(not(feature = "shuttle"))]
const SPINS: usize = 16;

/// Attempts after which a thread yields the processor, since the owner may be waiting for it.
#[cfg(not(feature = "shuttle"))]
const YIELDS: usize = 100;

/// The sleep after each further attempt: the owner does something long, such as growing a table, or its priority is so
/// low that yielding does not let it run.
#[cfg(not(feature = "shuttle"))]
const SLEEP: std::time::Duration = std::time::Duration::from_micros(50);

impl<T> Lock<T> {
    #[cfg(not(feature = "shuttle"))]
    pub(crate) fn new(inner: T) -> Self {
        Self(spin::mutex::SpinMutex::new(inner))
    }

    #[cfg(feature = "shuttle")]
    pub(crate) fn new(inner: T) -> Self {
        Self(shuttle::sync::Mutex::new(inner))
    }

    #[cfg(not(feature = "shuttle"))]
    #[inline(always)]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        match self.0.try_lock() {
            Some(guard) => guard,
            None => self.lock_contended(),
        }
    }

    #[cfg(feature = "shuttle")]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        self.0.lock().expect("no test panics while it holds a shard")
    }

    #[cfg(not(feature = "shuttle"))]
    #[cold]
    #[inline(never)]
    #[expect(
        clippy::disallowed_methods,
        reason = "a lock has no event to wait for, and spinning on could keep its owner from running"
    )]
    fn lock_contended(&self) -> Guard<'_, T> {
        let mut yields = 0;
        loop {
            for _ in 0..SPINS {
                std::hint::spin_loop();
            }
            if let Some(guard) = self.0.try_lock() {
                return guard;
            }
            if yields < YIELDS {
                yields += 1;
                std::thread::yield_now();
            } else {
                std::thread::sleep(SLEEP);
            }
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn who_waits_for_long_gets_in_when_the_owner_leaves() {
        let lock = Lock::new(0);
        let (sender, receiver) = mpsc::channel();
        std::thread::scope(|scope| {
            let guard = lock.lock();
            for _ in 0..8 {
                let (lock, sender) = (&lock, sender.clone());
                scope.spawn(move || {
                    sender.send(()).expect("the owner listens");
                    *lock.lock() += 1;
                });
            }
            for _ in 0..8 {
                receiver.recv().expect("eight threads wait");
            }
            // Usually longer than all the yields take.
            for _ in 0..100 * YIELDS {
                std::thread::yield_now();
            }
            drop(guard);
        });
        assert_eq!(*lock.lock(), 8);
    }

    #[test]
    fn a_panic_gives_the_lock_back() {
        let lock = Lock::new(());
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _held = lock.lock();
            panic!("on purpose");
        }));
        assert!(panic.is_err());
        drop(lock.lock());
    }
}
