//! Random rules with a reserve, and random attempts on them.

use tollgate_limiter::core::Cost;
use tollgate_limiter::core::rules::Attribute;
use tollgate_limiter::core::testing::random::Random;
use tollgate_limiter::testing::reserve::ReservedRule;

/// A random rule. Its numbers are small, so that its limits are reached; `period_ms` is that of its limit.
pub(crate) fn random_rule(random: &mut Random, period_ms: &[u64]) -> (ReservedRule, u64) {
    loop {
        let (units, period_ms) = (random.between(2, 60), random.pick(period_ms));
        let burst = random.between(1, 80);
        let name = random.pick(&[
            "token_bucket",
            "gcra",
            "leaky_bucket",
            "fixed_window",
            "sliding_log",
            "sliding_counter",
        ]);
        let has_burst = ["token_bucket", "gcra", "leaky_bucket"].contains(&name);
        let burst_text = if has_burst && random.one_in(2) {
            format!(" burst {burst}")
        } else {
            String::new()
        };
        let members = format!("algorithm: {name}, limit: {units}/{period_ms}ms{burst_text}");
        let lends = has_burst && random.one_in(3);
        let share = random.pick(&[1, 10_000, 100_000, 200_000, 333_333, 500_000, 750_000, 900_000]);
        if let Some(rule) = ReservedRule::parse(&members, share, lends) {
            return (rule, period_ms * 1_000 / units);
        }
    }
}

/// A random attempt: its class and its cost.
pub(crate) struct RandomAttempts {
    critical_of_ten: u64,
    capacity: u64,
}

impl RandomAttempts {
    pub(crate) fn new(random: &mut Random, rule: &ReservedRule) -> Self {
        Self {
            critical_of_ten: random.between(1, 9),
            capacity: rule.all.capacity(),
        }
    }

    pub(crate) fn next(&self, random: &mut Random) -> (bool, Cost) {
        let units = match random.below(8) {
            0 => random.between(0, self.capacity + 2),
            1 => random.between(1, self.capacity.div_ceil(4)),
            _ => 1,
        };
        (
            random.below(10) < self.critical_of_ten,
            Cost::new(units).expect("in range"),
        )
    }
}

/// The attributes of an attempt of a case.
pub(crate) fn of_case(case: &str, is_critical: bool) -> [Attribute<'_>; 2] {
    let class: &[u8] = if is_critical { b"critical" } else { b"normal" };
    [("case", case.as_bytes()), ("priority", class)].map(|(name, value)| Attribute { name, value })
}
