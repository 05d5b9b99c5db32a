//! The bytes that all clients of a front end may leave buffered: partial requests, and replies that they do not read.

use std::collections::HashMap;
use std::mem::take;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

/// A budget of bytes, beyond those that each connection has free.
#[derive(Debug)]
pub(in crate::server) struct MemoryBudget {
    max_bytes: usize,
    free_bytes: usize,
    reserved: AtomicUsize,
    /// Reservations that wait for capacity, by id.
    waiting: Mutex<HashMap<u64, Waker>>,
    /// True if there are any, so that a release without waiters takes no lock.
    has_waiters: AtomicBool,
    /// The reservation that may proceed while the budget is exhausted; 0 for none. Without this exception, partial requests
    /// could fill the budget and deadlock.
    exempt: AtomicU64,
    next_id: AtomicU64,
}

/// The bytes one client occupies.
#[derive(Debug)]
pub(in crate::server) struct Reservation<'r> {
    budget: &'r MemoryBudget,
    reserved_bytes: usize,
    /// Set once it has waited.
    id: Option<u64>,
}

/// The state of a client that waits for capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum Progress {
    /// It has sent a part of a request, and frees its bytes once the rest is read.
    Partial,
    /// It leaves replies unread: reading more from it would free nothing.
    Complete,
}

impl MemoryBudget {
    /// A budget of `max_bytes`. Each reservation has `free_bytes` of its own that do not count.
    pub(in crate::server) fn new(max_bytes: usize, free_bytes: usize) -> Self {
        Self {
            max_bytes,
            free_bytes,
            reserved: AtomicUsize::new(0),
            waiting: Mutex::default(),
            has_waiters: AtomicBool::new(false),
            exempt: AtomicU64::new(0),
            next_id: AtomicU64::new(1),
        }
    }

    pub(in crate::server) const fn reservation(&self) -> Reservation<'_> {
        Reservation {
            budget: self,
            reserved_bytes: 0,
            id: None,
        }
    }

    /// True if no capacity is left.
    pub(in crate::server) fn is_exhausted(&self) -> bool {
        self.reserved.load(Ordering::SeqCst) >= self.max_bytes
    }

    fn release(&self, bytes: usize) {
        self.reserved.fetch_sub(bytes, Ordering::SeqCst);
        if !self.is_exhausted() {
            self.wake();
        }
    }

    fn wake(&self) {
        if self.has_waiters.load(Ordering::SeqCst) {
            let waiting = {
                let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                self.has_waiters.store(false, Ordering::SeqCst);
                take(&mut *waiting)
            };
            waiting.into_values().for_each(Waker::wake);
        }
    }
}

