//! How long a client may take, looked at from time to time: commands in between pay nothing for it.

use super::settings::RespSettings;
use std::time::Duration;
use tokio::time::Instant;

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waits {
    /// For the client to show who it is.
    Unknown,
    /// For the next command.
    Idle,
    /// For the rest of a command, or for the client to hang up.
    Half,
    /// For the client to read.
    Unread,
}

/// What was seen of a connection: if it is the same later, nothing has moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) waits: Waits,
    /// Commands answered, or bytes sent where replies are unread.
    pub(super) moved: u64,
}

/// Watches one connection.
pub(super) struct Watch {
    seen: Seen,
    since: Instant,
    every: Duration,
}

impl Watch {
    pub(super) fn new(settings: &RespSettings, now: Instant) -> Self {
        let shortest = [settings.command_timeout, settings.unread_timeout, settings.idle_timeout]
            .into_iter()
            .min()
            .unwrap_or(LONGEST);
        Self {
            seen: Seen {
                waits: Waits::Idle,
                moved: 0,
            },
            since: now,
            every: (shortest / 4).clamp(SHORTEST, LONGEST),
        }
    }

    /// How long until the next look.
    pub(super) fn every(&self) -> Duration {
        self.every
    }

    /// Whether a connection has waited for the same thing for too long.
    pub(super) fn is_over(&mut self, seen: Seen, settings: &RespSettings, now: Instant) -> bool {
        if seen != self.seen {
            (self.seen, self.since) = (seen, now);
            return false;
        }
        let most = match seen.waits {
            Waits::Idle => settings.idle_timeout,
            Waits::Half | Waits::Unknown => settings.command_timeout,
            Waits::Unread => settings.unread_timeout,
        };
        now.duration_since(self.since) >= most
    }
}

const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_move_is_over_in_its_time() {
        let settings = RespSettings::default();
        let begun = Instant::now();
        let mut watch = Watch::new(&settings, begun);
        let mut look = |seconds, waits, moved| {
            let now = begun + Duration::from_secs(seconds);
            watch.is_over(Seen { waits, moved }, &settings, now)
        };
        assert!(!look(3_599, Waits::Idle, 0));
        assert!(look(3_600, Waits::Idle, 0));
        assert!(!look(3_700, Waits::Half, 7));
        assert!(!look(3_704, Waits::Half, 7));
        assert!(look(3_705, Waits::Half, 7));
        assert!(!look(3_711, Waits::Half, 8));
        assert!(!look(3_712, Waits::Unread, 100));
        assert!(!look(3_786, Waits::Unread, 100));
        assert!(look(3_787, Waits::Unread, 100));
    }
}
