//! The last distinct attempts, on which new rules are tried before they are active.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};
use std::time::Duration;
use tollgate_limiter::core::Cost;
use tollgate_limiter::core::rules::{Attempt, Attribute, RuleSet};

/// The last distinct attempts. A check costs one relaxed read; now and then one of them is kept.
#[derive(Default)]
pub struct RecentAttempts {
    /// True if the next attempt is kept.
    is_due: AtomicBool,
    attempts: Mutex<VecDeque<KeptAttempt>>,
}

#[derive(PartialEq, Eq)]
struct KeptAttempt {
    domain: String,
    attributes: Vec<(String, Vec<u8>)>,
    cost: Cost,
}

impl RecentAttempts {
    /// Keeps an attempt, if one is due.
    #[inline]
    pub(super) fn record(&self, attempt: &Attempt<'_>) {
        if self.is_due.load(Ordering::Relaxed) {
            self.keep(attempt);
        }
    }

    #[cold]
    fn keep(&self, attempt: &Attempt<'_>) {
        let mut attempts = match self.attempts.try_lock() {
            Ok(attempts) => attempts,
            // Rules that panic are tried under this lock; what is kept is whole.
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Never waited for: another thread keeps one just now.
            Err(TryLockError::WouldBlock) => return,
        };
        self.is_due.store(false, Ordering::Relaxed);
        let attributes = attempt.attributes.iter();
        let bytes: usize = attributes.clone().map(|one| one.name.len() + one.value.len()).sum();
        if bytes > ATTEMPT_BYTES_MAX {
            return;
        }
        let kept = KeptAttempt {
            domain: attempt.domain.to_owned(),
            attributes: attributes
                .map(|one| (one.name.to_owned(), one.value.to_vec()))
                .collect(),
            cost: attempt.cost,
        };
        if !attempts.contains(&kept) {
            attempts.push_back(kept);
            if attempts.len() > ATTEMPTS_MAX {
                attempts.pop_front();
            }
        }
    }

    /// Plans every kept attempt with these rules. The plans are dropped: this is for rules that panic.
    pub fn plan_all(&self, rules: &RuleSet) {
        let attempts = self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        for kept in attempts.iter() {
            let attributes: Vec<Attribute<'_>> = kept
                .attributes
                .iter()
                .map(|(name, value)| Attribute { name, value })
                .collect();
            let attempt = Attempt {
                domain: &kept.domain,
                attributes: &attributes,
                cost: kept.cost,
            };
            drop(rules.plan(&attempt, |_, _| ()));
        }
    }

    /// Asks for an attempt again and again, without end.
    pub async fn keep_recording(&self) {
        loop {
            self.is_due.store(true, Ordering::Relaxed);
            tokio::time::sleep(INTERVAL).await;
        }
    }
}

impl fmt::Debug for RecentAttempts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the values of callers.
        f.debug_struct("RecentAttempts").finish_non_exhaustive()
    }
}

const ATTEMPTS_MAX: usize = 64;
const ATTEMPT_BYTES_MAX: usize = 16 << 10;
const INTERVAL: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_limiter::core::testing::rules::{attempt, attribute_pairs};

    #[test]
    fn distinct_attempts_are_kept_when_one_is_due() {
        let recent = RecentAttempts::default();
        let record = |value: &str, is_due: bool| {
            recent.is_due.store(is_due, Ordering::Relaxed);
            let attributes = attribute_pairs([("merchant", value)]);
            recent.record(&attempt(&attributes));
            recent.attempts.lock().unwrap().len()
        };
        assert_eq!(record("m_1", false), 0);
        assert_eq!(record("m_1", true), 1);
        assert_eq!(record("m_1", true), 1, "a second time");
        for number in 0..200 {
            record(&format!("m_{number}"), true);
        }
        assert_eq!(record("m_0", true), ATTEMPTS_MAX);
    }

    #[test]
    fn attempts_are_kept_after_a_panic_under_the_lock() {
        let recent = RecentAttempts::default();
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _attempts = recent.attempts.lock().unwrap();
            panic!("a rule");
        }));
        assert!(panicked.is_err() && recent.attempts.is_poisoned());
        recent.is_due.store(true, Ordering::Relaxed);
        recent.record(&Attempt {
            domain: "default",
            attributes: &[],
            cost: Cost::new(1).unwrap(),
        });
        let kept = recent.attempts.lock().unwrap_or_else(PoisonError::into_inner).len();
        assert_eq!((kept, recent.is_due.load(Ordering::Relaxed)), (1, false));
    }
}
