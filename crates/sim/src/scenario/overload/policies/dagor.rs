//! DAGOR, the overload control of WeChat (Zhou et al., SoCC 2018): admission levels of compound priorities, moved by the
//! mean queueing time of a window.

use super::{Action, Arrival, Policy};
use tollgate_core::Micros;
use tollgate_core::protect::{PriorityClass, WHOLE_PPM};

/// The adaptive admission control of the paper: a histogram of priorities, and a level up to which they are admitted.
#[derive(Clone, Debug)]
pub struct AdmissionLevels {
    alpha_ppm: u64,
    beta_ppm: u64,
    /// Requests of the window by compound priority, the most important first.
    arrived: Vec<u64>,
    admitted: u64,
    /// Priorities below it are admitted.
    level: usize,
}

impl AdmissionLevels {
    /// Four business priorities of 128 user priorities each.
    pub const LEVELS: usize = 4 * 128;

    /// With these steps: down by `alpha` of what was admitted, up by `beta`.
    pub fn new(alpha_ppm: u64, beta_ppm: u64) -> Self {
        Self {
            alpha_ppm,
            beta_ppm,
            arrived: vec![0; Self::LEVELS],
            admitted: 0,
            level: Self::LEVELS,
        }
    }

    /// True if a request of this priority is admitted.
    pub fn admits(&mut self, priority: usize) -> bool {
        if let Some(count) = self.arrived.get_mut(priority) {
            *count += 1;
        }
        let admits = priority < self.level;
        self.admitted += u64::from(admits);
        admits
    }

    /// Ends a window: the level moves to where the expected number would have been admitted.
    pub fn end_window(&mut self, is_overloaded: bool) {
        let admitted = self.admitted;
        let at = |level: usize| self.arrived.get(level).copied().unwrap_or(0);
        if is_overloaded {
            let expected = admitted.saturating_sub(admitted * self.alpha_ppm / WHOLE_PPM);
            let mut count = admitted;
            while count > expected && self.level > 0 {
                self.level -= 1;
                count = count.saturating_sub(at(self.level));
            }
        } else {
            let expected = admitted + admitted * self.beta_ppm / WHOLE_PPM;
            let mut count = admitted;
            while count < expected && self.level < Self::LEVELS {
                count += at(self.level);
                self.level += 1;
            }
        }
        self.arrived.fill(0);
        self.admitted = 0;
    }

    /// The level.
    pub const fn level(&self) -> usize {
        self.level
    }
}

/// Admission levels in front of the queue of the service.
pub(super) struct DagorPolicy {
    levels: AdmissionLevels,
    target: Micros,
    window: Micros,
    window_ends: Micros,
    arrived: u64,
    waited_us: u64,
    taken: u64,
}

impl DagorPolicy {
    /// Overloaded above `target`; a window ends after this time or 2,000 requests.
    pub(super) const fn new(target: Micros, window: Micros, levels: AdmissionLevels) -> Self {
        Self {
            levels,
            target,
            window,
            window_ends: window,
            arrived: 0,
            waited_us: 0,
            taken: 0,
        }
    }
}

impl Policy for DagorPolicy {
    fn arrive(&mut self, now: Micros, arrival: &Arrival, actions: &mut Vec<Action>) {
        if now >= self.window_ends || self.arrived >= WINDOW_REQUESTS {
            let mean_us = self.waited_us.checked_div(self.taken).unwrap_or(0);
            self.levels.end_window(mean_us > self.target.get());
            (self.arrived, self.waited_us, self.taken) = (0, 0, 0);
            self.window_ends = Micros::new(now.get() + self.window.get());
        }
        self.arrived += 1;
        let user = usize::try_from(arrival.caller % 128).unwrap_or(0);
        let is_admitted = self.levels.admits(arrival.class.rank() * 128 + user);
        actions.push(match is_admitted {
            true => Action::Dispatch(arrival.id),
            false => Action::Deny(arrival.id),
        });
    }

    fn done(&mut self, _now: Micros, _class: PriorityClass, _held: Micros, _actions: &mut Vec<Action>) {}

    fn takes(&mut self, _now: Micros, waited: Micros) -> bool {
        self.waited_us += waited.get();
        self.taken += 1;
        true
    }
}

const WINDOW_REQUESTS: u64 = 2_000;

#[cfg(test)]
mod tests {
    use super::*;

    /// The paper: under overload the expected number is 95 % of what was admitted, otherwise 101 %, and the level moves
    /// along the histogram until that number would have been admitted.
    #[test]
    fn levels_move_by_the_alpha_and_beta_of_the_paper() {
        let mut levels = AdmissionLevels::new(50_000, 10_000);
        let offer = |levels: &mut AdmissionLevels| {
            let admitted = (0..AdmissionLevels::LEVELS * 4).filter(|request| levels.admits(request / 4));
            admitted.count() / 4
        };
        assert_eq!(offer(&mut levels), 512);
        levels.end_window(true);
        // 2048 x 0.95 is 1946: 26 levels of 4 less.
        assert_eq!(levels.level(), 486);
        assert_eq!(offer(&mut levels), 486);
        levels.end_window(false);
        // 1944 x 1.01 is 1963: 5 levels more.
        assert_eq!(levels.level(), 491);
        levels.end_window(false);
        assert_eq!(levels.level(), 491);
    }
}
