//! Waiting instead of refusing: for clients that must keep to somebody else's limit.

use crate::limiter::{Limiter, NamedLimit};
use std::time::Duration;
use tollgate_core::{Cost, Decision, Micros, Retry};

/// How long to wait before a refused concurrency slot is asked for again: when it comes free, nobody can say.
const POLL: Micros = Micros::from_millis(5);

impl Limiter {
    /// Waits on this thread until `subject` may go on at this cost, or says no at once if that takes longer than
    /// `at_most`. A queue's delay is waited for too.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate_limiter::Limiter;
    /// use tollgate_limiter::core::Cost;
    /// use tollgate_limiter::limits::Gcra;
    ///
    /// let limiter = Limiter::in_memory();
    /// let upstream = limiter.rule("upstream", Gcra::per_second(1_000).burst(1))?;
    /// for _ in 0..3 {
    ///     assert!(limiter.wait(&upstream, "api.example", Cost::ONE, Duration::from_secs(1)).is_ok());
    /// }
    /// # Ok::<(), tollgate_limiter::core::LimitError>(())
    /// ```
    ///
    /// # Errors
    /// The refusal, if waiting would take too long or never end.
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

    /// The same without blocking the thread.
    ///
    /// # Errors
    /// The refusal, if waiting would take too long or never end.
    #[cfg(feature = "tokio")]
    pub async fn ready(
        &self,
        limit: &NamedLimit,
        subject: impl AsRef<[u8]>,
        cost: Cost,
        at_most: Duration,
    ) -> Result<Decision, Decision> {
        let mut budget = WaitBudget::new(at_most);
        loop {
            match budget.next_step(self.check_cost(limit, subject.as_ref(), cost)) {
                WaitStep::Sleep(delay) => tokio::time::sleep(delay).await,
                WaitStep::Proceed(decision, delay) => {
                    tokio::time::sleep(delay).await;
                    return Ok(decision);
                }
                WaitStep::GiveUp(decision) => return Err(decision),
            }
        }
    }
}

/// How much longer a caller will wait.
struct WaitBudget {
    left: Micros,
}

/// What to do after an answer.
enum WaitStep {
    Sleep(Duration),
    Proceed(Decision, Duration),
    GiveUp(Decision),
}

impl WaitBudget {
    fn new(at_most: Duration) -> Self {
        Self { left: at_most.into() }
    }

    /// Counts only promised time: a thread that is woken late has waited no longer than it said.
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
