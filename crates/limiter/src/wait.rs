//! Waiting instead of denying: for clients that must keep to another service's limit.

use crate::limiter::{Limiter, NamedLimit};
#[cfg(feature = "redis")]
use crate::store::SharedStore;
use std::time::Duration;
use tollgate_core::{Cost, Decision, Micros, Retry};

/// The interval between attempts while the time of the next one is unknown: the store could not decide, or has no memory
/// for a new key.
const POLL: Micros = Micros::from_millis(5);

impl Limiter {
    /// Blocks this thread until `subject` may consume this cost, or denies at once if that takes longer than `at_most`.
    /// Also waits for the delay of a shaped limit.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate_limiter::Limiter;
    /// use tollgate_limiter::core::Cost;
    /// use tollgate_limiter::limits::Gcra;
    ///
    /// let limiter = Limiter::in_memory();
    /// let upstream = limiter.limit("upstream", Gcra::per_second(1_000).burst(1))?;
    /// for _ in 0..3 {
    ///     assert!(limiter.wait_blocking(&upstream, "api.example", Cost::ONE, Duration::from_secs(1)).is_ok());
    /// }
    /// # Ok::<(), tollgate_limiter::core::LimitError>(())
    /// ```
    ///
    /// # Errors
    /// The denial, if waiting would take too long or never end.
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place whose purpose is to let time pass"
    )]
    pub fn wait_blocking(
        &self,
        limit: &NamedLimit,
        subject: impl AsRef<[u8]>,
        cost: Cost,
        at_most: Duration,
    ) -> Result<Decision, Decision> {
        let mut budget = WaitBudget::new(at_most);
        loop {
            match budget.next_step(self.check_cost(limit, subject.as_ref(), cost)) {
                WaitStep::Sleep(delay) => std::thread::sleep(delay),
                WaitStep::Proceed(decision, delay) => {
                    std::thread::sleep(delay);
                    return Ok(decision);
                }
                WaitStep::GiveUp(decision) => return Err(decision),
            }
        }
    }

    /// Waits as [`Limiter::wait_blocking`] does, without blocking the thread.
    ///
    /// # Errors
    /// The denial, if waiting would take too long or never end.
    #[cfg(feature = "tokio")]
    pub async fn ready(
        &self,
        limit: &NamedLimit,
        subject: impl AsRef<[u8]>,
        cost: Cost,
        at_most: Duration,
    ) -> Result<Decision, Decision> {
        wait(at_most, async || self.check_cost(limit, subject.as_ref(), cost)).await
    }
}

#[cfg(feature = "redis")]
impl<S: SharedStore> Limiter<S> {
    /// Waits until `subject` may consume this cost, or denies at once if that takes longer than `at_most`. Also waits for
    /// the delay of a shaped limit. The replies of the store take time in addition.
    ///
    /// # Errors
    /// The denial, if waiting would take too long or never end.
    pub async fn ready(
        &self,
        limit: &NamedLimit<S>,
        subject: impl AsRef<[u8]>,
        cost: Cost,
        at_most: Duration,
    ) -> Result<Decision, Decision> {
        wait(at_most, async || self.check_cost(limit, subject.as_ref(), cost).await).await
    }

    /// Waits as [`Limiter::ready`] does, and blocks this thread. The runtime that the store was opened on must be running
    /// in another thread.
    ///
    /// # Errors
    /// The denial, if waiting would take too long or never end.
    ///
    /// # Panics
    /// In async code: there it would block the runtime. Use [`Limiter::ready`].
    pub fn wait_blocking(
        &self,
        limit: &NamedLimit<S>,
        subject: impl AsRef<[u8]>,
        cost: Cost,
        at_most: Duration,
    ) -> Result<Decision, Decision> {
        let runtime = self.store().runtime();
        runtime.block_on(self.ready(limit, subject, cost, at_most))
    }
}

/// Checks again and again until it is allowed, or would wait too long.
#[cfg(feature = "tokio")]
async fn wait(at_most: Duration, check: impl AsyncFn() -> Decision) -> Result<Decision, Decision> {
    let mut budget = WaitBudget::new(at_most);
    loop {
        match budget.next_step(check().await) {
            WaitStep::Sleep(delay) => tokio::time::sleep(delay).await,
            WaitStep::Proceed(decision, delay) => {
                tokio::time::sleep(delay).await;
                return Ok(decision);
            }
            WaitStep::GiveUp(decision) => return Err(decision),
        }
    }
}

/// The time a caller still waits.
struct WaitBudget {
    left: Micros,
}

/// The next step after a decision.
enum WaitStep {
    Sleep(Duration),
    Proceed(Decision, Duration),
    GiveUp(Decision),
}

impl WaitBudget {
    fn new(at_most: Duration) -> Self {
        Self { left: at_most.into() }
    }

    /// Consumes only promised time: a thread that is woken late has waited no longer than promised.
    fn next_step(&mut self, decision: Decision) -> WaitStep {
        let wait = match decision {
            Decision::Allow { delay, .. } => return WaitStep::Proceed(decision, delay.into()),
            Decision::Deny {
                retry: Retry::Never, ..
            } => return WaitStep::GiveUp(decision),
            Decision::Deny {
                retry: Retry::After(wait),
                ..
            } => wait,
            Decision::Deny {
                retry: Retry::Unknown, ..
            } => POLL,
        };
        if wait > self.left {
            return WaitStep::GiveUp(decision);
        }
        self.left = Micros::new(self.left.get() - wait.get());
        WaitStep::Sleep(wait.into())
    }
}
