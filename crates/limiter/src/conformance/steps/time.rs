//! The steps in which time passes: leases, refill, idle keys.

use crate::conformance::reference::{ReferenceModel, charge};
use crate::conformance::samples::{LONG, SHORT};
use crate::store::Store;
use tollgate_core::{LeaseId, Limit, Micros, Retry};

pub(super) async fn leases<S: Store>(model: &mut ReferenceModel<'_, S>) -> Result<(), String> {
    use LeaseOp::{Release, Renew};
    let ttl = if model.has_manual_clock() { LONG } else { SHORT };
    let limit = model.shape().limit(2, ttl)?;
    let key = model.key("one", &limit);
    if !matches!(limit, Limit::Concurrency(_)) {
        let lease = model.lease();
        model.settle_with_lease(&[charge(key, &limit, 1)?], lease).await?;
        model.release(key, &limit, lease).await?;
        model.renew(key, &limit, lease).await?;
        return Ok(());
    }
    // Long leases first: their steps do not depend on time.
    let long = model.shape().limit(3, LONG)?;
    let held = model.key("long", &long);
    let (first, second, unknown) = (model.lease(), model.lease(), model.lease());
    model.settle_with_lease(&[charge(held, &long, 2)?], first).await?;
    model.settle_with_lease(&[charge(held, &long, 1)?], second).await?;
    apply(model, Renew, "renewing what is held", (held, &long, first), true).await?;
    apply(
        model,
        Release,
        "releasing an unknown lease",
        (held, &long, unknown),
        false,
    )
    .await?;
    apply(model, Release, "releasing", (held, &long, first), true).await?;
    apply(model, Release, "releasing again", (held, &long, first), false).await?;
    apply(model, Renew, "renewing what was released", (held, &long, first), false).await?;
    model.expect_remaining(held, &long, 2).await?;
    apply(model, Release, "releasing the other", (held, &long, second), true).await?;
    model.expect_remaining(held, &long, 3).await?;
    // Short leases expire.
    let lost = model.lease();
    model.settle_with_lease(&[charge(key, &limit, 2)?], lost).await?;
    model.advance(key, &limit, ttl).await?;
    apply(model, Renew, "renewing an expired lease", (key, &limit, lost), false).await?;
    apply(model, Release, "releasing an expired lease", (key, &limit, lost), false).await?;
    model.expect_remaining(key, &limit, 2).await?;
    if model.has_manual_clock() {
        let kept = model.lease();
        model.settle_with_lease(&[charge(key, &limit, 2)?], kept).await?;
        for _ in 0..3 {
            model.advance(key, &limit, Micros::new(ttl.get() - 1)).await?;
            apply(model, Renew, "renewing in time", (key, &limit, kept), true).await?;
            model.expect_remaining(key, &limit, 0).await?;
        }
        model.advance(key, &limit, ttl).await?;
        model.expect_remaining(key, &limit, 2).await?;
    }
    Ok(())
}

/// An operation on a lease.
#[derive(Clone, Copy)]
enum LeaseOp {
    Release,
    Renew,
}

/// Releases or renews a lease, and fails unless it was held as `expected`.
async fn apply<S: Store>(
    model: &mut ReferenceModel<'_, S>,
    op: LeaseOp,
    what: &str,
    (key, limit, lease): (S::Key, &Limit, LeaseId),
    expected: bool,
) -> Result<(), String> {
    let held = match op {
        LeaseOp::Release => model.release(key, limit, lease).await?,
        LeaseOp::Renew => model.renew(key, limit, lease).await?,
    };
    model.expect_equal(what, expected, held)
}

/// The largest number of requests to exhaust a small limit that refills meanwhile.
const TAKES_MAX: usize = 1_000;

pub(super) async fn refill<S: Store>(model: &mut ReferenceModel<'_, S>) -> Result<(), String> {
    let period = if model.has_manual_clock() { LONG } else { SHORT };
    let limit = model.shape().limit(3, period)?;
    let key = model.key("one", &limit);
    for _ in 0..3 {
        let mut last_retry = None;
        for _ in 0..TAKES_MAX {
            let outcome = model.settle_one(key, &limit, 1).await?;
            if let Some(retry) = outcome.decision.retry() {
                last_retry = Some(retry);
                break;
            }
        }
        let wait = match last_retry {
            Some(Retry::After(wait)) => wait,
            Some(Retry::Unknown) if matches!(limit, Limit::Concurrency(_)) => period,
            // A store too slow for the period never sees it exhausted.
            None if !model.has_manual_clock() => return Ok(()),
            other => return Err(model.mismatch("the denial", "a time to wait", other)),
        };
        if model.has_manual_clock() && wait > Micros::ONE {
            model.advance(key, &limit, Micros::new(wait.get() - 1)).await?;
            let early = model.settle_one(key, &limit, 1).await?;
            let passes = early.decision.is_allow();
            model.expect_equal("whether it is allowed 1 us early", false, passes)?;
            model.advance(key, &limit, Micros::ONE).await?;
        } else {
            model.advance(key, &limit, wait).await?;
        }
        let outcome = model.settle_one(key, &limit, 1).await?;
        model.expect_equal("whether it is allowed when promised", true, outcome.decision.is_allow())?;
    }
    Ok(())
}

pub(super) async fn idle<S: Store>(model: &mut ReferenceModel<'_, S>) -> Result<(), String> {
    let period = if model.has_manual_clock() { LONG } else { SHORT };
    let limit = model.shape().limit(3, period)?;
    let key = model.key("one", &limit);
    let outcome = model.settle_one(key, &limit, 2).await?;
    let reset = outcome.decision.standing().reset_after;
    model.advance(key, &limit, reset).await?;
    model.expect_remaining(key, &limit, 3).await?;
    model.undo(key, &limit, &outcome.receipt).await?;
    model.expect_remaining(key, &limit, 3).await?;
    model.settle_one(key, &limit, 3).await?;
    Ok(())
}