impl Reservation<'_> {
    /// Sets the bytes that the client occupies. False if they exceed the budget; they are counted all the same.
    pub(in crate::server) fn resize(&mut self, bytes: usize) -> bool {
        let needed = bytes.saturating_sub(self.budget.free_bytes);
        if needed > self.reserved_bytes {
            let growth = needed - self.reserved_bytes;
            let before = self.budget.reserved.fetch_add(growth, Ordering::SeqCst);
            self.reserved_bytes = needed;
            return before.saturating_add(growth) <= self.budget.max_bytes;
        }
        if needed < self.reserved_bytes {
            self.budget.release(self.reserved_bytes - needed);
            self.reserved_bytes = needed;
        }
        if needed == 0 {
            self.end_exemption();
        }
        true
    }

    /// True if the client occupies more than its free bytes.
    pub(in crate::server) const fn exceeds_free(&self) -> bool {
        self.reserved_bytes > 0
    }

    /// Ready when the budget has capacity, or when it is the turn of this partial request to proceed without.
    pub(in crate::server) fn poll_capacity(&mut self, cx: &Context<'_>, progress: Progress) -> Poll<()> {
        if progress == Progress::Complete {
            self.end_exemption();
        }
        if self.may_proceed(progress) {
            return Poll::Ready(());
        }
        let budget = self.budget;
        {
            let mut waiting = budget.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            waiting.insert(self.assigned_id(), cx.waker().clone());
            budget.has_waiters.store(true, Ordering::SeqCst);
        }
        // Capacity may have been released before the waiter was registered.
        match self.may_proceed(progress) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    fn may_proceed(&mut self, progress: Progress) -> bool {
        if !self.budget.is_exhausted() {
            return true;
        }
        let id = self.assigned_id();
        let claim = |holder| (holder == 0 || holder == id).then_some(id);
        let exempt = &self.budget.exempt;
        progress == Progress::Partial && exempt.fetch_update(Ordering::SeqCst, Ordering::SeqCst, claim).is_ok()
    }

    fn end_exemption(&self) {
        let Some(id) = self.id else { return };
        let ended = self
            .budget
            .exempt
            .compare_exchange(id, 0, Ordering::SeqCst, Ordering::SeqCst);
        if ended.is_ok() {
            self.budget.wake();
        }
    }

    fn assigned_id(&mut self) -> u64 {
        let next_id = &self.budget.next_id;
        *self.id.get_or_insert_with(|| next_id.fetch_add(1, Ordering::Relaxed))
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            let mut waiting = self.budget.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            waiting.remove(&id);
        }
        self.end_exemption();
        // Most reserve nothing, and touch no shared cache line.
        if self.reserved_bytes > 0 {
            self.budget.release(self.reserved_bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;

    #[test]
    fn what_is_free_is_not_counted_and_what_is_taken_comes_back() {
        let budget = MemoryBudget::new(100, 10);
        let (mut one, mut other) = (budget.reservation(), budget.reservation());
        assert!(one.resize(10) && !one.exceeds_free());
        assert!(one.resize(110) && one.exceeds_free());
        assert!(other.resize(10));
        assert!(!other.resize(11));
        drop(one);
        assert!(other.resize(110));
        assert!(other.resize(0));
        drop(other);
        assert_eq!(budget.reserved.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn who_waits_for_room_is_woken_when_there_is_some() {
        let budget = MemoryBudget::new(100, 10);
        let (mut one, mut other) = (budget.reservation(), budget.reservation());
        assert!(one.resize(110));
        let waits = async {
            poll_fn(|cx| other.poll_capacity(cx, Progress::Complete)).await;
            other.resize(20)
        };
        let gives = async {
            tokio::task::yield_now().await;
            one.resize(100)
        };
        let (got, gave) = tokio::join!(waits, gives);
        assert!(got && gave);
    }

    #[test]
    fn who_leaves_waits_no_more() {
        let budget = MemoryBudget::new(100, 10);
        let (mut one, mut other) = (budget.reservation(), budget.reservation());
        assert!(one.resize(110));
        assert!(
            other
                .poll_capacity(&Context::from_waker(Waker::noop()), Progress::Complete)
                .is_pending()
        );
        drop(other);
        assert!(budget.waiting.lock().unwrap().is_empty());
    }

    #[test]
    fn one_of_those_who_are_half_through_goes_on_at_a_time() {
        let budget = MemoryBudget::new(100, 10);
        let cx = Context::from_waker(Waker::noop());
        let (mut one, mut other, mut reads_nothing) =
            (budget.reservation(), budget.reservation(), budget.reservation());
        for reservation in [&mut one, &mut other, &mut reads_nothing] {
            reservation.resize(60);
        }
        assert!(reads_nothing.poll_capacity(&cx, Progress::Complete).is_pending());
        assert!(one.poll_capacity(&cx, Progress::Partial).is_ready());
        assert!(other.poll_capacity(&cx, Progress::Partial).is_pending());
        // It keeps its turn until it is done or dropped.
        one.resize(70);
        assert!(one.poll_capacity(&cx, Progress::Partial).is_ready());
        reads_nothing.resize(110);
        one.resize(0);
        assert!(budget.is_exhausted() && other.poll_capacity(&cx, Progress::Partial).is_ready());
        one.resize(60);
        assert!(one.poll_capacity(&cx, Progress::Partial).is_pending());
        drop(other);
        assert!(one.poll_capacity(&cx, Progress::Partial).is_ready());
    }
}
