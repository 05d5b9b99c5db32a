//! Statistics of a limit's hits, as envoyproxy/ratelimit counts them.

use crate::decision::Decision;
use crate::rules::verdict::WindowCount;

/// Hits by their distance from the limit. Near hits are also counted as within, unless the limit was exceeded by the
/// same request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HitStats {
    /// Above the limit.
    pub over: u64,
    /// Within the limit, and above the share of it that counts as near.
    pub near: u64,
    /// Within the limit.
    pub within: u64,
}

/// Returns the count from which on a limit is near, given the share that counts as near: 0.8 by default.
#[expect(
    clippy::float_arithmetic,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a figure of statistics, and the one that alerts were tuned to comes of these single-precision numbers"
)]
pub fn near_threshold(limit: u32, share: f32) -> u64 {
    (limit as f32 * share).floor() as u64
}

impl HitStats {
    /// Returns what `hits` add to the statistics of a limit with this decision. `counted` is the window's count
    /// afterwards, where denied hits are counted too; `allowed` is the result of the whole request.
    pub fn from_decision(
        decision: &Decision,
        counted: Option<WindowCount>,
        hits: u64,
        near_share: f32,
        allowed: bool,
    ) -> Self {
        let standing = decision.standing();
        let limit = u32::try_from(standing.limit).unwrap_or(u32::MAX);
        let after = match counted {
            Some(WindowCount {
                after,
                includes_attempt: true,
            }) => after,
            // The hits were not counted, so they did not bring the window nearer to its limit.
            Some(WindowCount { after, .. }) => {
                let is_over = after > u64::from(limit);
                return Self {
                    over: if is_over { hits } else { 0 },
                    near: 0,
                    within: if is_over { 0 } else { hits },
                };
            }
            // Nothing was consumed, so all of it is above the limit.
            None if !decision.is_allow() => {
                return Self {
                    over: hits,
                    ..Self::default()
                };
            }
            None => {
                let used = standing.limit.saturating_sub(standing.remaining);
                if allowed { used } else { used.saturating_add(hits) }
            }
        };
        Self::from_count(limit, near_threshold(limit, near_share), after, hits)
    }

    /// Returns the statistics of `hits` that raised a counter to `after`, under a limit that is near from `near` on.
    pub fn from_count(limit: u32, near: u64, after: u64, hits: u64) -> Self {
        let limit = u64::from(limit);
        let before = after.saturating_sub(hits);
        if after > limit {
            if before >= limit {
                return Self {
                    over: hits,
                    ..Self::default()
                };
            }
            return Self {
                over: after - limit,
                near: limit - near.max(before).min(limit),
                within: 0,
            };
        }
        let near = match after > near {
            true if before >= near => hits,
            true => after - near,
            false => 0,
        };
        Self {
            over: 0,
            near,
            within: hits,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::Standing;
    use crate::units::time::Micros;

    #[test]
    fn hits_are_sorted_by_how_near_the_limit_they_were() {
        // Limit, count after, hits: over, near, within.
        for (limit, after, hits, over, near, within) in [
            (15, 11, 1, 0, 0, 1),
            (15, 13, 1, 0, 1, 1),
            (15, 16, 1, 1, 0, 0),
            (20, 5, 3, 0, 0, 3),
            (8, 7, 3, 0, 1, 3),
            (20, 19, 3, 0, 3, 3),
            (20, 22, 3, 2, 1, 0),
            (10, 22, 3, 3, 0, 0),
            (10, 22, 7, 7, 0, 0),
            (10, 12, 10, 2, 2, 0),
            (0, 1, 1, 1, 0, 0),
            (10, 10, 0, 0, 0, 0),
        ] {
            let stats = HitStats::from_count(limit, near_threshold(limit, 0.8), after, hits);
            assert_eq!(stats, HitStats { over, near, within }, "{limit} {after} {hits}");
        }
    }

    #[test]
    fn what_was_not_counted_is_not_near() {
        let standing = Standing {
            limit: 10,
            remaining: 1,
            reset_after: Micros::ZERO,
        };
        // The count, and whether it includes the hit: over, near, within.
        for (after, includes_attempt, expected) in [
            (9, true, (0, 1, 1)),
            (9, false, (0, 0, 1)),
            (11, true, (1, 0, 0)),
            (12, false, (1, 0, 0)),
        ] {
            let counted = Some(WindowCount {
                after,
                includes_attempt,
            });
            let HitStats { over, near, within } =
                HitStats::from_decision(&Decision::allow(standing), counted, 1, 0.8, false);
            assert_eq!((over, near, within), expected, "{after} {includes_attempt}");
        }
    }

    #[test]
    fn the_near_share_is_cut_to_a_whole_number_in_single_precision() {
        assert_eq!(near_threshold(10, 0.8), 8);
        assert_eq!(near_threshold(15, 0.8), 12);
        assert_eq!(near_threshold(1, 0.8), 0);
        assert_eq!(near_threshold(u32::MAX, 1.0), 1 << 32);
    }
}
