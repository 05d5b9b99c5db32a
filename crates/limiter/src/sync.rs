//! The lock of a shard, in a form the interleaving tests can take apart.

#[cfg(not(feature = "shuttle"))]
pub(crate) use parking_lot::MutexGuard as Guard;
#[cfg(feature = "shuttle")]
pub(crate) use shuttle::sync::MutexGuard as Guard;

#[cfg(not(feature = "shuttle"))]
#[derive(Debug)]
pub(crate) struct Lock<T>(parking_lot::Mutex<T>);

#[cfg(feature = "shuttle")]
#[derive(Debug)]
pub(crate) struct Lock<T>(shuttle::sync::Mutex<T>);

/// How often a taken lock is tried again before the thread goes to sleep: what it guards is held for some tens of
/// nanoseconds, and waking up takes thousands.
#[cfg(not(feature = "shuttle"))]
const SPINS: usize = 100;

impl<T> Lock<T> {
    #[cfg(not(feature = "shuttle"))]
    pub(crate) fn new(inner: T) -> Self {
        Self(parking_lot::Mutex::new(inner))
    }

    #[cfg(feature = "shuttle")]
    pub(crate) fn new(inner: T) -> Self {
        Self(shuttle::sync::Mutex::new(inner))
    }

    #[cfg(not(feature = "shuttle"))]
    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        if let Some(guard) = self.0.try_lock() {
            return guard;
        }
        for _ in 0..SPINS {
            std::hint::spin_loop();
            if !self.0.is_locked()
                && let Some(guard) = self.0.try_lock()
            {
                return guard;
            }
        }
        self.0.lock()
    }

    #[cfg(feature = "shuttle")]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        self.0.lock().expect("no test panics while it holds a shard")
    }
}
