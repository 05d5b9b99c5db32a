//! How much all clients of a front end together may leave with it: halves of requests, and replies that they do not read.

use std::collections::HashMap;
use std::mem::take;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

/// Room for so many bytes beyond what each connection has free.
#[derive(Debug)]
pub(super) struct Room {
    most: usize,
    free: usize,
    taken: AtomicUsize,
    /// Shares that wait for room, by their numbers.
    waiting: Mutex<HashMap<u64, Waker>>,
    /// Whether there are any: nobody who gives room back takes a lock for nothing.
    is_waited_for: AtomicBool,
    /// The share that may go on though all room is taken, 0 if none does: if all waited for room with a half of something, nobody
    /// would ever get to the other half.
    turn: AtomicU64,
    numbers: AtomicU64,
}

/// What one client has taken.
#[derive(Debug)]
pub(super) struct Share<'r> {
    room: &'r Room,
    taken: usize,
    /// Its number, once it has waited.
    number: Option<u64>,
}

/// Whether a client that waits for room has sent a half of something, and is done when the other half is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Half {
    Yes,
    No,
}

impl Room {
    /// Room for `most` bytes. Each share holds `free` of its own that do not count.
    pub(super) fn new(most: usize, free: usize) -> Self {
        Self {
            most,
            free,
            taken: AtomicUsize::new(0),
            waiting: Mutex::default(),
            is_waited_for: AtomicBool::new(false),
            turn: AtomicU64::new(0),
            numbers: AtomicU64::new(1),
        }
    }

    pub(super) const fn share(&self) -> Share<'_> {
        Share {
            room: self,
            taken: 0,
            number: None,
        }
    }

    /// Whether all of it is taken.
    pub(super) fn is_short(&self) -> bool {
        self.taken.load(Ordering::SeqCst) >= self.most
    }

    fn give_back(&self, bytes: usize) {
        self.taken.fetch_sub(bytes, Ordering::SeqCst);
        if !self.is_short() {
            self.wake();
        }
    }

    fn wake(&self) {
        if self.is_waited_for.load(Ordering::SeqCst) {
            let waiting = {
                let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                self.is_waited_for.store(false, Ordering::SeqCst);
                take(&mut *waiting)
            };
            waiting.into_values().for_each(Waker::wake);
        }
    }
}

impl Share<'_> {
    /// Notes that the client holds so many bytes. False if they are more than there is room for; they are noted all the same.
    pub(super) fn hold(&mut self, bytes: usize) -> bool {
        let needed = bytes.saturating_sub(self.room.free);
        if needed > self.taken {
            let more = needed - self.taken;
            let before = self.room.taken.fetch_add(more, Ordering::SeqCst);
            self.taken = needed;
            return before.saturating_add(more) <= self.room.most;
        }
        if needed < self.taken {
            self.room.give_back(self.taken - needed);
            self.taken = needed;
        }
        if needed == 0 {
            self.end_turn();
        }
        true
    }

    /// Whether the client holds more than what is free to it.
    pub(super) const fn is_taken(&self) -> bool {
        self.taken > 0
    }

    /// Waits until not all room is taken, or, who is `half` through something, until it is its turn all the same.
    pub(super) fn poll_room(&mut self, cx: &Context<'_>, half: Half) -> Poll<()> {
        if half == Half::No {
            self.end_turn();
        }
        if self.goes_on(half) {
            return Poll::Ready(());
        }
        let room = self.room;
        {
            let mut waiting = room.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            waiting.insert(self.number(), cx.waker().clone());
            room.is_waited_for.store(true, Ordering::SeqCst);
        }
        // Room may have been given back before it was seen that somebody waits.
        match self.goes_on(half) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    fn goes_on(&mut self, half: Half) -> bool {
        if !self.room.is_short() {
            return true;
        }
        let number = self.number();
        let takes = |turn| (turn == 0 || turn == number).then_some(number);
        let turn = &self.room.turn;
        half == Half::Yes && turn.fetch_update(Ordering::SeqCst, Ordering::SeqCst, takes).is_ok()
    }

    fn end_turn(&self) {
        let Some(number) = self.number else { return };
        let ended = self
            .room
            .turn
            .compare_exchange(number, 0, Ordering::SeqCst, Ordering::SeqCst);
        if ended.is_ok() {
            self.room.wake();
        }
    }

    fn number(&mut self) -> u64 {
        let numbers = &self.room.numbers;
        *self
            .number
            .get_or_insert_with(|| numbers.fetch_add(1, Ordering::Relaxed))
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let mut waiting = self.room.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            waiting.remove(&number);
        }
        self.end_turn();
        // Most take nothing, and touch nothing that all share.
        if self.taken > 0 {
            self.room.give_back(self.taken);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;

    #[test]
    fn what_is_free_is_not_counted_and_what_is_taken_comes_back() {
        let room = Room::new(100, 10);
        let (mut one, mut other) = (room.share(), room.share());
        assert!(one.hold(10) && !one.is_taken());
        assert!(one.hold(110) && one.is_taken());
        assert!(other.hold(10));
        assert!(!other.hold(11));
        drop(one);
        assert!(other.hold(110));
        assert!(other.hold(0));
        drop(other);
        assert_eq!(room.taken.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn who_waits_for_room_is_woken_when_there_is_some() {
        let room = Room::new(100, 10);
        let (mut one, mut other) = (room.share(), room.share());
        assert!(one.hold(110));
        let waits = async {
            poll_fn(|cx| other.poll_room(cx, Half::No)).await;
            other.hold(20)
        };
        let gives = async {
            tokio::task::yield_now().await;
            one.hold(100)
        };
        let (got, gave) = tokio::join!(waits, gives);
        assert!(got && gave);
    }

    #[test]
    fn who_leaves_waits_no_more() {
        let room = Room::new(100, 10);
        let (mut one, mut other) = (room.share(), room.share());
        assert!(one.hold(110));
        assert!(
            other
                .poll_room(&Context::from_waker(Waker::noop()), Half::No)
                .is_pending()
        );
        drop(other);
        assert!(room.waiting.lock().unwrap().is_empty());
    }

    #[test]
    fn one_of_those_who_are_half_through_goes_on_at_a_time() {
        let room = Room::new(100, 10);
        let cx = Context::from_waker(Waker::noop());
        let (mut one, mut other, mut reads_nothing) = (room.share(), room.share(), room.share());
        for share in [&mut one, &mut other, &mut reads_nothing] {
            share.hold(60);
        }
        assert!(reads_nothing.poll_room(&cx, Half::No).is_pending());
        assert!(one.poll_room(&cx, Half::Yes).is_ready());
        assert!(other.poll_room(&cx, Half::Yes).is_pending());
        // It keeps its turn until it is done, or gone.
        one.hold(70);
        assert!(one.poll_room(&cx, Half::Yes).is_ready());
        reads_nothing.hold(110);
        one.hold(0);
        assert!(room.is_short() && other.poll_room(&cx, Half::Yes).is_ready());
        one.hold(60);
        assert!(one.poll_room(&cx, Half::Yes).is_pending());
        drop(other);
        assert!(one.poll_room(&cx, Half::Yes).is_ready());
    }
}
