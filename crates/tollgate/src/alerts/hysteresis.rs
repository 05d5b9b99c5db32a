//! Hysteresis: a condition must hold for a while before an alert fires, and be gone for longer before it resolves.

/// The steps that an alert needs to fire and to resolve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Persistence {
    /// Steps with the condition that are needed to fire,
    needed: u32,
    /// among so many last ones; at most 32.
    window: u32,
    /// Steps in succession that clear it.
    clear: u32,
}

/// The state of one condition over its last steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Hysteresis {
    /// One bit per step, the last one lowest: 1 where the condition held.
    recent: u32,
    clear_steps: u32,
    level: AlertLevel,
}

/// The level of one condition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum AlertLevel {
    /// The condition does not hold.
    #[default]
    Quiet,
    /// It held, and not long enough to fire.
    Pending,
    /// It fires.
    Firing,
}

/// The finding of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// The condition holds.
    Holds,
    /// It does not hold, and is not clearly gone.
    Between,
    /// It is clearly gone.
    Gone,
}

impl Persistence {
    /// Anomalies per minute: two of three minutes, and five clear ones.
    pub(super) const ANOMALY: Self = Self::new(2, 3, 5);

    /// Fires after `needed` of the last `window` steps, and resolves after `clear` steps in succession.
    pub(super) const fn new(needed: u32, window: u32, clear: u32) -> Self {
        assert!(needed > 0 && needed <= window && window <= 32 && clear > 0);
        Self { needed, window, clear }
    }
}

impl Hysteresis {
    /// Takes the finding of the next step and returns the level after it.
    pub(super) fn step(&mut self, finding: Finding, persistence: Persistence) -> AlertLevel {
        let holds = finding == Finding::Holds;
        let kept = u32::MAX >> (32 - persistence.window);
        self.recent = (self.recent << 1 | u32::from(holds)) & kept;
        self.level = match self.level {
            AlertLevel::Firing => {
                self.clear_steps = if finding == Finding::Gone {
                    self.clear_steps + 1
                } else {
                    0
                };
                if self.clear_steps < persistence.clear {
                    return AlertLevel::Firing;
                }
                *self = Self::default();
                AlertLevel::Quiet
            }
            AlertLevel::Quiet | AlertLevel::Pending => match self.recent.count_ones() {
                held if held >= persistence.needed => AlertLevel::Firing,
                0 => AlertLevel::Quiet,
                _ => AlertLevel::Pending,
            },
        };
        self.level
    }

    /// The level after the last step.
    pub(super) const fn level(&self) -> AlertLevel {
        self.level
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps as letters: `x` holds, `-` between, `.` gone; levels as letters: quiet, pending, firing.
    #[track_caller]
    fn check(persistence: Persistence, steps: &str, expected: &str) {
        let mut state = Hysteresis::default();
        let levels: String = steps
            .chars()
            .map(|step| {
                let finding = match step {
                    'x' => Finding::Holds,
                    '-' => Finding::Between,
                    _ => Finding::Gone,
                };
                match state.step(finding, persistence) {
                    AlertLevel::Quiet => 'q',
                    AlertLevel::Pending => 'p',
                    AlertLevel::Firing => 'f',
                }
            })
            .collect();
        assert_eq!(levels, expected, "{steps}");
    }

    #[test]
    fn two_of_three_fire_and_five_clear_ones_resolve() {
        let anomaly = Persistence::ANOMALY;
        check(anomaly, "..x...", "qqpppq");
        check(anomaly, "x.x...", "ppffff");
        check(anomaly, "x..x..x", "ppppppp");
        check(anomaly, "xx.....x", "pfffffqp");
        check(anomaly, "xx..-.....", "pffffffffq");
    }

    #[test]
    fn a_state_may_fire_at_once() {
        check(Persistence::new(1, 1, 2), ".x.x..", "qffffq");
        check(Persistence::new(3, 3, 1), "xx.xxx.", "pppppfq");
    }
}
