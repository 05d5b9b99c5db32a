//! The order in which requests to one key wait: first come, first served, and only a few of them ask at a time.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Semaphore;

/// The queues of all keys that requests wait for. A key without waiting requests has none.
#[derive(Debug, Default)]
pub(super) struct Turns {
    queues: Mutex<HashMap<u64, Arc<TurnQueue>>>,
}

/// The requests that wait for one key.
#[derive(Debug)]
pub(super) struct TurnQueue {
    /// A permit is the right to ask the limits.
    pub(super) turns: Semaphore,
    waiting: AtomicU64,
}

/// A position in a queue, left when it is dropped.
#[derive(Debug)]
pub(super) struct QueuedTurn<'t> {
    turns: &'t Turns,
    key: u64,
    pub(super) queue: Arc<TurnQueue>,
    /// The requests before it when it came.
    pub(super) ahead: u64,
}

impl Turns {
    /// True if requests wait for this key, so that a new one must not overtake them.
    pub(super) fn is_waited_for(&self, key: u64) -> bool {
        self.lock().contains_key(&key)
    }

    /// Joins the queue of a key, in which this many ask at a time. None if it is full.
    pub(super) fn join(&self, key: u64, at_a_time: usize) -> Option<QueuedTurn<'_>> {
        let mut queues = self.lock();
        let new = || {
            Arc::new(TurnQueue {
                turns: Semaphore::new(at_a_time),
                waiting: AtomicU64::new(0),
            })
        };
        let queue = Arc::clone(queues.entry(key).or_insert_with(new));
        let ahead = queue.waiting.load(Ordering::Relaxed);
        if ahead >= WAITING_MAX {
            return None;
        }
        queue.waiting.fetch_add(1, Ordering::Relaxed);
        drop(queues);
        Some(QueuedTurn {
            turns: self,
            key,
            queue,
            ahead,
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Arc<TurnQueue>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for QueuedTurn<'_> {
    fn drop(&mut self) {
        // Counted under the lock, so that the queue is removed by its last request only.
        let mut queues = self.turns.lock();
        if self.queue.waiting.fetch_sub(1, Ordering::Relaxed) == 1 {
            queues.remove(&self.key);
        }
    }
}

/// The requests that may wait for one key. A further one fails at once.
const WAITING_MAX: u64 = 65_536;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_exists_while_a_request_waits_in_it() {
        let turns = Turns::default();
        let first = turns.join(7, 1).expect("not full");
        let second = turns.join(7, 1).expect("not full");
        assert_eq!((first.ahead, second.ahead), (0, 1));
        drop(first);
        assert!(turns.is_waited_for(7) && !turns.is_waited_for(8));
        drop(second);
        assert!(!turns.is_waited_for(7));
    }

    #[test]
    fn a_queue_is_bounded() {
        let turns = Turns::default();
        let waiting: Vec<_> = (0..WAITING_MAX).map(|_| turns.join(7, 1).expect("not full")).collect();
        assert!(turns.join(7, 1).is_none());
        assert!(turns.join(8, 1).is_some());
        drop(waiting);
        assert!(turns.join(7, 1).is_some());
    }
}
