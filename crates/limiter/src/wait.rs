//! Waiting instead of refusing: for clients that must keep to somebody else's limit.

use crate::limiter::{Limiter, Rule};
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
    pub fn wait(
        &self,
        rule: &Rule,
        subject: impl AsRef<[u8]>,
        cost: Cost,
        at_most: Duration,
    ) -> Result<Decision, Decision> {
        let mut patience = Patience::new(at_most);
        loop {
            match patience.hear(self.check_cost(rule, subject.as_ref(), cost)) {
                Next::Sleep(pause) => std::thread::sleep(pause),
                Next::Go(decision, pause) => {
                    std::thread::sleep(pause);
                    return Ok(decision);
                }
                Next::GiveUp(decision) => return Err(decision),
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
        rule: &Rule,
        subject: impl AsRef<[u8]>,
        cost: Cost,
        at_most: Duration,
    ) -> Result<Decision, Decision> {
        let mut patience = Patience::new(at_most);
        loop {
            match patience.hear(self.check_cost(rule, subject.as_ref(), cost)) {
                Next::Sleep(pause) => tokio::time::sleep(pause).await,
                Next::Go(decision, pause) => {
                    tokio::time::sleep(pause).await;
                    return Ok(decision);
                }
                Next::GiveUp(decision) => return Err(decision),
            }
        }
    }
}

/// How much longer a caller will wait.
struct Patience {
    left: Micros,
}

/// What to do after an answer.
enum Next {
    Sleep(Duration),
    Go(Decision, Duration),
    GiveUp(Decision),
}

impl Patience {
    fn new(at_most: Duration) -> Self {
        Self { left: at_most.into() }
    }

    /// Counts only promised time: a thread that is woken late has waited no longer than it said.
    fn hear(&mut self, decision: Decision) -> Next {
        let wait = match decision {
            Decision::Allow { delay, .. } => return Next::Go(decision, delay.into()),
            Decision::Deny {
                retry: Retry::Never, ..
            } => return Next::GiveUp(decision),
            Decision::Deny {
                retry: Retry::After(wait),
                ..
            } => wait,
            Decision::Deny {
                retry: Retry::Unknown, ..
            } => POLL,
        };
        if wait > self.left {
            return Next::GiveUp(decision);
        }
        self.left = Micros::new(self.left.get() - wait.get());
        Next::Sleep(wait.into())
    }
}
