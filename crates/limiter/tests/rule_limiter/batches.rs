//! Batches: `check_each` gives the results of checking one attempt after the other at one instant.

use super::{attempt, attributes, rules, stopped_store};
use tollgate_limiter::core::testing::random::Random;
use tollgate_limiter::{CheckResult, RuleLimiter};

const RULES: &str = r"
rules:
- { id: ceiling, when: { endpoint: /a }, limit: 40/min }
- { id: plan, per: user, limit: [5/s, 20/min], overrides: [{ user: banned, limit: 0/s }, { user: free, limit: unlimited }] }
- { id: watched, per: user, limit: 3/min, mode: shadow }
- { id: slots, per: user, algorithm: concurrency, limit: 2, when: { endpoint: /slow } }
- { id: shaped, per: user, algorithm: leaky_bucket, shape: true, limit: 10/s, when: { endpoint: /b } }
";

/// Everything of a result but the random id of its lease.
fn fields(result: &CheckResult<'_>) -> String {
    let rulings: Vec<_> = result
        .verdict
        .rulings
        .iter()
        .map(|ruling| (ruling.name, ruling.mode, ruling.decision, ruling.source))
        .collect();
    let verdict = &result.verdict;
    format!(
        "{} {:?} {:?} {:?} {:?} lease {} {:?}",
        verdict.allowed,
        verdict.nearest,
        verdict.delay,
        verdict.source,
        rulings,
        result.lease.is_some(),
        result.now
    )
}

#[test]
fn a_batch_is_answered_as_its_elements_are_one_by_one() {
    for seed in 0..50 {
        let mut random = Random::new(seed);
        let pairs: Vec<[String; 2]> = (0..60)
            .map(|_| {
                let user = random.pick(&["u1", "u2", "banned", "free"]);
                let endpoint = random.pick(&["/a", "/b", "/slow", "/other"]);
                [format!("user={user}"), format!("endpoint={endpoint}")]
            })
            .collect();
        let costs: Vec<u64> = pairs.iter().map(|_| random.below(3)).collect();
        let texts: Vec<[&str; 2]> = pairs.iter().map(|[user, endpoint]| [&**user, &**endpoint]).collect();
        let attributes: Vec<_> = texts.iter().map(|pair| attributes(pair)).collect();
        let attempts: Vec<_> = attributes
            .iter()
            .zip(&costs)
            .map(|(all, cost)| attempt(all, *cost))
            .collect();
        let ((one, _), (other, _)) = (stopped_store(), stopped_store());
        let (batched, single) = (
            RuleLimiter::new(rules(RULES), one),
            RuleLimiter::new(rules(RULES), other),
        );
        let expected: Vec<String> = attempts
            .iter()
            .map(|attempt| fields(&single.check_now(attempt)))
            .collect();
        let results: Vec<String> = batched.check_each_now(&attempts).iter().map(fields).collect();
        assert_eq!(results, expected, "seed {seed}");
    }
}
