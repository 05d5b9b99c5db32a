//! The lock of a shard, in a form the interleaving tests can take apart.
//!
//! A lock that spins, because what it guards takes tens of nanoseconds: a lock that sleeps must look at its waiters when
//! it is given back, which costs as much again as taking it, and nearly never is there one. Who finds it taken for long
//! all the same steps back, first for others that want the processor and then for anybody.

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

/// How many pauses a thread makes between two tries: long enough apart they leave the owner's cache in peace.
#[cfg(not(feature = "shuttle"))]
const SPINS: usize = 16;

/// How often it gives the processor away after a try, since the owner may be waiting for it.
#[cfg(not(feature = "shuttle"))]
const YIELDS: usize = 100;

/// How long it sleeps after each try from then on: the owner is at something long, such as growing a table, or its
/// priority is so low that giving the processor away does not give it to the owner.
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
            // Longer than all the yields take, mostly.
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
