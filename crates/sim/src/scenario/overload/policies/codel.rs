//! CoDel (RFC 8289) on the queue of the service.

use super::{Action, Arrival, Policy};
use tollgate_core::Micros;
use tollgate_core::protect::PriorityClass;

/// The controlled delay: drops from a queue whose waits stay above a target, ever more often.
#[derive(Clone, Debug)]
pub struct ControlledDelay {
    target: Micros,
    interval: Micros,
    /// The time at which waits have been above the target for an interval.
    first_above: Option<u64>,
    is_dropping: bool,
    drop_next: u64,
    count: u64,
    last_count: u64,
}

impl ControlledDelay {
    /// With a target for waits, and the interval in which they should reach it once.
    pub const fn new(target: Micros, interval: Micros) -> Self {
        Self {
            target,
            interval,
            first_above: None,
            is_dropping: false,
            drop_next: 0,
            count: 0,
            last_count: 0,
        }
    }

    /// True if a request that waited for `waited` is dropped now.
    pub fn drops(&mut self, now: Micros, waited: Micros) -> bool {
        let now = now.get();
        let is_above = self.is_above(now, waited);
        if self.is_dropping {
            if !is_above {
                self.is_dropping = false;
            } else if now >= self.drop_next {
                self.count += 1;
                self.drop_next = self.control_law(self.drop_next);
                return true;
            }
            return false;
        }
        if !is_above {
            return false;
        }
        self.is_dropping = true;
        // Dropping that ended a short time ago goes on at the rate it had.
        let delta = self.count.saturating_sub(self.last_count);
        let is_recent = now.saturating_sub(self.drop_next) < 16 * self.interval.get();
        self.count = if delta > 1 && is_recent { delta } else { 1 };
        self.drop_next = self.control_law(now);
        self.last_count = self.count;
        true
    }

    /// The time of the next drop: an interval over the root of the number of drops later.
    fn control_law(&self, from: u64) -> u64 {
        // The root with six decimal places.
        from + self.interval.get() * 1_000_000 / (self.count * 1_000_000_000_000).isqrt().max(1)
    }

    fn is_above(&mut self, now: u64, waited: Micros) -> bool {
        if waited < self.target {
            self.first_above = None;
            return false;
        }
        now >= *self.first_above.get_or_insert(now + self.interval.get())
    }
}

/// All requests wait for a worker, in one queue that CoDel drops from.
pub(super) struct CodelPolicy {
    codel: ControlledDelay,
    dispatched: usize,
    dispatched_max: usize,
}

impl CodelPolicy {
    /// `backlog_max` bounds the queue.
    pub(super) const fn new(target: Micros, interval: Micros, backlog_max: usize) -> Self {
        Self {
            codel: ControlledDelay::new(target, interval),
            dispatched: 0,
            dispatched_max: backlog_max.saturating_add(100),
        }
    }
}

impl Policy for CodelPolicy {
    fn arrive(&mut self, _now: Micros, arrival: &Arrival, actions: &mut Vec<Action>) {
        if self.dispatched >= self.dispatched_max {
            actions.push(Action::Deny(arrival.id));
            return;
        }
        self.dispatched += 1;
        actions.push(Action::Dispatch(arrival.id));
    }

    fn done(&mut self, _now: Micros, _class: PriorityClass, _held: Micros, _actions: &mut Vec<Action>) {
        self.dispatched -= 1;
    }

    fn takes(&mut self, now: Micros, waited: Micros) -> bool {
        let drops = self.codel.drops(now, waited);
        self.dispatched -= usize::from(drops);
        !drops
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 8289, 5.4 and appendix: the first drop after an interval above the target, then after interval/√1, /√2, /√3.
    #[test]
    fn drops_follow_the_control_law_of_the_rfc() {
        let mut codel = ControlledDelay::new(Micros::from_millis(5), Micros::from_millis(100));
        let drops: Vec<u64> = (0..500)
            .filter(|ms| codel.drops(Micros::from_millis(*ms), Micros::from_millis(20)))
            .collect();
        // 100, + 100, + 70.7, + 57.7, + 50, + 44.7 …, each at the next millisecond.
        assert_eq!(drops, [100, 200, 271, 329, 379, 424, 464]);
    }

    #[test]
    fn a_wait_below_the_target_ends_dropping() {
        let mut codel = ControlledDelay::new(Micros::from_millis(5), Micros::from_millis(100));
        let wait = |ms| Micros::from_millis(ms);
        assert!(!codel.drops(wait(0), wait(20)));
        assert!(codel.drops(wait(100), wait(20)));
        assert!(!codel.drops(wait(300), wait(4)));
        assert!(!codel.drops(wait(301), wait(20)));
        assert!(codel.drops(wait(401), wait(20)));
    }
}
