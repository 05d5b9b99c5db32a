//! The exact envelope of a limit over the times at which the store admitted requests, and the number that was due.
//!
//! Integers throughout: units are counted in millionths.

use super::hammer::{HammerResult, Plan};
use tollgate_limiter::testing::excess_millionths;

/// The result of a run.
pub(crate) struct ExactnessResult {
    pub(crate) admitted: u64,
    /// The units that a limit under constant load admits until the latest store time.
    pub(crate) due: u64,
    /// The maximum excess over the limit in any interval.
    pub(crate) beyond: u64,
}

impl ExactnessResult {
    /// The units that were due and not admitted.
    pub(crate) const fn missed(&self) -> u64 {
        self.due.saturating_sub(self.admitted)
    }
}

const SECOND_US: u64 = 1_000_000;

pub(crate) fn compare(plan: &Plan, seen: &HammerResult) -> Result<ExactnessResult, String> {
    let moments = &seen.admitted;
    let first = *moments.first().ok_or("nothing was admitted")?;
    let lasted = seen.last.saturating_sub(first);
    let units = plan.per_second;
    let (due, beyond) = match plan.algorithm {
        "fixed_window" => {
            let windows = seen.last / SECOND_US - first / SECOND_US + 1;
            (units * windows, beyond_window(moments, units))
        }
        "sliding_log" => (units * (lasted / SECOND_US + 1), beyond_log(moments, units)),
        _ => (units + units * lasted / SECOND_US, beyond_envelope(moments, units)),
    };
    Ok(ExactnessResult {
        admitted: moments.len() as u64,
        due,
        beyond,
    })
}

/// In any interval of `t` seconds at most `units * (1 + t)` may pass. Rounded up.
fn beyond_envelope(moments: &[u64], units: u64) -> u64 {
    let units = i64::try_from(units).unwrap_or(i64::MAX);
    let excess = u64::try_from(excess_millionths(moments, units, units)).unwrap_or_default();
    excess.div_ceil(SECOND_US)
}

/// In each window, counted from the epoch, at most `units` may pass.
fn beyond_window(moments: &[u64], units: u64) -> u64 {
    let windows = moments.chunk_by(|one, other| one / SECOND_US == other / SECOND_US);
    let most = windows.map(|window| window.len() as u64).max();
    most.unwrap_or_default().saturating_sub(units)
}

/// In any interval of one second, its end included and its start excluded, at most `units` may pass.
fn beyond_log(moments: &[u64], units: u64) -> u64 {
    let (mut begin, mut most) = (moments.iter().peekable(), 0);
    let mut inside = 0_u64;
    for &end in moments {
        inside += 1;
        while begin.next_if(|begin| **begin + SECOND_US <= end).is_some() {
            inside -= 1;
        }
        most = most.max(inside);
    }
    most.saturating_sub(units)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_and_what_comes_back_is_within_the_envelope_and_one_more_is_not() {
        let mut moments = vec![5; 10];
        moments.extend((1..=20).map(|turn| 5 + turn * 100_000));
        assert_eq!(beyond_envelope(&moments, 10), 0);
        moments.insert(15, moments[15]);
        assert_eq!(beyond_envelope(&moments, 10), 1);
    }

    #[test]
    fn windows_are_counted_each_and_logs_in_any_stretch() {
        let moments = [999_998, 999_999, 1_000_000, 1_000_001, 1_999_997, 1_999_998];
        assert_eq!(beyond_window(&moments, 2), 2);
        assert_eq!(beyond_window(&moments, 4), 0);
        // From just after 999,998 to 1,999,997 there are four; then the first leaves as the last arrives.
        assert_eq!(beyond_log(&moments, 5), 0);
        assert_eq!(beyond_log(&moments, 3), 2);
    }
}
