//! How many instances share the limits: as they are told, or as they were counted.

use crate::lease;
use crate::sync::Lock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use tokio::sync::Mutex;
use tollgate_core::{LeaseId, Micros, Timestamp};

/// How the number of instances is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// It was said.
    Said,
    /// They were counted.
    Counted,
    /// It is not: one is assumed.
    Not,
}

/// How many instances share the limits.
#[derive(Debug)]
pub(super) struct Instances {
    said: Option<u32>,
    /// The most that were counted of late; zero before the first count.
    most: AtomicU32,
    counts: Lock<Counts>,
    /// What stands for this one among them.
    pub(super) lease: LeaseId,
    /// Whether this one says no more that it is there.
    pub(super) has_left: AtomicBool,
    /// Held while it says so, or takes it back.
    pub(super) speaking: Mutex<()>,
}

/// The most that were counted in each of the last minutes in which anybody counted.
#[derive(Debug, Default)]
struct Counts {
    minutes: [(u64, u32); MINUTES],
}

/// For so long the largest number counts: who has gone may only be cut off, and still serve.
const MINUTES: usize = 10;
const MINUTE: Micros = Micros::from_secs(60);

impl Instances {
    pub(super) fn new(said: Option<u32>) -> Self {
        Self {
            said: said.map(|said| said.max(1)),
            most: AtomicU32::new(0),
            counts: Lock::new(Counts::default()),
            lease: lease::random_id(),
            has_left: AtomicBool::new(false),
            speaking: Mutex::default(),
        }
    }

    /// How many there are, and how that is known.
    #[inline]
    pub(super) fn count(&self) -> (u32, Known) {
        match (self.said, self.most.load(Ordering::Relaxed)) {
            (Some(said), _) => (said, Known::Said),
            (None, 0) => (1, Known::Not),
            (None, most) => (most, Known::Counted),
        }
    }

    /// Notes that so many were counted.
    pub(super) fn counted(&self, count: u32, now: Timestamp) {
        let most = self.counts.lock().note(count.max(1), now);
        self.most.store(most, Ordering::Relaxed);
    }
}

impl Counts {
    /// Notes a count, and says which of the last ten minutes was the largest.
    fn note(&mut self, count: u32, now: Timestamp) -> u32 {
        let minute = now.as_micros() / MINUTE.get();
        let place = (minute % MINUTES as u64) as usize;
        if let Some(noted) = self.minutes.get_mut(place) {
            *noted = match *noted {
                (of, most) if of == minute => (minute, most.max(count)),
                _ => (minute, count),
            };
        }
        let recent = self.minutes.iter().filter(|(of, _)| of + MINUTES as u64 > minute);
        recent.map(|(_, most)| *most).max().unwrap_or(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(s: u64) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000) + Micros::from_secs(s)
    }

    #[test]
    fn the_largest_number_counts_for_ten_minutes() {
        let instances = Instances::new(None);
        assert_eq!(instances.count(), (1, Known::Not));
        instances.counted(4, at(0));
        instances.counted(3, at(30));
        instances.counted(2, at(500));
        assert_eq!(instances.count(), (4, Known::Counted));
        instances.counted(2, at(640));
        assert_eq!(instances.count(), (2, Known::Counted));
        // Nobody counts while the store is away: what was known stays.
        instances.counted(5, at(50_000));
        assert_eq!(instances.count(), (5, Known::Counted));
    }

    #[test]
    fn what_is_said_is_believed() {
        let instances = Instances::new(Some(0));
        instances.counted(9, at(0));
        assert_eq!(instances.count(), (1, Known::Said));
    }
}
