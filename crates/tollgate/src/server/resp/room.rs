//! How much all clients together may leave with a server: halves of commands, and replies that they do not read.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The most bytes of all connections together, beyond what each has free.
const ROOM: usize = 8 << 20;
/// What every connection may hold without asking: more than a pipeline of usual commands and its replies.
const FREE: usize = 4 << 10;

/// What is taken of it.
#[derive(Debug, Default)]
pub(super) struct Room(AtomicUsize);

/// What one connection has taken.
#[derive(Debug)]
pub(super) struct Share<'r> {
    room: &'r Room,
    taken: usize,
}

impl Room {
    pub(super) fn share(&self) -> Share<'_> {
        Share { room: self, taken: 0 }
    }
}

impl Share<'_> {
    /// Notes that the connection holds so many bytes. False if there is no room for them.
    pub(super) fn hold(&mut self, bytes: usize) -> bool {
        let needed = bytes.saturating_sub(FREE);
        if needed > self.taken {
            let more = needed - self.taken;
            let before = self.room.0.fetch_add(more, Ordering::Relaxed);
            self.taken = needed;
            return before.saturating_add(more) <= ROOM;
        }
        if needed < self.taken {
            self.room.0.fetch_sub(self.taken - needed, Ordering::Relaxed);
            self.taken = needed;
        }
        true
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        self.room.0.fetch_sub(self.taken, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_free_is_not_counted_and_what_is_taken_comes_back() {
        let room = Room::default();
        let (mut one, mut other) = (room.share(), room.share());
        assert!(one.hold(FREE));
        assert!(one.hold(FREE + ROOM));
        assert!(other.hold(FREE));
        assert!(!other.hold(FREE + 1));
        drop(one);
        assert!(other.hold(FREE + ROOM));
        assert!(other.hold(0));
        drop(other);
        assert_eq!(room.0.load(Ordering::Relaxed), 0);
    }
}
