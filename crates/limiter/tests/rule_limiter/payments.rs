//! The two-tier example, walked through.

use super::{attempt, attributes, check, limiter};
use tollgate_limiter::RuleLimiter;
use tollgate_limiter::core::Micros;

const PAYMENTS: &str = include_str!("../../../../examples/payments.yaml");

/// How many charges of one unit pass before one does not.
fn count_allowed(limiter: &RuleLimiter, pairs: &[&str]) -> u32 {
    let attributes = attributes(pairs);
    let attempt = attempt(&attributes, 1);
    (0..)
        .take_while(|_| limiter.check_now(&attempt).verdict.allowed)
        .count() as u32
}

#[test]
fn a_merchant_gets_what_his_plan_gives() {
    let (limiter, clock) = limiter(PAYMENTS);
    let charge = "endpoint=/v1/charges";
    for (pairs, expected) in [
        (&["merchant=m_1", charge][..], 100),
        (&["merchant=m_2", charge, "tier=free"], 100),
        (&["merchant=m_3", charge, "tier=enterprise"], 500),
        (&["merchant=m_4", "endpoint=/v1/refunds", "tier=free"], 100),
    ] {
        assert_eq!(count_allowed(&limiter, pairs), expected, "{pairs:?}");
    }
    // 9,300 of the ceiling's 10,000 are left: the four refused charges are not among the 700 it has counted.
    assert_eq!(
        check(&limiter, &["merchant=m_1", charge], 1),
        "denied by merchant-plan: charges-ceiling 9300 merchant-plan 0 After(Micros(600000))"
    );
    assert_eq!(
        check(&limiter, &["merchant=m_3", charge, "tier=enterprise"], 1),
        "denied by merchant-plan: charges-ceiling 9300 merchant-plan 0 After(Micros(12000))"
    );
    // 5,000 a minute is one every 12 ms; the free plan's next is due after 600.
    clock.advance(Micros::from_millis(12));
    assert_eq!(count_allowed(&limiter, &["merchant=m_3", charge, "tier=enterprise"]), 1);
    assert_eq!(count_allowed(&limiter, &["merchant=m_1", charge]), 0);
    clock.advance(Micros::from_millis(588));
    assert_eq!(count_allowed(&limiter, &["merchant=m_1", charge]), 1);
}

#[test]
fn the_override_goes_beyond_every_plan_and_the_ceiling_holds_all() {
    let (limiter, clock) = limiter(PAYMENTS);
    let charge = "endpoint=/v1/charges";
    let big = ["merchant=m_42", charge, "tier=free"];
    assert_eq!(
        check(&limiter, &big, 9_950),
        "allowed by charges-ceiling: charges-ceiling 50 merchant-plan 10050"
    );
    // The ceiling refuses; the merchant, who had room, is not charged.
    assert_eq!(
        check(&limiter, &big, 51),
        "denied by charges-ceiling: charges-ceiling 50 After(Micros(100)) merchant-plan 10050"
    );
    // The merchant refuses; the ceiling, which had room, is not charged.
    assert_eq!(
        check(&limiter, &["merchant=m_1", "endpoint=/v1/refunds"], 90),
        "allowed by merchant-plan: merchant-plan 10"
    );
    assert_eq!(
        check(&limiter, &["merchant=m_1", charge], 11),
        "denied by merchant-plan: charges-ceiling 50 merchant-plan 10 After(Micros(600000))"
    );
    assert_eq!(
        check(&limiter, &big, 50),
        "allowed by charges-ceiling: charges-ceiling 0 merchant-plan 10000"
    );
    // Elsewhere there is no ceiling, and a second later it is there again in full.
    let elsewhere = ["merchant=m_42", "endpoint=/v1/refunds"];
    assert_eq!(
        check(&limiter, &elsewhere, 10_000),
        "allowed by merchant-plan: merchant-plan 0"
    );
    clock.advance(Micros::from_secs(1));
    assert_eq!(
        check(&limiter, &["merchant=m_9", charge], 1),
        "allowed by merchant-plan: charges-ceiling 9999 merchant-plan 99"
    );
}

#[test]
fn a_search_costs_five_of_the_same_plan() {
    let (limiter, _) = limiter(
        "rules:\n- { id: plan, per: user, limit: 100/min, \
         cost: [{ when: { endpoint: /search }, cost: 5 }, { default: 1 }] }\n",
    );
    let (search, other) = (["user=u", "endpoint=/search"], ["user=u", "endpoint=/other"]);
    assert_eq!(check(&limiter, &search, 1), "allowed by plan: plan 95");
    assert_eq!(check(&limiter, &other, 1), "allowed by plan: plan 94");
    assert_eq!(check(&limiter, &search, 18), "allowed by plan: plan 4");
    assert_eq!(
        check(&limiter, &search, 1),
        "denied by plan: plan 4 After(Micros(600000))"
    );
    assert_eq!(check(&limiter, &["user=u"], 4), "allowed by plan: plan 0");
}
