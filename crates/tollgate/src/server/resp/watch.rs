//! How long a client may take, looked at from time to time: commands in between pay nothing for it.

use super::settings::RespSettings;
use std::time::Duration;
use tokio::time::Instant;

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitingFor {
    /// For the client to show who it is.
    Authentication,
    /// For the next command.
    NextCommand,
    /// For the rest of a command, or for the client to hang up.
    RestOfCommand,
    /// For the client to read.
    ClientRead,
}

/// What was seen of a connection: if it is the same later, nothing has moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProgressMark {
    pub(super) waiting_for: WaitingFor,
    /// Commands answered, or bytes sent where replies are unread.
    pub(super) progress: u64,
}

/// Watches one connection.
pub(super) struct IdleMonitor {
    mark: ProgressMark,
    since: Instant,
    check_interval: Duration,
}

impl IdleMonitor {
    pub(super) fn new(settings: &RespSettings, now: Instant) -> Self {
        let shortest = [settings.command_timeout, settings.unread_timeout, settings.idle_timeout]
            .into_iter()
            .min()
            .unwrap_or(INTERVAL_MAX);
        Self {
            mark: ProgressMark {
                waiting_for: WaitingFor::NextCommand,
                progress: 0,
            },
            since: now,
            check_interval: (shortest / 4).clamp(INTERVAL_MIN, INTERVAL_MAX),
        }
    }

    /// How long until the next look.
    pub(super) fn check_interval(&self) -> Duration {
        self.check_interval
    }

    /// Whether a connection has waited for the same thing for too long.
    pub(super) fn is_expired(&mut self, mark: ProgressMark, settings: &RespSettings, now: Instant) -> bool {
        if mark != self.mark {
            (self.mark, self.since) = (mark, now);
            return false;
        }
        let timeout = match mark.waiting_for {
            WaitingFor::NextCommand => settings.idle_timeout,
            WaitingFor::RestOfCommand | WaitingFor::Authentication => settings.command_timeout,
            WaitingFor::ClientRead => settings.unread_timeout,
        };
        now.duration_since(self.since) >= timeout
    }
}

const INTERVAL_MIN: Duration = Duration::from_millis(10);
const INTERVAL_MAX: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_move_is_over_in_its_time() {
        let settings = RespSettings::default();
        let started = Instant::now();
        let mut monitor = IdleMonitor::new(&settings, started);
        let mut check = |seconds, waiting_for, progress| {
            let now = started + Duration::from_secs(seconds);
            monitor.is_expired(ProgressMark { waiting_for, progress }, &settings, now)
        };
        assert!(!check(3_599, WaitingFor::NextCommand, 0));
        assert!(check(3_600, WaitingFor::NextCommand, 0));
        assert!(!check(3_700, WaitingFor::RestOfCommand, 7));
        assert!(!check(3_704, WaitingFor::RestOfCommand, 7));
        assert!(check(3_705, WaitingFor::RestOfCommand, 7));
        assert!(!check(3_711, WaitingFor::RestOfCommand, 8));
        assert!(!check(3_712, WaitingFor::ClientRead, 100));
        assert!(!check(3_786, WaitingFor::ClientRead, 100));
        assert!(check(3_787, WaitingFor::ClientRead, 100));
    }
}
