//! The lease of the control service that sends messages: one of them, as long as the database answers.

use std::time::Duration;
use tokio::time::Instant;

/// The lease, as far as it is known.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SenderLease {
    /// True if this control service has it, with the time of that answer; none before the first one.
    last: Option<(bool, Instant)>,
}

impl SenderLease {
    /// The name of the lease.
    pub(super) const NAME: &str = "alerts";
    /// Its length.
    pub(super) const LENGTH: Duration = Duration::from_secs(30);

    /// Takes the answer of the database, none if there was none, and returns true if this control service sends.
    ///
    /// Until the database first answers each one sends, and so does each one once it has not answered for the length of the lease: the
    /// one that had it may be gone as well, and twice is better than never. Meanwhile the one that has it keeps it.
    pub(super) fn may_send(&mut self, held: Option<bool>, now: Instant) -> bool {
        if let Some(held) = held {
            self.last = Some((held, now));
        }
        match self.last {
            Some((false, at)) => now.saturating_duration_since(at) > Self::LENGTH,
            Some((true, _)) | None => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn somebody_sends_whatever_fails() {
        let start = Instant::now();
        let at = |second| start + Duration::from_secs(second);
        let mut other = SenderLease::default();
        assert!(other.may_send(None, at(0)));
        assert!(!other.may_send(Some(false), at(5)));
        // The database is unavailable, and the one that had the lease may be too.
        assert!(!other.may_send(None, at(10)));
        assert!(!other.may_send(None, at(35)));
        assert!(other.may_send(None, at(36)));
        assert!(!other.may_send(Some(false), at(40)));
        assert!(other.may_send(Some(true), at(45)));
        assert!(other.may_send(None, at(1_000)));
    }
}
