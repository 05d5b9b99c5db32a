//! The offset between the server's clock and ours, from its replies.

use crate::store::redis::context::clock_drift;
use tollgate_core::Timestamp;

/// The lead of the server's clock over ours (negative: its lag) lies between these bounds, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClockOffset(Option<OffsetBounds>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OffsetBounds {
    min: i64,
    max: i64,
    /// The local time at which they were recorded.
    at: Timestamp,
}

impl ClockOffset {
    /// Records a reply: the server's clock showed `server` between sending and receiving, by the local clock.
    ///
    /// Earlier bounds are kept as far as they agree. Otherwise one of the clocks was set, and only the reply counts.
    pub(crate) fn record(&mut self, sent: Timestamp, received: Timestamp, server: Timestamp) {
        let update = OffsetBounds {
            min: difference(server, received),
            max: difference(server, sent),
            at: received,
        };
        let known = self.0.map(|known| known.widen(received));
        self.0 = Some(match known {
            Some(known) if known.min <= update.max && update.min <= known.max => OffsetBounds {
                min: known.min.max(update.min),
                max: known.max.min(update.max),
                at: received,
            },
            _ => update,
        });
    }

    /// The earliest time that the server's clock may show at local time `local_now`. `None` before the first reply.
    pub(crate) fn server_time(&self, local_now: Timestamp) -> Option<Timestamp> {
        let bounds = self.0?.widen(local_now);
        let us = local_now.as_micros().checked_add_signed(bounds.min)?;
        Some(Timestamp::from_micros(us))
    }
}

impl OffsetBounds {
    fn widen(self, now: Timestamp) -> Self {
        let drift = clock_drift(now.since(self.at));
        Self {
            min: self.min.saturating_sub_unsigned(drift),
            max: self.max.saturating_add_unsigned(drift),
            ..self
        }
    }
}

fn difference(one: Timestamp, other: Timestamp) -> i64 {
    one.as_micros()
        .checked_signed_diff(other.as_micros())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Timestamp {
        Timestamp::from_micros(us)
    }

    #[test]
    fn nothing_is_known_before_the_first_reply() {
        assert_eq!(ClockOffset::default().server_time(at(5)), None);
    }

    #[test]
    fn the_quickest_reply_counts_and_slow_ones_do_not_spoil_it() {
        let mut offset = ClockOffset::default();
        // The server is 1,000,000 ahead.
        offset.record(at(100), at(200), at(1_000_150));
        assert_eq!(offset.server_time(at(200)), Some(at(1_000_149)));
        offset.record(at(300), at(310), at(1_000_305));
        assert_eq!(offset.server_time(at(310)), Some(at(1_000_304)));
        offset.record(at(400), at(9_400), at(1_004_900));
        let known = offset.server_time(at(9_400)).expect("learned");
        assert!(known >= at(1_009_390), "{known:?}");
    }

    #[test]
    fn a_clock_that_was_set_is_believed_at_once() {
        for server in [5_000_000, 60] {
            let mut offset = ClockOffset::default();
            offset.record(at(100), at(120), at(1_000_110));
            offset.record(at(200), at(220), at(server));
            assert_eq!(offset.server_time(at(220)), Some(at(server - 1)));
        }
    }
}
